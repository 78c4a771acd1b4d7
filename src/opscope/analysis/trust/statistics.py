"""What a set of repeated measurements says: order statistics only, no sample left out."""

import math
from collections.abc import Sequence

import numpy as np

from opscope.documents.trace import SampleSummary

_NORMAL_95 = 1.96  # standard deviations
_VERY_MANY = 5_000
_MISSES = 20  # one interval in twenty may miss: 95 % confidence


def summarise(samples_ns: Sequence[int]) -> SampleSummary | None:
    """Summarise samples; None where there are none."""
    if not samples_ns:
        return None
    ordered = np.sort(np.asarray(samples_ns, np.int64))
    p25, median, p75 = np.percentile(ordered, [25, 50, 75])
    rank = _median_rank(len(ordered))
    return SampleSummary(
        count=len(ordered),
        median_ns=float(median),
        min_ns=int(ordered[0]),
        max_ns=int(ordered[-1]),
        p25_ns=float(p25),
        p75_ns=float(p75),
        median_low_ns=None if rank is None else int(ordered[rank]),
        median_high_ns=None if rank is None else int(ordered[-1 - rank]),
    )


def _median_rank(count: int) -> int | None:
    """Return the largest r such that samples r and n-1-r (from 0) hold the median with the confidence wanted.

    The number of samples below the median is binomial(n, 1/2), so samples r and n-1-r miss it with probability
    2 * P(X <= r). Of very many samples the normal distribution says it, at most one rank too low.
    """
    if count > _VERY_MANY:
        return int((count - _NORMAL_95 * math.sqrt(count)) / 2 - 1)
    outcomes = 2**count
    tail, rank, ways = 0, None, 1  # ``ways`` is count over below, by the rule of the next binomial coefficient
    for below in range(count // 2):
        tail += ways
        ways = ways * (count - below) // (below + 1)
        if 2 * tail * _MISSES > outcomes:
            break
        rank = below
    return rank
