"""Builds the page's entries of traces, with the data of their pictures, and of sweeps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.replayed import choices_of
from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.analysis.pictures.flame import Flame, flames
from opscope.analysis.pictures.live_memory import LiveMemory, live_memory
from opscope.analysis.pictures.slices import slices_of
from opscope.analysis.structure.call_tree import CallTree
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.text import lazy_pattern
from opscope.base.units import format_count, format_ns
from opscope.documents.comparison import SweepComparison
from opscope.documents.page import (
    AliveRow,
    BlockEntry,
    FlameEntry,
    LeftOut,
    MemoryCurve,
    PageTrace,
    Roofline,
    SectionEntry,
    StepBar,
    StepChoices,
    StepPart,
    SweepEntry,
    TimelineEntry,
)
from opscope.documents.trace import DeviceEntry, TraceDocument
from opscope.render.blocks import Section
from opscope.report.brief import screen_blocks
from opscope.report.comparison_report import axis_name, sections_on_page
from opscope.report.explain_sections import statement_blocks
from opscope.report.kernel_report import environment_on_page, trust_on_page
from opscope.report.overview import figures_on_page, phase_blocks, steps_note
from opscope.report.page.html import block_entries, section_entry
from opscope.report.page.roofs import modelled_roofline
from opscope.report.page.timeline import LONGEST_TEXT, Drawn, Names, cut, drawn_timeline, extremes, with_findings
from opscope.report.step_parts import step_parts

MOST_SLICES: Final = 500_000
MOST_ROWS: Final = 2_000  # of a table
_MOST_NODES: Final = 6_000  # of a tree
_MOST_POINTS: Final = 4_000  # of a curve
_MOST_SAMPLES: Final = 400
_HOW_TO_READ_BARS: Final = (
    "Compute, exposed communication and copies, and idle time by its cause fill the window. Idle time of a profiled "
    "step is an upper bound: recording slows the host down."
)
_HOW_TO_READ_SAMPLES: Final = (
    "Points are steps, boxes hold the middle half, red lines are medians. Of more than "
    f"{_MOST_SAMPLES} steps every n-th is drawn; medians and boxes are of all."
)
_FEW: Final = "Of {} records the lowest and the highest of each stretch are drawn."
_MOST_ALIVE: Final = 300
_NO_ROOFLINE: Final = Roofline(notes=("Left out: the roofline cannot be shown.",))
_LONG_TEXT: Final = lazy_pattern(rb'"(?:[^"\\]|\\.){%d}' % LONGEST_TEXT)
_SELF_TIMES: Final = ("self_device_ns", "self_cpu_ns")
_LONG_TABLES: Final = {
    "graph_nodes": "total_ns",
    "backward": "backward_device_ns",
    "annotations": "self_device_ns",
    "steps": "span_ns",
    "iterations": "total_ns",
}  # in the order of the document
T = TypeVar("T")


class Pictures(Struct, frozen=True):
    """The data of one trace's pictures; see `PageTrace`."""

    names: tuple[str, ...]
    timeline: Drawn | None
    flames: tuple[FlameEntry, ...]
    memory: tuple[MemoryCurve, ...]


def pictures_of(
    analysis: Analysis, *, most_slices: int = MOST_SLICES, steps: tuple[int, int] | None = None
) -> Pictures:
    """Collect the data of a trace's pictures.

    Args:
        analysis: the trace.
        most_slices: the most slices of the timeline.
        steps: numbers of the first and the last step of the timeline; None for as many as fit.

    Raises:
        UsageError: the trace does not mark these steps.
    """
    trace, links = analysis.trace, analysis.links
    tree, origins, names = CallTree.of(trace), analysis.origins, Names()
    part = analysis.losses.part

    def flame_entries() -> tuple[FlameEntry, ...]:
        trees = flames(trace, links, tree, origins, analysis.backward_pass, _MOST_NODES)
        return tuple(_flame(flame, names) for flame in trees)

    def timeline_of() -> Drawn | None:
        slices = slices_of(trace, links, tree, analysis.devices, most=most_slices, steps=steps)
        return None if slices is None else drawn_timeline(analysis, slices, memory, names)

    entries = part("the flame view", flame_entries, tuple[FlameEntry, ...])
    curves = lambda: live_memory(trace, links, origins) if trace.allocations.height else ()  # noqa: E731
    memory: Sequence[LiveMemory] = part("the curve of memory", curves, tuple)
    timeline = part("the timeline", timeline_of, lambda: None)
    tables = (analysis.operators["name"], analysis.kernels["name"].cast(pl.String))
    # The page looks up rows of these tables by name, so the names must be cut alike in both places.
    whole = frozenset(name for table in tables for name in table.head(MOST_ROWS))
    return Pictures(names.cut(whole), timeline, entries, tuple(_curve(one) for one in memory))


