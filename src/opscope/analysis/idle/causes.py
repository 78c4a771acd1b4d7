"""What the host did while a device was idle, as far as names tell: this has the last word on causes of idle time."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.idle import LAUNCH_BOUND_CAUSES, IdleTime
from opscope.analysis.structure.api_masks import any_name, calls_of, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, latest_around
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.text import lazy_pattern
from opscope.documents.verdict import CheckName, IdleCause
from opscope.knowledge.api_calls import ApiKind
from opscope.trace.model import Trace


class _Inside(Struct, frozen=True):
    """The names by which a cause is recognised: of ranges and Python frames that the host is in for most of the wait.

    Attributes:
        operators: finds the names of ranges that Kineto wrote as operators before PyTorch 1.10.
        ranges: finds the names of the ranges.
        frames: finds the names of the frames of Python.
    """

    operators: re.Pattern[str]
    ranges: re.Pattern[str]
    frames: re.Pattern[str]


# Where two hold, the later one counts.
_INSIDE: Final[Mapping[IdleCause, _Inside]] = {
    # PyTorch's own range around fetching a batch, Lightning's (train_dataloader_next, get_train_batch), TorchRec's
    # (next_batch), Hugging Face's (get_batch_samples), what people call theirs; and the frames that fetch one.
    IdleCause.INPUT: _Inside(
        lazy_pattern(r"^enumerate\(DataLoader\)"),
        lazy_pattern(
            r"^enumerate\(DataLoader\)|(?i:(?<![a-z])data[ _-]?(?:loader_next|load(?:ing)?|fetch(?:ing)?)"
            r"|(?<![a-z_])(?:(?:next|load|fetch)[ _]?|get_(?:train_|val_|test_)?)batch(?:_samples)?)(?![a-z_])"
        ),
        lazy_pattern(r"torch/utils/data/|Loader\.__next__|: get_batch_samples$"),
    ),
    # torch._dynamo's ranges: of its compiler (compile_inner), and of looking for code that fits the arguments.
    IdleCause.COMPILING: _Inside(
        lazy_pattern(r"dynamo_timed|compile_inner"),
        lazy_pattern(r"dynamo_timed|compile_inner"),
        lazy_pattern(r"torch/_dynamo/convert_frame"),
    ),
    IdleCause.GUARDS: _Inside(
        lazy_pattern(r"^TorchDynamo Cache Lookup"),
        lazy_pattern(r"^TorchDynamo Cache Lookup"),
        lazy_pattern(r"torch/_dynamo/guards\.py"),
    ),
}
_OF_WORKERS: Final = ("_MultiProcessingDataLoaderIter", "_try_get_data")
BETWEEN_KERNELS_NS: Final = 5_000  # shorter waits of queued work are the device's own
PAUSE_UNDER_STACKS_NS: Final = 350_000  # takes the place of `PAUSE_NS` where stacks were recorded


class Causes:
    """Names the causes of idle time in one trace.

    Args:
        trace: the trace.
        host: what the trace's threads did.
        long_pauses: see `has_long_pauses`; None to find that from the trace.
    """

    def __init__(self, trace: Trace, host: HostTime, *, long_pauses: bool | None = None) -> None:
        self._host = host
        self._clocks_disagree = CheckName.IDLE_CAUSES_KNOWN in trace.source.failed_checks
        self._manages = calls_of(trace.launches, ApiKind.ALLOCATE, ApiKind.FREE)
        self._managing = Intervals.union_of(host.start[self._manages], host.end[self._manages])
        self._inside = {cause: _by_thread(trace, names) for cause, names in _INSIDE.items()}
        recorded = has_long_pauses(operators=trace.operators.height > 0, frames=trace.frames.height > 0)
        self._long_pauses = recorded if long_pauses is None else long_pauses

    def named(self, idle: IdleTime, others: Intervals) -> IdleTime:
        """Return the idle time of a device with the causes that names tell.

        Args:
            idle: the device's idle time.
            others: when other devices work.
        """
        if self._clocks_disagree:
            return idle.with_cause(np.arange(len(idle.pieces)), IdleCause.CLOCKS)
        idle = self._draining(idle)
        # All are found from the same causes, those so far; where two fit a piece, the later one counts.
        for cause, pieces in (
            (IdleCause.QUEUED, self._queued(idle)),
            (IdleCause.DEPENDENCY, self._waiting_for_others(idle, others)),
            (IdleCause.ALLOCATION, self._allocating(idle)),
            *((cause, self._in_calls(idle, threads)) for cause, threads in self._inside.items()),
            (IdleCause.DISPATCH, self._pauses(idle)),
            (IdleCause.COLD_START, self._cold(idle)),
        ):
            if len(pieces):
                idle = idle.with_cause(pieces, cause)
        return idle

    @staticmethod
    def _queued(idle: IdleTime) -> Ints:
        """Return short waits of queued work: the device itself takes a microsecond or two between two kernels."""
        short = idle.pieces.end - idle.pieces.start < BETWEEN_KERNELS_NS
        return np.flatnonzero(idle.is_any_of((IdleCause.DEPENDENCY,)) & short)

    def _waiting_for_others(self, idle: IdleTime, others: Intervals) -> Ints:
        """Return waits of the host during which another device works: the host waits for that one."""
        sits = np.flatnonzero(idle.is_any_of((IdleCause.BLOCKING,)) & (idle.call >= 0))
        sits = sits[self._host.waits[idle.call[sits]]]
        return sits[idle.pieces.mostly_within(others)[sits]]

    def _allocating(self, idle: IdleTime) -> Ints:
        # Where a record of loading code explains the wait, memory does not.
        blocking = np.flatnonzero(idle.is_any_of((IdleCause.BLOCKING,)) & (idle.call >= 0) & (idle.record < 0))
        calls = blocking[self._manages[idle.call[blocking]]]
        tails = np.flatnonzero(idle.is_any_of((IdleCause.TAIL,)))
        return np.concatenate([calls, tails[idle.pieces.mostly_within(self._managing)[tails]]])

    def _draining(self, idle: IdleTime) -> IdleTime:
        """Find the calls in which the host sits after a device's last activity, which nothing on the device ends."""
        tails = np.flatnonzero(idle.is_any_of((IdleCause.TAIL,)))
        middle = (idle.pieces.start[tails] + idle.pieces.end[tails]) // 2
        calls = np.flatnonzero(self._host.waits)
        # Calls that hold no middle of a piece are left out first, so that the search looks at few.
        start, end, ordered = self._host.start[calls], self._host.end[calls], np.sort(middle)
        calls = calls[np.searchsorted(ordered, end) > np.searchsorted(ordered, start)]
        calls = calls[np.argsort(self._host.start[calls], kind="stable")]
        within = latest_around(self._host.start[calls], self._host.end[calls], middle)
        result = within >= 0
        return idle.with_cause(tails[result], IdleCause.BLOCKING, calls[within[result]])

    @staticmethod
    def _in_calls(idle: IdleTime, threads: Mapping[int, Intervals]) -> Ints:
        """Return the waits for the host in most of which its thread was within some intervals."""
        host_caused = (IdleCause.HOST_WORK, IdleCause.BLOCKING, IdleCause.TAIL, *LAUNCH_BOUND_CAUSES)
        waiting = np.flatnonzero(idle.is_any_of(host_caused))
        return waiting[_mostly_within(idle, waiting, threads)]

    def _pauses(self, idle: IdleTime) -> Ints:
        if not self._long_pauses:
            return np.empty(0, np.int64)
        short = idle.pieces.end - idle.pieces.start < PAUSE_UNDER_STACKS_NS
        return np.flatnonzero(idle.is_any_of((IdleCause.HOST_WORK,)) & short)

    def _cold(self, idle: IdleTime) -> Ints:
        sits = np.flatnonzero((idle.call >= 0) & ~idle.is_any_of((IdleCause.DEPENDENCY, IdleCause.QUEUED)))
        loads = np.flatnonzero((idle.record >= 0) & idle.is_any_of((IdleCause.BLOCKING,)))
        return np.union1d(sits[self._host.cold[idle.call[sits]]], loads)


