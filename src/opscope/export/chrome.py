"""Exports a trace as Chrome trace events that every viewer shows completely, in one file or in parts.

Host threads and device streams are tracks. Slices that overlap without nesting, which viewers drop, go to further
lanes of their track. Operators and activities carry their category, activities the operator that launched them.

Traces of gigabytes are written piece by piece: besides the tables, memory holds one piece and some numbers per event.
The header keeps what the events do not say (`opscope.readers.exported`), so that an analysis of the file gives the same
results as one of the trace.

Replayed steps are written likewise: calls and work of devices, when they would be.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.streams import lanes_of
from opscope.analysis.trust.checks import check_file
from opscope.base.errors import UsageError
from opscope.base.processes import ahead
from opscope.base.text import printable
from opscope.base.units import NS_PER_US
from opscope.documents.verdict import Check, Verdict
from opscope.export.chrome_events import SEPARATOR, Events, Tracks, events_of
from opscope.knowledge.categories import Classifier
from opscope.readers.events import HOST_NAME, known_metadata
from opscope.readers.exported import DEVICE, HEADER, HOST, LANES, OVERHEAD, PART, UNIFIED_MEMORY, ExportedFrom
from opscope.trace.model import Migration, Trace

_HOST_TABLES = ("ranges", "frames", "annotations", "operators", "launches")  # outer before inner if times are equal
_TAIL, _PART_TAIL = b"\n]}\n", '\n], "{}": {:10}}}\n'  # of the same length for every part
_EVENTS_AT_ONCE = 16_384
_SMALL_OPENING = 64 << 10  # bytes of an opening that may take more than half of a part

T = TypeVar("T")
_HOST: Final = 0
_FIRST_DEVICE: Final = 1  # processes above 0 are devices


def replayed_events(edit: Edit, title: str) -> bytes:
    """Return the replayed steps as a Chrome trace that Perfetto opens; time 0 is the beginning of the first step.

    Calls and work that a change removed are left out. The host's own time is what lies between calls.

    Args:
        edit: the steps with their changes.
        title: what the trace calls itself.
    """
    times, trace = edit.times, edit.steps.trace
    begin = int(times[[span.start for span in edit.graph.spans]].min())
    events: list[dict[str, object]] = []
    for kind, table in ((EdgeKind.CALL, trace.launches), (EdgeKind.ACTIVITY, trace.activities)):
        edges = np.flatnonzero((edit.graph.kind == kind) & (edit.lag > 0))
        rows = edit.graph.row[edges]
        names = table["name"].gather(rows).cast(str).to_list()
        start, end = times[edit.graph.source[edges]], times[edit.target[edges]]
        if kind == EdgeKind.CALL:
            process, track = np.full(len(rows), _HOST), table["thread"].gather(rows).to_numpy()
        else:
            process = table["device"].gather(rows).fill_null(0).to_numpy() + _FIRST_DEVICE
            track = table["stream"].gather(rows).fill_null(0).to_numpy()
        events += _slices(names, start - begin, end - start, process, track)
    for number, name in [(_HOST, "host"), *((int(one), f"device {int(one) - 1}") for one in _devices(events))]:
        events.append({"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}})
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}})


def _slices(names: list[str], start: Ints, took: Ints, process: Ints, track: Ints) -> list[dict[str, object]]:
    return [
        {"ph": "X", "name": name, "ts": at / NS_PER_US, "dur": ns / NS_PER_US, "pid": pid, "tid": tid}
        for name, at, ns, pid, tid in zip(
            names, start.tolist(), took.tolist(), process.tolist(), track.tolist(), strict=True
        )
    ]


def _devices(events: list[dict[str, object]]) -> list[int]:
    return sorted({int(str(event["pid"])) for event in events} - {_HOST})


class Piece(Struct, frozen=True):
    """A chunk of a file that is written piece by piece.

    Attributes:
        part: the number of the file, from 1.
        events: the number of events in the piece.
        content: bytes to append to the file.
    """

    part: int
    events: int
    content: bytes


def chrome_parts(
    trace: Trace, classifier: Classifier, max_bytes: int | None, failed: Sequence[Check] = ()
) -> Iterator[Piece]:
    """Yield the trace as one or more Chrome trace files, each of at most ``max_bytes``, split by time.

    Pieces come in the order of their place in the files, one file after the other.

    Args:
        trace: the trace.
        classifier: returns the operators' categories.
        max_bytes: the size limit of a file; None for one file, however large.
        failed: failed checks that an analysis of the trace alone cannot repeat.

    Raises:
        UsageError: no file can be that small; raised before the first piece.
    """
    head = _head(trace, failed)
    names, tables = _events(trace, classifier)
    opening = Piece(1, len(names), head + SEPARATOR.encode().join(names))
    order = _Order.of(tables)
    if max_bytes is None:
        yield opening
        yield from order.each(lambda texts: Piece(1, len(texts), _joined(texts)))
        yield Piece(1, 0, _TAIL)
    else:
        # Every part repeats the opening, so parts much smaller than twice its size would be mostly repetition.
        if len(opening.content) > max(_SMALL_OPENING, max_bytes // 2):
            least = 2 * len(opening.content)
            raise UsageError(f"--max-size: what every part of this trace begins with asks for at least {least:,} bytes")
        room = max_bytes - len(opening.content) - len(_part_tail(1))
        if room < (longest := _longest(order, room)):
            raise UsageError(f"--max-size: a part of this trace takes at least {max_bytes - room + longest:,} bytes")
        yield from _in_parts(order.each(lambda texts: texts), opening, max_bytes - len(_part_tail(1)))


def _head(trace: Trace, failed: Sequence[Check]) -> bytes:
    """Return the text before the events: keys for viewers, for tools that read PyTorch's traces, and for opscope."""
    source = trace.source
    shown_by_nothing = [check for check in (check_file(source), *failed) if check.verdict is Verdict.FAIL]
    origin = ExportedFrom(
        threads=trace.threads,
        devices=trace.devices,
        replaced_bytes=source.replaced_bytes,
        odd_events=source.odd_events,
        unreadable_bytes=source.unreadable_bytes,
        damage=source.damage,
        not_understood=dict(source.not_understood),
        failed_checks={**source.failed_checks, **{check.name: check.sentence for check in shown_by_nothing}},
        not_recorded=(*source.not_recorded, *_left_behind(trace)),
        dropped_records=source.dropped_records,
    )
    header: dict[str, object] = {
        **{key: _object_or_text(text) for key, text in known_metadata(source.metadata).items() if key != HOST_NAME},
        "displayTimeUnit": "ms",
        "deviceProperties": [{"id": item.index, "name": item.name} for item in trace.devices],
        HEADER: msgspec.to_builtins(origin),
    }
    return json.dumps(header)[:-1].encode() + b', "traceEvents": [\n'


