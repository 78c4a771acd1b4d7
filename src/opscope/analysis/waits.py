"""What a device waited for, in the words of the verdict, and how much of it a step without a profiler has too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from opscope.analysis.api import calls_of, names_that
from opscope.analysis.columns import column, end_of
from opscope.analysis.host_time import HostTime
from opscope.analysis.idle import IdleCause, IdleTime
from opscope.analysis.intervals import Intervals
from opscope.analysis.nesting import Bools, Ints
from opscope.analysis.timeline import DeviceTimeline
from opscope.documents.bound import BoundKind
from opscope.knowledge.api_calls import ApiKind
from opscope.model import Trace

# What PyTorch names its own range around fetching a batch, and the module whose frames do.
_LOADING_RANGE: Final = re.compile(r"^enumerate\(DataLoader\)")
_LOADING_FRAME: Final = re.compile(r"torch/utils/data/|Loader\.__next__")
_BETWEEN_KERNELS_NS: Final = 5_000
_PAUSE_OF_STACKS_NS: Final = 350_000
_BY_CAUSE: Final[Mapping[IdleCause, BoundKind]] = {
    IdleCause.BLOCKING: BoundKind.BLOCKING,
    IdleCause.DISPATCH: BoundKind.DISPATCH,
    IdleCause.LATENCY: BoundKind.DISPATCH,
    IdleCause.HOST_WORK: BoundKind.HOST_WORK,
    IdleCause.TAIL: BoundKind.HOST_WORK,
    IdleCause.DEPENDENCY: BoundKind.DEPENDENCY,
    IdleCause.UNKNOWN: BoundKind.UNKNOWN,
}


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
    masks = {cause: idle.is_any_of((cause,)) for cause in IdleCause}
    kinds = {kind: np.zeros(len(length), np.bool_) for kind in BoundKind}
    for cause, kind in _BY_CAUSE.items():
        kinds[kind] |= masks[cause]
    # From one queued kernel to the next the device itself takes a microsecond or two.
    _move(kinds, BoundKind.DEVICE, np.flatnonzero(masks[IdleCause.DEPENDENCY] & (length < _BETWEEN_KERNELS_NS)))
    blocking = np.flatnonzero(masks[IdleCause.BLOCKING] & (idle.call >= 0))
    manages = calls_of(trace.launches, ApiKind.ALLOCATE, ApiKind.FREE)
    _move(kinds, BoundKind.ALLOCATION, blocking[manages[idle.call[blocking]] & (idle.record[blocking] < 0)])
    tails = np.flatnonzero(masks[IdleCause.TAIL])
    managing = Intervals.union_of(host.start[manages], host.end[manages])
    covered = _covered(idle.pieces.chosen(masks[IdleCause.TAIL]), managing)
    _move(kinds, BoundKind.ALLOCATION, tails[2 * covered > length[tails]])
    host_caused = kinds[BoundKind.HOST_WORK] | kinds[BoundKind.BLOCKING] | kinds[BoundKind.DISPATCH]
    waiting = np.flatnonzero(host_caused & ~masks[IdleCause.TAIL])
    _move(kinds, BoundKind.INPUT, waiting[loading_data(trace, idle, waiting)])
    after = np.full(len(length), -1, np.int64)
    if trace.frames.height or not trace.operators.height:
        # Stacks make pauses of dispatching that long, in an optimizer for one; without operators nothing tells what
        # the host did between two launches.
        _move(kinds, BoundKind.DISPATCH, np.flatnonzero(masks[IdleCause.HOST_WORK] & (length < _PAUSE_OF_STACKS_NS)))
    sits = np.flatnonzero(idle.call >= 0)
    _move(kinds, BoundKind.COLD_START, sits[host.cold[idle.call[sits]] & ~masks[IdleCause.DEPENDENCY][sits]])
    _move(kinds, BoundKind.COLD_START, np.flatnonzero((idle.record >= 0) & masks[IdleCause.BLOCKING]))
    asked = np.flatnonzero(kinds[BoundKind.DISPATCH] | kinds[BoundKind.HOST_WORK])
    after[asked] = _waited_before(host, idle, asked)
    waits = Intervals.union_of(host.start[host.waits], host.end[host.waits])
    return Waits(
        idle=idle,
        kinds=kinds,
        after=after,
        profiler_ns=int(length[masks[IdleCause.PROFILER]].sum()),
        host_waits_ns=waits.within(timeline.window.spans).length,
        quiet_ns=_quiet(trace, idle, kinds[BoundKind.HOST_WORK] | kinds[BoundKind.INPUT]),
        after_waits_ns=int(length[after >= 0].sum()),
    )


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


def _covered(pieces: Intervals, others: Intervals) -> Ints:
    """Return how much of each piece lies in other intervals."""
    piece, _, start, end = pieces.overlapping(others)
    total = np.zeros(len(pieces), np.int64)
    np.add.at(total, piece, end - start)
    return total


def _move(kinds: Mapping[BoundKind, Bools], to: BoundKind, pieces: Ints) -> None:
    for mask in kinds.values():
        mask[pieces] = False
    kinds[to][pieces] = True


def loading_data(trace: Trace, idle: IdleTime, pieces: Ints) -> Bools:
    """Tell per piece of idle time whether its thread was loading a batch."""
    thread, moment = idle.thread[pieces], (idle.pieces.start[pieces] + idle.pieces.end[pieces]) // 2
    found = np.zeros(len(pieces), np.bool_)
    for table, names in ((trace.annotations, _LOADING_RANGE), (trace.frames, _LOADING_FRAME)):
        rows = np.flatnonzero(names_that(table["name"], names.search))
        owner, start, end = column(table, "thread")[rows], column(table, "start_ns")[rows], end_of(table)[rows]
        for number in np.unique(owner).tolist():
            mine = owner == number
            loads = Intervals.union_of(start[mine], end[mine])
            asked = np.flatnonzero(thread == number)
            position = np.searchsorted(loads.start, moment[asked], side="right") - 1
            inside = (position >= 0) & (moment[asked] < loads.end[np.maximum(position, 0)])
            found[asked[inside]] = True
    return found


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
