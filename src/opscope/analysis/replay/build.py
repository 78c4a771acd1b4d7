"""The graph of a few steps: what calls and streams wait for, by records, else by what times do not contradict."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct, field

from opscope.analysis.replay.graph import (
    EXPLAINED_NS,
    LARGEST_REPLAY,
    Chosen,
    EdgeBasis,
    EdgeKind,
    GraphBuilder,
    Span,
    StepGraph,
    steps_to_replay,
)
from opscope.analysis.replay.moments import CLOCKS_NS, DeviceMoments, Host, StreamLaunches, add_devices, add_host
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.base.errors import UsageError
from opscope.knowledge.api_calls import ApiCall, ApiKind, api_call
from opscope.knowledge.collectives import is_pageable
from opscope.trace.model import Trace

# ---------------------------------------------------------------- waits


_RETURNS_NS: Final = 5_000  # after the work that a call waited for, or where there was none: a few microseconds
_AFTER_NS: Final = 20_000  # a device's record may end after the call that waited for it
_PAGEABLE_NS: Final = 10_000  # what a copy of pageable memory takes on the host beside its transfer
_EARLIER: Final = 4  # such a copy returns up to a quarter of its length before its record ends
_SHOWN_NS: Final = 10_000  # work that begins so soon after another stream's shows that it waited for that
_OPEN: Final = 4  # runs of waits for events whose streams are not known yet
# Streams after the first one that is launched on may have waited as well, if they began so soon after that work. In a
# trace of convolutions on two streams it was up to 40 us, as the device was full.
_EXPLAINS_NS: Final = 50_000
_TRIES: Final = 64  # works of a stream that are looked at, latest first
_DEPTH: Final = 1_000  # launches that a stream's queue holds, about: 1,024 on NVIDIA's devices
_FULL_NS: Final = 50_000  # a launch that takes longer waited for room


class _Times(Struct, frozen=True):
    names: list[str]  # of calls
    call_start: Ints
    call_end: Ints
    start: Ints  # of activities
    end: Ints


class _Recorded(Struct, frozen=True):
    """A record of a wait: for a stream, for an event that a call recorded in a stream, or for the whole device."""

    name: str
    device: int | None
    stream: int | None
    awaited_stream: int | None
    recorded_at: int | None


def add_waits(builder: GraphBuilder, trace: Trace, host: Host, device: DeviceMoments) -> None:
    """Add what calls wait for, what streams wait for, and launches that wait for room in the queue."""
    if not device.rows:
        return
    times = _Times(
        trace.launches["name"].cast(pl.String).to_list(),
        column(trace.launches, "start_ns"),
        end_of(trace.launches),
        column(trace.activities, "start_ns"),
        end_of(trace.activities),
    )
    recorded = _records(trace, host, times)
    awaited = {call: works for call in host.calls if (works := _awaited(trace, times, device, recorded, call))}
    _add_host_waits(builder, host, device, times, awaited, _pageable(trace, device))
    _add_stream_waits(builder, host, device, times, recorded)
    _add_full_queues(builder, host, device, times)


def _records(trace: Trace, host: Host, times: _Times) -> Mapping[int, _Recorded]:
    """Return the records of waits by the outermost call that they belong to."""
    table = trace.synchronizations
    if not table.height:
        return {}
    calls = {
        number: int(host.outer[row])
        for row, number in enumerate(trace.launches["correlation"].to_list())
        if number is not None
    }
    columns = ("name", "device", "stream", "correlation", "awaited_stream", "recorded_by")
    results = {}
    for name, device, stream, correlation, awaited, recorded_by in table.select(columns).iter_rows():
        if (call := calls.get(correlation)) is not None:
            by = calls.get(recorded_by)
            at = None if by is None else int(times.call_start[by])
            results[call] = _Recorded(name, device, stream, awaited, at)
    return results


# ---------------------------------------------------------------- the host


def _awaited(
    trace: Trace, times: _Times, device: DeviceMoments, recorded: Mapping[int, _Recorded], call: int
) -> list[tuple[int, EdgeBasis]]:
    """Return the activities that a call waits for, each with how that is known."""
    known = api_call(times.names[call])
    begin, end = int(times.call_start[call]), int(times.call_end[call])
    if call in recorded and recorded[call].name != "Stream Wait Event":
        results = list(_by_record(device, recorded[call], begin))
        return [(row, EdgeBasis.RECORDED) for row in results if times.end[row] <= end + _AFTER_NS]
    own = device.of_call.get(call, [])
    if own and any(is_pageable(str(trace.activities["name"][row])) for row in own):
        late = max(1_000, (end - begin) // _EARLIER)
        return [(own[-1], EdgeBasis.RECORDED)] if times.end[own[-1]] - end <= late else []
    return _by_kind(times, device, known, call) if _waits(known) else []


def _by_kind(times: _Times, device: DeviceMoments, known: ApiCall, call: int) -> list[tuple[int, EdgeBasis]]:
    """Return what a call of a kind that waits is for, where no record says so."""
    begin, end, own = int(times.call_start[call]), int(times.call_end[call]), device.of_call.get(call, [])
    if own:
        return [(row, EdgeBasis.RECORDED) for row in own if times.end[row] <= end + _AFTER_NS]
    latest = list(_latest(device, begin))
    if known.kind is ApiKind.FREE:
        return [(row, EdgeBasis.SHOWN) for row in latest if begin < times.end[row] <= end]
    name = times.names[call]
    if "StreamSync" in name or "EventSync" in name:
        return _of_stream_or_event(times, device, latest, call)
    return [(row, EdgeBasis.RECORDED) for row in latest if times.end[row] <= end + _AFTER_NS]


def _waits(call: ApiCall) -> bool:
    if call.kind in (ApiKind.SYNCHRONIZE, ApiKind.FREE):
        return True
    return call.blocks and call.kind not in (ApiKind.ALLOCATE, ApiKind.MODULE_LOAD)


def _by_record(device: DeviceMoments, record: _Recorded, begin: int) -> Iterator[int]:
    """Yield the last works that a recorded wait of the host is for."""
    for (number, stream), lane in device.streams.items():
        if record.device is not None and number != record.device:
            continue
        wanted = record.awaited_stream if record.awaited_stream is not None else record.stream
        if wanted is not None and stream != wanted:
            continue
        before = begin if record.recorded_at is None else record.recorded_at
        if (at := bisect_left(lane.launched, before) - 1) >= 0:
            yield lane.rows[at]


def _latest(device: DeviceMoments, moment: int) -> Iterator[int]:
    """Yield per stream the last work that was launched before a moment."""
    for lane in device.streams.values():
        if (at := bisect_left(lane.launched, moment) - 1) >= 0:
            yield lane.rows[at]


def _of_stream_or_event(
    times: _Times, device: DeviceMoments, latest: list[int], call: int
) -> list[tuple[int, EdgeBasis]]:
    """Return what a wait for a stream or an event is for: no record says which."""
    begin, end = int(times.call_start[call]), int(times.call_end[call])
    ended = [row for row in latest if times.end[row] <= end + _RETURNS_NS]
    held = [row for row in ended if times.end[row] > begin]
    if held:
        return [(max(held, key=lambda row: times.end[row]), EdgeBasis.SHOWN)]
    if "EventSync" not in times.names[call]:
        return [(ended[0], EdgeBasis.ASSUMED)] if len(ended) == 1 else []
    earlier = (
        row for lane in device.streams.values() for row in _ended_in(times, lane.launched, lane.rows, begin, end)
    )
    result = max(earlier, key=lambda row: times.end[row], default=None)
    return [] if result is None else [(result, EdgeBasis.SHOWN)]


def _ended_in(times: _Times, launched: list[int], rows: list[int], begin: int, end: int) -> Iterator[int]:
    """Yield the latest work of a stream, launched before a call, that ended while the call ran."""
    last = bisect_left(launched, begin)
    for row in reversed(rows[max(0, last - _TRIES) : last]):
        if times.end[row] <= end + _RETURNS_NS:
            if times.end[row] > begin:
                yield row
            return


def _pageable(trace: Trace, device: DeviceMoments) -> set[int]:
    """Return the calls that copy from or to memory that is not pinned."""
    copies = (trace.activities["kind"] == "memcpy").to_numpy()
    names = trace.activities["name"]
    return {
        call
        for call, rows in device.of_call.items()
        if any(copies[row] and is_pageable(str(names[row])) for row in rows)
    }


def _add_host_waits(
    builder: GraphBuilder,
    host: Host,
    device: DeviceMoments,
    times: _Times,
    awaited: Mapping[int, list[tuple[int, EdgeBasis]]],
    pageable: set[int],
) -> None:
    in_vain, returns = _usual_calls(times, awaited, pageable)
    for call, works in awaited.items():
        begin, end, name = int(times.call_start[call]), int(times.call_end[call]), times.names[call]
        over = max(int(times.end[row]) for row, _ in works)
        if over > begin:
            usual = _PAGEABLE_NS if call in pageable else in_vain.get(name, _RETURNS_NS)
            builder.shorten(host.edges[call], usual)
        exact = call in pageable or api_call(name).kind is ApiKind.FREE
        for row, basis in works:
            lag = end - int(times.end[row]) if exact else returns.get(name, _RETURNS_NS)
            builder.edge(device.ends[row], host.ends[call], EdgeKind.WAIT, call, lag=lag, basis=basis)


def _usual_calls(
    times: _Times, awaited: Mapping[int, list[tuple[int, EdgeBasis]]], pageable: set[int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return by name how long calls take that find nothing to wait for, and how soon they return after what they do."""
    in_vain: dict[str, list[int]] = defaultdict(list)
    returns: dict[str, list[int]] = defaultdict(list)
    for call, works in awaited.items():
        begin, end, name = int(times.call_start[call]), int(times.call_end[call]), times.names[call]
        over = max(int(times.end[row]) for row, _ in works)
        if over <= begin:
            in_vain[name].append(end - begin)
        elif call not in pageable:
            returns[name].append(end - over)
    medians = ({name: float(np.median(values)) for name, values in of.items()} for of in (in_vain, returns))
    return next(medians), next(medians)


