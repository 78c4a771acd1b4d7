"""A fixture for pytest: ``def test_x(opscope_bench): opscope_bench(f, inputs, max_regression="5%")``.

Durations are compared with a saved baseline (``--opscope-baseline FILE``, written by ``--opscope-save``), and results
with float64. If that gives no clear answer, the test is an expected failure that says by how much the duration may have
changed; with ``--opscope-strict``, it fails. Nothing is imported, and nothing happens, unless a test uses the fixture.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from opscope.documents.bench import BenchDocument

_DEFAULT = "opscope-baseline.json"
_AGAIN = (4, 8, 16)  # how many times as long to measure again while the result is unclear
Bench = Callable[..., "BenchDocument"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's command-line options to pytest."""
    group = parser.getgroup("opscope", "benchmarks against a saved baseline")
    group.addoption(
        "--opscope-baseline", default=_DEFAULT, metavar="FILE", help=f"What opscope_bench compares with [{_DEFAULT}]."
    )
    group.addoption("--opscope-save", action="store_true", help="Save what opscope_bench measures as the baseline.")
    group.addoption(
        "--opscope-strict", action="store_true", help="Fail where opscope_bench cannot tell whether it takes longer."
    )


@pytest.fixture
def opscope_bench(request: pytest.FixtureRequest) -> Bench:
    """Benchmark a function and compare it with the baseline saved for this test.

    Returns:
        A function that takes the function to benchmark and its ``inputs``, and ``max_regression``: by how much longer
        it may take, ``"5%"``. It returns the `BenchDocument`.
    """
    path = Path(request.config.getoption("--opscope-baseline"))
    saves = bool(request.config.getoption("--opscope-save"))
    strict = bool(request.config.getoption("--opscope-strict"))
    name = request.node.nodeid
    count = 0

    def run(
        function: Callable[..., object],
        inputs: object = None,
        *,
        max_regression: str = "5%",
        reference: Callable[..., object] | None = None,
        device: str = "auto",
        seconds: float = 0.5,
    ) -> "BenchDocument":
        nonlocal count
        count += 1
        # A test may benchmark several functions; each call has a baseline of its own.
        own = name if count == 1 else f"{name}#{count}"

        def measured(times: int = 1) -> "BenchDocument":
            from opscope.api.bench import bench

            # With the same precision, measuring would stop where it stopped before, however much time it has.
            return bench(
                function, inputs=inputs, reference=reference, device=device, seconds=seconds * times,
                precision=0.01 / times,
            ).document  # fmt: skip

        now = measured()
        _refuse_wrong(now)
        if saves:
            for times in _AGAIN:  # later comparisons need a baseline that other processes did not disturb
                if all(result.steady is not None or result.contention is None for result in now.results):
                    break
                now = measured(times)
            _save(path, own, now)
            return now
        before = _saved(path).get(own)
        if before is None:
            _undecided(f"no baseline of this test is saved in {path}: pytest --opscope-save saves one", strict=strict)
            return now
        return _judged(before, now, float(max_regression.removesuffix("%")) / 100, measured, strict=strict)

    return run


def _undecided(reason: str, *, strict: bool) -> None:
    """End a test without a clear result: as an expected failure, or if strict, as a failure."""
    if strict:
        pytest.fail(f"not decided: {reason}")
    pytest.xfail(f"not decided: {reason}")


def _judged(
    before: "BenchDocument",
    now: "BenchDocument",
    threshold: float,
    measured: Callable[[int], "BenchDocument"],
    *,
    strict: bool,
) -> "BenchDocument":
    from opscope.documents.bench import RegressionVerdict
    from opscope.measuring.verdicts import changes, differences, worst_change

    if other := differences(before, now):
        _undecided(f"the baseline was not measured alike ({'; '.join(other)})", strict=strict)
    outcome = changes(before, now, threshold)
    for times in _AGAIN:
        if worst_change(outcome) is RegressionVerdict.FINE:
            return now
        first, now = worst_change(outcome), measured(times)
        outcome = changes(before, now, threshold)
        # A regression counts if it shows twice.
        if first is worst_change(outcome) and first is not RegressionVerdict.INCONCLUSIVE:
            break
    if worst_change(outcome) is RegressionVerdict.INCONCLUSIVE:
        unknown = next(one for one in outcome if one.change is RegressionVerdict.INCONCLUSIVE)
        doubts = [doubt for result in now.results for doubt in (*result.doubts, result.contention) if doubt]
        why = f" ({doubts[0]})" if doubts else ""
        between = "an unknown number of"
        if unknown.ratio_low is not None and unknown.ratio_high is not None:
            between = f"{unknown.ratio_low:.3f} to {unknown.ratio_high:.3f}"
        _undecided(
            f"it takes {between} times as long as the baseline, and {100 * threshold:g} % more are allowed{why}",
            strict=strict,
        )
    if (verdict := worst_change(outcome)) is not RegressionVerdict.FINE:
        slow = next(one for one in outcome if one.change is verdict)
        if slow.before_ns is None or slow.now_ns is None or slow.ratio_low is None or slow.ratio_high is None:
            pytest.fail(f"{slow.change}: {slow.name} of the baseline")
        pytest.fail(
            f"{slow.change}: {slow.before_ns:,.0f} ns before, {slow.now_ns:,.0f} ns now, {slow.ratio_low:.3f} to "
            f"{slow.ratio_high:.3f} times as long ({slow.measure}, {100 * threshold:g} % allowed)"
        )
    return now


def _refuse_wrong(now: "BenchDocument") -> None:
    from opscope.documents.bench import Correct

    for result in now.results:
        if result.correctness is not None and result.correctness.verdict is Correct.WRONG:
            pytest.fail(f"{result.name} is wrong: {result.correctness.sentence}")


def _saved(path: Path) -> "dict[str, BenchDocument]":
    from opscope.documents.bench import BenchDocument

    if not path.is_file():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, BenchDocument])


def _save(path: Path, name: str, now: "BenchDocument") -> None:
    from opscope.base.files import alone_in, write_output
    from opscope.record.codec import encode

    with alone_in(path.parent):  # pytest-xdist's workers save into one file
        write_output(path, encode({**_saved(path), name: now}))
