"""How much work waits on a device: launched by the host, and not yet begun."""

from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.trace.model import Trace


class Queue(Struct, frozen=True):
    """Work of one device that was launched and had not begun, over time.

    Attributes:
        device: its number; `NO_DEVICE` where it was not recorded.
        time_ns: when the number changed, on the trace's clock, ascending and distinct.
        waiting: how many activities waited from then on.
    """

    device: int
    time_ns: Ints
    waiting: Ints


def waiting_since(trace: Trace, links: Links) -> Ints:
    """Return per activity when its launch returned; its own start where the launch is unknown or still ran then.

    The nodes of a graph are launched by one call, and all wait from its end on.
    """
    start = column(trace.activities, "start_ns")
    launch = links.activity_launch
    if not trace.launches.height:
        return start
    returned = end_of(trace.launches)[np.maximum(launch, 0)]
    since: Ints = np.where(launch >= 0, np.minimum(returned, start), start)
    return since


def queues_of(trace: Trace, links: Links) -> Iterator[Queue]:
    """Yield the queue of each device with work whose launch is known."""
    device = trace.activities["device"].fill_null(NO_DEVICE).cast(pl.Int64).to_numpy()
    start, since = column(trace.activities, "start_ns"), waiting_since(trace, links)
    for number in np.unique(device).tolist():
        rows = np.flatnonzero((device == number) & (since < start))
        if not len(rows):
            continue
        times = np.concatenate([since[rows], start[rows]])
        change = np.repeat(np.array([1, -1], np.int64), len(rows))
        moments, which = np.unique(times, return_inverse=True)
        waiting = np.zeros(len(moments), np.int64)
        np.add.at(waiting, which, change)
        yield Queue(number, moments, np.cumsum(waiting))
