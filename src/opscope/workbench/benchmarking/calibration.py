"""Measures how often equal functions are said to differ on this machine, by comparing a function with itself."""

from collections.abc import Callable
from typing import Final

import torch

from opscope.base.units import utc_timestamp
from opscope.documents.bench import FalseAlarms, Measure, SpeedVerdict
from opscope.workbench.benchmarking import host_timing
from opscope.workbench.benchmarking.device_timing import Flush, KernelTimer
from opscope.workbench.benchmarking.rounds import MeasuringLimits, Timer, in_turns, median_interval, ratios, sign_test
from opscope.workbench.benchmarking.verdicts import verdict_of

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
    timer: Timer = KernelTimer(device, Flush(device)).rounds if device.type == "cuda" else host_timing.wall(device)
    host_timing.warm_up(calls, device)
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
