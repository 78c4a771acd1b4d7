"""The moments of a graph: calls in the order of their threads, and activities in the order of their streams.

Threads hand over to each other, and activities come after their launches.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct, field

from opscope.analysis.replay.graph import Chosen, EdgeBasis, EdgeKind, GraphBuilder
from opscope.analysis.structure.api_masks import calls_that, names_that
from opscope.analysis.structure.arrays import column, end_of, nesting_of, numbers_in
from opscope.analysis.structure.autograd import is_engine
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints, nearest
from opscope.knowledge.api_calls import ApiKind
from opscope.trace.model import Trace

# A thread may have handed over where it records nothing for as long as this; starting another thread's work takes 10 us
# and more.
_HANDOVER_NS: Final = 20_000
# A launch into an empty stream takes as long as this where a trace has too few to tell. Launches that queue say nothing
# of it: the median of those ended a predicted step 7.1 ms after what was measured as 4.0.
_LAUNCH_NS: Final = 8_000
_SAMPLES: Final = 3
_EARLY: Final = 0.1  # of launches, if all were queued: the quickest tenth
# The pause of a stream between two kernels, where the trace has none; and pauses that are only that.
_GAP_NS: Final = 1_000
_PAUSES: Final = (-2_000, 5_000)
CLOCKS_NS: Final = 500  # by which records of one device may contradict each other


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


class StreamLaunches(Struct):
    """What was launched on a stream, by the time of the launch.

    Attributes:
        launched: when.
        rows: the rows of the activities.
    """

    launched: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class DeviceMoments(Struct):
    """The moments of the devices' work.

    Attributes:
        rows: the rows of the activities in the graph, by start.
        starts, ends: by row of an activity its moments.
        streams: by device and stream what was launched on it.
        of_call: by row of a call the activities that it launched, by start.
        call_of: by row of an activity the call that launched it, where one is known.
        gap_ns: the usual pause between two activities of a stream.
    """

    rows: list[int] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    streams: dict[tuple[int, int], StreamLaunches] = field(default_factory=dict)
    of_call: dict[int, list[int]] = field(default_factory=dict)
    call_of: dict[int, int] = field(default_factory=dict)
    gap_ns: int = _GAP_NS


class _Columns(Struct, frozen=True):
    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    call: Ints  # the outermost call that launched it, -1 without
    called: Ints  # when that began


def add_devices(builder: GraphBuilder, trace: Trace, links: Links, chosen: Chosen, host: Host) -> DeviceMoments:
    """Add the activities that the steps launched, and those without a launch that begin in them."""
    table = trace.activities
    launch, result = links.activity_launch, DeviceMoments()
    if not table.height:
        return result
    call = np.where(launch >= 0, np.append(host.outer, -1)[launch], -1)
    began = column(trace.launches, "start_ns")
    called = np.where(call >= 0, np.append(began, 0)[call], 0)
    columns = _Columns(
        column(table, "start_ns"), end_of(table), column(table, "device"), column(table, "stream"), call, called
    )
    known = np.zeros(trace.launches.height + 1, np.bool_)
    known[list(host.starts)] = True
    known[-1] = False
    alone = (launch < 0) & (columns.start >= chosen.begin_ns) & (columns.start < chosen.end_ns)
    rows = np.flatnonzero(known[call] | alone)
    result.rows = rows[np.lexsort((columns.end[rows], columns.start[rows]))].tolist()
    _add_rows(builder, trace, columns, host, result)
    _not_before_earlier_work(builder, columns, result)
    return result


def _add_rows(builder: GraphBuilder, trace: Trace, columns: _Columns, host: Host, result: DeviceMoments) -> None:
    names = trace.launches["name"].to_physical().to_numpy()
    kinds = trace.activities["kind"].to_physical().to_numpy()
    before: dict[tuple[int, int], int] = {}
    gaps: list[tuple[int, int]] = []
    launches: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for row in result.rows:
        start, end, call = int(columns.start[row]), int(columns.end[row]), int(columns.call[row])
        first, last = builder.moment(start), builder.moment(max(end, start))
        result.starts[row], result.ends[row] = first, last
        builder.edge(first, last, EdgeKind.ACTIVITY, row)
        stream = int(columns.device[row]), int(columns.stream[row])
        earlier = before.get(stream)
        if earlier is not None:
            edge = builder.edge(result.ends[earlier], first, EdgeKind.STREAM, row)
            gaps.append((edge, start - int(columns.end[earlier])))
        before[stream] = row
        if call < 0:
            continue
        mates = result.of_call.setdefault(call, [])
        result.call_of[row] = call
        if not mates:
            edge = builder.edge(host.starts[call], first, EdgeKind.LAUNCH, row)
            free = earlier is None or int(columns.end[earlier]) <= int(columns.called[row])
            launches[int(names[call]), int(kinds[row])].append((edge, start - int(columns.called[row]), free))
        elif int(columns.stream[mates[-1]]) != stream[1]:
            _after_mates(builder, columns, result, mates, row)
        mates.append(row)
        lane = result.streams.setdefault(stream, StreamLaunches())
        lane.launched.append(int(columns.called[row]))
        lane.rows.append(row)
    for lane in result.streams.values():
        order = np.argsort(lane.launched, kind="stable").tolist()
        lane.launched, lane.rows = [lane.launched[at] for at in order], [lane.rows[at] for at in order]
    _usual(builder, result, gaps, launches.values())


def _after_mates(builder: GraphBuilder, columns: _Columns, result: DeviceMoments, mates: list[int], row: int) -> None:
    """A node of a graph on another stream than the last one comes after the latest that had ended when it began."""
    ended = [mate for mate in mates if columns.end[mate] <= columns.start[row] + CLOCKS_NS]
    if ended:
        latest = max(ended, key=lambda mate: columns.end[mate])
        builder.edge(result.ends[latest], result.starts[row], EdgeKind.GRAPH, row, basis=EdgeBasis.ASSUMED)


def _usual(
    builder: GraphBuilder,
    result: DeviceMoments,
    gaps: list[tuple[int, int]],
    launches: Iterable[list[tuple[int, int, bool]]],
) -> None:
    """Shorten launches and pauses of streams to what is usual: the rest is waiting for something else."""
    pauses = [gap for _, gap in gaps if _PAUSES[0] < gap < _PAUSES[1]]
    if pauses:
        result.gap_ns = int(np.median(pauses))
    for edge, _ in gaps:
        builder.shorten(edge, result.gap_ns)
    for samples in launches:
        free = [latency for _, latency, is_free in samples if is_free]
        if len(free) >= _SAMPLES:
            usual = float(np.median(free))
        else:
            usual = min(float(np.quantile([latency for _, latency, _ in samples], _EARLY)), _LAUNCH_NS)
        for edge, _, _ in samples:
            builder.shorten(edge, usual)


def _not_before_earlier_work(builder: GraphBuilder, columns: _Columns, result: DeviceMoments) -> None:
    """The first activity of a stream in the graph comes after what the stream did before the steps."""
    firsts: dict[tuple[int, int], int] = {}
    for row in result.rows:
        firsts.setdefault((int(columns.device[row]), int(columns.stream[row])), row)
    for (device, stream), row in firsts.items():
        on_it = (columns.device == device) & (columns.stream == stream)
        earlier = columns.end[on_it & (columns.start < columns.start[row])]
        if len(earlier):
            builder.not_before(result.starts[row], int(earlier.max()))
