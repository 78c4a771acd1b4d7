"""The devices' part of a graph: activities after their launches, in the order of their streams."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct, field

from opscope.analysis.replay.graph import Chosen, EdgeBasis, EdgeKind, GraphBuilder
from opscope.analysis.replay.host import Host
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.trace.model import Trace

# A launch into an empty stream takes as long as this where a trace has too few to tell. Launches that queue say nothing
# of it: the median of those ended a predicted step 7.1 ms after what was measured as 4.0.
_LAUNCH_NS: Final = 8_000
_SAMPLES: Final = 3
_EARLY: Final = 0.1  # of launches, if all were queued: the quickest tenth
# The pause of a stream between two kernels, where the trace has none; and pauses that are only that.
_GAP_NS: Final = 1_000
_PAUSES: Final = (-2_000, 5_000)
CLOCKS_NS: Final = 500  # by which records of one device may contradict each other


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
