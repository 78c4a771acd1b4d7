"""Renders benchmarks for people, and writes them as JSON of pytest-benchmark, which dashboards and GitHub actions read.

There statistics are in seconds, and keys are those of pytest-benchmark 5, which need not be installed.
"""

import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from opscope._version import __version__
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.units import NS_PER_S, NS_PER_US, format_ns, format_share
from opscope.documents.bench import (
    CONFIRMED_WITHIN,
    BenchDocument,
    BenchResult,
    Changed,
    Correct,
    Duration,
    Measure,
    RegressionVerdict,
    SpeedVerdict,
    VariantComparison,
    headline,
)
from opscope.render.blocks import Block, Bullets, Name, Paragraph, Section, Table, Tone, Toned
from opscope.render.table_formats import Column, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---------------------------------------------------------------- the plot


_FORMATS: Final = (".png", ".svg", ".pdf")
_WIDTH, _HEIGHT = 8.0, 4.5  # inches


def check_format(target: Path) -> None:
    """Check that a file name shows a supported format.

    Raises:
        UsageError: it does not end in ``.png``, ``.svg`` or ``.pdf``.
    """
    if target.suffix.lower() not in _FORMATS:
        raise UsageError(f"a plot is written as {', '.join(_FORMATS)}, not as {target.name}")


def drawn(document: BenchDocument, suffix: str) -> bytes:
    """Draw one plot per case, below each other; return the content of the file.

    Args:
        document: the benchmark.
        suffix: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        EnvironmentLacksError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentLacksError("plots need matplotlib, which is missing: pip install 'opscope[plot]'") from error
    cases = list(dict.fromkeys(result.case for result in document.results))
    figure = Figure(figsize=(_WIDTH, _HEIGHT * max(len(cases), 1)), layout="constrained")
    for number, case in enumerate(cases, start=1):
        axes = figure.add_subplot(len(cases), 1, number)
        _draw(axes, case, [result for result in document.results if result.case == case])
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=suffix.lower().removeprefix("."))
    return content.getvalue()


_WHAT: Final = {Measure.KERNEL: "kernels, L2 flushed", Measure.EVENT: "between events, L2 flushed"}


def _draw(axes: "Axes", case: str, results: Sequence[BenchResult]) -> None:
    measure = headline(results)
    axes.set_title(f"{case}: {_WHAT.get(measure, 'wall')}, medians with 95 % intervals")
    parameter = _parameter(results)
    if parameter is None:
        _bars(axes, results, measure)
    else:
        _lines(axes, results, measure, parameter)


def _parameter(results: Sequence[BenchResult]) -> str | None:
    """Return the numeric parameter with the most values; None if no numeric parameter has more than one."""
    names = dict.fromkeys(name for result in results for name in result.parameters)
    values = {name: {r.parameters[name] for r in results if name in r.parameters} for name in names}
    numeric = {name: len(result) for name, result in values.items() if len(result) > 1 and all(map(_is_number, result))}
    return max(numeric, key=lambda name: numeric[name]) if numeric else None


def _is_number(text: str) -> bool:
    # Documents hold parameters as text, whatever their type was.
    return text.replace(".", "", 1).isdecimal()


def _bars(axes: "Axes", results: Sequence[BenchResult], measure: Measure) -> None:
    timed = [(result, outcome) for result in results if (outcome := result.duration(measure)) is not None]
    labels = [_label(result, results) for result, _ in timed]
    middles = [result.median / NS_PER_US for _, result in timed]
    errors = [[_below(result) for _, result in timed], [_above(result) for _, result in timed]]
    axes.barh(labels, middles, xerr=errors, color="#4c78a8", ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("us")


def _lines(axes: "Axes", results: Sequence[BenchResult], measure: Measure, parameter: str) -> None:
    for name, points in _series(results, measure, parameter):
        x = [float(result.parameters[parameter]) for result, _ in points]
        y = [result.median / NS_PER_US for _, result in points]
        errors = [[_below(result) for _, result in points], [_above(result) for _, result in points]]
        axes.errorbar(x, y, yerr=errors, marker="o", markersize=4, capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(parameter)
    axes.set_ylabel("us")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _series(
    results: Sequence[BenchResult], measure: Measure, parameter: str
) -> Iterator[tuple[str, list[tuple[BenchResult, Duration]]]]:
    lines: dict[str, list[tuple[BenchResult, Duration]]] = {}
    for result in results:
        if (outcome := result.duration(measure)) is not None:
            lines.setdefault(_label(result, results, without=parameter), []).append((result, outcome))
    for name, points in lines.items():
        yield name, sorted(points, key=lambda point: float(point[0].parameters[parameter]))


def _label(result: BenchResult, results: Sequence[BenchResult], without: str | None = None) -> str:
    """Return the variant's name with the parameters that differ between results, except ``without``."""
    differs = [
        f"{name}={value}"
        for name, value in result.parameters.items()
        if name != without and any(other.parameters.get(name) != value for other in results)
    ]
    return ", ".join([result.name, *differs])


