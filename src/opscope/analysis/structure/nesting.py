"""Which slice encloses which: the call tree of a trace, from start and end times alone.

Everything here works on plain integer arrays, one entry per slice. -1 stands for "none".
"""

import functools
from ctypes import CDLL, c_int32, c_size_t
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opscope.base.compiled import load_library
from opscope.base.parts import Stage, staged

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_LIBRARY: Final = Path(__file__).parent / "native" / "libnesting.so"


@functools.cache
def load_nesting() -> CDLL | None:
    """Return the compiled pass over nested slices (``nesting.cpp``); without it, numpy does the same, slowly."""
    library = load_library(_LIBRARY, "opscope_nesting_version", 4)
    if library is not None:
        numbers = np.ctypeslib.ndpointer(np.int64, ndim=1, flags="C_CONTIGUOUS")
        library.opscope_nesting.restype = c_int32
        library.opscope_nesting.argtypes = (c_size_t, *[numbers] * 6, np.ctypeslib.ndpointer(np.bool_, ndim=1))
        library.opscope_innermost.restype = c_int32
        library.opscope_innermost.argtypes = (c_size_t, *[numbers] * 4, c_size_t, *[numbers] * 3)
        library.opscope_lanes.restype = c_int32
        library.opscope_lanes.argtypes = (c_size_t, *[numbers] * 5)
    return library


