"""Work that could have begun, but for other streams' work that filled the device."""

from bisect import bisect_right
from collections import defaultdict
from typing import Final

from msgspec import Struct, field

from opscope.analysis.replay.device import Device
from opscope.analysis.replay.graph import EXPLAINED_NS, EdgeBasis, EdgeKind, GraphBuilder
from opscope.analysis.structure.arrays import column, end_of
from opscope.trace.model import Trace

# Work begins so close to the end of what filled the device that the times show it: in a trace of two streams of
# convolutions it was 8 us before to 3 us after. As the last blocks of a kernel leave room one after the other, it was
# up to 30 us before the end there; what ends later than that may as well have run beside it.
_CLOSE_NS: Final = 15_000
_DRAINS_NS: Final = 40_000


class _Lane(Struct):
    """Work of one kind on one stream, by start."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


def add_room(builder: GraphBuilder, trace: Trace, device: Device) -> None:
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
