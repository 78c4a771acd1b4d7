"""Columns of tables as arrays, the order of rows, and sets of intervals."""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.nesting import Ints, Nesting

# ---------------------------------------------------------------- intervals


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


# ---------------------------------------------------------------- columns as arrays


T = TypeVar("T")
# What is made of a table again and again, for as long as the table lives. A frame of polars has no hash.
_LOCK: Final = threading.RLock()  # a table may be forgotten, on the same thread, while another one is looked up
_KEPT: dict[int, tuple["weakref.ref[pl.DataFrame]", dict[str, Any]]] = {}


def kept(table: pl.DataFrame, what: str, make: Callable[[], T]) -> T:
    """Return what ``make`` makes of a table; it is called once for each table and ``what``.

    Threads that ask at the same time may each make it; all get the same.
    """
    number = id(table)
    with _LOCK:
        entry = _KEPT.get(number)
        if entry is None or entry[0]() is not table:
            entry = _KEPT[number] = weakref.ref(table, lambda gone: _forget(number, gone)), {}
    made = entry[1]
    if what not in made:
        made.setdefault(what, make())
    result: T = made[what]
    return result


def _forget(number: int, gone: "weakref.ref[pl.DataFrame]") -> None:
    # Another table may have the number of one that is gone by now.
    with _LOCK:
        entry = _KEPT.get(number)
        if entry is not None and entry[0] is gone:
            del _KEPT[number]


def column(table: pl.DataFrame, name: str) -> Ints:
    """Return an integer column as an array, which may not be written to; -1 where it is null."""
    if name == "thread":  # nearly everything needs it, and it has half the width
        return kept(table, name, lambda: _as_array(table[name]))
    return _as_array(table[name])


def _as_array(series: pl.Series) -> Ints:
    if series.dtype != pl.Int64:
        series = series.cast(pl.Int64)
    if series.null_count():
        series = series.fill_null(-1)
    values: Ints = series.to_numpy()
    return values


def costliest_first(table: pl.DataFrame, costs: Sequence[str], ties: Sequence[str]) -> pl.DataFrame:
    """Sort by costs, descending, then by ``ties``, ascending, so that the order does not depend on the file's."""
    return table.sort(*costs, *ties, descending=[*(True for _ in costs), *(False for _ in ties)])


def numbers_in(values: Ints) -> Ints:
    """Return the distinct values of an array of small numbers, from -1 on (threads, devices), ascending."""
    return np.flatnonzero(np.bincount(values + 1)) - 1


def count_distinct(rows: Ints, height: int) -> int:
    """Return how many rows of a table with so many rows an array names; -1 stands for none."""
    named = np.zeros(height + 1, np.bool_)
    named[rows] = True
    return int(named[:-1].sum())


_DENSE: Final = 8  # a table of so many entries per value is quicker than to sort the values


def ranked(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values of an array, ascending, and per value its place among them.

    Args:
        values: numbers from 0 on; the smaller the largest is, the quicker.
    """
    largest = int(values.max(initial=0))
    if largest > _DENSE * len(values):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place
    present = np.zeros(largest + 1, np.bool_)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


def end_of(table: pl.DataFrame) -> Ints:
    """Return the end of every slice of a table, in nanoseconds; a negative duration counts as 0.

    The array may not be written to.
    """
    return kept(table, "end", lambda: _end_of(table))


def _end_of(table: pl.DataFrame) -> Ints:
    end = np.maximum(column(table, "duration_ns"), 0)
    end += column(table, "start_ns")
    end.flags.writeable = False
    return end


def extent_of(tables: Iterable[pl.DataFrame]) -> tuple[int, int] | None:
    """Return when the first slice of some tables begins and when the last one ends; None where there is none."""
    tables = [table for table in tables if table.height]
    if not tables:
        return None
    return min(int(column(t, "start_ns").min()) for t in tables), max(int(end_of(t).max()) for t in tables)


def nesting_of(table: pl.DataFrame, began: Ints | None = None) -> Nesting:
    """Return the nesting of a table's slices; for ``began`` see `Nesting.of`."""
    return Nesting.of(column(table, "thread"), column(table, "start_ns"), end_of(table), began)
