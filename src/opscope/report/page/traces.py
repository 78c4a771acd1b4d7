"""Builds the page's entry of one trace: its document, and the data of its pictures."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.choices import choices_of
from opscope.analysis.analyzed import Analysis
from opscope.analysis.costs.limit_totals import least_ns
from opscope.analysis.idle.timeline import NO_DEVICE
from opscope.analysis.measured import Measured
from opscope.analysis.pictures.flame import Flame, flames
from opscope.analysis.pictures.live_memory import LiveMemory, live_memory
from opscope.analysis.pictures.slices import CAUSES, Slices, Track, TrackKind, slices_of
from opscope.analysis.structure.call_tree import CallTree, numbered
from opscope.analysis.structure.modules import MODULE_FRAME
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.origins import Origins
from opscope.base.patterns import lazy_pattern
from opscope.documents.limits import LimitRow
from opscope.documents.page import (
    AliveRow,
    FlameEntry,
    KernelLimit,
    LeftOut,
    MemoryCurve,
    PageTrace,
    Part,
    PlaceEntry,
    StepBar,
    TimelineEntry,
    TrackEntry,
)
from opscope.documents.trace import DeviceEntry, TraceDocument
from opscope.report.step_parts import step_parts
from opscope.trace.model import Trace

MOST_SLICES: Final = 200_000
MOST_ROWS: Final = 2_000  # of a table
_MOST_NODES: Final = 6_000  # of a tree
_MOST_POINTS: Final = 4_000  # of a curve
_MOST_ALIVE: Final = 300
_MOST_LIMITS: Final = 200
_LONGEST_NAME: Final = 2_000  # characters
_SHORTEST_CUT: Final = 60
_ALL_NAMES: Final = 4_000_000  # characters of all names of slices and nodes
_LONG_TEXT: Final = lazy_pattern(rb'"(?:[^"\\]|\\.){%d}' % _LONGEST_NAME)
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
    timeline: TimelineEntry | None
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
    tree, origins, names = CallTree.of(trace), analysis.origins, _Names()
    slices = slices_of(trace, links, tree, analysis.devices, most=most_slices, steps=steps)
    timeline = None if slices is None else _timeline(slices, trace, tree, origins, names)
    trees = flames(trace, links, tree, origins, analysis.backward_pass, _MOST_NODES)
    entries = tuple(_flame(flame, names) for flame in trees)
    memory = live_memory(trace, links, origins) if trace.allocations.height else ()
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
    return PageTrace(
        name=_cut(name, _LONGEST_NAME),
        sweep=sweep,
        document=_without_long_texts(shown),
        left_out=left_out,
        bars=tuple(_bar(device, document, measured.unprofiled_step_ns) for device in document.timed_devices),
        samples_ns=measured.record.benchmark.wall_ns if measured.record and measured.record.benchmark else (),
        names=pictures.names,
        timeline=pictures.timeline,
        flames=pictures.flames,
        memory=pictures.memory,
        kernel_limits=tuple(_by_kernel(measured.analysis.limits)) if measured.analysis.has_device_times else (),
        choices=choices_of(measured.advice.replayed, measured.findings, measured.advice.remedies),
    )


class _Names:
    """Numbers texts; each is kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def of(self, table: Sequence[str], used: Ints) -> list[int]:
        """Return the numbers of the texts at positions ``used`` of a table; -1 stays -1."""
        entries, place = np.unique(used, return_inverse=True)
        numbers = np.array([self.number(table[entry]) if entry >= 0 else -1 for entry in entries.tolist()], np.int64)
        return list(numbers[place].tolist())

    def cut(self, whole: frozenset[str]) -> tuple[str, ...]:
        """Return all texts in the order of their numbers, cut so that their total length stays within a limit.

        Args:
            whole: names by which tables are looked up; they are cut only as much as the tables' names are.
        """
        most = max(_SHORTEST_CUT, min(_LONGEST_NAME, _ALL_NAMES // max(len(self._numbers), 1)))
        return tuple(_cut(name, _LONGEST_NAME if name in whole else most) for name in self._numbers)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# ---------------------------------------------------------------- the step


def _bar(device: DeviceEntry, document: TraceDocument, unprofiled_ns: float | None) -> StepBar:
    """Divide a device's window into its parts, per step."""
    steps = document.step_count or 1
    return StepBar(
        device=device.device,
        parts=tuple(Part(name, time / steps) for name, time in step_parts(device).items()),
        step_ns=device.window_ns / steps,
        per_step=bool(document.step_count),
        window=device.window.kind,
        light=document.light is not None and document.light.agrees,
        unprofiled_ns=unprofiled_ns,
    )


# ---------------------------------------------------------------- the timeline


def _timeline(slices: Slices, trace: Trace, tree: CallTree, origins: Origins, names: _Names) -> TimelineEntry:
    recorded = _Recorded.of(trace)
    places, place_of = _places(slices, trace, origins, names)
    return TimelineEntry(
        start_ns=slices.start_ns,
        duration_ns=slices.end_ns - slices.start_ns,
        steps=slices.steps,
        all_steps=slices.all_steps[:MOST_ROWS],
        slice_count=slices.slice_count,
        merged_below_ns=slices.merged_below_ns,
        tracks=tuple(_track(track, slices.start_ns, trace, tree, recorded, place_of, names) for track in slices.tracks),
        places=places,
    )


def _places(slices: Slices, trace: Trace, origins: Origins, names: _Names) -> tuple[tuple[PlaceEntry, ...], Ints]:
    """Return the places of the shown operators, and for each operator of the trace the number of its place, or -1.

    The last entry is for slices without an operator, whose number is -1.
    """
    number = np.full(trace.operators.height + 1, -1, np.int64)
    if not trace.frames.height:
        return (), number
    present = np.zeros(trace.operators.height + 1, np.bool_)
    for track in slices.tracks:
        present[track.operator] = True
    operators = np.flatnonzero(present[:-1])
    name, texts = numbered(trace.frames["name"])
    modules, frames = (_at(name, rows[operators]) for rows in (origins.module, origins.frame))
    # Module and frame as one number, with -1 (not recorded) as 0, so that equal pairs are one place.
    keys, place = np.unique((modules + 1) * (len(texts) + 1) + frames + 1, return_inverse=True)
    number[operators] = place
    pairs = (divmod(key, len(texts) + 1) for key in keys.tolist())
    return tuple(_place(module, frame, texts, names) for module, frame in pairs), number


def _place(module: int, frame: int, texts: Sequence[str], names: _Names) -> PlaceEntry:
    """Return a place from the numbers of its names, which count from 1; 0 means not recorded."""
    return PlaceEntry(
        names.number(texts[module - 1].removeprefix(MODULE_FRAME)) if module else -1,
        names.number(texts[frame - 1]) if frame else -1,
    )


def _track(
    track: Track, begin: int, trace: Trace, tree: CallTree, recorded: "_Recorded", place_of: Ints, names: _Names
) -> TrackEntry:
    if track.kind is TrackKind.STREAM:
        numbers = names.of(recorded.activities, _at(recorded.activity, track.name))
    else:
        numbers = names.of(CAUSES if track.kind is TrackKind.IDLE else tree.names, track.name)
    start = track.start_ns - begin
    return TrackEntry(
        kind=str(track.kind),
        label=_label(track, trace),
        device=None if track.device == NO_DEVICE else track.device,
        rows=int(track.row.max()) + 1,
        row=track.row.tolist(),
        start=np.diff(start, prepend=0).tolist(),
        duration=(track.end_ns - track.start_ns).tolist(),
        name=numbers,
        operator=names.of(recorded.operators, _at(recorded.operator, track.operator)),
        place=place_of[track.operator].tolist(),
        count=track.count.tolist() if (track.count > 1).any() else [],
    )


class _Recorded(Struct, frozen=True):
    """The distinct names of a trace's operators and activities, and per row the number of its name."""

    operator: Ints
    operators: tuple[str, ...]
    activity: Ints
    activities: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace) -> "_Recorded":
        return cls(*numbered(trace.operators["name"]), *numbered(trace.activities["name"]))


def _at(number: Ints, rows: Ints) -> Ints:
    """Return the numbers at some rows; row -1 gives -1."""
    if not len(number):
        return np.full(len(rows), -1, np.int64)
    found: Ints = np.where(rows < 0, -1, number[rows])
    return found


def _label(track: Track, trace: Trace) -> str:
    device = "device" if track.device in (None, NO_DEVICE) else f"device {track.device}"
    if track.kind is TrackKind.IDLE:
        return f"{device}: idle"
    if track.kind is TrackKind.STREAM:
        return f"{device}: stream {'?' if track.stream == -1 else track.stream}"
    if track.folded:
        return f"{track.folded:,} further threads, outermost slices"
    process, thread = trace.threads[track.thread or 0]
    return f"thread {_plain(thread)} of process {_plain(process)}"


def _plain(identity: str) -> str:
    return _cut(identity.strip('"'), _SHORTEST_CUT)


# ---------------------------------------------------------------- trees and curves


def _flame(flame: Flame, names: _Names) -> FlameEntry:
    return FlameEntry(
        by=str(flame.by),
        parent=flame.parent.tolist(),
        name=names.of(flame.names, flame.name),
        device_ns=flame.device_ns.tolist(),
        cpu_ns=flame.cpu_ns.tolist(),
        calls=flame.calls.tolist(),
        merged=flame.merged.tolist(),
    )


def _curve(memory: LiveMemory) -> MemoryCurve:
    chosen = _extremes(memory.allocated_bytes, _MOST_POINTS)
    begin = int(memory.time_ns[0])
    listed = memory.alive.head(_MOST_ALIVE)
    rest = memory.alive.slice(_MOST_ALIVE)
    return MemoryCurve(
        device=memory.device,
        time=(memory.time_ns[chosen] - begin).tolist(),
        allocated_bytes=memory.allocated_bytes[chosen].tolist(),
        record_count=len(memory.time_ns),
        peak_at=memory.peak_ns - begin,
        peak_bytes=memory.peak_bytes,
        before_bytes=memory.before_bytes,
        alive=tuple(AliveRow(**row) for row in listed.iter_rows(named=True)),
        smaller_bytes=int(rest["bytes"].sum()),
        smaller_count=rest.height,
    )


def _extremes(values: Ints, most: int) -> Ints:
    """Return the positions of the first and last value and of each stretch's lowest and highest; all if few enough."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2, dtype=np.int64)
    chosen = {0, len(values) - 1}
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        chosen |= {low + int(np.argmin(values[low:high])), low + int(np.argmax(values[low:high]))}
    return np.array(sorted(chosen), np.int64)


def _by_kernel(rows: Sequence[LimitRow]) -> list[KernelLimit]:
    groups: dict[tuple[str, int | None, str | None], list[LimitRow]] = {}
    for row in rows:
        if row.ideal_ns is not None:
            groups.setdefault((row.kernel, row.device, row.precision), []).append(row)
    found = (
        KernelLimit(
            kernel=_cut(kernel, _LONGEST_NAME),
            device=device,
            precision=precision,
            calls=sum(row.calls for row in mine),
            device_ns=sum(row.device_ns for row in mine),
            ideal_ns=sum(least_ns(row) for row in mine),
            lost_ns=sum(row.lost_ns or 0.0 for row in mine),
            flop=sum(row.calls * (row.flop or 0) for row in mine),
            least_bytes=sum(row.calls * (row.least_bytes or 0) for row in mine),
        )
        for (kernel, device, precision), mine in groups.items()
    )
    return sorted(found, key=lambda limit: (-limit.lost_ns, limit.kernel))[:_MOST_LIMITS]


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
    return _cut_texts(document) if _LONG_TEXT.search(msgspec.json.encode(document)) else document


def _cut_texts(value: T) -> T:
    """Cut all texts within a value."""
    found: Any = value
    if isinstance(value, str):
        found = value if type(value) is not str else _cut(value, _LONGEST_NAME)  # members of enumerations stay
    elif isinstance(value, dict):
        found = {_cut_texts(key): _cut_texts(entry) for key, entry in value.items()}
    elif isinstance(value, tuple):
        found = tuple(_each(value))
    elif isinstance(value, Struct):
        found = replace(value, **{name: _cut_texts(getattr(value, name)) for name in value.__struct_fields__})
    return found  # type: ignore[no-any-return]


def _each(values: Iterable[T]) -> Iterator[T]:
    return (_cut_texts(value) for value in values)
