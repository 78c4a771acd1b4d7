"""Benchmarks as people read them."""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.base.units import format_ns, format_share
from opscope.documents.bench import (
    BenchDocument,
    BenchResult,
    Changed,
    Comparison,
    Correct,
    Duration,
    Measure,
    headline,
)
from opscope.render.blocks import Block, Bullets, Name, Paragraph, Section, Table

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


def bench_section(document: BenchDocument) -> Section:
    """Build everything: where it ran, the durations, the verdicts, what is doubtful."""
    blocks: list[Block] = [Paragraph.of(_where(document)), bench_table(document)]
    blocks += [Bullets(tuple((text,) for text in _notes(document.results)))] if any(_notes(document.results)) else []
    if len(document.results) > 1:
        blocks.append(bars_table(document.results))
    blocks.append(ran_table(document.results))
    if document.comparisons:
        blocks.append(comparison_table(document.comparisons))
        blocks.append(Paragraph.of(_how(document)))
    return Section(("Benchmark",), tuple(blocks))


def _where(document: BenchDocument) -> str:
    samples = "" if document.processes == 1 else f", {document.processes} fresh processes, each one sample"
    where = f"{document.device}, PyTorch {document.framework.torch}{samples}"
    return f"{where}. Medians with their 95 % intervals; cold: L2 flushed."


def bench_table(document: BenchDocument) -> Table:
    """One row per variant and choice of parameters; each kind of duration has a column of its own."""
    rows = tuple(
        (
            Name(result.case if result.name == result.case else f"{result.case}: {result.name}"),
            _inputs(result),
            *(_shown(result, measure) for measure in Measure),
            _rate(result),
            _limit(result),
            _right(result),
        )
        for result in document.results
    )
    columns = ("Variant", "Inputs", *_COLUMNS.values(), "Achieved", "of limit", "Result")
    return Table(columns, rows, frozenset(range(2, 10)))


def _shown(result: BenchResult, measure: Measure) -> str:
    found = result.duration(measure)
    if found is None:
        return "not measured"
    return f"{format_ns(found.median)}{_width(found)}"


def _width(found: Duration) -> str:
    if found.ci_low is None or found.ci_high is None or not found.median:
        return ""
    return f" +-{50 * (found.ci_high - found.ci_low) / found.median:.1f} %"


def _rate(result: BenchResult) -> str:
    limit = result.limit
    if limit is None:
        return "-"
    if limit.flop_per_s:
        return f"{limit.flop_per_s / _TERA:,.1f} TFLOP/s"
    return "-" if limit.bytes_per_s is None else f"{limit.bytes_per_s / _TERA:,.3f} TB/s"


def _limit(result: BenchResult) -> str:
    return "-" if result.limit is None or result.limit.share is None else format_share(result.limit.share, 1)


def _right(result: BenchResult) -> str:
    checked = result.correctness
    if checked is None:
        return "-"
    if checked.worst is not None:  # the inputs that decided, whatever the error of others
        shown = next((error.error for error in checked.errors if error.regime == checked.worst), None)
    else:
        shown = max((error.error for error in checked.errors if error.error is not None), default=None)
    return f"{checked.verdict}" if shown is None else f"{checked.verdict}, error {shown:.0e}"


_EXCEEDS: Final = (
    "kernels add up to more than passes between events around the call: they overlap, or recording slows them, as it "
    "does those of many short blocks; compared by events"
)


def _notes(results: Sequence[BenchResult]) -> Iterator[str]:
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
        for reason in result.reasons.values():
            if "not a GPU" not in reason and "result is wrong" not in reason:
                seen.setdefault(reason, []).append(name)
    for text, names in seen.items():
        yield f"{', '.join(dict.fromkeys(names))}: {text}"


def bars_table(results: Sequence[BenchResult]) -> Table:
    """The durations as bars: kernels where all have them, else the host's clock."""
    measure = headline(results)
    timed = [(result, found) for result in results if (found := result.duration(measure)) is not None]
    longest = max((found.median for _, found in timed), default=0.0) or 1.0
    rows = tuple(
        (
            Name(f"{result.case}: {result.name}"),
            _inputs(result),
            format_ns(found.median),
            _BAR * max(1, round(_LONGEST_BAR * found.median / longest)),
        )
        for result, found in timed
    )
    return Table(("Variant", "Inputs", _COLUMNS[measure], ""), rows, frozenset({2}))


def _inputs(result: BenchResult) -> str:
    return ", ".join(f"{name}={value}" for name, value in result.parameters.items()) or "-"


def ran_table(results: Sequence[BenchResult]) -> Table:
    """What each variant runs; with several choices of parameters, with the first one."""
    first: dict[tuple[str, str], BenchResult] = {}
    for result in results:
        first.setdefault((result.case, result.name), result)
    rows = tuple(
        (
            Name(f"{result.case}: {result.name}"),
            Name(", ".join(result.operators) or "-"),
            Name(", ".join(result.launched) or "-"),
        )
        for result in first.values()
    )
    return Table(("Variant", "Operators", "Kernels, copies, fills"), rows)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per variant beside its baseline."""
    rows = tuple(
        (
            Name(found.variant),
            Name(found.baseline),
            ", ".join(f"{name}={value}" for name, value in found.parameters.items()) or "-",
            "-" if found.measure is None else _COLUMNS[found.measure],
            "-" if found.ratio is None else f"{found.ratio:.3f}",
            "-" if found.ci_low is None or found.ci_high is None else f"{found.ci_low:.3f} to {found.ci_high:.3f}",
            found.sentence,
        )
        for found in comparisons
    )
    columns = ("Variant", "Baseline", "Inputs", "By", "Time ratio", "95 % interval", "Verdict")
    return Table(columns, rows, frozenset({4, 5}))


def change_table(found: Sequence[Changed]) -> Table:
    """One row per saved benchmark."""
    rows = tuple(
        (
            Name(one.name),
            "-" if one.measure is None else _COLUMNS[one.measure],
            format_ns(one.before_ns),
            format_ns(one.now_ns),
            "-" if one.ratio_low is None or one.ratio_high is None else f"{one.ratio_low:.3f} to {one.ratio_high:.3f}",
            str(one.change),
        )
        for one in found
    )
    return Table(("Benchmark", "By", "Before", "Now", "Times as long", "Verdict"), rows, frozenset({2, 3, 4}))


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
    )