def _below(result: Duration) -> float:
    return 0.0 if result.ci_low is None else (result.median - result.ci_low) / NS_PER_US


def _above(result: Duration) -> float:
    return 0.0 if result.ci_high is None else (result.ci_high - result.median) / NS_PER_US


# ---------------------------------------------------------------- the document


_TERA: Final = 1e12
_BAR: Final = "\u2588"
_LONGEST_BAR: Final = 40
_COLUMNS: Final = {
    Measure.KERNEL: "Kernels, cold",
    Measure.KERNEL_WARM: "Kernels, warm",
    Measure.EVENT: "Events",
    Measure.GRAPH: "Graph replay",
    Measure.ISSUE: "Issue",
    Measure.WALL: "Wall",
}
_SPEED: Final = {
    SpeedVerdict.FASTER: Tone.GOOD,
    SpeedVerdict.SLOWER: Tone.BAD,
    SpeedVerdict.WRONG: Tone.BAD,
    SpeedVerdict.INCONCLUSIVE: Tone.DOUBT,
}
_REGRESSION: Final = {
    RegressionVerdict.FINE: Tone.GOOD,
    RegressionVerdict.REGRESSION: Tone.BAD,
    RegressionVerdict.WRONG: Tone.BAD,
    RegressionVerdict.MISSING: Tone.DOUBT,
    RegressionVerdict.INCONCLUSIVE: Tone.DOUBT,
}


class _Stats(TypedDict):
    min: float
    max: float
    mean: float
    stddev: float
    rounds: int
    median: float
    iqr: float
    q1: float
    q3: float
    ops: float
    total: float
    iterations: int
    data: list[float]


def pytest_benchmark_json(document: BenchDocument) -> bytes:
    """Return a file with one benchmark per timed variant, by the best measure that all results have (`headline`)."""
    measure = headline(document.results)
    machine = document.machine
    content = {
        "machine_info": {
            "node": "",
            "processor": machine.cpu,
            "machine": machine.platform,
            "python_version": document.framework.python,
            "cpu": {"brand_raw": machine.cpu, "count": machine.cpu_count},
            "gpus": [gpu.name for gpu in machine.gpus],
        },
        "commit_info": {"id": None, "dirty": None},
        "benchmarks": [
            _entry(result, measure, outcome)
            for result in document.results
            if (outcome := result.duration(measure)) is not None
        ],
        "datetime": document.created,
        "version": f"opscope {__version__}",
    }
    return msgspec.json.encode(content) + b"\n"


def _entry(result: BenchResult, measure: Measure, outcome: Duration) -> dict[str, object]:
    parameters = "-".join(result.parameters.values())
    name = f"{result.name}[{parameters}]" if parameters else result.name
    return {
        "group": result.case,
        "name": name,
        "fullname": f"{result.case}::{name}",
        "params": result.parameters or None,
        "param": parameters or None,
        "extra_info": {"measure": str(measure)},
        "options": {"disable_gc": False, "timer": str(measure), "min_rounds": outcome.n, "warmup": True},
        "stats": _stats(outcome.samples),
    }


def _stats(samples: Sequence[float]) -> _Stats:
    seconds = [sample / NS_PER_S for sample in samples]
    # Quartiles need two samples; a single one is all three of them.
    q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    mean = statistics.fmean(seconds)
    return {
        "min": min(seconds),
        "max": max(seconds),
        "mean": mean,
        "stddev": statistics.stdev(seconds) if len(seconds) > 1 else 0.0,
        "rounds": len(seconds),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "ops": 1 / mean if mean else 0.0,
        "total": sum(seconds),
        "iterations": 1,
        "data": seconds,
    }


def bench_section(document: BenchDocument) -> Section:
    """Build the section of a benchmark: where it ran, durations, notes, and the comparisons with the baseline."""
    return Section(("Benchmark",), tuple(_blocks(document, with_bars=len(document.results) > 1)))


