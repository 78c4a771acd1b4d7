"""Unprofiled step times: the host clock around a step and a synchronise, and CUDA events around the same step."""

import time
from collections.abc import Callable

import torch

from opscope.base.threads import waited_for_cpu_ns
from opscope.base.units import NS_PER_MS
from opscope.record.capture import Benchmark
from opscope.torch_support.device import synchronize
from opscope.workbench.benchmarking.clocks import ClockSampler

_WARMUP_STEPS = 3
_WARMUP_SECONDS = 0.3  # long enough for a GPU to leave its idle clocks
_MIN_STEPS = 6  # the fewest samples whose median has a 95 % interval
_ENOUGH_STEPS = 200
_ENOUGH_SECONDS = 0.5  # 200 steps of a few microseconds say little
_MAX_STEPS = 20_000
_MAX_SECONDS = 3.0
_PROGRESS_SECONDS = 0.1


def time_once(step: Callable[[], object], device: torch.device) -> int:
    """Return the wall time of one step and a synchronise, in nanoseconds."""
    synchronize(device)
    begin = time.perf_counter_ns()
    step()
    synchronize(device)
    return time.perf_counter_ns() - begin


def benchmark(step: Callable[[], object], device: torch.device, progress: Callable[[float], None]) -> Benchmark:
    """Time steps without a profiler.

    Timing ends after 200 steps and half a second, after three seconds, or after 20,000 steps, but not before six steps.
    Each step is synchronised, so steps do not overlap. Caches stay as the step before left them (warm L2).

    Args:
        step: does the work once.
        device: where the work runs.
        progress: called with the fraction done, 0 to 1.
    """
    progress(0.0)
    warmup = _warm_up(step, device)
    timer = _EventTimer(device) if device.type == "cuda" else None
    wall: list[int] = []
    events: list[int] = []
    with ClockSampler(device) as sampler:
        waited = waited_for_cpu_ns()
        began = reported = time.perf_counter()
        while not _enough(len(wall), (now := time.perf_counter()) - began):
            if now - reported > _PROGRESS_SECONDS:
                progress(min(1.0, (now - began) / _MAX_SECONDS))
                reported = now
            if timer is None:
                wall.append(time_once(step, device))
            else:
                wall.append(time_once(timer.around(step), device))
                events.append(timer.elapsed_ns())
        waited_until = waited_for_cpu_ns()
    return Benchmark(
        warmup_steps=warmup,
        wall_ns=tuple(wall),
        event_ns=tuple(events) if timer else None,
        clocks=sampler.clocks,
        clocks_reason=sampler.reason,
        waited_for_cpu_ns=None if waited is None or waited_until is None else max(0, waited_until - waited),
    )


def _enough(steps: int, seconds: float) -> bool:
    if steps < _MIN_STEPS:
        return False
    return (steps >= _ENOUGH_STEPS and seconds >= _ENOUGH_SECONDS) or steps >= _MAX_STEPS or seconds >= _MAX_SECONDS


def _warm_up(step: Callable[[], object], device: torch.device) -> int:
    began, count = time.perf_counter(), 0
    while count < _WARMUP_STEPS or time.perf_counter() - began < _WARMUP_SECONDS:
        time_once(step, device)
        count += 1
    return count


class _EventTimer:
    """A pair of events, recorded on the current stream before and after a step."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self.before = torch.cuda.Event(enable_timing=True)
            self.after = torch.cuda.Event(enable_timing=True)

    def around(self, step: Callable[[], object]) -> Callable[[], object]:
        def timed() -> None:
            self.before.record()
            step()
            self.after.record()

        return timed

    def elapsed_ns(self) -> int:
        """Return the time between the events of a step that has ended; the driver resolves about half a microsecond."""
        milliseconds: float = self.before.elapsed_time(self.after)
        return round(milliseconds * NS_PER_MS)