# ---------------------------------------------------------------- streams


class _Unnamed(Struct):
    """Calls of a thread that let streams wait for events, one after the other; no record says which streams.

    They are of the stream on which the thread launches next, and may be of further ones, no more streams than calls.

    Attributes:
        called: when.
        streams: those streams.
    """

    called: list[int] = field(default_factory=list)
    streams: set[tuple[int, int]] = field(default_factory=set)


def _add_stream_waits(
    builder: GraphBuilder, host: Host, device: DeviceMoments, times: _Times, recorded: Mapping[int, _Recorded]
) -> None:
    """Add waits of streams for events of others: of the next work that is launched on them."""
    if len(device.streams) < 2:
        return
    stream_of = {row: stream for stream, lane in device.streams.items() for row in lane.rows}
    waiting: dict[int, list[_Unnamed]] = defaultdict(list)  # by thread
    for call in host.calls:  # by start, so in the order of each thread
        thread, called = builder.threads[host.starts[call]], int(times.call_start[call])
        if "StreamWaitEvent" in times.names[call]:
            if call in recorded:
                _add_recorded(builder, device, times, recorded[call], called)
            else:
                open_ = waiting[thread]
                if not open_ or open_[-1].streams:
                    waiting[thread] = open_ = [*open_[1 - _OPEN :], _Unnamed()]
                open_[-1].called.append(called)
        elif (works := device.of_call.get(call)) and waiting[thread]:
            stream = stream_of[works[0]]
            for waits in (waits for waits in waiting[thread] if stream not in waits.streams):
                most = _EXPLAINS_NS if waits.streams else None
                waits.streams.add(stream)
                _add_inferred(builder, device, times, stream, works[0], waits.called, most)
            waiting[thread] = [waits for waits in waiting[thread] if len(waits.streams) < len(waits.called)]


