"""The Python API of benchmarks: ``opscope.bench``."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.base.summary import Bar, Summary
from opscope.base.units import format_ns
from opscope.documents import bench as doc
from opscope.documents.bench import BenchDocument, BenchResult
from opscope.measuring.rounds import MeasuringLimits
from opscope.render.markdown import render
from opscope.report.bench_document import bench_section


class Comparison(Struct, frozen=True):
    """The results of a benchmark, and the comparisons of its variants.

    Attributes:
        document: all results, by the schema ``opscope.bench/1``.
    """

    document: BenchDocument

    @property
    def results(self) -> tuple[BenchResult, ...]:
        """The durations and the correctness of every variant."""
        return self.document.results

    @property
    def comparisons(self) -> tuple[doc.VariantComparison, ...]:
        """The comparison of every variant with the first one, the baseline."""
        return self.document.comparisons

    def to_dict(self) -> dict[str, Any]:
        """Return the document as ``opscope bench --format json`` prints it."""
        results: dict[str, Any] = msgspec.to_builtins(self.document)
        return results

    def report(self) -> str:
        """Return all results as Markdown."""
        return render(bench_section(self.document), level=2)

    def __repr__(self) -> str:
        lines = [f"{result.name}: {_shown(result)}" for result in self.results]
        lines += [f"{result.variant} beside {result.baseline}: {result.sentence}" for result in self.comparisons]
        return "\n".join(lines)

    def summary(self) -> Summary:
        """Summarise the durations and comparisons, with a chart by the best measure that all variants have."""
        measure = doc.headline(self.results)
        rows = [(result.name, _shown(result)) for result in self.results]
        rows += [(f"{result.variant} beside {result.baseline}", result.sentence) for result in self.comparisons]
        durations = ((result, result.duration(measure)) for result in self.results)
        bars = tuple(Bar(_titled(result), time.median, _with_interval(time)) for result, time in durations if time)
        return Summary("Benchmark", tuple(rows), bars, f"Medians by {_measure_name(measure)}, with 95 % intervals")

    def _repr_html_(self) -> str:
        return self.summary().html()

    def _repr_markdown_(self) -> str:
        return self.report()


def _measure_name(measure: doc.Measure) -> str:
    """Return a measure's name for running text."""
    return str(measure).removesuffix("_ns").replace("_", " ")


def _titled(result: BenchResult) -> str:
    return " ".join([result.name, *(f"{name}={value}" for name, value in result.parameters.items())])


def _with_interval(time: doc.Duration) -> str:
    if time.ci_low is None or time.ci_high is None:
        return format_ns(time.median)
    return f"{format_ns(time.median)} ({format_ns(time.ci_low)} to {format_ns(time.ci_high)})"


def _shown(result: BenchResult) -> str:
    parts = [
        f"{_measure_name(measure)} {format_ns(outcome.median)}"
        for measure in doc.Measure
        if (outcome := result.duration(measure)) is not None
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
    """Benchmark functions with the same inputs in this process; the first one is the baseline.

    Args:
        variants: the functions by name, or one function.
        inputs: their arguments: a tuple, one value, or a function that makes them (it may take ``device``); None for
            functions without arguments.
        reference: computes the right result in float64; None takes the baseline.
        device: ``cpu``, ``cuda``, ``cuda:N`` or ``auto`` (the first GPU, else the CPU).
        seconds: the time limit for one measure of one variant.
        precision: measuring stops when half of the median's 95 % interval is at most this share of the median.
        calls: the most calls of one measure.
        progress: called with lines on the progress.

    Raises:
        UsageError: there is no variant, or the device does not exist.
        EnvironmentLacksError: PyTorch is missing.
    """
    from opscope.torch_support.tensors import current, resolve_device
    from opscope.workbench.benchmarking.case import Case
    from opscope.workbench.benchmarking.run import bench_case
    from opscope.workbench.jobs.bench_targets import bench_document_of

    named = {getattr(variants, "__name__", "function"): variants} if callable(variants) else dict(variants)
    if not named:
        raise UsageError("there is nothing to benchmark: name at least one function")
    # Cases take a function that makes the arguments.
    make = inputs if callable(inputs) or inputs is None else _giving(inputs)
    where = resolve_device(device)
    case = Case("opscope.bench", named, make, reference)
    with current(where):
        results = bench_case(
            case, {}, where, MeasuringLimits(half_width=precision, seconds=seconds, calls=calls), progress
        )
    return Comparison(bench_document_of(results, where))


def _giving(value: object) -> Callable[[], object]:
    return lambda: value