def page_trace(
    measured: Measured, document: TraceDocument, pictures: Pictures, *, name: str, sweep: str | None = None
) -> PageTrace:
    """Build the page's entry of one trace.

    Args:
        measured: the trace with its record.
        document: its document.
        pictures: the data of its pictures.
        name: its name on the page.
        sweep: the name of the run it belongs to; None for a trace that stands alone.
    """
    shown, left_out = _few_rows(document, measured.analysis)
    part = measured.analysis.losses.part
    operators, kernels = measured.analysis.operators, measured.analysis.kernels
    device_sum_ns, cpu_self_ns = int(kernels["total_ns"].sum()), int(operators["self_cpu_ns"].sum())

    def written(title: str, make: Callable[[], Section]) -> SectionEntry:
        left_out = SectionEntry((f"{title}: left out, it cannot be shown",), (), ())
        return part(title, lambda: _cut_texts(section_entry(make())), lambda: left_out)

    entry = PageTrace(
        name=cut(name, LONGEST_TEXT),
        sweep=sweep,
        document=_without_long_texts(shown),
        screen=part("the first screen", lambda: _screen(document), tuple),
        figures=part("the large figures", lambda: tuple(figures_on_page(document, device_sum_ns, cpu_self_ns)), tuple),
        trust=SectionEntry((), (), ()),
        environment=written("Configuration and environment", lambda: environment_on_page(document)),
        dossiers=part("statements on operators", lambda: _dossiers(document), dict),
        left_out=left_out,
        device_sum_ns=device_sum_ns,
        cpu_self_ns=cpu_self_ns,
        bars=part("the bars of the step", lambda: tuple(_bars(measured, document)), tuple),
        bars_note=_HOW_TO_READ_BARS,
        samples_ns=measured.record.benchmark.wall_ns if measured.record and measured.record.benchmark else (),
        names=pictures.names,
        timeline=_timeline(pictures.timeline, measured),
        flames=pictures.flames,
        memory=pictures.memory,
        phases=part("phases", lambda: block_entries(phase_blocks(document)), tuple),
        steps_note=steps_note(document),
        roofline=part("the roofline", lambda: _roofline(document, measured.analysis), lambda: _NO_ROOFLINE),
        choices=part("what several findings save", lambda: _choices(measured), lambda: None),
    )
    # The checks come last: one of them is whether all parts could be made.
    checked = replace(document, trust=measured.trust) if measured.analysis.losses.found else document
    return replace(
        entry,
        document=replace(entry.document, trust=checked.trust),
        trust=written("Trust checks", lambda: trust_on_page(checked, measured.analysis.accounting)),
    )


def sweep_entry(name: str, comparison: SweepComparison) -> SweepEntry:
    """Build the page's entry of a sweep."""
    axes = {axis: axis_name(axis) for row in comparison.rows for axis in row.axes}
    sections = tuple(map(section_entry, sections_on_page(comparison)))
    return SweepEntry(
        name=name,
        comparison=comparison,
        axes=axes,
        most_samples=_MOST_SAMPLES,
        samples_note=_HOW_TO_READ_SAMPLES,
        sections=sections,
    )


def _screen(document: TraceDocument) -> tuple[BlockEntry, ...]:
    return () if document.first_screen is None else block_entries(screen_blocks(document.first_screen, on_page=True))


def _dossiers(document: TraceDocument) -> dict[str, tuple[BlockEntry, ...]]:
    known = ((row.name, row.detail.findings) for row in document.operators if row.detail is not None)
    return {
        cut(name, LONGEST_TEXT): _cut_texts(block_entries(statement_blocks(found)))
        for name, found in known
        if found is not None
    }


def _timeline(timeline: Drawn | None, measured: Measured) -> TimelineEntry | None:
    if timeline is None:
        return None
    result = lambda: with_findings(timeline, measured)  # noqa: E731
    return measured.analysis.losses.part("findings in the timeline", result, lambda: timeline.entry)


def _roofline(document: TraceDocument, analysis: Analysis) -> Roofline:
    return modelled_roofline(document.limits, analysis.limits, document.device_times_reason)


def _choices(measured: Measured) -> StepChoices | None:
    return choices_of(measured.advice.replayed, measured.findings, measured.advice.remedies)


# ---------------------------------------------------------------- the step


def _bars(measured: Measured, document: TraceDocument) -> Iterator[StepBar]:
    """Yield the bar of each device, that of the one that the verdict is about first."""
    first = busiest(measured.timed.devices).device if measured.timed.devices else None
    for device in sorted(document.timed_devices, key=lambda device: device.device != first):
        yield _bar(device, document, measured.unprofiled_step_ns)


def _bar(device: DeviceEntry, document: TraceDocument, unprofiled_ns: float | None) -> StepBar:
    """Divide a device's window into its parts, per step."""
    steps = document.step_count or 1
    return StepBar(
        device=device.device,
        parts=tuple(StepPart(name, time / steps) for name, time in step_parts(device).items()),
        step_ns=device.window_ns / steps,
        per_step=bool(document.step_count),
        window=device.window.kind,
        light=document.light is not None and document.light.agrees,
        unprofiled_ns=unprofiled_ns,
    )