def _add_recorded(builder: GraphBuilder, device: DeviceMoments, times: _Times, record: _Recorded, called: int) -> None:
    if record.stream is None or record.awaited_stream is None:
        return
    for (number, stream), lane in device.streams.items():
        if stream != record.stream or record.device not in (None, number):
            continue
        source = device.streams.get((number, record.awaited_stream))
        after = bisect_left(lane.launched, called)
        if source is None or after >= len(lane.rows):
            continue
        before = record.recorded_at if record.recorded_at is not None else called
        if (at := bisect_left(source.launched, before) - 1) < 0:
            continue
        first, second = source.rows[at], lane.rows[after]
        if times.end[first] <= times.start[second] + CLOCKS_NS:  # else it had been done before, by other records
            builder.edge(device.ends[first], device.starts[second], EdgeKind.EVENT, second, lag=2 * device.gap_ns)


def _add_inferred(
    builder: GraphBuilder,
    device: DeviceMoments,
    times: _Times,
    stream: tuple[int, int],
    row: int,
    called: list[int],
    most_ns: int | None,
) -> None:
    """Add edges from the latest work of each other stream that the times do not contradict.

    Args:
        builder: gets them.
        device: the devices' work.
        times: of all of it.
        stream: that waits.
        row: the first activity on it after the calls.
        called: when the calls were made.
        most_ns: so soon it must have begun after the work that it waits for; None for any time.
    """
    for other, lane in device.streams.items():
        if other == stream:
            continue
        works = {_done_before(times, lane, moment, row) for moment in called}
        for work in sorted(work for work in works if work is not None):
            after = int(times.start[row] - times.end[work])
            if most_ns is not None and after > most_ns:
                continue
            shown = after < _SHOWN_NS
            basis = EdgeBasis.SHOWN if shown else EdgeBasis.ASSUMED
            lag = 2 * device.gap_ns
            builder.edge(device.ends[work], device.starts[row], EdgeKind.EVENT, row, lag=lag, basis=basis)


