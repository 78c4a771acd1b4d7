"""Reads a part of a trace: some of its steps, or a range of its time. Makes one trace of several processes.

A long file is read twice: once for its steps, calls and device work, which decide what idle time of each step refers
to, then for the part and what lies around it, so that memory holds little more than that.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.idle.causes import has_long_pauses
from opscope.analysis.idle.host_time import HostTime, work_extent
from opscope.analysis.idle.steps import idle_steps
from opscope.analysis.idle.timeline import DeviceTimeline, Periods, device_timelines, steps_of_devices
from opscope.analysis.structure.arrays import Intervals, column, end_of, extent_of
from opscope.analysis.structure.links import link
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.origin import process_name, with_named_devices
from opscope.analysis.structure.selection import (
    begins_within,
    chosen_steps,
    records_of_steps,
    records_within,
    select_time,
    spans_of,
    steps_begun,
)
from opscope.analysis.structure.step_work import Window, WindowKind, activities_of_steps, step_table
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.analysis.trust.clocks import shifted
from opscope.analysis.trust.plausible import host_extent, plausible, plausible_host
from opscope.base.errors import UsageError
from opscope.base.units import format_ns
from opscope.documents.trace import Step
from opscope.documents.verdict import CheckName
from opscope.readers.events import sorted_by_start
from opscope.readers.reading import Outline, read, read_outline
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, QUEUED_NS, Wanted
from opscope.trace.columns import TABLES
from opscope.trace.model import Around, DeviceProperties, DeviceSteps, Trace, TraceSource

# ---------------------------------------------------------------- several processes as one trace
# Numbers that are unique only within a process are made unique: those of calls and activities, streams, and graphs.
# Devices are distinguished by their UUIDs, as processes may see different ones under the same number
# (CUDA_VISIBLE_DEVICES).


_STREAMS: Final = 1_000_000  # a process's streams are numbered below this; the second process's begin here
_CORRELATION: Final = ("correlation", "external_id")
_BITS: Final = 48  # for numbers within a process: those of a graph's nodes have the graph's above 32 bits
_MOST: Final = 1 << (62 - _BITS)  # traces: so many shifted numbers still fit into 62 bits


def merged(traces: Sequence[Trace]) -> Trace:
    """Return one trace of all processes; a single trace is returned as it is.

    Raises:
        ValueError: there is no trace, or there are more than can be numbered.
    """
    if not 0 < len(traces) < _MOST:
        raise ValueError(f"{len(traces)} traces cannot be made one")
    if len(traces) == 1:
        return traces[0]
    threads = sorted({pair for trace in traces for pair in trace.threads})
    places = {pair: number for number, pair in enumerate(threads)}
    devices = _Devices(traces)
    tables = {
        name: sorted_by_start(
            name,
            pl.concat([_of_file(name, trace, at, places, devices.numbers[at]) for at, trace in enumerate(traces)]),
        )
        for name in TABLES
    }
    return Trace(source=_source(traces), devices=devices.all(), threads=tuple(threads), around=None, **tables)


def _of_file(
    name: str, trace: Trace, number: int, places: Mapping[tuple[str, str], int], devices: Mapping[int, int]
) -> pl.DataFrame:
    table: pl.DataFrame = getattr(trace, name)
    if "thread" in table.columns and table.height:
        numbers = pl.Series([places[pair] for pair in trace.threads], dtype=pl.Int32)
        table = table.with_columns(thread=numbers.gather(table["thread"]))
    of_process = [column for column in (*_CORRELATION, "graph_id", "graph_node_id") if column in table.columns]
    # The number of the process goes above the bits that its own numbers use.
    shifted = [(pl.col(column) + (number << _BITS)).alias(column) for column in of_process]
    if "stream" in table.columns:
        shifted.append(pl.col("stream") + number * _STREAMS)
    if "device" in table.columns:
        shifted.append(pl.col("device").replace(devices))
    return table.with_columns(shifted)


class _Devices:
    """The devices of all processes under common numbers: a device's own, or the next free one where that is taken.

    Attributes:
        numbers: per process a mapping of its numbers of devices to the common ones.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._known: dict[int, DeviceProperties] = {}
        self.numbers = [{device.index: self._number(device) for device in trace.devices} for trace in traces]

    def _number(self, device: DeviceProperties) -> int:
        for number, known in self._known.items():
            # Without a UUID, devices that look the same are one only if their numbers agree as well.
            if replace(known, index=device.index) == device and (device.uuid or number == device.index):
                return number
        taken = self._known.keys()
        number = device.index if device.index not in taken else max(taken) + 1
        self._known[number] = replace(device, index=number)
        return number

    def all(self) -> tuple[DeviceProperties, ...]:
        """Return the devices in the order of their common numbers."""
        return tuple(self._known[number] for number in sorted(self._known))


