"""Some steps of a trace as a graph of moments, and their replay.

A moment is the start or end of an API call or of a device's activity, or the mark of a step. An edge says that one
moment comes no earlier than another one and some time (its lag). Replay goes through the moments once, in an order in
which each comes after all that it waits for: it comes as soon as the last of them lets it. The order of calls on a
thread, and of work on a stream, stays as recorded.

Lags are typical ones where the trace has several samples (of launches, of gaps on a stream), and never longer than what
was recorded. What no edge explains of a moment is its residual, which is never negative.

The steps that become a graph are a few around the one of median length.
"""

import functools
import heapq
from ctypes import CDLL, c_size_t
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, extent_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import step_table
from opscope.base.compiled import load_library
from opscope.trace.model import Trace

_LIBRARY: Final = Path(__file__).parent / "native" / "libreplay.so"
NEVER: Final = -(1 << 61)  # as a lag: such an edge holds nothing back
# What no edge explains counts as the step's own from here on; less is the spread of launches and gaps (a launch into an
# empty stream takes 4 to 8 us).
EXPLAINED_NS: Final = 20_000
_MOST_STEPS: Final = 3  # more say little more about what holds a step back
_MOST_MOMENTS: Final = 120_000  # of several steps; a single one may have more
LARGEST_REPLAY: Final = 1_000_000  # moments of a step, or of a recording without steps


@functools.cache
def load_replay() -> CDLL | None:
    """Return the compiled replay of a graph (``replay.cpp``); without it, Python does the same, slowly."""
    library = load_library(_LIBRARY, "opscope_replay_version", 1)
    if library is not None:
        library.opscope_replay.restype = None
        numbers = np.ctypeslib.ndpointer(np.int64, ndim=1, flags="C_CONTIGUOUS")
        library.opscope_replay.argtypes = (c_size_t, *[numbers] * 6)
    return library


class Chosen(Struct, frozen=True):
    """Some consecutive steps of one thread, or the whole of a recording that marks none.

    Attributes:
        marks: when each step begins and ends on the host, in nanoseconds.
        numbers: the profiler's numbers of the steps; empty where none are marked.
        thread: the thread that marked them; where none did, the one with the most calls; -1 without any.
    """

    marks: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    thread: int

    @property
    def begin_ns(self) -> int:
        """When the first step begins."""
        return self.marks[0][0]

    @property
    def end_ns(self) -> int:
        """When the last step ends on the host."""
        return self.marks[-1][1]


def steps_to_replay(trace: Trace) -> Chosen | None:
    """Choose the steps; None where the trace has no slice that could be a part of one."""
    table = step_table(trace)
    if not table.height:
        return _whole(trace)
    lengths = (table["end_ns"] - table["start_ns"]).to_numpy()
    median = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    thread = int(table["thread"][median])
    own = table.filter(pl.col("thread") == thread)
    start, end, number = (own[name].to_list() for name in ("start_ns", "end_ns", "step"))
    middle = start.index(int(table["start_ns"][median]))
    moments = np.sort(np.concatenate([column(trace.launches, "start_ns"), column(trace.activities, "start_ns")]))

    def size(first: int, last: int) -> int:
        return 2 * int(np.searchsorted(moments, end[last]) - np.searchsorted(moments, start[first]))

    low = high = middle
    while high - low + 1 < _MOST_STEPS:
        if high + 1 < len(start) and size(low, high + 1) <= _MOST_MOMENTS:
            high += 1
        elif low and size(low - 1, high) <= _MOST_MOMENTS:
            low -= 1
        else:
            break
    marks = tuple(zip(start[low : high + 1], end[low : high + 1], strict=True))
    return Chosen(marks, tuple(number[low : high + 1]), thread)


def _whole(trace: Trace) -> Chosen | None:
    extent = extent_of((trace.operators, trace.launches, trace.activities))
    if extent is None:
        return None
    callers = trace.launches if trace.launches.height else trace.operators
    threads = callers["thread"].value_counts(sort=True) if callers.height else None
    return Chosen((extent,), (), -1 if threads is None else int(threads["thread"][0]))


