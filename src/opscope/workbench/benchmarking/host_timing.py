"""Durations by the host's clock: of a call with a synchronise, and of issuing a call to an idle device.

Also how often equal functions are said to differ on this machine, by comparing a function with itself.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import torch

from opscope.base.units import utc_timestamp
from opscope.documents.bench import FalseAlarms, Measure, SpeedVerdict
from opscope.measuring.clock import time_once
from opscope.measuring.rounds import (
    Calls,
    MeasuringLimits,
    Timer,
    in_turns,
    is_steady,
    median_interval,
    ratios,
    sign_test,
)
from opscope.measuring.verdicts import verdict_of
from opscope.workbench.benchmarking.device_timing import Flush, KernelTimer

# ---------------------------------------------------------------- false alarms


_ELEMENTS: Final = {"cuda": 1 << 24, "cpu": 1 << 16}  # about 50 us


def measure_false_alarms(
    device: torch.device, limits: MeasuringLimits, trials: int, progress: Callable[[str], None]
) -> FalseAlarms:
    """Compare a function of about 50 us with itself.

    Args:
        device: where the function runs.
        limits: those of the comparisons whose errors are to be known.
        trials: how many comparisons to make.
        progress: called with a line of text on what goes on.
    """
    x = torch.randn(_ELEMENTS.get(device.type, 1 << 16), device=device)
    # Two functions, so that nothing but their names and the drawn orders tells them apart.
    calls = {"one": lambda: x * 2, "the same": lambda: x * 2}
    timer: Timer = KernelTimer(device, Flush(device)).rounds if device.type == "cuda" else wall(device)
    warm_up(calls, device)
    alarms, widths = 0, []
    for trial in range(trials):
        progress(f"comparison {trial + 1} of {trials} of a function with itself")
        samples = in_turns(timer, calls, limits, seed=trial).samples
        result = ratios(samples["one"], samples["the same"])
        interval = median_interval(result)
        alarms += verdict_of(interval, sign_test(result)) in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER)
        widths.append(interval.half_width or 0.0)
    return FalseAlarms(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch=str(torch.__version__),
        created=utc_timestamp(),
        trials=trials,
        alarms=alarms,
        measure=Measure.KERNEL if device.type == "cuda" else Measure.WALL,
        widths=tuple(widths),
    )


# ---------------------------------------------------------------- the host's clock


_BATCH: Final = 5  # calls of a warm-up's batch
_LONGEST_WARMUP_S: Final = 1.0  # per callable
_SLOW_NS: Final = 200e6  # slower calls make batches of one


def wall(device: torch.device) -> Timer:
    """Return a timer of calls, each with a synchronise before and after; only the one after is timed."""

    def rounds(calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        return [[float(time_once(calls[name], device)) for name in order] for order in orders]

    return rounds


def issue(device: torch.device) -> Timer:
    """Return a timer of calls without the synchronise after them: on a GPU, of issuing work to an idle device."""

    def rounds(calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        return [[float(time_once(calls[name], device, waits=False)) for name in order] for order in orders]

    return rounds


def warm_up(calls: Calls, device: torch.device) -> None:
    """Call each callable until its durations are steady, for a second at most."""
    for name in calls:
        batches: list[list[float]] = []
        began = perf_counter()
        while perf_counter() - began < _LONGEST_WARMUP_S:
            count = _BATCH if batches and batches[0][0] <= _SLOW_NS else 1
            batches.append([float(time_once(calls[name], device)) for _ in range(count)])
            if is_steady(batches, sum(map(sum, batches))):
                break
