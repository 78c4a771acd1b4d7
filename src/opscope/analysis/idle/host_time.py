"""What the threads of the host did at any time, as far as records show it: this tells why a device waited.

A thread sits in a call of the API that blocks (or takes long), works at something that issues nothing, or dispatches,
that is, issues operators and launches one after the other. Time that shows neither of the first two counts as
dispatch.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import calls_of, calls_that, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, extent_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.knowledge.api_calls import ApiCall, ApiKind, is_profilers_own, loads_code
from opscope.knowledge.collectives import is_pageable
from opscope.trace.model import Trace

# A program that dispatches takes 5 to 50 us between two operators or launches, also under a profiler with stacks.
# A longer time in which nothing begins or ends is spent on something else, within an operator or between two.
PAUSE_NS: Final = 100_000
# This long without any launch is not dispatch either, however many operators (on tensors of the host) run.
LULL_NS: Final = 1_000_000


class ThreadTime(Struct, frozen=True):
    """What one thread did.

    Attributes:
        blocked: when it sat in a call that blocks, that allocates, frees or loads code, or that took long.
        call: the row in ``launches`` of each of these calls.
        works: when it did something that issues nothing.
        covered: when any of its operators or calls was running.
    """

    blocked: Intervals
    call: Ints
    works: Intervals
    covered: Intervals


class _ByThread(Struct, frozen=True):
    """The rows of slices, sorted by thread; ``first`` has where each thread begins among them, from thread -1 on."""

    rows: Ints
    first: Ints

    @classmethod
    def of(cls, thread: Ints) -> "_ByThread":
        return cls(np.argsort(thread, kind="stable"), np.append(0, np.cumsum(np.bincount(thread + 1))))

    def of_thread(self, thread: int) -> Ints:
        """Return the rows of a thread's slices."""
        first = self.first[min(thread + 1, len(self.first) - 1) :]
        return self.rows[first[0] : first[1]] if len(first) > 1 else self.rows[:0]


class HostTime:
    """The calls of a trace, and what their threads did.

    Attributes:
        thread, start, end: per call.
        drains: per call whether the host waits for the device in it: a call that blocks (a synchronisation, a
            synchronous copy), a copy from or to pageable memory, or a call that frees memory.
        waits: per call whether it is one of these, or one that allocates memory or loads code.
        cold: per call whether it creates a context or loads code: launches of a millisecond and more while no device
            works, and other calls of ten.
        loading: when code was loaded, by records that are not calls; ``loading_record`` has their rows.
        profiler: when the profiler held up the host, by its own records.
    """

    def __init__(
        self,
        trace: Trace,
        links: Links,
        *,
        extent: tuple[int, int] | None = None,
        near: tuple[int, int] | None = None,
    ) -> None:
        """Look at a trace.

        Args:
            trace: the trace.
            links: its links.
            extent: from when to when threads are looked at; None for as long as the trace is.
            near: from when to when all operators are there; None if that is always.
        """
        launches = trace.launches
        self.thread, self.start, self.end = column(launches, "thread"), column(launches, "start_ns"), end_of(launches)
        self.drains = calls_that(launches, _drains) | _of_pageable_memory(trace, links.activity_launch)
        self.waits = self.drains | calls_of(launches, ApiKind.ALLOCATE, ApiKind.MODULE_LOAD)
        self.cold = _cold(trace, self.start, self.end)
        self._calls, self._operators = _ByThread.of(self.thread), _ByThread.of(column(trace.operators, "thread"))
        self._operator_start, self._operator_end = column(trace.operators, "start_ns"), end_of(trace.operators)
        self._threads: dict[int, ThreadTime] = {}
        enqueues = calls_that(launches, lambda call: call.enqueues)
        self._begin, self._end = extent or work_extent(trace) or (0, 0)
        operator = links.launch_operator
        if near is not None:
            # Elsewhere the operator that made a call may be missing, and the one around that seems to have made it.
            operator = np.where((self.start >= near[0]) & (self.start < near[1]), operator, -1)
        issued = _with_operators(trace, operator[enqueues], self.start[enqueues], self.end[enqueues])
        self._lulls = _longer(issued.gaps(self._begin, self._end), LULL_NS)
        self.loading, self.loading_record = _records(trace.overheads, loads_code)
        self.profiler, _ = _records(trace.overheads, is_profilers_own)

    def of(self, thread: int) -> ThreadTime:
        """Return what a thread did."""
        if thread not in self._threads:
            self._threads[thread] = self._thread_time(thread)
        return self._threads[thread]

    def _thread_time(self, thread: int) -> ThreadTime:
        operators = self._operators.of_thread(thread)
        begun, ended = self._operator_start[operators], self._operator_end[operators]
        calls = _outermost(self._calls.of_thread(thread), self.start, self.end)
        start, end = self.start[calls], self.end[calls]
        # Outermost calls do not overlap, so they can be intervals as they are.
        blocks = self.waits[calls] | (end - start > PAUSE_NS)
        blocked = Intervals(start[blocks], end[blocks])
        # Between two neighbouring moments nothing of the thread begins or ends.
        moments = np.sort(np.concatenate([[self._begin], begun, ended, start, end, [self._end]]), kind="stable")
        pauses = _longer(Intervals(moments[:-1], moments[1:]), PAUSE_NS)
        idle = Intervals.union_of(
            np.concatenate([pauses.start, self._lulls.start]), np.concatenate([pauses.end, self._lulls.end])
        )
        return ThreadTime(
            blocked=blocked,
            call=calls[blocks],
            works=idle.within(blocked.gaps(self._begin, self._end)),
            covered=Intervals.union_of(np.concatenate([begun, start]), np.concatenate([ended, end])),
        )