def _left_behind(trace: Trace) -> Iterator[str]:
    """Yield sentences on what the export shows in viewers but cannot be read back."""
    if trace.migrations.height:
        yield "It is an export: what happened to unified memory is in the original alone."
    if trace.synchronizations.height:
        yield "It is an export: what waited for which stream or event is in the original alone."


def _object_or_text(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _part_tail(part: int) -> bytes:
    return _PART_TAIL.format(PART, part).encode()


def _longest(order: "_Order", room: int) -> int:
    """Return the length of the longest event in bytes, or an upper bound of it if that fits into ``room``."""
    at_most = max((table.longest for table in order.tables if len(table.start)), default=0)
    if at_most <= room:
        return at_most
    # The exact length takes encoding all events, which are encoded again to be written. Such small parts are rare.
    return max(order.each(lambda texts: int(texts.str.len_bytes().to_numpy().max())), default=len(SEPARATOR))


def _in_parts(windows: Iterator[pl.Series], opening: Piece, limit: int) -> Iterator[Piece]:
    """Yield pieces, and begin a new part wherever the next event would exceed the limit (which excludes the tail)."""
    yield opening
    part, size = 1, len(opening.content)
    for texts in windows:
        ends = np.concatenate([[0], np.cumsum(texts.str.len_bytes().to_numpy(), dtype=np.int64)])
        first = 0
        while first < len(texts):
            last = int(np.searchsorted(ends, ends[first] + limit - size, side="right")) - 1
            if last > first:
                yield Piece(part, last - first, _joined(texts.slice(first, last - first)))
                size += int(ends[last] - ends[first])
            if last < len(texts):
                yield Piece(part, 0, _part_tail(part))
                part, size = part + 1, len(opening.content)
                yield replace(opening, part=part)
            first = last
    yield Piece(part, 0, _TAIL if part == 1 else _part_tail(part))


def _joined(texts: pl.Series) -> bytes:
    joined: bytes = texts.str.join("").cast(pl.Binary).item()
    return joined


class _Order(Struct, frozen=True):
    """The order of all events by time; of events that begin together, earlier tables and rows come first.

    Attributes:
        tables: the events, table by table.
        bounds: per table the number of its first event, counted over all tables.
        numbers: the numbers of all events, sorted by time.
    """

    tables: Sequence[Events]
    bounds: Ints
    numbers: Ints

    @classmethod
    def of(cls, tables: Sequence[Events]) -> "_Order":
        bounds = np.cumsum([0, *(len(table.start) for table in tables)])[:-1]
        # Tables are mostly sorted already, and a stable sort merges sorted runs.
        return cls(tables, bounds, np.argsort(np.concatenate([table.start for table in tables]), kind="stable"))

    def each(self, make: Callable[[pl.Series], T]) -> Iterator[T]:
        """Encode the events in order, in batches, and yield what ``make`` returns for each batch of texts."""
        starts = range(0, len(self.numbers), _EVENTS_AT_ONCE)
        lots = (self.numbers[first : first + _EVENTS_AT_ONCE] for first in starts)
        return ahead(lambda numbers: make(self._encoded(numbers)), lots, events=len(self.numbers))

    def _encoded(self, numbers: Ints) -> pl.Series:
        """Encode events table by table, then restore the order of their numbers."""
        table_of = np.searchsorted(self.bounds, numbers, side="right") - 1
        by_table = np.argsort(table_of, kind="stable")
        place = np.empty(len(numbers), np.int64)
        place[by_table] = np.arange(len(numbers))
        counts = np.bincount(table_of, minlength=len(self.tables))
        rows = np.split(numbers[by_table], np.cumsum(counts)[:-1])
        texts = [
            table.encoded(chosen - first)
            for table, first, chosen in zip(self.tables, self.bounds, rows, strict=True)
            if len(chosen)
        ]
        return pl.concat(texts).gather(place)


def _events(trace: Trace, classifier: Classifier) -> tuple[list[bytes], list[Events]]:
    """Return the names of processes and tracks, encoded, and the events of every table."""
    # Lanes are found over all host tables together: operators, ranges and calls of a thread share its track.
    host_tables = [getattr(trace, name) for name in _HOST_TABLES]
    host_track = np.concatenate([column(table, "thread") for table in host_tables])
    host_start = np.concatenate([column(table, "start_ns") for table in host_tables])
    host_end = np.concatenate([end_of(table) for table in host_tables])
    host_tid = host_track * LANES + lanes_of(host_track, host_start, host_end)
    ends = np.cumsum([table.height for table in host_tables])
    device, stream_track, streams = _streams(trace)
    device_start, device_end = column(trace.activities, "start_ns"), end_of(trace.activities)
    device_tid = stream_track * LANES + lanes_of(stream_track, device_start, device_end)
    names = [*_host_names(trace, host_tid), *_device_names(trace, device, device_tid, streams)]
    ranges, frames, annotations, operators, launches = np.split(host_tid, ends[:-1])
    allocations = column(trace.allocations, "thread") * LANES
    migrations = _migration_tracks(trace.migrations)
    names += _migration_names(migrations)
    tracks = Tracks(ranges, frames, annotations, operators, launches, allocations, device, device_tid, migrations)
    return names, events_of(trace, tracks, classifier)


def _migration_tracks(migrations: pl.DataFrame) -> Ints:
    """Return thread ids for unified memory's events: a track for every kind, with lanes for overlaps."""
    kinds = {str(kind): number for number, kind in enumerate(Migration)}
    track = migrations["name"].cast(pl.String).replace_strict(kinds, return_dtype=pl.Int64, default=0).to_numpy()
    return track * LANES + lanes_of(track, column(migrations, "start_ns"), end_of(migrations))


def _migration_names(tids: Ints) -> list[bytes]:
    if not len(tids):
        return []
    kinds = [str(kind) for kind in Migration]
    process = _name("process_name", UNIFIED_MEMORY, 0, "unified memory")
    return [process, *_lane_names(UNIFIED_MEMORY, tids, lambda track: kinds[track])]


def _streams(trace: Trace) -> tuple[Ints, Ints, list[str]]:
    """Number the (device, stream) pairs; return each activity's device and number, and each number's stream name."""
    pairs = trace.activities.select(pl.col("device").fill_null(-1).cast(pl.Int64), pl.col("stream").fill_null(-1))
    known = pairs.unique(maintain_order=True).sort("device", "stream").with_row_index("track")
    track = pairs.join(known, on=["device", "stream"], how="left", maintain_order="left")["track"].cast(pl.Int64)
    names = [_with_given_name(f"stream {number}", trace) for number in known["stream"]]
    return pairs["device"].to_numpy(), track.to_numpy(), names


def _with_given_name(name: str, trace: Trace) -> str:
    """Append the name that the program gave to a stream or a thread (through NVTX), if any."""
    value = trace.source.metadata.get(name)
    return f"{name} ({value})" if value else name


def _name(what: str, pid: int, tid: int, name: str) -> bytes:
    args = json.dumps({"name": printable(name)})
    return f'{{"ph": "M", "name": "{what}", "pid": {pid}, "tid": {tid}, "args": {args}}}'.encode()


def _lane_names(pid: int, tids: Ints, name_of: Callable[[int], str]) -> Iterator[bytes]:
    for tid in np.unique(tids).tolist():
        track, lane = divmod(tid, LANES)
        yield _name("thread_name", pid, tid, name_of(track) + (f" (lane {lane + 1})" if lane else ""))


def _host_names(trace: Trace, tids: Ints) -> Iterator[bytes]:
    yield _name("process_name", HOST, 0, "host")
    if trace.overheads.height:
        yield _name("process_name", OVERHEAD, 0, "profiler")

    def thread(number: int) -> str:
        process, name = (text.strip('"') for text in trace.threads[number])
        return f"process {process}, {_with_given_name(f'thread {name}', trace)}"

    yield from _lane_names(HOST, tids, thread)


def _device_names(trace: Trace, device: Ints, tids: Ints, streams: Sequence[str]) -> Iterator[bytes]:
    known = {item.index: item.name for item in trace.devices}
    for number in np.unique(device).tolist():
        pid = DEVICE + number
        yield _name("process_name", pid, 0, f"device {number} ({known.get(number, 'unknown')})")
        yield from _lane_names(pid, tids[device == number], lambda track: streams[track])
