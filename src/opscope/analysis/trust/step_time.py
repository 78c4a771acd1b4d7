"""How long a step takes, and whether steps took equally long.

A step takes the time of many consecutive ones over their number; what recurs in it is named, with its share.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from opscope.base.units import format_ns, format_share
from opscope.documents.trace import MEDIAN_DIFFERS, LongSteps, StepTime
from opscope.record.capture import Benchmark, Between

_BLOCKS: Final = 10  # of consecutive samples; their means are nearly independent where single steps are not
# Quantiles of Student's distribution for a two-sided interval of 95 %, by the number of blocks.
_STUDENT: Final = {6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
_WORTH_SAYING: Final = 0.05  # of the step
_MOSTLY: Final = 0.5  # of stretches between steps, from the first evaluating call to the last: the rest prepares it
EVALUATION: Final = "evaluation"
_LONG_WAIT: Final = 0.5  # of the mean wait: in bursts the others are much shorter
_SHORT_WAITS: Final = 0.01  # of the step: with more, the shorter waits are told too
_IN_EACH: Final = 0.9  # of the steps
_LONG: Final = 2.0  # times the median: such steps are told by their number
_LEAST_GAPS: Final = 2  # between what recurs
_REGULAR: Final = 0.25  # of such a gap: as far as gaps may differ from it
_EXPLAINS: Final = 0.5  # of what the mean is longer than the median: fewer long steps are not the reason
_UNKNOWN: Final = "the cause is not known"
_SLOWEST: Final = 0.1  # of the steps: their share of the time is told where nothing else explains it
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


def step_time(benchmark: Benchmark, run_to_run: float | None) -> StepTime | None:
    """Return how long a step takes; None where none was timed.

    Args:
        benchmark: the unprofiled steps, in the order in which they ran.
        run_to_run: the share by which two runs differ, by which the interval is widened; None leaves it as it is.
    """
    samples = np.asarray(benchmark.wall_ns, np.float64)
    if not len(samples):
        return None
    # What came between the steps once may never come again.
    between = benchmark.between if len(benchmark.between) > 1 else ()
    mean = float(samples.mean())
    steps = benchmark.steps_each * len(samples) + sum(one.steps for one in between)
    between_ns = max(sum(one.ns - one.steps * mean for one in between) / steps, 0.0)
    low, high = _interval(samples, run_to_run)
    result = StepTime(
        ns=mean + between_ns,
        # One more or less of what recurs might have come while the steps were timed.
        low_ns=None if low is None else low + between_ns * (1 - 1 / max(len(between), 1)),
        high_ns=None if high is None else high + between_ns * (1 + 1 / max(len(between), 1)),
        median_ns=float(np.median(samples)),
        steps=round(steps),
        data_ns=_mean(benchmark.data_ns),
        median_data_ns=float(np.median(benchmark.data_ns)) if benchmark.data_ns else None,
        collecting_ns=_mean(benchmark.collecting_ns),
        between_ns=between_ns,
        between=_what(between),
    )
    result = replace(result, long=_long_steps(result, benchmark))
    return replace(result, sentence=" ".join(_sentences(result, benchmark, between)) or None)


def _mean(waits_ns: Sequence[int]) -> float | None:
    return float(np.mean(waits_ns)) if waits_ns else None


def _interval(samples: NDArray[np.float64], run_to_run: float | None) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a mean, by blocks of consecutive samples; None where they are too few."""
    blocks = min(_BLOCKS, len(samples))
    if blocks not in _STUDENT:
        return None, None
    means = np.array([part.mean() for part in np.array_split(samples, blocks)])
    half = _STUDENT[blocks] * float(means.std(ddof=1)) / math.sqrt(blocks)
    spread = 1 + (run_to_run or 0.0) / 2
    mean = float(samples.mean())
    return max(mean - half, float(samples.min())) / spread, (mean + half) * spread


def _what(between: Sequence[Between]) -> str:
    """Return what comes between steps, in a few words; empty where nothing does."""
    if not between:
        return ""
    evaluating, whole = sum(one.evaluating_ns for one in between), sum(one.ns for one in between)
    if evaluating >= _MOSTLY * whole:
        return EVALUATION
    return f"{EVALUATION} and other work" if any(one.evaluates for one in between) else "something else"


