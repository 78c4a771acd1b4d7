"""Times whole cycles of a script that runs undisturbed: by the host's clock, or by marks on the device.

The host runs ahead of a GPU by a few steps or by hundreds, so the host's single times are not those of steps. A mark
(CUDA event) on the stream is passed when the device gets there. The time between two marks that are a cycle apart is
how long a cycle takes, whether the host waits for the device or the other way round. Nothing waits for the device
before the end.

Many cycles are timed, as what a script waits for comes in bursts, and queues that were filled before the first step
hide it until they are drained: while cycles still become slower or faster, the first ones are dropped and timing goes
on. It also goes on, for some seconds, while stretches of cycles differ so much that their mean is known badly, as on a
host that others use.

Beside them it adds up how long the script's main thread waits for its DataLoaders, and how long Python collects
garbage.
"""

import functools
import gc
import math
import threading
import time
from collections.abc import Callable, Sequence
from statistics import fmean, stdev, variance
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.base.units import NS_PER_MS, NS_PER_S
from opscope.collect.script.found import synchronize_if_used
from opscope.record.capture import Between, Timed

_LEAST: Final = 10  # cycles (or blocks of them on a device) in any case
_ENOUGH: Final = 200
_ENOUGH_NS: Final = NS_PER_S  # for short steps: 200 steps of a microsecond say little
_LONGEST_NS: Final = 30 * NS_PER_S
_QUICK: Final = (20, NS_PER_S, 2 * NS_PER_S)  # the same three where times are asked for quickly
_AT_MOST_NS: Final = 75 * NS_PER_S  # for cycles that still become slower or faster, with what comes between them
_CHANGED: Final = 0.1  # by this share the rest differs from the first third, and by _SURE of its own standard errors
_SURE: Final = 2.6
_BLOCKS: Final = 10  # of consecutive samples
_WANDERS: Final = 0.035  # of the mean: where means of ten blocks deviate by it, the mean's 95 % interval is 5 % wide
_NARROWED_NS: Final = 10 * NS_PER_S  # for so long cycles are timed until that interval is narrower
_MORE: Final = 1.25  # times as many samples as at the last look: looking at each would cost as much as short cycles
_MOST: Final = 20_000
_APART_NS: Final = 2 * NS_PER_MS  # between two marks: setting one then takes at most 1 % of the time


class HostWaits:
    """Adds up waits of the thread that makes it; costs two readings of the clock for each batch and each collection."""

    def __init__(self) -> None:
        self._data_ns = self._collecting_ns = 0
        self._thread = threading.get_ident()
        self._waiting = False  # a loader's iterator may be made of another one
        self._collection = 0  # when the running one began

    def so_far(self) -> tuple[int, int]:
        """Return the nanoseconds of waiting for data, and of collecting garbage, since `listen`."""
        return self._data_ns, self._collecting_ns

    def listen(self) -> None:
        """Begin. Call this right after PyTorch was imported, before any loader is iterated."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        # To begin an epoch starts workers, which the step that follows waits for.
        DataLoader.__iter__ = self._timed(DataLoader.__iter__)
        _BaseDataLoaderIter.__next__ = self._timed(_BaseDataLoaderIter.__next__)
        gc.callbacks.append(self._collects)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._waiting or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._waiting, began = True, time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self._data_ns += time.perf_counter_ns() - began
                self._waiting = False

        return timed

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collection = time.perf_counter_ns()
        elif self._collection:
            self._collecting_ns += time.perf_counter_ns() - self._collection
            self._collection = 0


class _Sample(Struct, frozen=True):
    """A block of cycles.

    Attributes:
        host_ns: how long a cycle took on the host's clock, as a mean of the block.
        data_ns: for how much of that the host waited for data.
        collecting_ns: for how much of it Python collected garbage.
        marks: where the block begins and ends on the device; None without a device.
        began_at: how many boundaries had come when it began.
    """

    host_ns: float
    data_ns: float
    collecting_ns: float
    marks: tuple[Any, Any] | None
    began_at: int


class _Stretch(Struct, frozen=True):
    """A stretch between timed cycles: from the beginning of the block that was interrupted to the next beginning.

    Attributes:
        host_ns: how long it took on the host's clock.
        boundaries: how many boundaries lie in it.
        evaluates: whether evaluations do.
        evaluating_ns: how long these took, from the first one's beginning to the last one's.
        marks: where it begins and ends on the device; None without a device.
        sample: how many samples came before it.
    """

    host_ns: int
    boundaries: int
    evaluates: bool
    evaluating_ns: int
    marks: tuple[Any, Any] | None
    sample: int

    def took_ns(self) -> int:
        """Return how long it took: on the device, if there is one."""
        return (_passed_ns(self.marks) if self.marks else 0) or self.host_ns


class _Beginning(Struct, frozen=True):
    """Where a block begins: on the host's clock, by boundaries and evaluations so far, and on the device."""

    now: int
    boundaries: int
    evaluations: int
    evaluating_ns: int
    mark: Any


