"""Whether consecutive steps took alike: a clock that still falls or rises, and a host whose speed wanders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from opscope.documents.trace import SampleSummary

# Samples of one process say nothing of how processes differ. On an H200, medians of six processes of a step of 0.58 ms
# lay within 1.5 % of each other, those of four of a step of 7 ms within 0.4 %; on two shared cores, six of a step of
# 0.2 ms within 7 % (docs/diff.md).
RUN_TO_RUN: Final = 0.02
RUN_TO_RUN_ON_CPU: Final = 0.10
BATCHES: Final = 8  # medians of so many parts, one after the other, hold the median of all in 99 % (Conover, 3.2)
_LEAST: Final = 2 * BATCHES
_POINTS: Final = 40  # of a trend; more say no more, and take the square of the time
_SURE: Final = 2.576  # standard deviations: 1 % of steady clocks are said to fall or rise
_TRENDS_FROM: Final = 20  # samples; of fewer the normal distribution says too little


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How steps took one after the other.

    Attributes:
        low_ns, high_ns: the least and the greatest median of eight parts of the samples.
        change: by what share the steps took longer at the end than at the beginning; None where no trend is proven.
    """

    low_ns: float
    high_ns: float
    change: float | None

    @property
    def wanders(self) -> float:
        """How many times as long the steps of the slowest part took as those of the fastest."""
        return self.high_ns / self.low_ns


def steadiness_of(samples_ns: Sequence[int]) -> Steadiness | None:
    """Judge samples in their order; None where they are too few."""
    if len(samples_ns) < _LEAST:
        return None
    medians = _medians(samples_ns, BATCHES)
    return Steadiness(float(min(medians)), float(max(medians)), _change(samples_ns))


def of_any_run(summary: SampleSummary, steps: Steadiness | None, run_to_run: float) -> SampleSummary:
    """Widen the interval of a median so that another run of the same program agrees with it.

    Consecutive steps are not independent, so it reaches to the medians of all parts; and runs differ.

    Args:
        summary: of the steps of one run.
        steps: how they took one after the other.
        run_to_run: by what share the medians of two runs differ.
    """
    if summary.median_low_ns is None or summary.median_high_ns is None:
        return summary
    low, high = float(summary.median_low_ns), float(summary.median_high_ns)
    if steps is not None:
        low, high = min(low, steps.low_ns), max(high, steps.high_ns)
    half = 1 + run_to_run / 2
    return replace(summary, median_low_ns=round(low / half), median_high_ns=round(high * half))


def _medians(samples_ns: Sequence[int], parts: int) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(np.asarray(samples_ns, np.float64), parts)]


def _change(samples_ns: Sequence[int]) -> float | None:
    """Return the change from the first to the last sample, if the test of Mann and Kendall says that there is one.

    The slope is the median of those between all pairs (Theil and Sen): single slow steps do not make one.
    """
    if len(samples_ns) < _TRENDS_FROM:
        return None
    values = np.asarray(_medians(samples_ns, min(_POINTS, len(samples_ns))))
    n = len(values)
    first, second = np.triu_indices(n, 1)
    rises = int(np.sign(values[second] - values[first]).sum())
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if abs(rises) - 1 <= _SURE * deviation:
        return None
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    middle = float(np.median(values))
    return slope * (n - 1) / middle if middle else None