def _names(traces: Sequence[Trace]) -> dict[str, str]:
    """Return the names of threads, and of streams by their common numbers: with their process and own name."""
    names: dict[str, str] = {}
    for at, trace in enumerate(traces):
        values = trace.source.metadata
        names |= {key: name for key, name in values.items() if key.startswith("thread ")}
        for stream in trace.activities["stream"].unique().drop_nulls().to_list():
            own = f"stream {stream} of {process_name(trace.source)}"
            called = values.get(f"stream {stream}")
            names[f"stream {stream + at * _STREAMS}"] = f"{own}, {called}" if called else own
    return names


def _source(traces: Sequence[Trace]) -> TraceSource:
    sources = [trace.source for trace in traces]
    first = sources[0]
    return replace(
        first,
        path=", ".join(source.path for source in sources),
        size_bytes=sum(source.size_bytes for source in sources),
        event_count=sum(source.event_count for source in sources),
        replaced_bytes=sum(source.replaced_bytes for source in sources),
        odd_events=sum(source.odd_events for source in sources),
        unreadable_bytes=sum(source.unreadable_bytes for source in sources),
        damage=next((source.damage for source in sources if source.damage), None),
        metadata={**dict(set.intersection(*(set(source.metadata.items()) for source in sources))), **_names(traces)},
        not_recorded=tuple(sentence for source in sources for sentence in source.not_recorded),
        dropped_records=sum(source.dropped_records for source in sources),
    )


# ---------------------------------------------------------------- parts of a trace


class Part(Struct, frozen=True):
    """Which part of a trace is wanted; one of the two.

    Attributes:
        steps: the profiler's numbers of the first and the last step.
        time_ns: from when to when, counted from the beginning of the trace's first slice.
    """

    steps: tuple[int, int] | None = None
    time_ns: tuple[int, int] | None = None


def read_part(path: Path, part: Part, *, max_bytes: int = MAX_UNPACKED_BYTES) -> "Trace":
    """Read a part of a trace: what began on the host within it, and all work that was launched there.

    What the result is a part of stands in `TraceSource.not_recorded`.

    Args:
        path: as for `opscope.read`.
        part: which part.
        max_bytes: as for `opscope.read`.

    Raises:
        UsageError: the trace has no such step, or ends before the range begins.
        BadInputError: as `opscope.read`.
        EnvironmentLacksError: as `opscope.read`.
    """
    outline = read_outline(path, max_bytes=max_bytes)
    first = outline or Outline(read(path, max_bytes=max_bytes), None, None, None, None)
    tables = [table for name in TABLES if "duration_ns" in (table := getattr(first.trace, name)).columns]
    begin, end = _joined(extent_of(tables), first.extent) or (0, 0)
    if part.time_ns is not None and part.time_ns[0] >= end - begin:
        raise UsageError(f"--window: the trace is {format_ns(end - begin)} long, and ends before the range begins")
    place = _place_of(first, part, begin)
    wide, near = first.trace, None
    if outline is not None:
        del first, wide, tables, outline  # so that memory holds what was seen or the part, not both
        wanted = Wanted(begin_ns=place.wanted[0], end_ns=place.wanted[1])
        wide, near = read(path, max_bytes=max_bytes, wanted=wanted), wanted.near_ns
    # The whole tells by how much a clock is off; a part may have no wait that shows it.
    if not place.failed_checks.keys() <= wide.source.failed_checks.keys():
        wide = shifted(wide, place.shifts, place.failed_checks)
    trace = _selected(wide, part, place, near)
    low, high = _joined(*place.spans) or (0, 0)
    text = _sentence(part, low - begin, min(high, end) - low, end - begin)
    return replace(trace, source=replace(trace.source, not_recorded=(*trace.source.not_recorded, text), is_part=True))