def _mostly_within(idle: IdleTime, pieces: Ints, threads: Mapping[int, Intervals]) -> Bools:
    """Tell per piece of idle time whether most of it lies in intervals of its thread."""
    result = np.zeros(len(pieces), np.bool_)
    for number, intervals in threads.items():
        asked = np.flatnonzero(idle.thread[pieces] == number)
        own = pieces[asked]
        result[asked] = Intervals(idle.pieces.start[own], idle.pieces.end[own]).mostly_within(intervals)
    return result


def has_long_pauses(*, operators: bool, frames: bool) -> bool:
    """Tell whether the host may pause for long while it dispatches, by what was recorded.

    Recording stacks makes dispatching pause that long, as in an optimizer; without operators nothing tells what the
    host did between two launches.
    """
    return frames or not operators


def loads_in_workers(trace: Trace) -> bool:
    """Tell whether a DataLoader of a trace has worker processes, by the names of what takes batches from them."""
    return any(any_name(table, _is_of_workers) for table in (trace.annotations, trace.frames))


def _is_of_workers(name: str) -> bool:
    return any(part in name for part in _OF_WORKERS)


def inside_by_thread(trace: Trace, cause: IdleCause) -> dict[int, Intervals]:
    """Return when each thread was within ranges or frames that have the names of a cause."""
    return _by_thread(trace, _INSIDE[cause])


def compiles(name: str) -> bool:
    """Tell whether a range or a frame is one of torch.compile at work."""
    names = _INSIDE[IdleCause.COMPILING]
    return names.ranges.search(name) is not None or names.frames.search(name) is not None


def _by_thread(trace: Trace, inside: _Inside) -> dict[int, Intervals]:
    parts = []
    tables = (trace.annotations, inside.ranges), (trace.operators, inside.operators), (trace.frames, inside.frames)
    for table, names in tables:
        rows = np.flatnonzero(names_that(table, names.search))
        parts.append((column(table, "thread")[rows], column(table, "start_ns")[rows], end_of(table)[rows]))
    thread, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return {
        int(number): Intervals.union_of(start[thread == number], end[thread == number]) for number in np.unique(thread)
    }
