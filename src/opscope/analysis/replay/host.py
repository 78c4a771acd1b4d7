"""The host's part of a graph: calls in the order of their threads, and threads that hand over to each other."""

from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np
from msgspec import Struct, field

from opscope.analysis.replay.graph import Chosen, EdgeBasis, EdgeKind, GraphBuilder
from opscope.analysis.structure.api_masks import calls_that, names_that
from opscope.analysis.structure.arrays import column, end_of, nesting_of, numbers_in
from opscope.analysis.structure.autograd import is_engine
from opscope.analysis.structure.nesting import Bools, Ints, nearest
from opscope.knowledge.api_calls import ApiKind
from opscope.trace.model import Trace

# A thread may have handed over where it records nothing for as long as this; starting another thread's work takes 10 us
# and more.
_HANDOVER_NS: Final = 20_000


class Host(Struct):
    """The moments of the host's calls.

    Attributes:
        outer: per call of the trace the outermost call around it, itself included.
        calls: the rows of the calls in the graph, by start.
        starts, ends: by row of a call its moments.
        edges: by row of a call the edge between these.
        lanes: by thread its moments, in order.
        marks: the moments at which the steps begin.
        last: the last moment of the steps' thread; None if it has none.
    """

    outer: Ints
    calls: list[int] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    edges: dict[int, int] = field(default_factory=dict)
    lanes: dict[int, list[int]] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    last: int | None = None


def add_host(builder: GraphBuilder, trace: Trace, chosen: Chosen) -> Host:
    """Add the calls of the steps, thread by thread, with the time between them."""
    parent = nesting_of(trace.launches).parent
    outermost = parent < 0
    host = Host(nearest(parent, outermost) if len(parent) else parent)
    thread, start, end = column(trace.launches, "thread"), column(trace.launches, "start_ns"), end_of(trace.launches)
    inside = outermost & (start >= chosen.begin_ns) & (start < chosen.end_ns)
    asks = calls_that(trace.launches, lambda call: call.kind is ApiKind.QUERY)
    arrivals: dict[int, int] = {}
    for number in numbers_in(thread[inside]).tolist() if inside.any() else ():
        rows = np.flatnonzero(inside & (thread == number))
        # A thread that only asks, as a watchdog does, holds nothing back.
        if number == chosen.thread or not asks[rows].all():
            _add_lane(builder, host, chosen, number, rows[np.argsort(start[rows], kind="stable")], start, end, arrivals)
    if chosen.thread not in host.lanes:
        _add_lane(builder, host, chosen, chosen.thread, np.zeros(0, np.int64), start, end, arrivals)
    host.calls = sorted(host.starts, key=lambda row: (start[row], row))
    _add_tail(builder, host, trace, chosen)
    _add_handovers(builder, host, trace, chosen, arrivals)
    return host


def _add_lane(
    builder: GraphBuilder,
    host: Host,
    chosen: Chosen,
    thread: int,
    rows: Ints,
    start: Ints,
    end: Ints,
    arrivals: dict[int, int],
) -> None:
    """Add one thread; ``arrivals`` gets per moment the edge by which its thread comes to it."""
    items = [(int(start[row]), 1, row) for row in rows.tolist()]
    if thread == chosen.thread:
        items = sorted([*items, *((begin, 0, -1) for begin, _ in chosen.marks)])
    lane: list[int] = []
    for time, is_call, row in items:
        moment = builder.moment(time, thread)
        if lane:
            arrivals[moment] = builder.edge(lane[-1], moment, EdgeKind.HOST, row)
        lane.append(moment)
        if not is_call:
            host.marks.append(moment)
            continue
        lane.append(builder.moment(int(end[row]), thread))
        host.starts[row], host.ends[row] = moment, lane[-1]
        host.edges[row] = builder.edge(moment, lane[-1], EdgeKind.CALL, row)
    host.lanes[thread] = lane


def _add_tail(builder: GraphBuilder, host: Host, trace: Trace, chosen: Chosen) -> None:
    """Add the host's time after the last call of the steps, up to the end of the last operator."""
    lane = host.lanes[chosen.thread]
    ends = end_of(trace.operators)[column(trace.operators, "thread") == chosen.thread]
    ends = ends[ends <= chosen.end_ns]
    if lane and len(ends) and (latest := int(ends.max())) > builder.times[lane[-1]]:
        moment = builder.moment(latest, chosen.thread)
        builder.edge(lane[-1], moment, EdgeKind.HOST)
        lane.append(moment)
    host.last = lane[-1] if lane else None


def _add_handovers(builder: GraphBuilder, host: Host, trace: Trace, chosen: Chosen, arrivals: dict[int, int]) -> None:
    """Add edges to and from what other threads do while the steps' thread records nothing, as autograd's do."""
    main = host.lanes[chosen.thread]
    others = [thread for thread in host.lanes if thread != chosen.thread and host.lanes[thread]]
    if not main or not others:
        return
    own = _moments(trace, chosen.thread, chosen)
    quiet = np.flatnonzero(np.diff(own) > _HANDOVER_NS).tolist()
    times = [builder.times[moment] for moment in main]
    engine = names_that(trace.operators, is_engine)
    for thread in others:
        lane = host.lanes[thread]
        at = [builder.times[moment] for moment in lane]
        runs_engine = bool(engine[column(trace.operators, "thread") == thread].any())
        for number in quiet:
            begin, end = int(own[number]), int(own[number + 1])
            first, last = bisect_left(at, begin), bisect_right(at, end) - 1
            before, after = bisect_right(times, begin) - 1, bisect_left(times, end)
            if last <= first or before < 0 or after >= len(main):
                continue
            basis = EdgeBasis.SHOWN if runs_engine else EdgeBasis.ASSUMED
            builder.edge(main[before], lane[first], EdgeKind.HANDOVER, basis=basis)
            builder.edge(lane[last], main[after], EdgeKind.HANDOVER, basis=basis)
            # Both threads only waited meanwhile: what they do themselves lies in the handing over.
            for moment in (lane[first], main[after] if after == before + 1 else None):
                if moment is not None and moment in arrivals:
                    builder.shorten(arrivals[moment], 0)


def _moments(trace: Trace, thread: int, chosen: Chosen) -> Ints:
    """Return when operators and calls of a thread begin and end within the steps, ascending."""
    times = [np.array([begin for begin, _ in chosen.marks], np.int64)]
    for table in (trace.operators, trace.launches):
        own: Bools = column(table, "thread") == thread
        moments = np.concatenate([column(table, "start_ns")[own], end_of(table)[own]])
        times.append(moments[(moments >= chosen.begin_ns) & (moments <= chosen.end_ns)])
    return np.unique(np.concatenate(times))
