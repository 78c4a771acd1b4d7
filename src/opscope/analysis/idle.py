"""Why a device had nothing to do: every idle nanosecond has one cause."""

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opscope.analysis.api import calls_that
from opscope.analysis.columns import column, end_of
from opscope.analysis.intervals import Intervals
from opscope.analysis.nesting import Ints
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


def idle_time(trace: Trace, launch: Ints, start: Ints, gaps: Intervals) -> IdleTime:
    """Divide the gaps of a device into pieces with one cause each.

    Args:
        trace: the trace.
        launch: per activity of the device its row in ``trace.launches``, or -1.
        start: per activity of the device its start.
        gaps: when the device did nothing.
    """
    ending, ended = _activity_after(start, gaps)
    launch_row = np.where(ended, launch[ending], -1) if len(launch) else np.full(len(gaps), -1)
    known = launch_row >= 0
    began, returned = gaps.end.copy(), gaps.end.copy()
    began[known] = column(trace.launches, "start_ns")[launch_row[known]]
    returned[known] = end_of(trace.launches)[launch_row[known]]
    queued = known & (returned <= gaps.start)
    # A late launch divides its gap: the host was late until the call, from the call on it is latency.
    late = known & ~queued
    division = np.where(late, np.clip(began, gaps.start, gaps.end), gaps.start)
    after = np.select(
        [~ended, ~known, queued], [IdleCause.TAIL, IdleCause.UNKNOWN, IdleCause.DEPENDENCY], default=IdleCause.LATENCY
    )
    return _sorted_pieces(
        *_host_pieces(trace, Intervals(gaps.start[late], division[late]), launch_row[late]),
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


def _host_pieces(trace: Trace, late: Intervals, launch_row: Ints) -> list[_Pieces]:
    """Tell, where the host was late, the time it spent in blocking calls of the launching thread from the rest."""
    blocking = calls_that(trace.launches, lambda call: call.blocks)
    thread = column(trace.launches, "thread")
    start, end = column(trace.launches, "start_ns"), end_of(trace.launches)
    pieces: list[_Pieces] = []
    for number in np.unique(thread[launch_row]):
        mine = thread[launch_row] == number
        waited = Intervals(late.start[mine], late.end[mine])
        theirs = blocking & (thread == number)
        calls = Intervals.union_of(start[theirs], end[theirs])
        inside = waited.within(calls)
        outside = waited.within(calls.gaps(int(waited.start[0]), int(waited.end[-1])))
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