class Nesting(Struct, frozen=True):
    """The nesting of the slices of all threads.

    Attributes:
        parent: per slice the innermost slice of the same thread that encloses it whole, or -1. Of two slices with the
            same start and end, the one that began first is the outer one: a slice of unknown number comes before
            others, and among these the one listed first. Slices that only overlap are not nested. A slice without
            duration, as rounded times make them, encloses none, and lies in none that ends where it is.
        order: the slices sorted by thread and start, outer before inner.
        thread, start, end: as passed to `of`.
        after: per slice the place in ``order`` behind all slices below it; None without the compiled library.
        crosses: per slice what `crossing` tells; None without the compiled library.
    """

    parent: Ints
    order: Ints
    thread: Ints
    start: Ints
    end: Ints
    after: Ints | None = None
    crosses: Bools | None = None

    @classmethod
    @staged(Stage.NEST)
    def of(cls, thread: Ints, start: Ints, end: Ints, began: Ints | None = None) -> "Nesting":
        """Compute the nesting of slices.

        Args:
            thread: per slice the number of its thread.
            start: when it began, in nanoseconds.
            end: when it ended.
            began: numbers that grow in the order in which slices of one thread really began; -1 where unknown. They
                decide among slices that begin at the same rounded time: a slice without duration lies in none that
                began after it, and of two with the same times the one that began first is the outer one.

        Raises:
            MemoryError: the compiled library found no memory.
        """
        order, empty = _by_group_and_start(thread, start), start == end
        tied = (np.diff(start[order]) == 0) & (np.diff(thread[order]) == 0)
        if tied.any():  # slices that begin together: longer ones first, then by number
            number = np.zeros(len(order), np.int64) if began is None else began
            order = np.lexsort((number, -end, start, thread)).astype(np.int64)
            if began is not None:
                order = _early_first(order, thread, start, empty, began)
        thread, start, end = (np.ascontiguousarray(one, np.int64) for one in (thread, start, end))
        if (library := load_nesting()) is not None:
            return cls._compiled(library, order, thread, start, end)
        parent = np.full(len(order), -1, np.int64)
        parent[order] = _with_outer(order, _sorted_parents(thread[order], end[order], empty[order]))
        return cls(parent, order, thread, start, end)

    @classmethod
    def _compiled(cls, library: CDLL, order: Ints, thread: Ints, start: Ints, end: Ints) -> "Nesting":
        parent, after, crosses = np.empty_like(order), np.empty_like(order), np.empty(len(order), np.bool_)
        if not library.opscope_nesting(len(order), order, thread, start, end, parent, after, crosses):
            raise MemoryError
        return cls(parent, order, thread, start, end, after, crosses)

    def innermost_at(self, thread: Ints, time: Ints) -> Ints:
        """Return the row of the innermost slice that contains each (thread, time), or -1.

        A slice contains its start but not its end, so back-to-back slices never both contain a point.
        """
        if (library := load_nesting()) is not None:
            return self._innermost_compiled(library, thread, time)
        latest = self._latest_started(thread, time)
        # From the latest begun slice, climb until one has not ended yet; all moments climb at once.
        climbing = np.flatnonzero(latest >= 0)
        while len(climbing):
            climbing = climbing[self.end[latest[climbing]] <= time[climbing]]
            latest[climbing] = self.parent[latest[climbing]]
            climbing = climbing[latest[climbing] >= 0]
        return latest

    def _innermost_compiled(self, library: CDLL, thread: Ints, time: Ints) -> Ints:
        slices = (self.order, self.thread, self.start, self.end)
        asked = [np.ascontiguousarray(one, np.int64) for one in (thread, time)]
        answer = np.empty(len(time), np.int64)
        if not library.opscope_innermost(len(self.order), *slices, len(time), *asked, answer):
            raise MemoryError
        return answer

    def _latest_started(self, thread: Ints, time: Ints) -> Ints:
        result = np.full(len(time), -1, np.int64)
        sorted_thread, sorted_start = self.thread[self.order], self.start[self.order]
        for number in np.unique(thread):
            first, last = np.searchsorted(sorted_thread, [number, number + 1])
            asked = np.flatnonzero(thread == number)
            position = first + np.searchsorted(sorted_start[first:last], time[asked], side="right") - 1
            inside = position >= first
            result[asked[inside]] = self.order[position[inside]]
        return result

    def _positions(self) -> Ints:
        """Return the place of each slice in ``order``."""
        position = np.empty(len(self.order), np.int64)
        position[self.order] = np.arange(len(self.order))
        return position

    def crossing(self) -> Bools:
        """Tell per slice whether the innermost earlier slice that contains its start ends before it does."""
        if self.crosses is not None:
            return self.crosses
        thread, start, end = self.thread[self.order], self.start[self.order], self.end[self.order]
        position = self._positions()
        above = self.parent[self.order]
        parent = np.where(above >= 0, position[np.maximum(above, 0)], -1) if len(above) else above
        # From the slice before it in order, each slice climbs until one contains its start.
        around = np.arange(-1, len(thread) - 1, dtype=np.int64)
        if len(thread):
            around[np.flatnonzero(np.diff(thread, prepend=thread[0] - 1))] = -1
        climbing = np.flatnonzero(around >= 0)
        while len(climbing):
            climbing = climbing[end[around[climbing]] <= start[climbing]]
            around[climbing] = parent[around[climbing]]
            climbing = climbing[around[climbing] >= 0]
        result = np.zeros(len(thread), np.bool_)
        result[self.order] = (around >= 0) & (end[np.maximum(around, 0)] < end) if len(thread) else False
        return result

    def depth(self) -> Ints:
        """Return per slice how many slices enclose it."""
        if self.after is not None:
            # In order, each slice is inside all that came before it and have not ended by then.
            height = len(self.order)
            ended = np.cumsum(np.bincount(self.after, minlength=height + 1)[:height])
            depths = np.empty(height, np.int64)
            depths[self.order] = np.arange(height) - ended
            return depths
        depth = (self.parent >= 0).astype(np.int64)
        ancestor = self.parent.copy()
        # Every round doubles the distance to the ancestor, so even a million nested slices take twenty rounds.
        while len(open_ := np.flatnonzero(ancestor >= 0)):
            above = ancestor[open_]
            depth[open_], ancestor[open_] = depth[open_] + depth[above], ancestor[above]
        return depth

    def subtree_sums(self, values: Ints) -> Ints:
        """Return per slice its own value plus those of all slices below it."""
        if self.after is not None:
            # In order, a slice is followed by all below it: the difference of two running sums.
            sums = np.concatenate([[0], np.cumsum(values[self.order], dtype=np.int64)])
            below: Ints = sums[self.after] - sums[self._positions()]
            return below
        totals = values.astype(np.int64, copy=True)
        depth = self.depth()
        by_depth = np.argsort(-depth, kind="stable")
        bounds = np.flatnonzero(np.diff(depth[by_depth])) + 1
        for level in np.split(by_depth, bounds):
            inner = level[self.parent[level] >= 0]
            np.add.at(totals, self.parent[inner], totals[inner])
        return totals

    def inside_same(self, key: Ints) -> Bools:
        """Tell per slice whether one with the same key encloses it.

        Args:
            key: per slice a number from 0 on.
        """
        # In sorted order a slice is followed by all that lie below it.
        position = self._positions()
        last = self.after
        if last is None:
            last = position + self.subtree_sums(np.ones(len(self.order), np.int64))
        order = _by_group_and_start(key, position)
        # The offset keeps keys apart: how far earlier slices reach starts anew with each key.
        offset = key[order] * (len(order) + 1)
        reach = np.maximum.accumulate(last[order] + offset)
        result = np.zeros(len(order), np.bool_)
        result[order[1:]] = reach[:-1] > (position[order] + offset)[1:]
        return result