def _done_before(times: _Times, lane: StreamLaunches, called: int, row: int) -> int | None:
    """Return the latest work launched on a stream before a call that was done when some other work began."""
    last = bisect_left(lane.launched, called)
    works = reversed(lane.rows[max(0, last - _TRIES) : last])
    return next((work for work in works if times.end[work] <= times.start[row] + CLOCKS_NS), None)


def _add_full_queues(builder: GraphBuilder, host: Host, device: DeviceMoments, times: _Times) -> None:
    """A launch that takes long while a thousand wait on its stream waits for the first of these."""
    for lane in device.streams.values():
        for at in range(_DEPTH, len(lane.rows)):
            row, oldest = lane.rows[at], lane.rows[at - _DEPTH]
            call = device.call_of[row]
            begin, end = int(times.call_start[call]), int(times.call_end[call])
            if end - begin > _FULL_NS and begin < times.end[oldest] <= end + _AFTER_NS:
                builder.shorten(host.edges[call], _RETURNS_NS)
                builder.edge(
                    device.ends[oldest], host.ends[call], EdgeKind.QUEUE, call, lag=_RETURNS_NS, basis=EdgeBasis.SHOWN
                )


# ---------------------------------------------------------------- the graph of a step


# Work begins so close to the end of what filled the device that the times show it: in a trace of two streams of
# convolutions it was 8 us before to 3 us after. As the last blocks of a kernel leave room one after the other, it was
# up to 30 us before the end there; what ends later than that may as well have run beside it.
_CLOSE_NS: Final = 15_000
_DRAINS_NS: Final = 40_000


class Steps(Struct, frozen=True):
    """Some steps of a trace as a graph.

    Attributes:
        trace: the trace.
        links: its links.
        chosen: which steps.
        graph: their graph.
        synchronized: whether each step ends with a wait for all its work, so that it was measured alone.
    """

    trace: Trace
    links: Links
    chosen: Chosen
    graph: StepGraph
    synchronized: bool