class EdgeKind(IntEnum):
    """What makes one moment wait for another."""

    HOST = 0  # a thread does one call after the other
    CALL = 1  # from the start of a call to its end
    LAUNCH = 2  # work begins after the call that launches it
    STREAM = 3  # a stream does one thing after the other
    ACTIVITY = 4  # from the start of an activity to its end
    WAIT = 5  # a call returns when some work is done
    EVENT = 6  # a stream waits for an event of another one
    HANDOVER = 7  # a thread goes on when another one has done its part
    QUEUE = 8  # a launch waits until there is room in the queue
    GRAPH = 9  # nodes of one launch of a CUDA graph on several streams
    ROOM = 10  # work begins when another stream's leaves room on the device


class EdgeBasis(IntEnum):
    """How an edge is known."""

    RECORDED = 0  # the order on a thread or stream, ids, or a record of the wait
    SHOWN = 1  # no record says so, but the times fit within microseconds
    ASSUMED = 2  # possible by the times, and by what the API does


class Span(Struct, frozen=True):
    """A measured step, or several together: from one moment to the last of some others."""

    start: int
    ends: tuple[int, ...]


class StepGraph(Struct, frozen=True):
    """Moments of some steps, in an order in which each comes after all that it waits for, and the edges between them.

    Attributes:
        time_ns: per moment when it was, on the trace's clock.
        root_ns: per moment before which time it cannot be, whatever the edges say.
        residual_ns: per moment how much later it was than root and edges explain.
        begin: per moment where its edges begin, and one entry more; edges stand by the moment that they lead to.
        source: per edge the moment that it comes from.
        lag_ns: per edge how long after its source its target is at the earliest.
        kind: per edge its `EdgeKind`.
        basis: per edge its `EdgeBasis`.
        row: per edge what it is about: of ACTIVITY, LAUNCH, STREAM, EVENT, GRAPH and ROOM the row of the activity, of
            CALL, WAIT and QUEUE that of the call, of HOST and HANDOVER that of the call before which the thread was
            busy, or -1.
        thread: per moment the thread that it is on; -1 on a device.
        spans: the measured steps; one for all steps if they do not end with a wait for the device.
        steps: the profiler's numbers of the steps; empty where none are marked.
        count: how many steps the spans stand for.
    """

    time_ns: Ints
    root_ns: Ints
    residual_ns: Ints
    begin: Ints
    source: Ints
    lag_ns: Ints
    kind: Ints
    basis: Ints
    row: Ints
    thread: Ints
    spans: tuple[Span, ...]
    steps: tuple[int, ...]
    count: int

    @property
    def target(self) -> Ints:
        """Per edge the moment that it leads to."""
        return np.repeat(np.arange(len(self.time_ns)), np.diff(self.begin))

    @property
    def kept_residual_ns(self) -> Ints:
        """Per moment what a replay adds: the residuals that are longer than the spread of launches and gaps."""
        return np.where(self.residual_ns > EXPLAINED_NS, self.residual_ns, 0)

    @property
    def step_ns(self) -> float:
        """The mean time of a step as recorded, in nanoseconds."""
        return self.step_of(self.time_ns)

    def step_of(self, time: Ints) -> float:
        """Return the mean time of a step in nanoseconds, if moments are at some times."""
        return sum(int(time[list(span.ends)].max()) - int(time[span.start]) for span in self.spans) / self.count

    def replayed(self, lag: Ints | None = None, residual: Ints | None = None) -> Ints:
        """Return the time of every moment.

        Args:
            lag: per edge its lag; None for the graph's own.
            residual: per moment what it takes beyond that; None for `kept_residual_ns`.
        """
        lag = self.lag_ns if lag is None else np.ascontiguousarray(lag, np.int64)
        residual = self.kept_residual_ns if residual is None else residual
        time = np.empty(len(self.time_ns), np.int64)
        if (library := load_replay()) is not None:
            library.opscope_replay(len(time), self.begin, self.source, lag, self.root_ns, residual, time)
            return time
        return self._replayed_in_python(lag, residual)

    def _replayed_in_python(self, lag: Ints, residual: Ints) -> Ints:
        source, lags, begin, late = self.source.tolist(), lag.tolist(), self.begin.tolist(), residual.tolist()
        times: list[int] = []
        for moment, root in enumerate(self.root_ns.tolist()):
            edges = range(begin[moment], begin[moment + 1])
            latest = max((times[source[edge]] + lags[edge] for edge in edges), default=root)
            times.append(max(latest, root) + late[moment])
        return np.array(times, np.int64)


