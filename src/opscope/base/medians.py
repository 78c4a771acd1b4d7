"""The confidence interval of a median by order statistics."""

import math
from functools import lru_cache
from typing import Final

CONFIDENCE: Final = 0.95
DEVIATION_OF_MEDIAN: Final = 1.4826  # from the median of absolute values to the standard deviation of normal noise


@lru_cache(maxsize=4096)
def median_rank(count: int, confidence: float = CONFIDENCE) -> int | None:
    """Return the largest r such that sorted samples r and count-1-r (from 0) enclose the median.

    The number of independent samples below the median is binomial(count, 1/2), so these two miss it with probability
    2 * P(X <= r) (Conover, Practical Nonparametric Statistics, 3.2).

    Args:
        count: the number of samples.
        confidence: the probability that the interval encloses the median.

    Returns:
        The rank; None if there are so few samples that not even their extremes suffice.
    """
    outside = (1 - confidence) / 2
    below = 0.0
    for rank in range(count // 2 + 1):
        # In logarithms, because the coefficients of a thousand samples exceed what a float holds.
        ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        below += math.exp(ways - count * math.log(2))
        # P(X <= rank) is too much, so the rank before was the last that suffices; before rank 0 there is none.
        if below > outside:
            return rank - 1 if rank else None
    return None