class _Place(Struct, frozen=True):
    """Where a part of a trace is, by the first pass over its file.

    Attributes:
        spans: from when to when what begins on the host belongs to it.
        steps: its steps, rows of `step_table` without threads, whose numbers are those of a pass.
        positions: their rows among all steps.
        devices: when devices worked for the steps of the whole trace.
        wanted: from when to when records say something of the part.
        host_ns, extent_ns, long_pauses: see `Around`.
        shifts, misplaced, failed_checks: of the devices' clocks in the whole trace.
    """

    spans: tuple[tuple[int, int], ...]
    steps: pl.DataFrame
    positions: tuple[int, ...]
    devices: tuple[DeviceSteps, ...]
    wanted: tuple[int, int]
    host_ns: tuple[int, int] | None
    extent_ns: tuple[int, int] | None
    long_pauses: bool
    shifts: Mapping[int, int]
    misplaced: bool
    failed_checks: Mapping[str, str]


def _place_of(outline: Outline, part: Part, begin: int) -> _Place:
    """Find a part in what the first pass keeps of a trace; only there is every step."""
    host_ns = _joined(host_extent(plausible_host(outline.trace)), outline.host)
    trace, implausible = plausible(with_named_devices(outline.trace, None), host_ns)
    extent_ns = _joined(work_extent(trace), host_ns, outline.frames)
    every = step_table(trace)
    if part.steps is not None:
        steps = chosen_steps(trace, *part.steps)
        spans = spans_of(steps)
    else:
        low, high = part.time_ns or (0, 0)
        steps, spans = steps_begun(every, begin + low, begin + high), [(begin + low, begin + high)]
    positions = every.with_row_index("row").join(steps, on=every.columns, how="semi")["row"].to_list()
    devices = tuple(
        DeviceSteps(
            device=number,
            by_work=periods.window.kind is WindowKind.STEP_WORK,
            periods=tuple(zip(periods.steps.start.tolist(), periods.steps.end.tolist(), strict=True)),
        )
        for number, periods in (steps_of_devices(trace, link(trace)) if steps.height else {}).items()
    )
    # Devices may work for steps after these have ended on the host.
    periods = [line.periods[row] for line in devices for row in positions]
    wanted = _with_waits(trace, _joined(*spans, *spans_of(steps), *periods) or (0, 0))
    long_pauses = has_long_pauses(
        operators=outline.operators is not None or trace.operators.height > 0,
        frames=outline.frames is not None or trace.frames.height > 0,
    )
    clocks = (CheckName.CLOCKS_AGREE, CheckName.IDLE_CAUSES_KNOWN)
    return _Place(
        spans=tuple(spans),
        steps=steps.drop("thread"),
        positions=tuple(positions),
        devices=devices,
        wanted=wanted,
        host_ns=host_ns,
        extent_ns=extent_ns,
        long_pauses=long_pauses,
        shifts=implausible.shifts,
        misplaced=implausible.misplaced,
        failed_checks={name: text for name, text in trace.source.failed_checks.items() if name in clocks},
    )


def _with_waits(trace: "Trace", time: tuple[int, int]) -> tuple[int, int]:
    """Return a range of time with the waits of devices that go on before or behind it: each has its causes as a whole.

    Of waits longer than that for which calls are kept no more is needed.
    """
    (low, high), limits = time, (time[0] - QUEUED_NS, time[1] + QUEUED_NS)
    times = [time]
    for device in trace.activities.partition_by("device"):
        gaps = Intervals.union_of(column(device, "start_ns"), end_of(device)).gaps(*limits)
        around = (gaps.start < high) & (gaps.end > low) & (gaps.start > limits[0]) & (gaps.end < limits[1])
        times += zip(gaps.start[around].tolist(), gaps.end[around].tolist(), strict=True)
    return _joined(*times) or time