def bench_section_of_page(document: BenchDocument, left_out: int) -> Section:
    """Build what the page says of a benchmark; it draws the durations itself.

    Args:
        document: with the results that are shown.
        left_out: how many more the saved benchmark has.
    """
    blocks = list(_blocks(document, with_bars=False))
    if left_out:
        shown = f"These are the first {len(document.results):,} results; {left_out:,} more are in the saved benchmark."
        blocks.append(Paragraph.of(shown))
    return Section((f"Benchmark of {document.created}",), tuple(blocks))


def _blocks(document: BenchDocument, *, with_bars: bool) -> Iterator[Block]:
    yield Paragraph.of(_where(document))
    yield bench_table(document)
    if any(_notes(document.results)):
        yield Bullets(tuple((text,) for text in _notes(document.results)))
    if with_bars:
        yield bars_table(document.results)
    yield ran_table(document.results)
    if document.comparisons:
        yield _comparison_table(document.comparisons)
        yield Paragraph.of(_how(document))


def _where(document: BenchDocument) -> str:
    samples = "" if document.processes == 1 else f", {document.processes} fresh processes, each one sample"
    where = f"{document.device}, PyTorch {document.framework.torch}{samples}"
    return f"{where}. Medians with their 95 % intervals; cold: L2 flushed."


def bench_table(document: BenchDocument) -> Table:
    """Build a table with a row per variant and choice of parameters, and a column per kind of duration."""
    durations = (
        Column[BenchResult](heading, partial(_shown, measure=measure), numeric=True)
        for measure, heading in _COLUMNS.items()
    )
    columns: tuple[Column[BenchResult], ...] = (
        Column(
            "Variant",
            lambda result: Name(result.case if result.name == result.case else f"{result.case}: {result.name}"),
        ),
        Column("Inputs", _inputs),
        *durations,
        Column("Achieved", _rate, numeric=True),
        Column("of limit", _limit, numeric=True),
        Column("Result", _right, numeric=True),
    )
    return table_of(columns, document.results)


def _shown(result: BenchResult, measure: Measure) -> str:
    duration = result.duration(measure)
    if duration is None:
        return "not measured"
    return f"{format_ns(duration.median)}{_width(duration)}"


def _width(result: Duration) -> str:
    if result.ci_low is None or result.ci_high is None or not result.median:
        return ""
    # Half of the interval, in percent of the median.
    return f" +-{50 * (result.ci_high - result.ci_low) / result.median:.1f} %"


def _rate(result: BenchResult) -> str:
    limit = result.limit
    if limit is None:
        return "-"
    # Work with products shows operations, other work bytes.
    if limit.flop_per_s:
        return f"{limit.flop_per_s / _TERA:,.1f} TFLOP/s"
    return "-" if limit.bytes_per_s is None else f"{limit.bytes_per_s / _TERA:,.3f} TB/s"


def _limit(result: BenchResult) -> str:
    return "-" if result.limit is None or result.limit.share is None else format_share(result.limit.share, 1)


def _right(result: BenchResult) -> str:
    checked = result.correctness
    if checked is None:
        return "-"
    if checked.worst is not None:  # the error of the inputs that decided the verdict, even if others have a larger one
        shown = next((error.error for error in checked.errors if error.regime == checked.worst), None)
    else:
        shown = max((error.error for error in checked.errors if error.error is not None), default=None)
    return f"{checked.verdict}" if shown is None else f"{checked.verdict}, error {shown:.0e}"


_EXCEEDS: Final = (
    "kernels add up to more than passes between events around the call: they overlap, or recording slows them, as it "
    "does those of many short blocks; compared by events"
)


def _notes(results: Sequence[BenchResult]) -> Iterator[str]:
    # By text, so that a note on many variants is written once, with all their names.
    seen: dict[str, list[str]] = {}
    for result in results:
        name = f"{result.case}: {result.name}"
        if result.about is not None:
            seen.setdefault(f"measures {result.about}", []).append(name)
        if result.launch_bound:
            seen.setdefault("launch-bound: issuing a call takes longer than its kernels", []).append(name)
        if result.kernels_exceed_events:
            seen.setdefault(_EXCEEDS, []).append(name)
        if result.correctness is not None and result.correctness.verdict is not Correct.RIGHT:
            seen.setdefault(f"{result.correctness.verdict}: {result.correctness.sentence}", []).append(name)
        for doubt in result.doubts:
            seen.setdefault(f"doubtful: {doubt}", []).append(name)
        if result.confirmation is not None and result.confirmation.reason is not None:
            seen.setdefault(f"not confirmed in its own process: {result.confirmation.reason}", []).append(name)
        for reason in result.reasons.values():
            if "not a GPU" not in reason and "result is wrong" not in reason:
                seen.setdefault(reason, []).append(name)
    for text, names in seen.items():
        yield f"{', '.join(dict.fromkeys(names))}: {text}"


