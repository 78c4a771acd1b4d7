"""``opscope diff`` of two saved benchmarks: whether anything takes longer now."""

from pathlib import Path

from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.cli.emit import Output, emit
from opscope.cli.options import INCONCLUSIVE
from opscope.cli.reading import read_bench
from opscope.cli.say import say
from opscope.documents.bench import BenchDocument, Changed, ChangesDocument, RegressionVerdict
from opscope.record.bench import BenchRequest
from opscope.report.bench_document import change_table
from opscope.workbench.benchmarking.regression import changes, differences, worst_change

_CLOSER = 4  # times: measured again, the interval is to be that much narrower, and may take that much longer
_FAIL_OVER = 0.05  # the largest slowdown that is accepted where none is named
_HEAD = 4096  # bytes in which a document names its schema
_MOST_PROCESSES = 64  # whatever a file says


class Remeasure(Struct, frozen=True, kw_only=True):
    """What is run to measure inconclusive results once more, as the command line names it.

    Attributes:
        wanted: whether that is asked for.
        targets: the benchmarks' targets.
        inputs, reference: the functions that make arguments, and right results.
        axes: the values of parameters, by name.
    """

    wanted: bool
    targets: tuple[str, ...]
    inputs: str | None
    reference: str | None
    axes: dict[str, tuple[str, ...]]

    @property
    def is_empty(self) -> bool:
        """Whether no option of it is given."""
        return not (self.wanted or self.targets or self.inputs or self.reference or self.axes)


def are_benchmarks(before: Path, after: Path) -> bool:
    """Tell whether two files are benchmarks that ``opscope bench --save`` wrote.

    Raises:
        UsageError: one of them is, and the other is not.
    """
    kinds = {path: _is_benchmark(path) for path in (before, after)}
    if any(kinds.values()) and not all(kinds.values()):
        one, other = (before, after) if kinds[before] else (after, before)
        raise UsageError(f"{one} is a benchmark of opscope bench --save, and {other} is not: compare two of a kind")
    return kinds[before]


def _is_benchmark(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"opscope.bench/' in file.read(_HEAD)


def compare_benchmarks(
    before: Path, now: Path, fail_over: float | None, again: Remeasure, output_format: str, *, any_environment: bool
) -> int:
    """Print whether anything takes longer in one of two benchmarks, and return the exit code.

    Args:
        before: the file of the first.
        now: that of the second.
        fail_over: the largest slowdown to accept, as a ratio less 1; None for 5 %.
        again: what is run to measure inconclusive results once more.
        output_format: ``table``, ``json``, ``csv``, ``md`` or ``brief``.
        any_environment: whether they are compared even if devices, versions or inputs differ.

    Raises:
        UsageError: they were not measured alike, or something else is to be run than what was measured.
    """
    most = _FAIL_OVER if fail_over is None else fail_over
    request = _request(again)
    first, second = read_bench(before), read_bench(now)
    if request is not None:
        _refuse_other(request, second.request, now)
    other = differences(first, second)
    if other and not any_environment:
        raise UsageError(f"these were not measured alike ({'; '.join(other)}). --any-environment compares them anyway")
    outcome = changes(first, second, most)
    if request is not None and worst_change(outcome) is RegressionVerdict.INCONCLUSIVE:
        outcome = _again(request, first, second, most) or outcome
    _show(outcome, most, output_format)
    result = worst_change(outcome)
    if result is RegressionVerdict.FINE:
        return 0
    return INCONCLUSIVE if result is RegressionVerdict.INCONCLUSIVE else 1


def _request(again: Remeasure) -> BenchRequest | None:
    """Return what to measure again, from the words of this command line alone; None where nothing is."""
    if not again.wanted:
        if not again.is_empty:
            raise UsageError("--target, --inputs, --reference, --size, --dtype and --set need --again")
        return None
    if not again.targets:
        raise UsageError(
            "--again runs code, so name what to run: --target ways.py, and --inputs, --reference, --size, --dtype, "
            "--set as opscope bench was given them"
        )
    asked = BenchRequest()
    return BenchRequest(
        targets=again.targets,
        inputs=again.inputs,
        reference=again.reference,
        axes=again.axes,
        seconds=_CLOSER * asked.seconds,
        half_width=asked.half_width / _CLOSER,
    )


def _refuse_other(request: BenchRequest, measured: BenchRequest | None, path: Path) -> None:
    """Refuse to measure anything other than what a file holds."""
    if measured is None:
        raise UsageError(f"{path} does not say what it measured, so it cannot be measured again")
    for name in ("targets", "inputs", "reference", "axes"):
        if getattr(request, name) != getattr(measured, name):
            raise UsageError(
                f"{path} is of other {name}: {_words(getattr(measured, name))} there, "
                f"{_words(getattr(request, name))} here"
            )


def _words(value: object) -> str:
    if isinstance(value, dict):
        value = tuple(f"{name}={','.join(values)}" for name, values in value.items())
    return " ".join(value) or "none" if isinstance(value, tuple) else str(value or "none")


def _again(
    request: BenchRequest, first: BenchDocument, second: BenchDocument, fail_over: float
) -> tuple[Changed, ...] | None:
    """Measure again, longer; None where that is not possible here."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return None
    from opscope.workbench.jobs.bench_process import benchmark_in_processes

    def announce(text: str) -> None:
        say(f"opscope: again: {text}")

    measured = benchmark_in_processes(request, min(second.processes, _MOST_PROCESSES), 3600.0, announce)
    if differences(second, measured):  # measured in another environment, it says nothing of NOW
        return None
    return changes(first, measured, fail_over)


def _show(results: tuple[Changed, ...], threshold: float, output_format: str) -> None:
    document = ChangesDocument(threshold=threshold, changes=results)
    emit(Output.of_table(document, change_table(results), "Since then"), output_format)
