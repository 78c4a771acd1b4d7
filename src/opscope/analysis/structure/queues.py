"""How much work waits on a device: launched by the host, and not yet begun."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.lanes import NO_DEVICE
from opscope.analysis.structure.launches import delays_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
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


_PIECES: Final = 20  # of a recording
_OVER_TIME: Final = {
    **dict.fromkeys(("device", "from_ns", "to_ns", "launches", "latencies"), pl.Int64),
    **{"latency_ns": pl.Float64, "backlogs": pl.Int64, "backlog_ns": pl.Float64},
    **{"waiting": pl.Float64, "most_waiting": pl.Int64},
}


def queue_by_kernel(trace: Trace, links: Links) -> pl.DataFrame:
    """Return how each kernel, copy and fill was launched, those that took longest first.

    Returns:
        ``name``, ``device``, ``launches`` (activities whose call is known), ``api_ns`` (median time of the calls),
        ``latencies`` and ``latency_ns`` (how many found an empty stream, and the median from the end of the call to
        the start), ``backlogs`` and ``backlog_ns`` (the same behind earlier work of the stream), ``waiting`` (how many
        activities of the device waited when the call returned, on average), ``device_ns`` (durations added up).
        Medians are null where there are none.
    """
    return (
        _launched(trace, links)
        .group_by("name", "device")
        .agg(
            pl.len().alias("launches"), pl.col("api_ns").median(), *_medians(), pl.col("waiting").mean(),
            pl.col("duration_ns").sum().alias("device_ns"),
        )
        .with_columns(pl.col("name").cast(pl.String))
        .sort("device_ns", "name", "device", descending=[True, False, False])
    )  # fmt: skip


def queue_over_time(trace: Trace, links: Links) -> pl.DataFrame:
    """Return how work was launched over time, per device in twenty pieces from the first launch to the last start.

    Returns:
        ``device``, ``from_ns`` and ``to_ns`` (on the trace's clock), ``launches`` that returned in the piece, and of
        these ``latencies``, ``latency_ns``, ``backlogs``, ``backlog_ns`` as in `queue_by_kernel`; ``waiting`` (how
        many activities waited, on average over time) and ``most_waiting``.
    """
    rows = _launched(trace, links)
    curves = {queue.device: queue for queue in queues_of(trace, links)}
    tables = [_pieces_of(rows.filter(pl.col("device") == device), curves[device]) for device in sorted(curves)]
    return pl.concat(tables) if tables else _pieces_of(rows.clear(), Queue(NO_DEVICE, *(np.zeros(0, np.int64),) * 2))


def _launched(trace: Trace, links: Links) -> pl.DataFrame:
    """Return the activities whose call is known, with the call's time, their delay, and how many waited before them."""
    delays = delays_of(trace, links)
    rows, call = delays.rows, links.activity_launch[delays.rows]
    since = waiting_since(trace, links)[rows]
    device = trace.activities["device"].fill_null(NO_DEVICE).cast(pl.Int64).to_numpy()[rows]
    waiting = np.zeros(len(rows), np.int64)
    for queue in queues_of(trace, links):
        own = device == queue.device
        place = np.searchsorted(queue.time_ns, since[own], side="left") - 1
        waiting[own] = np.where(place >= 0, queue.waiting[np.maximum(place, 0)], 0)
    return trace.activities.select("name", "duration_ns")[rows].with_columns(
        device=pl.Series(device),
        api_ns=pl.Series(column(trace.launches, "duration_ns")[call]),
        since_ns=pl.Series(since),
        delay_ns=pl.Series(np.maximum(delays.delay_ns, 0)),
        queued=pl.Series(delays.queued),
        waiting=pl.Series(waiting),
    )


def _medians() -> tuple[pl.Expr, ...]:
    queued = pl.col("queued")
    return (
        (~queued).sum().alias("latencies"),
        pl.col("delay_ns").filter(~queued).median().alias("latency_ns"),
        queued.sum().alias("backlogs"),
        pl.col("delay_ns").filter(queued).median().alias("backlog_ns"),
    )


def _pieces_of(rows: pl.DataFrame, queue: Queue) -> pl.DataFrame:
    time = queue.time_ns if len(queue.time_ns) else np.zeros(1, np.int64)
    bounds = np.linspace(int(time[0]), int(time[-1]), _PIECES + 1).astype(np.int64)
    results = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        inside = rows.filter(pl.col("since_ns").is_between(begin, end, closed="both" if end == bounds[-1] else "left"))
        sums = inside.select(pl.len().alias("launches"), *_medians())
        launched = (sums[name].item() for name in ("launches", "latencies", "latency_ns", "backlogs", "backlog_ns"))
        results.append((queue.device, begin, end, *launched, *_length_within(queue, begin, end)))
    return pl.DataFrame(results if len(queue.time_ns) else [], schema=_OVER_TIME, orient="row")


def _length_within(queue: Queue, begin: int, end: int) -> tuple[float, int]:
    """Return how many activities waited within a range of time, on average and at most."""
    if not len(queue.time_ns) or end <= begin:
        return 0.0, 0
    first = max(int(np.searchsorted(queue.time_ns, begin, side="right")) - 1, 0)
    last = int(np.searchsorted(queue.time_ns, end, side="left"))
    times = np.clip(np.append(queue.time_ns[first:last], end), begin, end)
    lengths = queue.waiting[first:last]
    return float((np.diff(times) * lengths).sum()) / (end - begin), int(lengths.max(initial=0))