def bars_table(results: Sequence[BenchResult]) -> Table:
    """Build a table of bars for the durations of the best measure that all results have (`headline`)."""
    measure = headline(results)
    timed = [(result, outcome) for result in results if (outcome := result.duration(measure)) is not None]
    longest = max((result.median for _, result in timed), default=0.0) or 1.0
    columns: tuple[Column[tuple[BenchResult, Duration]], ...] = (
        Column("Variant", lambda row: Name(f"{row[0].case}: {row[0].name}")),
        Column("Inputs", lambda row: _inputs(row[0])),
        Column(_COLUMNS[measure], lambda row: format_ns(row[1].median), numeric=True),
        Column("", lambda row: _BAR * max(1, round(_LONGEST_BAR * row[1].median / longest))),
    )
    return table_of(columns, timed)


def _inputs(result: BenchResult) -> str:
    return _written(result.parameters)


def _written(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items()) or "-"


def ran_table(results: Sequence[BenchResult]) -> Table:
    """Build a table of what each variant runs, for its first choice of parameters."""
    first: dict[tuple[str, str], BenchResult] = {}
    for result in results:
        first.setdefault((result.case, result.name), result)
    columns: tuple[Column[BenchResult], ...] = (
        Column("Variant", lambda result: Name(f"{result.case}: {result.name}")),
        Column("Operators", lambda result: Name(", ".join(result.operators) or "-")),
        Column("Kernels, copies, fills", lambda result: Name(", ".join(result.launched) or "-")),
    )
    return table_of(columns, first.values())


def _comparison_table(comparisons: Sequence[VariantComparison]) -> Table:
    """Build a table with a row per comparison of a variant with its baseline."""
    columns: tuple[Column[VariantComparison], ...] = (
        Column("Variant", lambda result: Name(result.variant)),
        Column("Baseline", lambda result: Name(result.baseline)),
        Column("Inputs", lambda result: _written(result.parameters)),
        Column("By", lambda result: "-" if result.measure is None else _COLUMNS[result.measure]),
        Column("Time ratio", lambda result: "-" if result.ratio is None else f"{result.ratio:.3f}", numeric=True),
        Column("95 % interval", lambda result: _interval(result.ci_low, result.ci_high), numeric=True),
        Column("Verdict", lambda result: _toned(result.sentence, _SPEED.get(result.verdict))),
    )
    return table_of(columns, comparisons)


def _toned(text: str, tone: Tone | None) -> str:
    return text if tone is None else Toned(text, tone)


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def change_table(results: Sequence[Changed]) -> Table:
    """Build a table with a row per saved benchmark, then and now."""
    columns: tuple[Column[Changed], ...] = (
        Column("Benchmark", lambda one: Name(one.name)),
        Column("By", lambda one: "-" if one.measure is None else _COLUMNS[one.measure]),
        Column("Before", lambda one: format_ns(one.before_ns), numeric=True),
        Column("Now", lambda one: format_ns(one.now_ns), numeric=True),
        Column("Times as long", lambda one: _interval(one.ratio_low, one.ratio_high), numeric=True),
        Column("Verdict", lambda one: _toned(str(one.change), _REGRESSION[one.change])),
    )
    return table_of(columns, results)


def _how(document: BenchDocument) -> str:
    alarms = document.false_alarms
    known = (
        "How often equal functions are said to differ here was not measured (opscope bench --calibrate)."
        if alarms is None
        else f"Of {alarms.trials} comparisons of a function with itself on this machine, {alarms.alarms} said that it "
        "differs."
    )
    return (
        "Variants were measured in turns, in rounds of random order; a ratio is the median of those of the rounds. "
        f"p-values are corrected for {len(document.comparisons)} comparisons (Holm). {known}"
        f"{_confirmed(document.results)}"
    )


def _confirmed(results: Sequence[BenchResult]) -> str:
    """Return a sentence on the variants that ran in their own processes; empty text if none did."""
    result = [one.confirmation for one in results if one.confirmation is not None]
    right = sum(one.correctness is not None and one.correctness.verdict is not Correct.WRONG for one in result)
    timed = sum(one.call_ns is not None and one.doubt is None for one in result)
    if not result:
        return ""
    return (
        f" Each variant also ran in its own process, and another process timed it and checked its results: {right} of "
        f"{len(result)} were right, and for {timed} the times agree within a factor of {CONFIRMED_WITHIN}."
    )
