"""Changes of a graph's durations: each only shortens or scales what it is about, and leaves the order as recorded."""

from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.graph import NEVER, EdgeKind
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.nesting import Bools, Floats, Ints, nearest

# A pause as long as this without any operator, call or frame inside is not a dispatch: the host does something else.
SILENT_NS: Final = 100_000
# What recording costs the host, fitted on 18 recorded programs against their unprofiled steps, and tried on 16 others:
# error of the step 1.2 % (median), 7.9 % (nine of ten). At least a quarter of a pause or call stays.
OPERATOR_NS: Final = 2_200
FRAME_NS: Final = 900
CALL_NS: Final = 1_500
STAYS: Final = 0.25


class Edit:
    """Durations of a graph, to be changed and replayed; the graph itself stays as it is.

    Args:
        steps: the steps.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.graph = steps, steps.graph
        self.lag = steps.graph.lag_ns.copy()
        self.residual = steps.graph.kept_residual_ns.copy()
        self.added = np.zeros_like(self.residual)  # per moment what changes delay it by
        self._target = steps.graph.target

    def copy(self) -> "Edit":
        """Return an edit with the same changes, to add others."""
        other = Edit(self.steps)
        other.lag, other.residual, other.added = self.lag.copy(), self.residual.copy(), self.added.copy()
        return other

    @property
    def step_ns(self) -> float:
        """The mean time of a step with the changes, in nanoseconds."""
        return self.graph.step_of(self.times)

    @property
    def times(self) -> Ints:
        """Per moment when it would be."""
        return self.graph.replayed(self.lag, self.late)

    @property
    def late(self) -> Ints:
        """Per moment how much later it is than what it waits for lets it be."""
        return self.residual + self.added

    @property
    def target(self) -> Ints:
        """Per edge of the graph the moment that it leads to."""
        return self._target

    # ---- devices

    def scale(self, activities: Ints, factor: float | Floats) -> int:
        """Multiply the durations of some activities; return how many of them the steps have.

        Args:
            activities: rows of the trace's activities.
            factor: one for all, or one per row of the trace's activities.
        """
        edges = self._edges(EdgeKind.ACTIVITY, activities)
        factors = factor[self.graph.row[edges]] if isinstance(factor, np.ndarray) else factor
        self.lag[edges] = np.rint(self.lag[edges] * factors).astype(np.int64)
        return len(edges)

    def remove_activities(self, activities: Ints) -> int:
        """Let some activities take no time, and wait for nothing but their order; return how many the steps have."""
        edges = self._edges(EdgeKind.ACTIVITY, activities)
        self.lag[edges] = 0
        starts = self.graph.source[edges]
        begins = np.isin(self._target, starts)
        self.lag[begins] = np.minimum(self.lag[begins], 0)
        self.residual[starts] = 0
        return len(edges)

    def pause_at_most(self, gap_ns: int) -> None:
        """Let streams go on after at most some pause, as inside a CUDA graph."""
        streams = self.graph.kind == EdgeKind.STREAM
        self.lag[streams] = np.minimum(self.lag[streams], gap_ns)

    def take(self, activities: Ints, duration_ns: Ints) -> int:
        """Set the durations of some activities but those that are removed; return how many of them the steps have.

        Args:
            activities: rows of the trace's activities, each once.
            duration_ns: how long each of them takes.
        """
        edges = self._edges(EdgeKind.ACTIVITY, activities)
        order = np.argsort(activities, kind="stable")
        place = order[np.searchsorted(activities, self.graph.row[edges], sorter=order)]
        self.lag[edges] = np.where(self.lag[edges] > 0, duration_ns[place], 0)
        return len(edges)

    def remove_work(self, activities: Ints, *, of_host: float = 1.0) -> int:
        """Remove some activities, their launches, and the operators that launch nothing else.

        Args:
            activities: rows of the trace's activities.
            of_host: which share of those operators' time on the host goes with them, from 0 to 1.

        Returns:
            How many of the activities the steps have.
        """
        result = self.remove_activities(activities)
        self.remove_launches(activities, of_host=of_host)
        return result

    def remove_launches(self, activities: Ints, *, of_host: float = 1.0) -> None:
        """Remove the launches of some activities, which stay, and the operators that launch nothing else.

        Args:
            activities: rows of the trace's activities.
            of_host: which share of those operators' time on the host goes with them, from 0 to 1.
        """
        links, parent = self.steps.links, self.steps.links.operators.parent
        launches = links.activity_launch[activities]
        self.remove_calls(launches[launches >= 0])
        known = links.activity_operator
        going = np.zeros(len(known), np.bool_)
        going[activities] = True
        counts = [
            links.operators.subtree_sums(np.bincount(known[mask & (known >= 0)], minlength=len(parent)))
            for mask in (np.ones(len(known), np.bool_), going)
        ]
        whole = (counts[1] > 0) & (counts[0] == counts[1])
        self.remove_host_of(whole & ~np.append(whole, False)[parent], of_host)

    def waits_of_streams(self) -> tuple[Ints, Ints, Ints]:
        """Return the edges by which a stream waits for another one, and the activities before and after each.

        It waits for an event, or for room on the device.
        """
        edges = np.flatnonzero(np.isin(self.graph.kind, (EdgeKind.EVENT, EdgeKind.ROOM)))
        work = np.flatnonzero(self.graph.kind == EdgeKind.ACTIVITY)
        order = np.argsort(self._target[work])
        place = order[np.searchsorted(self._target[work], self.graph.source[edges], sorter=order)]
        return edges, self.graph.row[work][place], self.graph.row[edges]

    def let_run_on(self, edges: Ints) -> None:
        """Let a stream go on without waiting for another one.

        Args:
            edges: which of the graph's edges go.
        """
        self.lag[edges] = NEVER
        self.residual[self._target[edges]] = 0

    # ---- the host

    def scale_host(self, factor: float) -> None:
        """Multiply the host's own time, between calls and in calls that do not wait."""
        host = np.isin(self.graph.kind, (EdgeKind.HOST, EdgeKind.CALL, EdgeKind.HANDOVER))
        self.lag[host] = np.rint(self.lag[host] * factor).astype(np.int64)

    def delay(self, moments: Ints, by_ns: int) -> None:
        """Let some moments come later than all that they wait for."""
        self.added[moments] += by_ns

    def remove_calls(self, calls: Ints) -> int:
        """Let some API calls take no time, and wait for nothing; return how many the steps have."""
        return self.shorten_calls(calls, 0)

    def shorten_calls(self, calls: Ints, most_ns: int) -> int:
        """Let some API calls take no longer than a time, and wait for nothing; return how many the steps have."""
        edges = self._edges(EdgeKind.CALL, calls)
        self.lag[edges] = np.minimum(self.lag[edges], most_ns)
        self.residual[self._target[edges]] = 0
        self.cut_waits(calls)
        return len(edges)

    def cut_waits(self, calls: Ints) -> int:
        """Let some calls return without their waiting for the device; return how many of them waited.

        The waits with which steps end stay: a step has not ended before its work is done.
        """
        waits = np.isin(self.graph.kind, (EdgeKind.WAIT, EdgeKind.QUEUE)) & np.isin(self.graph.row, calls)
        waits &= ~np.isin(self._target, [end for span in self.graph.spans for end in span.ends])
        self.lag[waits] = NEVER
        self.residual[self._target[waits]] = 0
        return len(np.unique(self.graph.row[waits]))

    def host_time(self, thread: int, spans: Intervals) -> float:
        """Return how long a thread's pauses and calls take in some stretches, in nanoseconds."""
        own, share = self._of_host(thread, spans)
        return float((self.lag[own] * share).sum())

    def remove_host(self, thread: int, spans: Intervals, share_gone: float = 1.0) -> None:
        """Take stretches of a thread's time, or a share of them, out of its pauses and calls."""
        own, share = self._of_host(thread, spans)
        self.lag[own] = np.rint(self.lag[own] * (1 - share_gone * share)).astype(np.int64)

    def _of_host(self, thread: int, spans: Intervals) -> tuple[Ints, Ints]:
        """Return a thread's pauses and calls, and which share of each lies in some stretches.

        A share, as a wait or a hand-over may have taken a part of a lag already.
        """
        graph = self.graph
        own = np.flatnonzero(
            np.isin(graph.kind, (EdgeKind.HOST, EdgeKind.CALL)) & (graph.thread[graph.source] == thread)
        )
        begin, end = graph.time_ns[graph.source[own]], graph.time_ns[self._target[own]]
        share: Ints = np.clip(_inside(spans, begin, end) / np.maximum(end - begin, 1), 0, 1)
        return own, share

    def remove_operators(self, operators: Bools, *, of_host: float = 1.0) -> int:
        """Remove operators with all that they launch, and the host time that they take.

        Args:
            operators: per operator of the trace whether it goes.
            of_host: which share of the host time goes with them, from 0 to 1.

        Returns:
            How many operators of the steps go, without those inside others that go.
        """
        links = self.steps.links
        around = nearest(links.operators.parent, operators)
        gone = np.append(around >= 0, False)
        self.remove_activities(np.flatnonzero(gone[links.activity_operator]))
        self.remove_calls(np.flatnonzero(gone[links.launch_operator]))
        parent = links.operators.parent
        return self.remove_host_of(operators & ~gone[parent], of_host)

    def remove_host_of(self, operators: Bools, share_gone: float = 1.0) -> int:
        """Take the time of some operators, none inside another, out of their threads; return how many the steps have.

        Args:
            operators: per operator of the trace whether it goes.
            share_gone: which share of their time goes, from 0 to 1.
        """
        table, chosen = self.steps.trace.operators, self.steps.chosen
        start, end, thread = column(table, "start_ns"), end_of(table), column(table, "thread")
        inside = operators & (start >= chosen.begin_ns) & (start < chosen.end_ns)
        for number in np.unique(thread[inside]).tolist():
            rows = inside & (thread == number)
            self.remove_host(number, Intervals.union_of(start[rows], end[rows]), share_gone)
        return int(inside.sum())

    def launch_as_graph(self, gap_ns: int, launch_ns: int, *, work_stays_ns: int = 0) -> None:
        """Launch what lies between two waits of a step at once: the host dispatches nothing else.

        It still waits, and does other work.

        Args:
            gap_ns: the pause between two kernels.
            launch_ns: how long such a launch takes.
            work_stays_ns: other work of the host stays from this length on.
        """
        graph = self.graph
        pauses = np.flatnonzero(np.isin(graph.kind, (EdgeKind.HOST, EdgeKind.HANDOVER)))
        _, _, silent = self._contents(pauses)
        silent[silent < work_stays_ns] = 0
        self.lag[pauses] = np.minimum(self.lag[pauses], silent)
        calls = np.flatnonzero(graph.kind == EdgeKind.CALL)
        self.lag[calls] = 0
        self.residual[self._target[calls]] = 0
        self.pause_at_most(gap_ns)
        starts = np.append(self._target[graph.kind == EdgeKind.WAIT], [span.start for span in graph.spans])
        ends = [end for span in graph.spans for end in span.ends]
        begins = np.isin(graph.source, np.setdiff1d(starts, ends)) & (graph.kind == EdgeKind.HOST)
        self.lag[begins] += launch_ns

    def without_profiler(self) -> None:
        """Take out what recording cost the host: so much per operator, frame and call."""
        graph = self.graph
        pauses = np.flatnonzero(np.isin(graph.kind, (EdgeKind.HOST, EdgeKind.HANDOVER)))
        operators, frames, silent = self._contents(pauses)
        own = np.maximum(self.lag[pauses] - silent, 0)
        less = np.maximum(own - OPERATOR_NS * operators - FRAME_NS * frames, (STAYS * own).astype(np.int64))
        self.lag[pauses] = np.minimum(silent, self.lag[pauses]) + less
        calls = np.flatnonzero((graph.kind == EdgeKind.CALL) & (self.lag < SILENT_NS))
        self.lag[calls] = np.maximum(self.lag[calls] - CALL_NS, (STAYS * self.lag[calls]).astype(np.int64))

    # ---- what lies in pauses

    def _contents(self, edges: Ints) -> tuple[Ints, Ints, Ints]:
        """Return per pause how many operators and frames begin in it, and how long nothing was recorded there.

        What lies between a moment of one thread and one of another, which it hands over to, may be of both.
        """
        graph, trace = self.graph, self.steps.trace
        begin, end = graph.time_ns[graph.source[edges]], graph.time_ns[self._target[edges]]
        thread, to = graph.thread[graph.source[edges]], graph.thread[self._target[edges]]
        counts = [np.zeros(len(edges), np.int64) for _ in range(2)]
        silent = np.full(len(edges), np.iinfo(np.int64).max)
        for number in np.unique(np.append(thread, to)).tolist():
            own = np.flatnonzero((thread == number) | (to == number))
            moments = []
            for count, table in zip(counts, (trace.operators, trace.frames), strict=True):
                rows = table.filter(pl.col("thread") == number)
                starts = np.sort(column(rows, "start_ns"))
                count[own] += np.searchsorted(starts, end[own]) - np.searchsorted(starts, begin[own])
                moments += [starts, end_of(rows)]
            every = np.sort(np.concatenate(moments))
            silent[own[end[own] - begin[own] <= SILENT_NS]] = 0
            for place in own[end[own] - begin[own] > SILENT_NS].tolist():
                low, high = np.searchsorted(every, [begin[place], end[place]])
                pauses = np.diff(np.concatenate([[begin[place]], every[low:high], [end[place]]]))
                # Of two threads the one that records more is the one that works.
                silent[place] = min(silent[place], int(pauses[pauses > SILENT_NS].sum()))
        return counts[0], counts[1], silent

    def _edges(self, kind: EdgeKind, rows: Ints) -> Ints:
        return np.flatnonzero((self.graph.kind == kind) & np.isin(self.graph.row, rows))


def _inside(spans: Intervals, begin: Ints, end: Ints) -> Ints:
    """Return per stretch from begin to end how much of it lies in some spans."""
    if not len(spans):
        return np.zeros(len(begin), np.int64)
    lengths = np.concatenate([[0], np.cumsum(spans.end - spans.start)])

    def before(moment: Ints) -> Ints:
        place = np.searchsorted(spans.start, moment, side="right")
        over: Ints = np.where(place > 0, np.maximum(spans.end[np.maximum(place - 1, 0)] - moment, 0), 0)
        result: Ints = lengths[place] - over
        return result

    inside: Ints = before(end) - before(begin)
    return inside
