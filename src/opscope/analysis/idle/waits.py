"""What a device waited for, in the words of the verdict, and how much of it a step without a profiler has too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.idle import LAUNCH_BOUND_CAUSES, IdleCause, IdleTime
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.documents.bound import BoundKind
from opscope.trace.model import Trace

# Which causes of idle time are of which kind of the verdict; the profiler's own is of none.
CAUSES: Final[Mapping[BoundKind, tuple[IdleCause, ...]]] = {
    BoundKind.DISPATCH: LAUNCH_BOUND_CAUSES,
    BoundKind.BLOCKING: (IdleCause.BLOCKING,),
    BoundKind.ALLOCATION: (IdleCause.ALLOCATION,),
    BoundKind.HOST_WORK: (IdleCause.HOST_WORK, IdleCause.TAIL),
    BoundKind.INPUT: (IdleCause.INPUT,),
    BoundKind.DEPENDENCY: (IdleCause.DEPENDENCY,),
    BoundKind.COLD_START: (IdleCause.COLD_START,),
    BoundKind.DEVICE: (IdleCause.QUEUED,),
    BoundKind.UNKNOWN: (IdleCause.UNKNOWN,),
}

# What else the host does than to launch and to wait.
PAUSES: Final[tuple[BoundKind, ...]] = (BoundKind.HOST_WORK, BoundKind.INPUT)


@dataclass(frozen=True, slots=True)
class Waits:
    """The idle time of a device in its window, by what it waited for. Times are nanoseconds.

    Attributes:
        idle: its pieces.
        kinds: which of them are of which kind; the profiler's own are of none.
        after: per piece of `BoundKind.DISPATCH` or host work the last call before it in which its thread had waited for
            the device, as a row of the launches, if that explains it; or -1. Without that call the host would be ahead
            by the time for which it waited, and so much of the idle time that follows would not be.
        quiet_ns: of the host's other work and of loading data what has no record inside: code that no profiler slows.
        after_waits_ns: idle time that follows a wait for the device, and nothing is queued that could run then.
        work_after_waits_ns: the part of it in which the host does other work or loads data.
        quiet_after_waits_ns: the part of that without any record inside.
        profiler_ns: the profiler's own idle time.
        host_waits_ns: how long threads sat in calls that wait, in the window.
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
        """How long each piece is."""
        lengths: Ints = self.idle.pieces.end - self.idle.pieces.start
        return lengths

    @property
    def by_kind(self) -> Mapping[BoundKind, int]:
        """All of it but the profiler's own; kinds without any are left out."""
        lengths = self.lengths
        return {kind: total for kind, mask in self.kinds.items() if (total := int(lengths[mask].sum()))}

    @property
    def drained_ns(self) -> int:
        """The part of dispatch that followed a wait for the device."""
        return int(self.lengths[self.kinds[BoundKind.DISPATCH] & (self.after >= 0)].sum())


def waits_of(trace: Trace, host: HostTime, timeline: DeviceTimeline) -> Waits:
    """Tell what a device waited for."""
    idle = timeline.idle
    length = idle.pieces.end - idle.pieces.start
    kinds = {kind: idle.is_any_of(causes) for kind, causes in CAUSES.items()}
    after = np.full(len(length), -1, np.int64)
    asked = np.flatnonzero(kinds[BoundKind.DISPATCH] | kinds[BoundKind.HOST_WORK])
    after[asked] = _waited_before(host, idle, asked)
    waits = Intervals.union_of(host.start[host.waits], host.end[host.waits])
    others = kinds[BoundKind.HOST_WORK] | kinds[BoundKind.INPUT]
    return Waits(
        idle=idle,
        kinds=kinds,
        after=after,
        profiler_ns=int(length[idle.is_any_of((IdleCause.PROFILER,))].sum()),
        host_waits_ns=waits.within(timeline.window.spans).length,
        quiet_ns=_quiet(trace, idle, others),
        after_waits_ns=int(length[after >= 0].sum()),
        work_after_waits_ns=int(length[others & (after >= 0)].sum()),
        quiet_after_waits_ns=_quiet(trace, idle, others & (after >= 0)),
    )


def at_most(parts: Mapping[BoundKind, float], whole: float) -> dict[BoundKind, float]:
    """Return the parts of a whole, made smaller in proportion where together they exceed a whole."""
    total = sum(parts.values())
    scale = min(1.0, whole / total) if total > 0 else 1.0
    return {kind: time * scale for kind, time in parts.items()}


_QUIET_NS: Final = 1_000_000  # Python that records its frames does not go so long without one


def _quiet(trace: Trace, idle: IdleTime, mask: Bools) -> int:
    """Return how much of some pieces lies in stretches of their threads in which nothing begins or ends."""
    total = 0
    tables = [table for table in (trace.frames, trace.operators, trace.launches) if table.height]
    for number in np.unique(idle.thread[mask]).tolist():
        moments = [np.zeros(0, np.int64)]
        for table in tables:
            mine = column(table, "thread") == number
            moments += [column(table, "start_ns")[mine], end_of(table)[mine]]
        times = np.sort(np.concatenate(moments), kind="stable")
        long = np.diff(times) > _QUIET_NS
        quiet = Intervals(times[:-1][long], times[1:][long]) if len(times) > 1 else Intervals(times[:0], times[:0])
        total += quiet.within(idle.pieces.chosen(mask & (idle.thread == number))).length
    return total


def _waited_before(host: HostTime, idle: IdleTime, pieces: Ints) -> Ints:
    """Return per piece, of those in order, the call that waited for the device and explains it, or -1."""
    found = np.full(len(pieces), -1, np.int64)
    for number in np.unique(idle.thread[pieces]).tolist():
        asked = np.flatnonzero(idle.thread[pieces] == number)
        waits = np.flatnonzero(host.drains & (host.thread == number))
        if not len(waits):
            continue
        waited = np.append(-1, waits[np.argsort(host.end[waits], kind="stable")])
        moment = idle.pieces.start[pieces[asked]]
        call = waited[np.searchsorted(host.end[waited[1:]], moment, side="right")]
        length = idle.pieces.end[pieces[asked]] - moment
        before = np.cumsum(length) - length
        first = np.r_[True, call[1:] != call[:-1]] if len(call) else np.zeros(0, np.bool_)
        since = before - np.repeat(before[first], np.diff(np.append(np.flatnonzero(first), len(call))))
        explained = (call >= 0) & (since < host.end[call] - host.start[call])
        found[asked[explained]] = call[explained]
    return found
