"""What ran on each stream, and lanes of a track in which its slices nest, as viewers show only slices that nest."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.native import library as native
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
