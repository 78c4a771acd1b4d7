"""A track of a timeline: the slices of a stream, of a device's idle time, or of one kind on one thread."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.structure.lanes import lanes_of
from opscope.analysis.structure.nesting import Bools, Ints, Nesting

_MOST_ROWS: Final = 64  # of a track: what lies deeper is drawn in the last one


class TrackKind(StrEnum):
    """What a track shows."""

    IDLE = "idle"
    STREAM = "stream"
    RANGE = "range"
    MODULE = "module"
    OPERATOR = "operator"
    CALL = "call"
    PYTHON = "python"
    THREADS = "threads"


class Track(Struct, frozen=True):
    """Slices in rows below each other. Arrays have one entry per slice, by row and start.

    Attributes:
        kind: what it shows.
        device: of a stream or of idle time; None for anything on the host.
        stream: the number of the stream; None for anything else.
        thread: the number of the thread in the trace; None for anything else, and for many threads together.
        texts: the distinct names of its slices.
        row: in which row of the track the slice lies, from 0. Slices of one row do not overlap, except in the last.
        start_ns, end_ns: when, on the trace's clock.
        name: the position of its name in ``texts``; of merged slices, of what takes most of their time.
        operator: the row of the operator that launched the slice, or that it is; -1 where there is none.
        record: of streams the slice's row in the trace's activities, of calls in its launches, of operators in its
            operators; of other kinds a number that says nothing. -1 for merged slices and for idle time.
        count: how many slices it stands for: more than one if neighbours too short to be seen were merged.
        covered_ns: how long these lasted together.
        folded: how many threads it stands for, if it shows the outermost slices of many; else 0.
    """

    kind: TrackKind
    device: int | None
    stream: int | None
    thread: int | None
    texts: tuple[str, ...]
    row: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    operator: Ints
    record: Ints
    count: Ints
    covered_ns: Ints
    folded: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def chosen(self, which: Bools | Ints) -> "Track":
        """Return some of its slices."""
        return replace(self, **{name: getattr(self, name)[which] for name in _ARRAYS})

    def within(self, start: int, end: int) -> "Track":
        """Return the slices that touch a range of time; those without length too that lie at its beginning."""
        return self.chosen(touching(self.start_ns, self.end_ns, start, end))

    def in_order(self) -> "Track":
        """Return it with its slices sorted by row, then by start."""
        return self.chosen(np.lexsort((self.start_ns, self.row)))

    @property
    def merges(self) -> bool:
        """Whether any of its slices stands for several."""
        return bool((self.count > 1).any())


def touching(start_ns: Ints, end_ns: Ints, start: int, end: int) -> Bools:
    """Tell which slices touch a range of time; those without length too that lie at its beginning."""
    touches: Bools = ((end_ns > start) | (start_ns >= start)) & (start_ns < end)
    return touches


_ARRAYS: Final = ("row", "start_ns", "end_ns", "name", "operator", "record", "count", "covered_ns")


def stacked_rows(track: Ints, start: Ints, end: Ints) -> Ints:
    """Return a row (from 0) per slice, such that the slices of a track and row do not overlap.

    A slice inside another one lies below it; slices that overlap without nesting have rows of their own, below all of
    those. What lies deeper than a timeline shows is in the last row, where slices may overlap.

    Args:
        track: per slice the number of its track, from 0.
        start: when it began.
        end: when it ended.
    """
    lane = lanes_of(track, start, end)
    lanes = int(lane.max(initial=0)) + 1
    group = track * lanes + lane
    depth = Nesting.of(group, start, end).depth()
    if lanes == 1:
        return np.minimum(depth, _MOST_ROWS - 1)
    # The rows of a lane begin below those of the lanes before it. Only lanes that have slices count: a table of all
    # lanes of all tracks could be large.
    present, which = np.unique(group, return_inverse=True)
    height = np.zeros(len(present), np.int64)
    np.maximum.at(height, which, depth + 1)
    before = np.cumsum(height) - height
    of_track = present // lanes
    first_lane = np.searchsorted(of_track, of_track)
    first = before - before[first_lane]
    rows: Ints = np.minimum(first[which] + depth, _MOST_ROWS - 1)
    return rows


def by_value(values: Ints, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each value of some rows, in order, with the rows that have it: one sort, however many values there are."""
    chosen = values[rows]
    order = np.argsort(chosen, kind="stable")
    result, first = np.unique(chosen[order], return_index=True)
    yield from zip(result.tolist(), np.split(rows[order], first[1:]), strict=False)


def merged_slices(track: Track, below: int, paint: Ints) -> Track:
    """Merge slices shorter than a limit that are neighbours in a row and begin in the same piece of that length.

    Args:
        track: with its slices in order.
        below: the limit in nanoseconds.
        paint: per slice a number of what it is drawn as; a merged slice is named by what takes most of its time.
    """
    short = track.end_ns - track.start_ns < below
    if not short.any():
        return track
    piece = np.where(short, track.start_ns // below, -1)
    # A new group begins where the row or the piece changes, and with every slice that is long enough.
    begins = np.ones(len(track), np.bool_)
    begins[1:] = (track.row[1:] != track.row[:-1]) | (piece[1:] != piece[:-1]) | ~short[1:]
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    alone = np.diff(np.append(first, len(track))) == 1
    one = track.chosen(_largest_share(group, paint, track.covered_ns))
    return replace(
        one,
        start_ns=track.start_ns[first],
        end_ns=np.maximum.reduceat(track.end_ns, first),
        operator=one.operator,
        record=np.where(alone, one.record, -1),
        count=np.add.reduceat(track.count, first),
        covered_ns=np.add.reduceat(track.covered_ns, first),
    )


def _largest_share(group: Ints, paint: Ints, time: Ints) -> Ints:
    """Return per group the position of the longest slice of the paint that takes most of the group's time."""
    keys = group * (int(paint.max(initial=0)) + 2) + paint + 1
    _, which = np.unique(keys, return_inverse=True)
    share = np.zeros(int(which.max(initial=-1)) + 1, np.int64)
    np.add.at(share, which, time)
    order = np.lexsort((time, share[which], group))
    last = np.flatnonzero(np.diff(group[order], append=-1))
    result: Ints = order[last]
    return result
