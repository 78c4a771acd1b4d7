"""Measures several callables in turns: each round measures every callable once, in a newly drawn order.

Drift (of clocks, of temperature, by other processes) affects all callables alike, so the ratios within a round are
those of the callables.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.medians import CONFIDENCE, median_rank
from opscope.base.units import NS_PER_MS
from opscope.documents.bench import Duration, Steady, Stopped

# ---------------------------------------------------------------- statistics
# Needs no PyTorch.


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


# ---------------------------------------------------------------- when to stop


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


# ---------------------------------------------------------------- rounds


Calls = Mapping[str, Callable[[], object]]
# Measures rounds: for each of some orders of names, the duration of every call in nanoseconds, in that order. Before
# each call, and outside of its time, it is looked up by its name.
Timer = Callable[[Calls, Sequence[Sequence[str]]], list[list[float]]]


class Series(Struct):
    """Durations of callables that were measured in turns, in nanoseconds.

    Attributes:
        samples: per name, one sample per round.
        stopped: why there are no more rounds.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    stopped: Stopped = Stopped.CALLS

    def duration(self, name: str) -> Duration:
        """Return the durations of one callable, with their median."""
        return duration_of(self.samples[name], self.stopped)


class Prepared(Mapping[str, Callable[[], object]]):
    """Callables before each of which something is done: outside of its time, as timers look it up first.

    Args:
        calls: the callables, by name.
        before: called with the name.
    """

    def __init__(self, calls: Calls, before: Callable[[str], None]) -> None:
        self._calls = calls
        self._before = before

    def __getitem__(self, name: str) -> Callable[[], object]:
        """Prepare a call, and return it."""
        self._before(name)
        return self._calls[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._calls)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._calls)


def in_turns(timer: Timer, calls: Calls, limits: MeasuringLimits, seed: int = 0) -> Series:
    """Measure rounds until every median is known well enough, or a limit is reached.

    Args:
        timer: measures some rounds.
        calls: the callables, by name; the first one is the baseline. There must be at least one.
        limits: for one callable; the time is multiplied by the number of callables.
        seed: of the random orders.
    """
    orders = random.Random(seed)
    series = Series({name: [] for name in calls})
    together = replace(limits, seconds=limits.seconds * len(calls))
    began = perf_counter()
    while True:
        done = len(next(iter(series.samples.values())))
        each = (perf_counter() - began) / done if done else 0.0
        count = _count(done, each, together, began)
        plan = [_shuffled(list(calls), orders) for _ in range(count)]
        for order, durations in zip(plan, timer(calls, plan), strict=True):
            for name, duration in zip(order, durations, strict=True):
                series.samples[name].append(duration)
        spent = perf_counter() - began
        # Not only every median must be known well enough, but every ratio to the baseline, and that twice as well.
        reasons = [stopped(samples, spent, together) for samples in series.samples.values()]
        baseline, *others = series.samples.values()
        apart = replace(together, half_width=limits.of_ratio)
        reasons += [stopped(ratios(baseline, samples), spent, apart) for samples in others]
        if all(reason is not None for reason in reasons) or Stopped.TIME in reasons:
            series.stopped = next(
                (r for r in reasons if r is not None and r is not Stopped.CONFIDENT), Stopped.CONFIDENT
            )
            return series


def _count(done: int, each_s: float, limits: MeasuringLimits, began: float) -> int:
    """Return how many rounds to measure before the next look: at least one, else no more than fit into the time."""
    if not done:
        return 6  # the fewest that have an interval; they also tell how long a round takes
    left = max(limits.seconds - (perf_counter() - began), 0.0)
    return max(1, min(next_look(done, limits) - done, int(left / max(each_s, 1e-9)) or 1))


def _shuffled(names: list[str], orders: random.Random) -> list[str]:
    orders.shuffle(names)
    return names
