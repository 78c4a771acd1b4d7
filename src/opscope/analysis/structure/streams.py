"""What ran on each stream, and lanes of a track in which its slices nest, as viewers show only slices that nest."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure import nesting as native
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.launches import delays_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints, Nesting
from opscope.trace.model import Trace

# ---------------------------------------------------------------- streams


NO_DEVICE: Final = -1  # stands for the device of activities whose device was not recorded


def stream_table(trace: Trace) -> pl.DataFrame:
    """Return one row per ``device`` and ``stream``.

    Columns: ``activities``, ``sum_ns`` (durations added up), ``busy_ns`` (union of the activities), ``first_ns`` and
    ``last_ns`` (begin of the first, end of the last; nanoseconds of the trace's clock).
    """
    rows = [
        {
            "device": device,
            "stream": stream,
            "activities": group.height,
            "sum_ns": int(group["duration_ns"].sum()),
            "busy_ns": Intervals.union_of(column(group, "start_ns"), end_of(group)).length,
            "first_ns": int(column(group, "start_ns").min()),
            "last_ns": int(end_of(group).max()),
        }
        for (device, stream), group in trace.activities.group_by("device", "stream")
    ]
    names = ("activities", "sum_ns", "busy_ns", "first_ns", "last_ns")
    schema = {"device": pl.Int32, "stream": pl.Int64, **dict.fromkeys(names, pl.Int64)}
    return pl.DataFrame(rows, schema=schema).sort("device", "stream")


# ---------------------------------------------------------------- lanes


MOST_LANES = 4_096  # the last one takes what fits nowhere: no one could see it anyway
_AT_ONCE = 64  # slices read in the first piece; every further piece is twice as long
_AT_MOST_AT_ONCE = 65_536
_FEW = 256  # this few slices are placed one by one sooner than they are skipped


def lanes_of(track: Ints, start: Ints, end: Ints) -> Ints:
    """Return a lane (from 0) per slice, such that the slices of a track and lane nest or do not touch.

    Each slice goes to the first lane of its track in which it fits; earlier and longer slices choose first. Viewers
    drop a slice that overlaps another without nesting. There are at most `MOST_LANES`; what fits none is in the last.
    """
    nesting = Nesting.of(track, start, end)
    lanes = np.zeros(len(track), np.int64)
    crossing = np.flatnonzero(nesting.crossing()[nesting.order])
    if not len(crossing):
        return lanes
    if (library := native.load_nesting()) is not None:
        if not library.opscope_lanes(len(lanes), nesting.order, nesting.thread, nesting.start, nesting.end, lanes):
            raise MemoryError
        return lanes
    slices = _Slices(nesting, track[nesting.order], start[nesting.order], end[nesting.order])
    # Up to a slice that crosses another one, all are in lane 0. From there slices are placed one by one, until the
    # further lanes are empty again: then what is open nests as before.
    last_of_run = _last_of_runs(crossing)
    number = 0
    while number < len(crossing):
        first = int(crossing[number])
        placed = slices.placed_from(first, int(last_of_run[number]))
        lanes[nesting.order[first : first + len(placed)]] = placed
        number = int(np.searchsorted(crossing, first + len(placed)))
    return lanes


def _last_of_runs(positions: Ints) -> Ints:
    """Return per position the last one of its run, in which at most `_FEW` lie between neighbours."""
    last = np.append(np.flatnonzero(np.diff(positions) > _FEW), len(positions) - 1)
    last_of: Ints = positions[np.repeat(last, np.diff(last, prepend=-1))]
    return last_of


class _Slices(Struct, frozen=True):
    """Slices sorted by track and start, outer before inner, and their nesting."""

    nesting: Nesting
    track: Ints
    start: Ints
    end: Ints

    def placed_from(self, first: int, until: int) -> list[int]:
        """Return the lanes of the slices from ``first``, which crosses another, to ``until`` and on to the next calm.

        Before ``first``, only lane 0 may hold slices that are still open.
        """
        stacks = [self._open_at(first)]  # per lane: the ends of the slices that are still open
        lanes: list[int] = []
        latest = int(self.start[first])  # when the last slice of the further lanes ends
        for begin, last in self._of_track_from(first):
            if first + len(lanes) > until and latest <= begin:
                break
            lane = _lane_for(stacks, begin, last)
            lanes.append(lane)
            if lane:
                latest = max(latest, last)
        return lanes

    def _open_at(self, position: int) -> list[int]:
        """Return the ends of the slices that are open when the one at a position begins, outermost first."""
        begin, ends = int(self.start[position]), []
        row = int(self.nesting.order[position - 1])
        while row >= 0:
            if (last := int(self.nesting.end[row])) > begin:
                ends.append(last)
            row = int(self.nesting.parent[row])
        return ends[::-1]

    def _of_track_from(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of the slices of one track as Python's integers, which are quicker one by one."""
        stop = first + int(np.searchsorted(self.track[first:], self.track[first], side="right"))
        count = _AT_ONCE
        while first < stop:
            piece = slice(first, min(first + count, stop))
            yield from zip(self.start[piece].tolist(), self.end[piece].tolist(), strict=True)
            first, count = piece.stop, min(2 * count, _AT_MOST_AT_ONCE)


def _lane_for(stacks: list[list[int]], begin: int, last: int) -> int:
    """Put a slice into the first lane in which it fits, and return the lane."""
    for lane, stack in enumerate(stacks):
        while stack and stack[-1] <= begin:
            stack.pop()
        if not stack or stack[-1] >= last:
            stack.append(last)
            return lane
    if len(stacks) < MOST_LANES:
        stacks.append([])
    stacks[-1].append(last)
    return len(stacks) - 1


# ---------------------------------------------------------------- queues


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
