"""The Python API of benchmarks: ``opscope.bench``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from opscope.base.errors import UsageError
from opscope.base.summary import Bar, Summary
from opscope.base.units import format_ns
from opscope.documents import bench as doc
from opscope.documents.bench import BenchDocument, BenchResult
from opscope.render.markdown import render
from opscope.report.bench_document import bench_section
from opscope.workbench.benchmarking.stopping import Limits


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a benchmark measured, and what may be said of it.

    Attributes:
        document: everything, by the schema ``opscope.bench/1``.
    """

    document: BenchDocument

    @property
    def results(self) -> tuple[BenchResult, ...]:
        """The durations and the correctness of every variant."""
        return self.document.results

    @property
    def comparisons(self) -> tuple[doc.Comparison, ...]:
        """Every variant beside the first one."""
        return self.document.comparisons

    def to_dict(self) -> dict[str, Any]:
        """Return the document as ``opscope bench --format json`` prints it."""
        found: dict[str, Any] = msgspec.to_builtins(self.document)
        return found

    def report(self) -> str:
        """Return everything as Markdown."""
        return render(bench_section(self.document), level=2)

    def __repr__(self) -> str:
        lines = [f"{result.name}: {_shown(result)}" for result in self.results]
        lines += [f"{found.variant} beside {found.baseline}: {found.sentence}" for found in self.comparisons]
        return "\n".join(lines)

    def summary(self) -> Summary:
        """Return what may be said of every variant, and by the best measure that all have, how long each takes."""
        measure = doc.headline(self.results)
        rows = [(result.name, _shown(result)) for result in self.results]
        rows += [(f"{found.variant} beside {found.baseline}", found.sentence) for found in self.comparisons]
        found = ((result, result.duration(measure)) for result in self.results)
        bars = tuple(Bar(_titled(result), time.median, _with_interval(time)) for result, time in found if time)
        return Summary("Benchmark", tuple(rows), bars, f"Medians by {_measure_name(measure)}, with 95 % intervals")

    def _repr_html_(self) -> str:
        return self.summary().html()

    def _repr_markdown_(self) -> str:
        return self.report()


def _measure_name(measure: doc.Measure) -> str:
    """Return what a measure is called in running text."""
    return str(measure).removesuffix("_ns").replace("_", " ")


def _titled(result: BenchResult) -> str:
    return " ".join([result.name, *(f"{name}={value}" for name, value in result.parameters.items())])


def _with_interval(time: doc.Duration) -> str:
    if time.ci_low is None or time.ci_high is None:
        return format_ns(time.median)
    return f"{format_ns(time.median)} ({format_ns(time.ci_low)} to {format_ns(time.ci_high)})"


def _shown(result: BenchResult) -> str:
    parts = [
        f"{_measure_name(measure)} {format_ns(found.median)}"
        for measure in doc.Measure
        if (found := result.duration(measure)) is not None
    ]
    checked = result.correctness
    return ", ".join(parts or ["not timed"]) + ("" if checked is None else f" ({checked.verdict})")


def bench(
    variants: Mapping[str, Callable[..., object]] | Callable[..., object],
    *,
    inputs: object = None,
    reference: Callable[..., object] | None = None,
    device: str = "auto",
    seconds: float = 0.5,
    precision: float = 0.01,
    calls: int = 2_000,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Benchmark functions of the same inputs beside each other, in this process; the first one is the baseline.

    Args:
        variants: the functions by name, or one.
        inputs: their arguments: a tuple, one value, or what makes them (it may take ``device``); None for none.
        reference: computes the right result in float64; None takes the baseline.
        device: where: ``cpu``, ``cuda``, ``auto``.
        seconds: the most time for one kind of duration of one variant.
        precision: half the width of the interval over the median that is narrow enough.
        calls: the most calls of one kind.
        progress: called with what goes on.

    Raises:
        UsageError: there is no variant, or the device is not there.
        EnvironmentLacksError: PyTorch is missing.
    """
    from opscope.torch_support.device import current, resolve_device
    from opscope.workbench.benchmarking.case import Case
    from opscope.workbench.benchmarking.run import bench_case
    from opscope.workbench.jobs.bench_written import document_of

    named = {getattr(variants, "__name__", "function"): variants} if callable(variants) else dict(variants)
    if not named:
        raise UsageError("there is nothing to benchmark: name at least one function")
    make = inputs if callable(inputs) or inputs is None else _giving(inputs)
    where = resolve_device(device)
    case = Case("opscope.bench", named, make, reference)
    with current(where):
        results = bench_case(case, {}, where, Limits(half_width=precision, seconds=seconds, calls=calls), progress)
    return Comparison(document_of(results, where))


def _giving(value: object) -> Callable[[], object]:
    return lambda: value