class CycleClock:
    """Collects the durations of cycles.

    Args:
        on_device: whether cycles are timed by marks on a CUDA device; otherwise by the host's clock.
        typical_ns: about how long a cycle takes; 0 if unknown. If cycles are short, a mark is set only after several
            of them, because setting one takes some 20 us.
        most: how many cycles are enough in any case; None for 20,000.
        quick: whether a second or two are enough.
        waited: returns how long the host has waited for data so far, and how long it has collected garbage.
    """

    def __init__(
        self,
        *,
        on_device: bool,
        typical_ns: float = 0.0,
        most: int | None = None,
        quick: bool = False,
        waited: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.on_device = on_device
        self._most = _MOST if most is None else most
        self._enough, self._enough_ns, self._longest_ns = _QUICK if quick else (_ENOUGH, _ENOUGH_NS, _LONGEST_NS)
        self._quick, self._read_waits = quick, waited
        self._block = max(1, math.ceil(_APART_NS / typical_ns)) if typical_ns and on_device else 1
        self._began = 0  # when the running cycle began; 0 while none is timed
        self._first = self._elapsed = 0  # when the first one began, and how long after that the last one ended
        self._cycles = 0
        self._spent = self._dropped_ns = 0
        self._samples: list[_Sample] = []
        self._look_at = 0  # how many samples there are when they are looked at again
        # Of the running block: where it began, its cycles and their time, and what had been waited for by then.
        self._beginning = _Beginning(0, 0, 0, 0, None)
        self._in_block = self._block_ns = 0
        self._waits = (0, 0)
        self._skipped: _Beginning | None = None  # of the block that something else has interrupted
        self._between: list[_Stretch] = []

    def start(self, now: int, boundaries: int = 0, evaluations: int = 0, evaluating_ns: int = 0) -> None:
        """Note that a cycle begins; the time before it belongs to no cycle.

        Args:
            now: the host's clock, in nanoseconds.
            boundaries: how many boundaries of steps have come so far.
            evaluations: how many evaluations have come so far.
            evaluating_ns: how long they have taken so far, but for the last one of each row.
        """
        mark = _marked() if self.on_device else None
        if (before := self._skipped) is not None:
            marks = (before.mark, mark) if self.on_device else None
            evaluates, came = evaluations > before.evaluations, boundaries - before.boundaries
            took = evaluating_ns - before.evaluating_ns
            self._between.append(_Stretch(now - before.now, came, evaluates, took, marks, len(self._samples)))
            self._skipped = None
        self._began = now
        self._first = self._first or now
        self._begin_block(_Beginning(now, boundaries, evaluations, evaluating_ns, mark))

    def _begin_block(self, beginning: _Beginning) -> None:
        self._beginning, self._in_block, self._block_ns, self._waits = beginning, 0, 0, self._read_waits()

    def skip(self) -> None:
        """Drop the cycle that is running: something else came."""
        if self._began:
            self._skipped = self._beginning
        self._began = 0

    def forget_skipped(self) -> None:
        """Note that what came since `skip` was more of the same steps: it is no stretch between them."""
        self._skipped = None

    def cycle(self, now: int, boundaries: int = 0, evaluations: int = 0, evaluating_ns: int = 0) -> None:
        """Note that a whole cycle has ended and the next one begins; after `skip`, only that one begins.

        Args:
            now: the host's clock, in nanoseconds.
            boundaries: how many boundaries of steps have come so far.
            evaluations: how many evaluations have come so far.
            evaluating_ns: how long they have taken so far, but for the last one of each row.
        """
        if not self._began:
            self.start(now, boundaries, evaluations, evaluating_ns)
            return
        self._cycles += 1
        self._spent += now - self._began
        self._elapsed = now - self._first
        self._block_ns += now - self._began
        self._began = now
        self._in_block += 1
        if self._in_block == self._block:
            # The mark that ends a block begins the next one, so blocks follow each other without a gap.
            mark = _marked() if self.on_device else None
            self._end_block(_Beginning(now, boundaries, evaluations, evaluating_ns, mark))

    def _end_block(self, following: _Beginning) -> None:
        data, collecting = (after - before for before, after in zip(self._waits, self._read_waits(), strict=True))
        each = self._block
        before = self._beginning
        marks = (before.mark, following.mark) if self.on_device else None
        sample = _Sample(self._block_ns / each, data / each, collecting / each, marks, before.boundaries)
        self._samples.append(sample)
        self._begin_block(following)

    def leave_out(self, since: int) -> None:
        """Take the time that opscope itself spent, from ``since`` until now, out of the running cycle."""
        if self._began:
            self._began += time.perf_counter_ns() - since

    @property
    def count(self) -> int:
        """How many cycles were timed."""
        return self._cycles

    @property
    def enough(self) -> bool:
        """Whether enough was timed: 200 cycles and a second, 10 and thirty seconds, or the most that are timed.

        Where other things come between cycles for most of the time, 75 s with them are enough.
        """
        if self.count < _LEAST or len(self._samples) < _LEAST:
            return False
        spent = self._spent - self._dropped_ns
        cycles = len(self._samples) * self._block
        return (cycles >= self._enough and spent >= self._enough_ns) or (
            spent >= self._longest_ns or self.count >= self._most or self._elapsed >= _AT_MOST_NS
        )

    def goes_on(self) -> bool:
        """Tell whether more cycles are timed than are enough.

        That is so while they still become slower or faster, when the first third is dropped, and for ten seconds while
        stretches of them differ much.
        """
        if self._quick or self.count >= self._most or self._elapsed >= _AT_MOST_NS:
            return False
        is_long = self._spent - self._dropped_ns >= _NARROWED_NS
        if len(self._samples) < self._look_at and not is_long:
            return True
        if self._drops_first():
            self._look_at = 0
            return True
        self._look_at = math.ceil(_MORE * len(self._samples))
        return not is_long and _wander([one.host_ns for one in self._samples])

    def _drops_first(self) -> bool:
        """Drop the first third of the samples if the others took another time; tell whether that is so."""
        third = len(self._samples) // 3
        times = [sample.host_ns for sample in self._samples]
        if not _differ(times[:third], times[third:]):
            return False
        self._dropped_ns += round(sum(times[:third]) * self._block)
        self._samples = self._samples[third:]
        kept = (one for one in self._between if one.sample > third)
        self._between = [replace(one, sample=one.sample - third) for one in kept]
        return True

    @property
    def began_at(self) -> int:
        """How many boundaries had come when the first of the cycles began that count."""
        return self._samples[0].began_at if self._samples else 0

    def times(self, events: int = 1, elapsed_ns: int = 0) -> Timed:
        """Return how long the cycles took, on a device the mean of each block of them; wait for the device.

        Args:
            events: how many boundaries a step has.
            elapsed_ns: how long it took to time them all, with what was dropped; 0 where no one asks.
        """
        if self.on_device:
            synchronize_if_used()
        return Timed(
            wall_ns=tuple(self._duration_ns(sample) for sample in self._samples),
            steps_each=self._block,
            by_device=self.on_device,
            elapsed_ns=elapsed_ns,
            data_ns=tuple(round(sample.data_ns) for sample in self._samples),
            collecting_ns=tuple(round(sample.collecting_ns) for sample in self._samples),
            between=tuple(
                Between(one.took_ns(), one.boundaries / events, one.evaluates, one.evaluating_ns)
                for one in self._between
            ),
        )

    def _duration_ns(self, sample: _Sample) -> int:
        if sample.marks is None:
            return round(sample.host_ns)
        return max(1, round(_passed_ns(sample.marks) / self._block))


def _passed_ns(marks: tuple[Any, Any]) -> int:
    from opscope.measuring.clock import passed_ns  # PyTorch comes with it, which the script has imported by now

    return round(passed_ns(*marks))


def _differ(first: Sequence[float], rest: Sequence[float]) -> bool:
    """Tell whether the mean of the first cycles is another than that of the rest."""
    if len(first) < 3:
        return False
    change = abs(fmean(rest) - fmean(first))
    error = math.sqrt(variance(first) / len(first) + variance(rest) / len(rest))
    return change > _CHANGED * fmean(rest) and change > _SURE * error


def _wander(times: Sequence[float]) -> bool:
    """Tell whether stretches of cycles differ so much that their mean is known badly."""
    each = len(times) // _BLOCKS
    means = [fmean(times[start : start + each]) for start in range(0, each * _BLOCKS, each)]
    return stdev(means) > _WANDERS * fmean(means)


def _marked() -> Any:
    import torch

    mark = torch.cuda.Event(enable_timing=True)
    mark.record()
    return mark