def nearest(parent: Ints, holds: Bools) -> Ints:
    """Return per slice the nearest one for which a condition holds, among itself and those around it; or -1.

    Every round doubles the distance, so depth costs little.

    Args:
        parent: per slice the one directly around it, or -1.
        holds: per slice whether the condition holds.
    """
    result = np.where(holds, np.arange(len(parent)), parent)
    climbing = np.flatnonzero((result >= 0) & ~holds)
    while len(climbing):
        climbing = climbing[~holds[result[climbing]]]
        result[climbing] = result[result[climbing]]
        climbing = climbing[result[climbing] >= 0]
    return result


def _by_group_and_start(group: Ints, start: Ints) -> Ints:
    """Return the stable order by group and start; quick where starts mostly ascend and groups are few."""
    order = np.argsort(start, kind="stable")
    few = group.min(initial=0) >= 0 and group.max(initial=0) <= np.iinfo(np.uint16).max
    chosen = group[order].astype(np.uint16) if few else group[order]  # numpy sorts 16 bits by counting
    return order[np.argsort(chosen, kind="stable")]


def _early_first(order: Ints, thread: Ints, start: Ints, empty: Bools, began: Ints) -> Ints:
    """Move slices without duration before longer ones that start with them but began after them."""
    together = (np.diff(thread[order]) == 0) & (np.diff(start[order]) == 0)
    group = np.concatenate([[0], np.cumsum(~together)])
    # If one of two numbers is unknown, the longer slice counts as begun first.
    known = np.where((began < 0) & empty, np.iinfo(np.int64).max, began)
    rank = np.unique(known, return_inverse=True)[1][order] + group * len(order)
    # Longer slices keep their order whatever their numbers: each counts as begun after those that enclose it.
    latest = np.maximum.accumulate(np.where(empty[order], group * len(order), rank))
    return order[np.argsort(np.where(empty[order], rank, latest), kind="stable")]


def _sorted_parents(thread: Ints, end: Ints, empty: Bools) -> Ints:
    """Return parents as positions in sorted order: the nearest earlier slice of the thread that reaches far enough.

    Every slice starts from its predecessor and jumps to that one's own candidate until the candidate reaches far
    enough. All slices jump at once, so the rounds grow with the logarithm of the longest run of siblings.
    """
    # One nanosecond less and more: an empty slice reaches nothing, and lies in none that ends where it is.
    reach, needed = (end - empty, end + empty) if empty.any() else (end, end)
    candidate = np.arange(-1, len(thread) - 1, dtype=np.int64)
    if len(thread):
        candidate[np.flatnonzero(np.diff(thread, prepend=thread[0] - 1))] = -1
    open_ = np.flatnonzero(candidate >= 0)
    while len(open_):
        open_ = open_[reach[candidate[open_]] < needed[open_]]
        candidate[open_] = candidate[candidate[open_]]
        open_ = open_[candidate[open_] >= 0]
    return candidate


def _with_outer(order: Ints, positions: Ints) -> Ints:
    return np.where(positions >= 0, order[np.maximum(positions, 0)], -1) if len(order) else positions