def work_extent(trace: Trace) -> tuple[int, int] | None:
    """Return when the first record of what ran in a trace begins and when the last one ends; None without any."""
    return extent_of((trace.operators, trace.launches, trace.annotations, trace.frames, trace.activities))


def _drains(call: ApiCall) -> bool:
    return (call.blocks and call.kind not in (ApiKind.ALLOCATE, ApiKind.MODULE_LOAD)) or call.kind is ApiKind.FREE


def _with_operators(trace: Trace, operator: Ints, start: Ints, end: Ints) -> Intervals:
    """Return the union of some calls and of the operators that made them."""
    known = operator >= 0
    # A call of no duration still is a launch, but an empty interval would be dropped.
    begun, ended = start.copy(), np.maximum(end, start + 1)
    begun[known] = np.minimum(begun[known], column(trace.operators, "start_ns")[operator[known]])
    ended[known] = np.maximum(ended[known], end_of(trace.operators)[operator[known]])
    return Intervals.union_of(begun, ended)


def _of_pageable_memory(trace: Trace, activity_launch: Ints) -> Bools:
    """Tell per call whether it copies from or to memory that is not pinned, which the driver does piece by piece."""
    result = np.zeros(trace.launches.height, np.bool_)
    copies = names_that(trace.activities, is_pageable) & (activity_launch >= 0)
    result[activity_launch[copies]] = True
    return result


_COLD_LAUNCH_NS: Final = 1_000_000  # once code is loaded, launching takes microseconds
_COLD_NS: Final = 10_000_000  # allocating takes up to a few milliseconds


def _cold(trace: Trace, start: Ints, end: Ints) -> Bools:
    """Tell per call whether it sets something up: it takes long although nothing is queued that it could wait for."""
    launches = trace.launches
    # Launching a graph of thousands of kernels takes milliseconds each time.
    issues = calls_of(launches, ApiKind.LAUNCH)
    others = calls_of(launches, ApiKind.ALLOCATE, ApiKind.FREE, ApiKind.QUERY, ApiKind.OTHER)
    took = end - start
    cold = (
        calls_of(launches, ApiKind.MODULE_LOAD) | (issues & (took >= _COLD_LAUNCH_NS)) | (others & (took >= _COLD_NS))
    )
    rows = np.flatnonzero(cold)
    busy = Intervals.union_of(column(trace.activities, "start_ns"), end_of(trace.activities))
    order = rows[np.argsort(start[rows], kind="stable")]
    for row in order.tolist():
        call = Intervals(start[row : row + 1], end[row : row + 1])
        cold[row] = busy.within(call).length <= _BACKLOG * took[row]
    return cold


_BACKLOG: Final = 0.1  # of a call: if the device works for longer, the call may wait for room in its queue


def _records(overheads: pl.DataFrame, wanted: Callable[[str], bool]) -> tuple[Intervals, Ints]:
    """Return the intervals and rows of records with certain names; of overlapping records only the first."""
    rows = np.flatnonzero(names_that(overheads, wanted))
    start, end = column(overheads, "start_ns")[rows], end_of(overheads)[rows]
    kept = _outermost(np.arange(len(rows)), start, end)
    return Intervals(start[kept], end[kept]), rows[kept]


def _outermost(rows: Ints, start: Ints, end: Ints) -> Ints:
    """Return the rows, by time, of the intervals that begin after all earlier ones have ended."""
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    rows = rows[end[rows] > start[rows]]
    reach = np.maximum.accumulate(end[rows]) if len(rows) else end[rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = start[rows][1:] >= reach[:-1]
    return rows[first]


def _longer(intervals: Intervals, length: int) -> Intervals:
    return intervals.chosen(intervals.end - intervals.start > length)
