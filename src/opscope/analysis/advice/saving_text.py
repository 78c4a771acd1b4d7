"""What a finding could save, in words: one sentence for terminal, report and page."""

import math
from typing import Final

from opscope.base.units import format_ns, format_share
from opscope.documents.findings import SavingRange, StepBasis

_WORDS: Final = {
    StepBasis.RECORDING: "recording",
    StepBasis.ESTIMATED: "step without the profiler",
    StepBasis.ESTIMATED_RECORDING: "recording without the profiler",
}
_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_NOTHING_SURE: Final = 0.01  # of the highest saving: a lowest saving below this is not printed


def _rounded_down(value: float) -> str:
    """Return a number of three digits that is not more than it is: no saving is to look larger than its step."""
    if value <= 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(value)))
    return (
        f"{math.floor(value * 10**digits + 1e-6) / 10**digits:.{digits}f}".rstrip("0").rstrip(".")
        if digits
        else f"{math.floor(value):.0f}"
    )


def saving_span(saving: SavingRange) -> str:
    """Return a saving in a few characters, such as ``0.33 to 2.63 ms``; empty where nothing is saved."""
    if not saving.high:
        return ""
    scale, unit = next((one for one in _UNITS if saving.high >= one[0]), _UNITS[-1])
    low, high = (_rounded_down(value / scale) for value in (saving.low, saving.high))
    if saving.low < _NOTHING_SURE * saving.high:
        return f"up to {high} {unit}"
    return f"about {high} {unit}" if low == high else f"{low} to {high} {unit}"


def saving_text(saving: SavingRange, of_step_ns: float, of_step: StepBasis) -> str:
    """Return what a finding could save, as a share first.

    Args:
        saving: the range, in nanoseconds.
        of_step_ns: how long the step or recording is, in nanoseconds.
        of_step: which of these it is.

    Returns:
        Words such as "4.8 % to 50.7 % of the step (381.3 us to 3.999 ms)"; empty where nothing is saved.
    """
    low, high = saving.low, saving.high
    if not high:
        return ""
    whole = _WORDS.get(of_step, "step")
    most = format_share(high, of_step_ns)
    if low < _NOTHING_SURE * high:
        return f"up to {most} of the {whole} ({format_ns(high)})"
    least = format_share(low, of_step_ns)
    if least == most:
        return f"about {most} of the {whole} ({format_ns(high)})"
    return f"{least} to {most} of the {whole} ({format_ns(low)} to {format_ns(high)})"
