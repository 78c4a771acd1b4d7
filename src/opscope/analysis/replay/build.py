"""Builds the graph of a trace's steps."""

from bisect import bisect_right
from collections import defaultdict
from typing import Final

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
from opscope.analysis.replay.moments import DeviceMoments, Host, add_devices, add_host
from opscope.analysis.replay.waits import add_waits
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import Links
from opscope.base.errors import UsageError
from opscope.knowledge.api_calls import api_call
from opscope.trace.model import Trace

_AFTER_NS: Final = 20_000  # a device's record may end after the call that waited for it
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
