"""What a device waited for, in the words of the verdict, and how much of it a step without a profiler has too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from opscope.analysis.api import calls_of, calls_that, names_that
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
        by_kind: all of it but the profiler's own; kinds without any are left out.
        profiler_ns: the profiler's own.
        drained_ns: the part of ``DISPATCH`` that followed a call in which the host had waited for the device: without
            that call, the host would have issued the same work while the device was busy.
        host_waits_ns: how long the threads that launch sat in calls that wait, in the window.
    """

    by_kind: Mapping[BoundKind, int]
    profiler_ns: int
    drained_ns: int
    host_waits_ns: int


def waits_of(trace: Trace, host: HostTime, timeline: DeviceTimeline) -> Waits:
    """Tell what a device waited for."""
    idle = timeline.idle
    length = idle.pieces.end - idle.pieces.start
    masks = {cause: idle.is_any_of((cause,)) for cause in IdleCause}
    kinds = {kind: np.zeros(len(length), np.bool_) for kind in BoundKind}
    for cause, kind in _BY_CAUSE.items():
        kinds[kind] |= masks[cause]
    blocking = np.flatnonzero(masks[IdleCause.BLOCKING] & (idle.call >= 0))
    manages = calls_of(trace.launches, ApiKind.ALLOCATE) | calls_of(trace.launches, ApiKind.FREE)
    _move(kinds, BoundKind.ALLOCATION, blocking[manages[idle.call[blocking]] & (idle.record[blocking] < 0)])
    host_caused = kinds[BoundKind.HOST_WORK] | kinds[BoundKind.BLOCKING] | kinds[BoundKind.DISPATCH]
    waiting = np.flatnonzero(host_caused & ~masks[IdleCause.TAIL])
    _move(kinds, BoundKind.INPUT, waiting[loading_data(trace, idle, waiting)])
    dispatch = np.flatnonzero(kinds[BoundKind.DISPATCH])
    drained = dispatch[_drained(trace, host, idle, dispatch)]
    waits = Intervals.union_of(host.start[host.waits], host.end[host.waits])
    return Waits(
        by_kind={kind: total for kind, mask in kinds.items() if (total := int(length[mask].sum()))},
        profiler_ns=int(length[masks[IdleCause.PROFILER]].sum()),
        drained_ns=int(length[drained].sum()),
        host_waits_ns=waits.within(timeline.window.spans).length,
    )


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


def _drained(trace: Trace, host: HostTime, idle: IdleTime, pieces: Ints) -> Bools:
    """Tell per piece whether its thread, since it last enqueued work, had waited in a call for the device."""
    enqueues = calls_that(trace.launches, lambda call: call.enqueues)
    found = np.zeros(len(pieces), np.bool_)
    for number in np.unique(idle.thread[pieces]).tolist():
        asked = np.flatnonzero(idle.thread[pieces] == number)
        moment, mine = idle.pieces.start[pieces[asked]], host.thread == number
        waited = _latest(np.sort(host.end[mine & host.waits]), moment)
        issued = _latest(np.sort(host.start[mine & enqueues]), moment)
        found[asked] = waited > issued
    return found


def _latest(times: Ints, moment: Ints) -> Ints:
    """Return per moment the latest of the times, ascending, that is not after it; the least number where none is."""
    padded = np.append(np.iinfo(np.int64).min, times)
    latest: Ints = padded[np.searchsorted(times, moment, side="right")]
    return latest