def _sentences(step: StepTime, benchmark: Benchmark, between: Sequence[Between]) -> Iterator[str]:
    if abs(step.median_ns / step.ns - 1) > MEDIAN_DIFFERS:
        yield f"The median step takes {format_ns(step.median_ns)}."
    for waits, ns, what in (
        (benchmark.data_ns, step.data_ns, "the host waits for data"),
        (benchmark.collecting_ns, step.collecting_ns, "Python collects garbage"),
    ):
        if ns is not None and ns >= _WORTH_SAYING * step.ns:
            yield _waiting(np.asarray(waits, np.float64), step, what, alone=benchmark.steps_each == 1)
    if step.between_ns >= _WORTH_SAYING * step.ns:
        share = format_share(step.between_ns, step.ns)
        times = f"{len(between)} times while they were timed"
        yield f"Between the steps comes {step.between} ({times}): {share} of the time."
    if len(benchmark.between) == 1 and (once := benchmark.between[0]).ns > _WORTH_SAYING * step.ns * step.steps:
        what = "an evaluation" if once.evaluates else "something else"
        yield f"Once {what} came between the steps, for {format_ns(once.ns)}: it is not counted."
    if step.long is not None:
        yield f"{step.long.sentence}: {format_share(step.long.share, 1)} of the time; {_UNKNOWN}."
    elif _has_slow_ones(step):
        yield _slowest(benchmark.wall_ns, benchmark.steps_each)


def _waiting(waits: NDArray[np.float64], step: StepTime, what: str, *, alone: bool) -> str:
    """Say how much of the time a wait takes, and in how many steps it comes.

    Args:
        waits: per sample, how long it takes in a step.
        step: the step's times.
        what: the wait, as a clause.
        alone: whether each sample is of a single step.
    """
    share = format_share(float(waits.mean()), step.ns)
    long = waits[waits > _LONG_WAIT * waits.mean()]
    if not alone or not len(long):
        return f"For {share} of the time {what}."
    if len(long) >= _IN_EACH * len(waits):
        return f"In each step {what} for {format_ns(float(waits.mean()))}: {share} of the time."
    often = f"In {len(long)} of {len(waits):,} steps{_rhythm(np.flatnonzero(waits > _LONG_WAIT * waits.mean()))}"
    average = f"{often} {what}, for {format_ns(float(long.mean()))} on average"
    own = long.sum() / (len(waits) * step.ns)
    if abs(own - waits.mean() / step.ns) < _SHORT_WAITS:
        return f"{average}: {share} of the time."
    return f"{average}: {format_share(float(own), 1)} of the time, and {share} with shorter waits."


def _has_slow_ones(step: StepTime) -> bool:
    """Tell whether some steps are longer than the median one, by more than waits and what comes between explain."""
    waits = (ns for ns in (step.data_ns, step.collecting_ns) if ns is not None and ns >= _WORTH_SAYING * step.ns)
    known, longer = step.between_ns + sum(waits), step.ns - step.median_ns
    return longer > MEDIAN_DIFFERS * step.ns and 2 * known < longer


def _long_steps(step: StepTime, benchmark: Benchmark) -> LongSteps | None:
    """Return the few steps that hold the time which the median does not show, where nothing tells why."""
    samples, each = np.asarray(benchmark.wall_ns, np.float64), benchmark.steps_each
    beyond, places = samples - np.median(samples), np.flatnonzero(samples > _LONG * np.median(samples))
    if not _has_slow_ones(step) or not beyond[places].sum() >= _EXPLAINS * beyond.sum() > 0:
        return None
    mean = format_ns(float(samples[places].mean())) + ("" if each == 1 else " a step")
    which = f"{len(places)} of {len(samples):,} {_steps_of(each)}{_rhythm(places)}"
    return LongSteps(
        sentence=f"{which} takes {mean}" if len(places) == 1 else f"{which} take {mean} on average",
        share=float(samples[places].sum() / samples.sum()),
        beyond_ns=float(beyond[places].sum() / len(samples)),
    )


def _steps_of(each: int) -> str:
    return "steps" if each == 1 else f"groups of {each} steps"


def _slowest(wall_ns: Sequence[int], each: int) -> str:
    """Say how much of the time the slowest steps hold, where no few of them explain the mean."""
    ordered = np.sort(np.asarray(wall_ns, np.float64))[::-1]
    count = max(1, round(_SLOWEST * len(ordered)))
    share = format_share(float(ordered[:count].sum()), float(ordered.sum()))
    return f"The slowest {count} of {len(ordered):,} {_steps_of(each)} take {share} of the time; {_UNKNOWN}."


def _rhythm(places: NDArray[np.int64]) -> str:
    """Return in parentheses how regularly some steps come; empty where they do not."""
    gaps = np.diff(places)
    if len(gaps) < _LEAST_GAPS:
        return ""
    typical = round(float(np.median(gaps)))
    if typical < 2 or np.abs(gaps - typical).max() > max(1.0, _REGULAR * typical):
        return ""
    ending = "th" if typical % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(typical % 10, "th")
    about = "" if (gaps == typical).all() else "about "
    return f" ({about}every {typical}{ending})"
