"""Work that could have begun, but for other streams' work that filled the device."""

from collections import defaultdict
from typing import Final

import numpy as np

from opscope.analysis.replay.device import Device
from opscope.analysis.replay.graph import EXPLAINED_NS, EdgeBasis, EdgeKind, GraphBuilder
from opscope.analysis.structure.arrays import column, end_of
from opscope.trace.model import Trace

# Work that begins so close to the end of other work shows that it waited for that: before it, as the last blocks leave
# room one after the other, or after it. In a trace of two streams of convolutions it was 8 us before to 3 us after.
_CLOSE_NS: Final = 15_000


def add_room(builder: GraphBuilder, trace: Trace, device: Device) -> None:
    """Let work that nothing else explains wait for other streams' work of its kind that ran until it began."""
    if len(device.streams) < 2:
        return
    late = builder.late()
    kind = trace.activities["kind"].to_physical().to_numpy()
    number, stream = column(trace.activities, "device"), column(trace.activities, "stream")
    start, end = column(trace.activities, "start_ns"), end_of(trace.activities)
    lanes: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in device.rows:  # by start
        lanes[int(number[row]), int(kind[row])][int(stream[row])].append(row)
    for row in device.rows:
        by = int(late[device.starts[row]])
        if by <= EXPLAINED_NS:
            continue
        others = []
        for other, rows in lanes[int(number[row]), int(kind[row])].items():
            at = int(np.searchsorted(start[rows], start[row] - by, side="right")) - 1
            if other != stream[row] and at >= 0 and end[rows[at]] >= start[row] - _CLOSE_NS:
                others.append(rows[at])
        if others:
            first = min(others, key=lambda one: int(end[one]))
            close = abs(int(end[first] - start[row])) <= _CLOSE_NS
            basis = EdgeBasis.SHOWN if close else EdgeBasis.ASSUMED
            builder.edge(device.ends[first], device.starts[row], EdgeKind.ROOM, row, basis=basis)
