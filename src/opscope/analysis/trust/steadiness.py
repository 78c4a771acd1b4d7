"""Whether consecutive steps took equally long, or a clock still falls or rises, or the host's speed wanders."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

# Samples of one process do not show how processes differ. On an H200, medians of six processes of a step of 0.58 ms
# lay within 1.5 % of each other, those of four of a step of 7 ms within 0.4 %; on two shared cores, six of a step of
# 0.2 ms within 7 % (docs/diff.md).
RUN_TO_RUN: Final = 0.02
RUN_TO_RUN_ON_CPU: Final = 0.10
BATCHES: Final = 8  # medians of this many consecutive parts hold the median of all in 99 % (Conover, 3.2)
_LEAST: Final = 2 * BATCHES  # samples, so that each part has two
_POINTS: Final = 40  # of a trend; more tell nothing new, and take time with their square
_SURE: Final = 2.576  # standard deviations: for 1 % of steady clocks a trend is found by chance
_TRENDS_FROM: Final = 20  # samples; for fewer the normal distribution does not fit


class Steadiness(Struct, frozen=True):
    """How long steps took, one after the other.

    Attributes:
        low_ns, high_ns: the least and the greatest median of `BATCHES` consecutive parts of the samples.
        change: the share by which steps took longer at the end than at the beginning, negative if they took less; None
            where no trend is proven.
    """

    low_ns: float
    high_ns: float
    change: float | None

    @property
    def wanders(self) -> float:
        """The median of the slowest part over that of the fastest; 1 if all parts took equally long."""
        return self.high_ns / self.low_ns


def steadiness_of(samples_ns: Sequence[int]) -> Steadiness | None:
    """Judge samples in the order in which they were taken; None where there are too few."""
    if len(samples_ns) < _LEAST:
        return None
    medians = _medians(samples_ns, BATCHES)
    return Steadiness(float(min(medians)), float(max(medians)), _change(samples_ns))


def _medians(samples_ns: Sequence[int], parts: int) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(np.asarray(samples_ns, np.float64), parts)]


def _change(samples_ns: Sequence[int]) -> float | None:
    """Return the change from the first to the last sample, as a share of the median; None unless a trend is proven.

    The test is that of Mann and Kendall. The slope is the median of the slopes between all pairs (Theil and Sen), so
    that single slow steps do not make one.
    """
    if len(samples_ns) < _TRENDS_FROM:
        return None
    values = np.asarray(_medians(samples_ns, min(_POINTS, len(samples_ns))))
    n = len(values)
    first, second = np.triu_indices(n, 1)
    rises = int(np.sign(values[second] - values[first]).sum())
    # Of Mann and Kendall's statistic, pairs that rise less pairs that fall, where there is no trend.
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if abs(rises) - 1 <= _SURE * deviation:
        return None
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    middle = float(np.median(values))
    return slope * (n - 1) / middle if middle else None