class GraphBuilder:
    """Collects moments and edges, in any order."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.threads: list[int] = []
        self._roots: dict[int, int] = {}
        self._edges: list[tuple[int, int, int, int, int, int]] = []

    def moment(self, time: int, thread: int = -1) -> int:
        """Add a moment; return its number."""
        self.times.append(int(time))
        self.threads.append(thread)
        return len(self.times) - 1

    def not_before(self, moment: int, time: int) -> None:
        """Say before which time a moment cannot be; never later than it was."""
        self._roots[moment] = min(max(int(time), self._roots.get(moment, NEVER)), self.times[moment])

    def edge(
        self,
        source: int,
        target: int,
        kind: EdgeKind,
        row: int = -1,
        *,
        lag: float | None = None,
        basis: EdgeBasis = EdgeBasis.RECORDED,
    ) -> int:
        """Add an edge; return its number.

        Args:
            source: the moment that it comes from.
            target: the moment that it leads to.
            kind: why.
            row: what it is about, see `StepGraph.row`.
            lag: the least time between them; None, or more than was recorded, means what was recorded.
            basis: how it is known.
        """
        recorded = self.times[target] - self.times[source]
        lag = recorded if lag is None else min(recorded, int(lag))
        self._edges.append((target, source, lag, int(kind), int(basis), row))
        return len(self._edges) - 1

    def shorten(self, edge: int, lag: float) -> None:
        """Set the lag of an edge, if it is shorter than what it has."""
        target, source, had, *rest = self._edges[edge]
        self._edges[edge] = (target, source, min(had, int(lag)), *rest)  # type: ignore[assignment]

    def late(self) -> Ints:
        """Return per moment how much later it was than what is known explains; 0 for those that wait for nothing."""
        time = np.array(self.times, np.int64)
        if not self._edges:
            return np.zeros_like(time)
        target, source, lag = np.array([edge[:3] for edge in self._edges], np.int64).T
        latest = np.full(len(time), NEVER)
        for moment, earliest in self._roots.items():
            latest[moment] = earliest
        np.maximum.at(latest, target, time[source] + lag)
        return np.where(latest > NEVER, time - latest, 0)

    def built(self, spans: list[Span], steps: tuple[int, ...], count: int) -> StepGraph | None:
        """Return the graph; None if its edges go round in a circle."""
        order = self._order()
        if order is None:
            return None
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        edges = np.array(self._edges, np.int64).reshape(-1, 6)
        edges[:, 0], edges[:, 1] = place[edges[:, 0]], place[edges[:, 1]]
        edges = edges[np.argsort(edges[:, 0], kind="stable")]
        target, source, lag, kind, basis, row = (np.ascontiguousarray(edges[:, at]) for at in range(6))
        time = np.array(self.times, np.int64)[order]
        begin = np.searchsorted(target, np.arange(len(order) + 1))
        root = self._root(place, time, np.diff(begin) == 0)
        latest = root.copy()
        np.maximum.at(latest, target, time[source] + lag)
        return StepGraph(
            time_ns=time,
            root_ns=root,
            residual_ns=time - latest,
            begin=begin,
            source=source,
            lag_ns=lag,
            kind=kind,
            basis=basis,
            row=row,
            thread=np.array(self.threads, np.int64)[order],
            spans=tuple(Span(int(place[one.start]), tuple(place[list(one.ends)].tolist())) for one in spans),
            steps=steps,
            count=count,
        )

    def _root(self, place: Ints, time: Ints, free: Bools) -> Ints:
        root = np.where(free, time, NEVER)
        for moment, earliest in self._roots.items():
            at = place[moment]
            root[at] = max(int(root[at]), earliest) if not free[at] else earliest
        return root

    def _order(self) -> Ints | None:
        """Return the moments so that each comes after all that it waits for, earlier ones first where both may be."""
        out: list[list[int]] = [[] for _ in self.times]
        open_ = [0] * len(self.times)
        for target, source, *_ in self._edges:
            out[source].append(target)
            open_[target] += 1
        ready = [(time, moment) for moment, time in enumerate(self.times) if not open_[moment]]
        heapq.heapify(ready)
        order = []
        while ready:
            _, moment = heapq.heappop(ready)
            order.append(moment)
            for target in out[moment]:
                open_[target] -= 1
                if not open_[target]:
                    heapq.heappush(ready, (self.times[target], target))
        return np.array(order, np.int64) if len(order) == len(self.times) else None
