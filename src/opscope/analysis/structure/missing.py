"""How much device time activities that were not recorded can have taken."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.trace.model import Trace

_MOST_PAIRS: Final = 10_000_000  # queues times missing calls that are looked at one by one
_NEVER: Final = np.iinfo(np.int64).min  # no known queue of the device


class _Queue(Struct, frozen=True):
    """What a thread enqueued on a stream: when its calls began, ascending, and when their activities began."""

    device: int
    thread: int
    called: Ints
    began: Ints


def hidden_ns(trace: Trace, links: Links, missing: Ints) -> int:
    """Return the most that missing activities can have kept devices busy while no recorded one did, in nanoseconds.

    What a call enqueued ran before the next recorded activity that its thread enqueued on the same stream. It is not
    known which of the thread's streams that was, so the one where this activity begins latest counts. If no stream of
    the thread is known, the work may have run on any device until the end. Devices are added up.

    Args:
        trace: the trace.
        links: its links.
        missing: rows of the launches whose activities are missing; at least one.
    """
    thread, start = column(trace.launches, "thread")[missing], column(trace.launches, "start_ns")[missing]
    order = np.lexsort((start, thread))
    thread, start = thread[order], start[order]
    last = max(int(end_of(table).max()) for table in (trace.launches, trace.activities) if table.height)
    queues = list(_queues(trace, links))
    devices = len({queue.device for queue in queues}) or 1
    if not queues or len(queues) * len(missing) > _MOST_PAIRS:
        # An upper bound of the same figure: every device may have worked from the first missing call to the end.
        return devices * (last - int(start.min()))
    ends = _ends(queues, thread, start, last)
    unknown = np.logical_and.reduce([end == _NEVER for end in ends.values()])
    return sum(
        _idle(trace, device, Intervals.union_of(start, np.where(unknown, last, end))) for device, end in ends.items()
    )


def _ends(queues: list[_Queue], thread: Ints, start: Ints, last: int) -> Mapping[int, Ints]:
    """Return per device and missing call when what it enqueued there had ended at the latest; `_NEVER` if nowhere."""
    ends: dict[int, Ints] = {}
    for queue in queues:
        own = slice(*np.searchsorted(thread, [queue.thread, queue.thread + 1]))
        # The first call of the queue after the missing one; without any, the work may have run until the end.
        following = np.searchsorted(queue.called, start[own], side="right")
        known = ends.setdefault(queue.device, np.full(len(start), _NEVER))
        known[own] = np.maximum(known[own], np.append(queue.began, last)[following])
    return ends


def _idle(trace: Trace, device: int, room: Intervals) -> int:
    own = column(trace.activities, "device") == device
    start, end = column(trace.activities, "start_ns")[own], end_of(trace.activities)[own]
    return room.length - Intervals.union_of(start, end).within(room).length


def _queues(trace: Trace, links: Links) -> Iterator[_Queue]:
    rows = np.flatnonzero(links.activity_launch >= 0)
    launch = links.activity_launch[rows]
    device, stream, began = (column(trace.activities, name)[rows] for name in ("device", "stream", "start_ns"))
    thread, called = (column(trace.launches, name)[launch] for name in ("thread", "start_ns"))
    order = np.lexsort((began, called, thread, stream, device))
    keys = np.stack([device, stream, thread])[:, order]
    bounds = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    for group in np.split(order, bounds) if len(order) else ():
        yield _Queue(int(device[group[0]]), int(thread[group[0]]), called[group], began[group])
