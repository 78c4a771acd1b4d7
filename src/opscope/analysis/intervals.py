"""Unions and differences of time intervals, exact in integer nanoseconds."""

from dataclasses import dataclass

import numpy as np

from opscope.analysis.nesting import Ints


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals in ascending order; touching ones are one."""

    start: Ints
    end: Ints

    @classmethod
    def union_of(cls, start: Ints, end: Ints) -> "Intervals":
        """Return the union of intervals that may overlap; empty ones do not count."""
        real = end > start
        start, end = start[real], end[real]
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
        opens = np.ones(len(start), np.bool_)
        opens[1:] = start[1:] > end[:-1]
        closes = np.ones(len(start), np.bool_)
        closes[:-1] = opens[1:]
        return cls(start[opens], end[closes])

    def clipped(self, low: int, high: int) -> "Intervals":
        """Return the part between ``low`` and ``high``."""
        start, end = np.clip(self.start, low, high), np.clip(self.end, low, high)
        real = end > start
        return Intervals(start[real], end[real])

    def gaps(self, low: int, high: int) -> "Intervals":
        """Return what between ``low`` and ``high`` none of the intervals covers."""
        inside = self.clipped(low, high)
        start, end = np.append(low, inside.end), np.append(inside.start, high)
        real = end > start
        return Intervals(start[real], end[real])

    @property
    def length(self) -> int:
        """The total length."""
        return int((self.end - self.start).sum())

    def __len__(self) -> int:
        return len(self.start)