def _joined(*extents: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return from the first begin to the last end; None where there is none."""
    known = [extent for extent in extents if extent is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _selected(wide: "Trace", part: Part, place: _Place, near: tuple[int, int] | None) -> "Trace":
    """Return the records of a part, with what lies around it where it holds steps."""
    keys = place.steps.columns
    steps = step_table(plausible_host(wide)).join(place.steps, on=keys, how="semi", maintain_order="left")
    trace = select_time(wide, *place.spans[0], steps) if part.steps is None else records_of_steps(wide, steps)
    if not steps.height:
        return trace
    around = Around(
        trace=wide,
        spans=place.spans,
        steps=place.positions,
        devices=place.devices,
        host_ns=place.host_ns,
        extent_ns=place.extent_ns,
        long_pauses=place.long_pauses,
        near_ns=near,
        misplaced=place.misplaced,
    )
    return replace(trace, around=around)


def without_steps(
    trace: "Trace", timelines: Sequence[DeviceTimeline], steps: Sequence[int], *, misplaced: bool
) -> "Trace":
    """Return a trace without some of its steps: what began on the host within them, and all work that they launched.

    Args:
        trace: the trace, without records that cannot be true.
        timelines: those of its devices.
        steps: which steps, as positions in `step_table`.
        misplaced: see `Around`.
    """
    every = step_table(trace)
    left_out = every[np.array(steps, np.int64)]
    rows = np.setdiff1d(np.arange(every.height), steps)
    work = np.setdiff1d(
        np.arange(trace.activities.height), activities_of_steps(trace, link(trace), left_out), assume_unique=True
    )
    extent = _joined(work_extent(trace)) or (0, 0)
    begins, ends = (left_out[name].to_list() for name in ("start_ns", "end_ns"))
    spans = list(zip([extent[0], *ends], [*begins, extent[1] + 1], strict=True))
    spans = [span for span in spans if span[0] < span[1]]
    around = Around(
        trace=trace,
        spans=tuple(spans),
        steps=tuple(rows.tolist()),
        devices=tuple(
            DeviceSteps(
                device=line.device,
                by_work=line.window.kind is WindowKind.STEP_WORK,
                periods=tuple(zip(line.steps.start.tolist(), line.steps.end.tolist(), strict=True)),
            )
            for line in timelines
        ),
        host_ns=host_extent(trace),
        extent_ns=work_extent(trace),
        long_pauses=has_long_pauses(operators=trace.operators.height > 0, frames=trace.frames.height > 0),
        near_ns=None,
        misplaced=misplaced,
    )
    return replace(records_within(trace, spans, work, every[rows]), around=around)


def devices_of_part(part: "Trace", around: Around) -> tuple[tuple[DeviceTimeline, ...], tuple[Step, ...]]:
    """Return the timelines of devices and the steps of a part of a trace: their figures are those of the whole.

    Args:
        part: the part, without records that cannot be true.
        around: what lies around it.
    """
    wide, _ = plausible(replace(around.trace, devices=part.devices), around.host_ns, misplaced=around.misplaced)
    links = link(wide)
    host = HostTime(wide, links, extent=around.extent_ns, near=around.near_ns)
    known = {line.device: _periods(line, around.steps) for line in around.devices}
    timelines = device_timelines(wide, links, host, known, long_pauses=around.long_pauses)
    steps = idle_steps(wide, links, timelines, step_table(part))
    calls, records = (_rows_within(table, around.spans) for table in (wide.launches, wide.overheads))
    return tuple(_own(part, line, calls, records) for line in timelines), steps


def _periods(line: DeviceSteps, steps: tuple[int, ...]) -> Periods:
    kind = WindowKind.STEP_WORK if line.by_work else WindowKind.STEPS
    start, end = np.array(line.periods, np.int64).T
    rows = np.array(steps, np.int64)
    return Periods(
        window=Window(kind, Intervals.union_of(start[rows], end[rows])),
        steps=Intervals(start[rows], end[rows]),
        whole=Window(kind, Intervals.union_of(start, end)),
    )


def _rows_within(table: pl.DataFrame, spans: tuple[tuple[int, int], ...]) -> Ints:
    """Return per row of a table its row among those that begin within some spans, or -1; the last entry is -1."""
    inside = table.select(begins_within(spans)).to_series().to_numpy()
    return np.append(np.where(inside, np.cumsum(inside) - 1, -1), -1)


def _own(part: "Trace", line: DeviceTimeline, calls: Ints, records: Ints) -> DeviceTimeline:
    """Return a timeline with the activities of the part alone, and with its rows."""
    rows = np.flatnonzero(part.activities["device"].fill_null(NO_DEVICE).to_numpy() == line.device)
    start, end = column(part.activities, "start_ns")[rows], end_of(part.activities)[rows]
    busy = Intervals.union_of(start, end)
    outside = busy.length - busy.within(line.window.spans).length
    return replace(
        line,
        activities=len(rows),
        sum_ns=int((end - start).sum()),
        busy_ns=line.busy_in_window_ns + outside,
        outside_window_ns=outside,
        idle=replace(line.idle, call=calls[line.idle.call], record=records[line.idle.record]),
    )


def _sentence(part: Part, begins_ns: int, length_ns: int, whole_ns: int) -> str:
    if part.steps is None:
        what = "a part of the trace was"
    elif part.steps[0] == part.steps[1]:
        what = f"step {part.steps[0]} was"
    else:
        what = f"steps {part.steps[0]} to {part.steps[1]} were"
    return (
        f"Only {what} read, as asked: {format_ns(length_ns)} from {format_ns(begins_ns)} on, of {format_ns(whole_ns)}, "
        "and all work that was launched in it."
    )