def replayed_steps(trace: Trace, links: Links) -> Steps | None:
    """Build the graph of a few steps around the one of median length, or of a whole recording without steps.

    Returns:
        The steps; None where nothing was recorded, or where the records contradict each other so that moments would
        have to wait for themselves.

    Raises:
        UsageError: a step, or a recording without steps, is too long.
    """
    chosen = steps_to_replay(trace)
    if chosen is None:
        return None
    calls = ((s := column(trace.launches, "start_ns")) >= chosen.begin_ns) & (s < chosen.end_ns)
    if int(calls.sum()) > LARGEST_REPLAY // 4:
        raise UsageError(f"{int(calls.sum()):,} calls are too many to replay: name a part with --steps or --window")
    builder = GraphBuilder()
    host = add_host(builder, trace, chosen)
    device = add_devices(builder, trace, links, chosen, host)
    add_waits(builder, trace, host, device)
    add_room(builder, trace, device)
    spans = _synchronized(trace, chosen, host, device)
    synchronized = spans is not None
    if spans is None:
        ends = [*device.ends.values(), *(() if host.last is None else (host.last,))]
        start = host.marks[0] if host.marks else min(range(len(builder.times)), key=builder.times.__getitem__)
        spans = [Span(start, tuple(ends))] if ends else []
    graph = builder.built(spans, chosen.numbers, len(chosen.marks)) if spans else None
    return None if graph is None else Steps(trace, links, chosen, graph, synchronized)


def _synchronized(trace: Trace, chosen: Chosen, host: Host, device: DeviceMoments) -> list[Span] | None:
    """Return each step up to its last wait for the device; None unless each ends with one for all of its work."""
    start, end = column(trace.launches, "start_ns"), end_of(trace.launches)
    names, done = trace.launches["name"], end_of(trace.activities)
    if not chosen.numbers or not device.rows:
        return None
    spans = []
    for mark, (begin, stop) in zip(host.marks, chosen.marks, strict=True):
        inside = [call for call in host.calls if begin <= start[call] < stop]
        launching = [call for call in inside if call in device.of_call]
        waits = [call for call in inside if api_call(str(names[call])).blocks]
        if not launching or not waits or start[waits[-1]] < start[launching[-1]]:
            return None
        last = max(int(done[row]) for call in launching for row in device.of_call[call])
        if last > end[waits[-1]] + _AFTER_NS:
            return None
        spans.append(Span(mark, (host.ends[waits[-1]],)))
    return spans


class _Lane(Struct):
    """Work of one kind on one stream, by start."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def add_room(builder: GraphBuilder, trace: Trace, device: DeviceMoments) -> None:
    """Let work that nothing else explains wait for other streams' work of its kind that ran until it began."""
    if len(device.streams) < 2:
        return
    late = builder.late()
    kind = trace.activities["kind"].to_physical().to_numpy()
    number, stream = column(trace.activities, "device"), column(trace.activities, "stream")
    start, end = column(trace.activities, "start_ns"), end_of(trace.activities)
    lanes: dict[tuple[int, int], dict[int, _Lane]] = defaultdict(lambda: defaultdict(_Lane))
    for row in device.rows:  # by start
        lane = lanes[int(number[row]), int(kind[row])][int(stream[row])]
        lane.starts.append(int(start[row]))
        lane.ends.append(int(end[row]))
        lane.rows.append(row)
    for row in device.rows:
        began, by = int(start[row]), int(late[device.starts[row]])
        if by <= EXPLAINED_NS:
            continue
        near: list[tuple[int, int]] = []
        for other, lane in lanes[int(number[row]), int(kind[row])].items():
            at = bisect_right(lane.starts, began - by) - 1
            if other != stream[row] and at >= 0 and began - _CLOSE_NS <= lane.ends[at] <= began + _DRAINS_NS:
                near.append((lane.ends[at], lane.rows[at]))
        if near:
            over, first = min(near)
            basis = EdgeBasis.SHOWN if over - began <= _CLOSE_NS else EdgeBasis.ASSUMED
            builder.edge(device.ends[first], device.starts[row], EdgeKind.ROOM, row, basis=basis)
