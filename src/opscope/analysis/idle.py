"""Why a device had nothing to do: every idle nanosecond has one cause."""

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opscope.analysis.api import calls_that
from opscope.analysis.columns import column, end_of
from opscope.analysis.intervals import Intervals
from opscope.analysis.nesting import Bools, Ints
from opscope.model import Trace


class IdleCause(enum.StrEnum):
    """Why a device idled, judged by the launch of the activity that ended the gap.

    Until that call began, the device waited for the host: inside a blocking call (``SYNC``) or doing something else
    (``HOST``). From the beginning of the call on it is ``LATENCY``. Where the call had returned before the gap began,
    the work was queued and waited for something else (``DEPENDENCY``).
    """

    HOST = "host wait"
    SYNC = "synchronisation"
    LATENCY = "launch latency"
    DEPENDENCY = "dependency"
    UNKNOWN = "launch not recorded"
    TAIL = "after the last activity"


LAUNCH_BOUND_CAUSES = (IdleCause.HOST, IdleCause.LATENCY)


@dataclass(frozen=True, slots=True)
class IdleTime:
    """The idle pieces of one device, in ascending order, each with its cause."""

    pieces: Intervals
    cause: npt.NDArray[np.str_]

    def by_cause(self) -> dict[IdleCause, int]:
        """Return the nanoseconds per cause."""
        length = self.pieces.end - self.pieces.start
        return {cause: int(length[self.cause == cause].sum()) for cause in IdleCause}

    def within(self, spans: Intervals) -> "IdleTime":
        """Return the part that lies in the given intervals."""
        mine, start, end = self.pieces.overlaps(spans)
        return IdleTime(Intervals(start, end), self.cause[mine])


@dataclass(frozen=True, slots=True)
class HostCalls:
    """The API calls of a trace, row by row: thread, start, end, and whether the host waits in them."""

    thread: Ints
    start: Ints
    end: Ints
    blocks: Bools

    @classmethod
    def of(cls, trace: Trace) -> "HostCalls":
        """Take the calls of a trace."""
        launches = trace.launches
        blocks = calls_that(launches, lambda call: call.blocks)
        return cls(column(launches, "thread"), column(launches, "start_ns"), end_of(launches), blocks)


def idle_time(calls: HostCalls, launch: Ints, start: Ints, gaps: Intervals) -> IdleTime:
    """Divide the gaps of a device into pieces with one cause each.

    Args:
        calls: of the trace.
        launch: per activity of the device its row among the calls, or -1.
        start: per activity of the device its start.
        gaps: when the device did nothing.
    """
    ending, ended = _activity_after(start, gaps)
    launch_row = np.where(ended, launch[ending], -1) if len(launch) else np.full(len(gaps), -1)
    known = launch_row >= 0
    began, returned = gaps.end.copy(), gaps.end.copy()
    began[known] = calls.start[launch_row[known]]
    returned[known] = calls.end[launch_row[known]]
    queued = known & (returned <= gaps.start)
    # A late launch divides its gap: the host was late until the call, from the call on it is latency.
    late = known & ~queued
    division = np.where(late, np.clip(began, gaps.start, gaps.end), gaps.start)
    after = np.select(
        [~ended, ~known, queued], [IdleCause.TAIL, IdleCause.UNKNOWN, IdleCause.DEPENDENCY], default=IdleCause.LATENCY
    )
    return _sorted_pieces(
        *_host_pieces(calls, Intervals(gaps.start[late], division[late]), launch_row[late]),
        (Intervals(division, gaps.end), after.astype(np.str_)),
    )


def _activity_after(start: Ints, gaps: Intervals) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return per gap the activity that ended it, and whether there is one (the window's end is none)."""
    order = np.argsort(start, kind="stable")
    following = np.searchsorted(start[order], gaps.end, side="left")
    ended = following < len(start)
    if not len(start):
        return following, ended
    activity = order[np.minimum(following, len(start) - 1)]
    return activity, ended & (start[activity] == gaps.end)


_Pieces = tuple[Intervals, npt.NDArray[np.str_]]


def _host_pieces(calls: HostCalls, late: Intervals, launch_row: Ints) -> list[_Pieces]:
    """Tell, where the host was late, the time it spent in blocking calls of the launching thread from the rest."""
    pieces: list[_Pieces] = []
    threads = calls.thread[launch_row]
    for number in np.unique(threads):
        mine = threads == number
        waited = Intervals(late.start[mine], late.end[mine])
        theirs = calls.blocks & (calls.thread == number)
        blocked = Intervals.union_of(calls.start[theirs], calls.end[theirs])
        inside = waited.within(blocked)
        outside = waited.within(blocked.gaps(int(waited.start[0]), int(waited.end[-1])))
        pieces.append((inside, np.full(len(inside), IdleCause.SYNC.value)))
        pieces.append((outside, np.full(len(outside), IdleCause.HOST.value)))
    return pieces


def _sorted_pieces(*pieces: _Pieces) -> IdleTime:
    start = np.concatenate([part.start for part, _ in pieces])
    end = np.concatenate([part.end for part, _ in pieces])
    cause = np.concatenate([cause for _, cause in pieces])
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    return IdleTime(Intervals(start[order], end[order]), cause[order])
