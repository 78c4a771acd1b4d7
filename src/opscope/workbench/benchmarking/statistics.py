"""Statistics of durations that assume nothing of how these spread: medians, their intervals, ratios of paired rounds.

Nothing here needs PyTorch.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from opscope.base.medians import CONFIDENCE, median_rank
from opscope.documents.bench import Duration, Steady, Stopped


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and where that of all calls lies with 95 % confidence; None where there are too few samples."""

    median: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval over the median."""
        if self.low is None or self.high is None or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median and its interval by order statistics (Conover, Practical Nonparametric Statistics, 3.2).

    Args:
        samples: at least one.
        confidence: that the interval holds the median, if samples are independent.
    """
    ordered = sorted(samples)
    rank = median_rank(len(ordered), confidence)
    if rank is None:
        return Interval(median(ordered), None, None, len(ordered))
    return Interval(median(ordered), ordered[rank], ordered[-1 - rank], len(ordered))


def duration_of(samples: Sequence[float], stopped: Stopped = Stopped.CALLS) -> Duration:
    """Return samples with their median and its interval."""
    found = median_interval(samples)
    return Duration(
        median=found.median, ci_low=found.low, ci_high=found.high, n=found.n, samples=tuple(samples), stopped=stopped
    )


def ratios(baseline: Sequence[float], variant: Sequence[float]) -> list[float]:
    """Return the ratio of each round: what a round shares, such as the clock's drift, cancels."""
    return [other / one for one, other in zip(baseline, variant, strict=True) if one > 0]


def differs_from_itself(found: Iterable[Steady]) -> float:
    """Return by what factor calls can differ from themselves, by the rounds of each session in which they ran twice."""
    of_itself = [ratio for one in found for ratio in (one.same_low, one.same_high) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in of_itself), default=1.0)


def sign_test(values: Sequence[float], middle: float = 1.0) -> float:
    """Return the two-sided p-value that the median is the middle; values that equal it say nothing."""
    below, above = sum(value < middle for value in values), sum(value > middle for value in values)
    n, k = below + above, min(below, above)
    if not n:
        return 1.0
    tail = sum(
        math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2))
        for i in range(k + 1)
    )
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979): each may be compared with the level itself."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for position, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[place]))
        corrected[place] = largest
    return corrected
