"""Summaries of repeated measurements, by order statistics only; no sample is left out."""

from collections.abc import Sequence

import numpy as np

from opscope.base.medians import median_rank
from opscope.documents.trace import SampleSummary


def summarise(samples_ns: Sequence[int]) -> SampleSummary | None:
    """Summarise samples; None where there are none. The interval of the median is None where samples are too few."""
    if not samples_ns:
        return None
    ordered = np.sort(np.asarray(samples_ns, np.int64))
    p25, median, p75 = np.percentile(ordered, [25, 50, 75])
    rank = median_rank(len(ordered))
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
