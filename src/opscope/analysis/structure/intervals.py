"""Unions, differences and intersections of time intervals, exact in integer nanoseconds."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opscope.analysis.structure.nesting import Ints


class Intervals(Struct, frozen=True):
    """Disjoint intervals in ascending order, in nanoseconds. Ends are exclusive; `union_of` joins touching ones."""

    start: Ints
    end: Ints

    @classmethod
    def union_of(cls, start: Ints, end: Ints) -> "Intervals":
        """Return the union of intervals that may overlap, in any order; empty ones do not count."""
        real = end > start
        start, end = start[real], end[real]
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
        # With the latest end so far, a new interval opens only where none of the earlier ones reaches its start.
        opens = np.ones(len(start), np.bool_)
        opens[1:] = start[1:] > end[:-1]
        closes = np.ones(len(start), np.bool_)
        closes[:-1] = opens[1:]
        return cls(start[opens], end[closes])

    def gaps(self, low: int, high: int) -> "Intervals":
        """Return the time between ``low`` and ``high`` that no interval covers."""
        inside = self.within(Intervals(np.array([low], np.int64), np.array([high], np.int64)))
        start, end = np.append(low, inside.end), np.append(inside.start, high)
        real = end > start
        return Intervals(start[real], end[real])

    def within(self, other: "Intervals") -> "Intervals":
        """Return the time that both cover."""
        _, start, end = self.overlaps(other)
        return Intervals(start, end)

    def overlaps(self, other: "Intervals") -> tuple[Ints, Ints, Ints]:
        """Return every overlap with an interval of ``other``: the position of the interval here, start and end."""
        own, _, start, end = self.overlapping(other)
        return own, start, end

    def overlapping(self, other: "Intervals") -> tuple[Ints, Ints, Ints, Ints]:
        """Return every overlap: the position of the interval here, the position in ``other``, start and end."""
        # The others are disjoint and in order, so that those which overlap an interval are one stretch of them.
        first = np.searchsorted(other.end, self.start, side="right")
        count = np.maximum(np.searchsorted(other.start, self.end, side="left") - first, 0)
        own = np.repeat(np.arange(len(self)), count)
        # Within each run of repeats, count up from the first overlapping interval.
        run_start = np.repeat(np.cumsum(count) - count, count)
        theirs = np.repeat(first, count) + np.arange(len(own)) - run_start
        start = np.maximum(self.start[own], other.start[theirs])
        end = np.minimum(self.end[own], other.end[theirs])
        real = end > start
        return own[real], theirs[real], start[real], end[real]

    def mostly_within(self, other: "Intervals") -> npt.NDArray[np.bool_]:
        """Tell per interval whether those of ``other`` cover more than half of it."""
        own, _, start, end = self.overlapping(other)
        covered = np.zeros(len(self), np.int64)
        np.add.at(covered, own, end - start)
        mostly: npt.NDArray[np.bool_] = 2 * covered > self.end - self.start
        return mostly

    def holds(self, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
        """Tell per interval from ``start`` to ``end`` whether one of these covers it whole."""
        if not len(self):
            return np.zeros(len(start), np.bool_)
        # Only the last interval that begins by then can cover it, as they are disjoint.
        candidate = np.searchsorted(self.start, start, side="right") - 1
        return (candidate >= 0) & (end <= self.end[candidate])

    def chosen(self, mask: npt.NDArray[np.bool_]) -> "Intervals":
        """Return the intervals for which the mask is true."""
        return Intervals(self.start[mask], self.end[mask])

    @property
    def length(self) -> int:
        """The length of all intervals together, in nanoseconds."""
        return int((self.end - self.start).sum())

    def __len__(self) -> int:
        return len(self.start)


def latest_around(start: Ints, end: Ints, time: Ints) -> Ints:
    """Return per moment the position of the latest begun interval that holds it, or -1. Ends are exclusive.

    Args:
        start: when the intervals begin, ascending; they may overlap.
        end: when they end.
        time: the moments, in any order.
    """
    moments = np.unique(np.concatenate([start, end]))
    # The answer from each of these moments on; the extra entry, at -1, is for times before all of them.
    owner = np.full(len(moments) + 1, -1, np.int64)
    open_: list[int] = []  # the latest begun is the last
    begun = 0
    for place, moment in enumerate(moments.tolist()):
        while begun < len(start) and start[begun] <= moment:
            open_.append(begun)
            begun += 1
        # An interval below the top may have ended too; it is removed once it is the top.
        while open_ and end[open_[-1]] <= moment:
            open_.pop()
        owner[place] = open_[-1] if open_ else -1
    return owner[np.searchsorted(moments, time, side="right") - 1]
