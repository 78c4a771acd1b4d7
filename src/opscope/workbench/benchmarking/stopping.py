"""Decides when enough was measured: warm-up until durations are steady, then until the median is known well enough."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from msgspec import Struct

from opscope.base.units import NS_PER_MS
from opscope.documents.bench import Stopped
from opscope.workbench.benchmarking.statistics import median_interval

_FIRST_LOOK: Final = 16
_FEWEST: Final = 6  # samples whose median has a 95 % interval
_PATIENCE: Final = 4  # times the limit: up to then, slow calls are waited for until there are 16
_STEADY: Final = 0.02  # by how much the medians of batches may differ once warm
_STEADY_BATCHES: Final = 3


class MeasuringLimits(Struct, frozen=True):
    """How long to measure one variant.

    Attributes:
        half_width: half of the interval over the median; if it is no more than this, measuring ends.
        of_ratio: the same for the ratio to the baseline.
        seconds: the most time for one measure.
        calls: the most calls for one measure.
    """

    half_width: float = 0.01
    of_ratio: float = 0.005
    seconds: float = 0.5
    calls: int = 2_000


def stopped(samples: Sequence[float], spent_s: float, limits: MeasuringLimits) -> Stopped | None:
    """Return why to stop; None to go on.

    The interval is looked at only after 16, 32, 64, ... samples: looking after every sample would find a narrow
    interval by chance.

    Args:
        samples: the durations so far.
        spent_s: the seconds so far.
        limits: how far to go.
    """
    n = len(samples)
    if n >= limits.calls:
        return Stopped.CALLS
    if n >= _FIRST_LOOK and n & (n - 1) == 0:  # a power of two
        width = median_interval(samples).half_width
        if width is not None and width <= limits.half_width:
            return Stopped.CONFIDENT
    enough = n >= _FIRST_LOOK or (n >= _FEWEST and spent_s >= _PATIENCE * limits.seconds)
    return Stopped.TIME if spent_s >= limits.seconds and enough else None


def next_look(n: int, limits: MeasuringLimits) -> int:
    """Return after how many samples, more than ``n``, to look at the interval next; no more than the most calls."""
    look = _FIRST_LOOK
    while look <= n:
        look *= 2
    return min(look, limits.calls)


def is_steady(batches: Sequence[Sequence[float]], busy_ns: float, least_ns: float = 50 * NS_PER_MS) -> bool:
    """Tell whether a warm-up can end: the device was busy long enough, and the last batches took the same.

    Args:
        batches: the durations of the calls so far, batch by batch.
        busy_ns: how long all calls took together.
        least_ns: the least time that is long enough.
    """
    if busy_ns < least_ns or len(batches) < _STEADY_BATCHES:
        return False
    middles = [median(batch) for batch in batches[-_STEADY_BATCHES:]]
    return max(middles) <= (1 + _STEADY) * min(middles)