# ---------------------------------------------------------------- trees and curves


def _flame(flame: Flame, names: Names) -> FlameEntry:
    return FlameEntry(
        by=str(flame.by),
        parent=flame.parent.tolist(),
        name=names.of(flame.names, flame.name),
        device_ns=flame.device_ns.tolist(),
        cpu_ns=flame.cpu_ns.tolist(),
        calls=flame.calls.tolist(),
        merged=flame.merged.tolist(),
        note=_of_sleeping(flame.sleeping_threads, flame.sleeping_ns) if flame.sleeping_threads else None,
    )


def _of_sleeping(threads: int, time_ns: int) -> str:
    only_wait = "thread that only waits" if threads == 1 else "threads that only wait"
    are = "is" if threads == 1 else "are"
    return f"By Python frame, {format_count(threads)} {only_wait} ({format_ns(time_ns)}) {are} left out."


def _curve(memory: LiveMemory) -> MemoryCurve:
    chosen = extremes(memory.allocated_bytes, _MOST_POINTS)
    begin = int(memory.time_ns[0])
    listed = memory.alive.head(_MOST_ALIVE)
    rest = memory.alive.slice(_MOST_ALIVE)
    records = len(memory.time_ns)
    return MemoryCurve(
        device=memory.device,
        time=(memory.time_ns[chosen] - begin).tolist(),
        allocated_bytes=memory.allocated_bytes[chosen].tolist(),
        peak_at=memory.peak_ns - begin,
        peak_bytes=memory.peak_bytes,
        before_bytes=memory.before_bytes,
        alive=tuple(AliveRow(**row) for row in listed.iter_rows(named=True)),
        smaller_bytes=int(rest["bytes"].sum()),
        smaller_count=rest.height,
        drawn=_FEW.format(format_count(records)) if len(chosen) < records else None,
        adds_up=_adds_up(memory),
    )


def _adds_up(memory: LiveMemory) -> str:
    if memory.before_bytes is None:
        return "What was alive cannot be told: addresses were not recorded."
    whole = int(memory.alive["bytes"].sum()) + memory.before_bytes
    if whole == memory.peak_bytes:
        return f"Rows add up to the peak: {whole:,} bytes."
    return f"Rows add up to {whole:,} bytes, which IS NOT the peak of {memory.peak_bytes:,} bytes."


# ---------------------------------------------------------------- bounds


def _few_rows(document: TraceDocument, analysis: Analysis) -> tuple[TraceDocument, tuple[LeftOut, ...]]:
    """Return the document with only the first rows of its long tables, and sums over the rows left out.

    Its tables of operators and kernels are short already (``most_rows`` of `build_trace_document`).
    """
    operators, kernels = analysis.operators.slice(MOST_ROWS), analysis.kernels.slice(MOST_ROWS)
    rest = [
        LeftOut("operators", operators.height, *(int(operators[name].sum()) for name in _SELF_TIMES)),
        LeftOut("kernels", kernels.height, int(kernels["total_ns"].sum())),
    ]
    rows: dict[str, Any] = {}
    for name, time in _LONG_TABLES.items():
        table = getattr(document, name)
        rows[name] = table[:MOST_ROWS]
        rest.append(LeftOut(name, len(table[MOST_ROWS:]), sum(getattr(row, time) for row in table[MOST_ROWS:])))
    return replace(document, **rows), tuple(one for one in rest if one.rows)


def _without_long_texts(document: TraceDocument) -> TraceDocument:
    """Cut very long texts. A search in the encoded document avoids the slow walk where there are none."""
    encoded = msgspec.json.encode(document)
    return _cut_texts(document) if _may_have_long_text(encoded) and _LONG_TEXT.search(encoded) else document


def _may_have_long_text(encoded: bytes) -> bool:
    """Tell whether any two quotes are so far apart that a long text may lie between them: the search takes longer."""
    content = np.frombuffer(encoded, np.uint8)
    quotes = np.flatnonzero(content == ord('"'))
    # A quote after a backslash is one within a text, or else the end of one that a backslash ends: then too many are
    # left out, and the search decides.
    ends = quotes[content[np.maximum(quotes - 1, 0)] != ord("\\")]
    return bool(np.diff(ends).max(initial=0) > LONGEST_TEXT)


def _cut_texts(value: T) -> T:
    """Cut all texts within a value."""
    result: Any = value
    if isinstance(value, str):
        result = value if type(value) is not str else cut(value, LONGEST_TEXT)  # members of enumerations stay
    elif isinstance(value, dict):
        result = {_cut_texts(key): _cut_texts(entry) for key, entry in value.items()}
    elif isinstance(value, tuple):
        result = tuple(_each(value))
    elif isinstance(value, Struct):
        result = replace(value, **{name: _cut_texts(getattr(value, name)) for name in value.__struct_fields__})
    return result  # type: ignore[no-any-return]


def _each(values: Iterable[T]) -> Iterator[T]:
    return (_cut_texts(value) for value in values)
