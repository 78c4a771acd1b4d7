"""What a device waited for, by the kinds of the verdict, and how much of that a step without a profiler has too."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.idle import IdleTime
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.arrays import Intervals, column, end_of, numbers_in
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.documents.verdict import BoundKind, IdleCause, causes_of
from opscope.trace.model import Trace

# The causes of idle time that make up each kind of the verdict; the profiler's own belongs to none.
CAUSES: Final[Mapping[BoundKind, tuple[IdleCause, ...]]] = {
    cause.bound: causes_of(cause.bound) for cause in IdleCause if cause.bound is not None
}

# What the host does other than launching and waiting.
PAUSES: Final[tuple[BoundKind, ...]] = (BoundKind.HOST_WORK, BoundKind.INPUT)


class Waits(Struct, frozen=True):
    """The idle time of a device in its window, by what it waited for. Times are nanoseconds.

    Attributes:
        idle: the pieces of idle time.
        kinds: per kind which of the pieces belong to it; those of the profiler belong to none.
        after: per piece of dispatch or host work the call that explains it, as a row of the launches, or -1: the last
            one before it in which its thread waited for the device. Without that wait the host would be ahead by as
            long as it waited, and at most that much of the idle time after the call would not be there.
        quiet_ns: the part of the host's other work and data loading without any record inside: no profiler slows it.
        after_waits_ns: idle time explained by an earlier wait, so that nothing was queued.
        work_after_waits_ns: the part of that in which the host does other work or loads data.
        quiet_after_waits_ns: the part of this without any record inside.
        profiler_ns: idle time due to the profiler itself.
        host_waits_ns: how long any thread sat in a call that waits, in the window.
    """

    idle: IdleTime
    kinds: Mapping[BoundKind, Bools]
    after: Ints
    profiler_ns: int
    host_waits_ns: int
    quiet_ns: int = 0
    after_waits_ns: int = 0
    work_after_waits_ns: int = 0
    quiet_after_waits_ns: int = 0

    @property
    def lengths(self) -> Ints:
        """The length of each piece."""
        lengths: Ints = self.idle.pieces.end - self.idle.pieces.start
        return lengths

    @property
    def by_kind(self) -> Mapping[BoundKind, int]:
        """The idle time per kind, without the profiler's own; kinds without any are left out."""
        lengths = self.lengths
        return {kind: total for kind, mask in self.kinds.items() if (total := int(lengths[mask].sum()))}

    @property
    def drained_ns(self) -> int:
        """The part of dispatch that a wait for the device explains."""
        return int(self.lengths[self.kinds[BoundKind.DISPATCH] & (self.after >= 0)].sum())


def waits_of(trace: Trace, host: HostTime, timeline: DeviceTimeline) -> Waits:
    """Return what a device waited for."""
    idle = timeline.idle
    length = idle.pieces.end - idle.pieces.start
    kinds = {kind: idle.is_any_of(causes) for kind, causes in CAUSES.items()}
    after = np.full(len(length), -1, np.int64)
    asked = np.flatnonzero(kinds[BoundKind.DISPATCH] | kinds[BoundKind.HOST_WORK])
    after[asked] = _waited_before(host, idle, asked)
    waits = Intervals.union_of(host.start[host.waits], host.end[host.waits])
    others = kinds[BoundKind.HOST_WORK] | kinds[BoundKind.INPUT]
    quiet = {number: _quiet_stretches(trace, number) for number in numbers_in(idle.thread[others]).tolist()}
    return Waits(
        idle=idle,
        kinds=kinds,
        after=after,
        profiler_ns=int(length[idle.is_any_of((IdleCause.PROFILER,))].sum()),
        host_waits_ns=waits.within(timeline.window.spans).length,
        quiet_ns=_quiet(quiet, idle, others),
        after_waits_ns=int(length[after >= 0].sum()),
        work_after_waits_ns=int(length[others & (after >= 0)].sum()),
        quiet_after_waits_ns=_quiet(quiet, idle, others & (after >= 0)),
    )


def at_most(parts: Mapping[BoundKind, float], whole: float) -> dict[BoundKind, float]:
    """Return parts of a whole, scaled down in proportion where they add up to more than the whole."""
    total = sum(parts.values())
    scale = min(1.0, whole / total) if total > 0 else 1.0
    return {kind: time * scale for kind, time in parts.items()}


_QUIET_NS: Final = 1_000_000  # Python whose frames are recorded does not go this long without one


def _quiet_stretches(trace: Trace, number: int) -> Intervals:
    """Return the stretches of a thread in which nothing begins or ends for long."""
    moments = [np.zeros(0, np.int64)]
    for table in (trace.frames, trace.operators, trace.launches):
        own = column(table, "thread") == number
        moments += [column(table, "start_ns")[own], end_of(table)[own]]
    times = np.sort(np.concatenate(moments), kind="stable")
    long = np.flatnonzero(np.diff(times) > _QUIET_NS)
    return Intervals(times[long], times[long + 1])


def _quiet(stretches: Mapping[int, Intervals], idle: IdleTime, mask: Bools) -> int:
    """Return how much of some pieces of idle time lies in the quiet stretches of their threads."""
    return sum(
        quiet.within(idle.pieces.chosen(mask & (idle.thread == number))).length for number, quiet in stretches.items()
    )


def _waited_before(host: HostTime, idle: IdleTime, pieces: Ints) -> Ints:
    """Return per piece the call that waited for the device and explains it, or -1.

    Args:
        host: what the threads did.
        idle: the idle time.
        pieces: positions of the pieces that are asked for, ascending.
    """
    result = np.full(len(pieces), -1, np.int64)
    for number in numbers_in(idle.thread[pieces]).tolist():
        asked = np.flatnonzero(idle.thread[pieces] == number)
        waits = np.flatnonzero(host.drains & (host.thread == number))
        if not len(waits):
            continue
        # The first entry stands for no wait before a piece.
        waited = np.append(-1, waits[np.argsort(host.end[waits], kind="stable")])
        moment = idle.pieces.start[pieces[asked]]
        call = waited[np.searchsorted(host.end[waited[1:]], moment, side="right")]
        length = idle.pieces.end[pieces[asked]] - moment
        # A wait explains idle time up to its own length; `since` is what earlier pieces after the call used up.
        before = np.cumsum(length) - length
        first = np.r_[True, call[1:] != call[:-1]] if len(call) else np.zeros(0, np.bool_)
        since = before - np.repeat(before[first], np.diff(np.append(np.flatnonzero(first), len(call))))
        explained = (call >= 0) & (since < host.end[call] - host.start[call])
        result[asked[explained]] = call[explained]
    return result
