"""Statistics of durations that assume no distribution: medians, their intervals, and ratios of paired rounds.

Needs no PyTorch.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from opscope.base.medians import CONFIDENCE, median_rank
from opscope.documents.bench import Duration, Steady, Stopped


class Interval(Struct, frozen=True):
    """The median of samples, and the 95 % interval of the median of all possible calls.

    Attributes:
        median: of the samples.
        low, high: the ends of the interval; None if there are fewer than six samples.
        n: how many samples there are.
    """

    median: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width over the median; None without an interval, or if the median is 0."""
        if self.low is None or self.high is None or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median and its interval by order statistics (Conover, Practical Nonparametric Statistics, 3.2).

    Args:
        samples: at least one.
        confidence: the probability that the interval holds the median, if the samples are independent.
    """
    ordered = sorted(samples)
    rank = median_rank(len(ordered), confidence)
    if rank is None:
        return Interval(median(ordered), None, None, len(ordered))
    return Interval(median(ordered), ordered[rank], ordered[-1 - rank], len(ordered))


def duration_of(samples: Sequence[float], stopped: Stopped = Stopped.CALLS) -> Duration:
    """Return samples with their median and its interval.

    Args:
        samples: in nanoseconds, at least one.
        stopped: why there are no more.
    """
    result = median_interval(samples)
    return Duration(
        median=result.median,
        ci_low=result.low,
        ci_high=result.high,
        n=result.n,
        samples=tuple(samples),
        stopped=stopped,
    )


def ratios(baseline: Sequence[float], variant: Sequence[float]) -> list[float]:
    """Return the ratio of variant to baseline in each round, in which common effects such as the clock's drift cancel.

    Rounds in which the baseline took no time are left out.
    """
    return [other / one for one, other in zip(baseline, variant, strict=True) if one > 0]


def differs_from_itself(results: Iterable[Steady]) -> float:
    """Return the largest factor by which calls differed from themselves, in rounds in which they ran twice; 1 or more.

    Args:
        results: the times at full speed of the sessions; if there are none, the factor is 1.
    """
    of_itself = [ratio for one in results for ratio in (one.same_low, one.same_high) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in of_itself), default=1.0)


def sign_test(values: Sequence[float], middle: float = 1.0) -> float:
    """Return the two-sided p-value of the hypothesis that the median is ``middle``; values equal to it do not count."""
    below, above = sum(value < middle for value in values), sum(value > middle for value in values)
    n, k = below + above, min(below, above)
    if not n:
        return 1.0
    # In logarithms: the binomial coefficients of many samples exceed what a float holds.
    tail = sum(
        math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2))
        for i in range(k + 1)
    )
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979), in the same order; compare each with the plain level."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    # The smallest p-value is multiplied by their number, the next by one less; none may fall below a smaller one's.
    for position, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[place]))
        corrected[place] = largest
    return corrected
