"""The verdict on two variants that were measured in turns."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.documents.bench import BenchResult, Correct, Measure, SpeedVerdict, VariantComparison, compared_by
from opscope.workbench.benchmarking.statistics import (
    Interval,
    differs_from_itself,
    holm,
    median_interval,
    ratios,
    sign_test,
)

LEVEL: Final = 0.01  # of the corrected p-value; the intervals are 95 % intervals
PRACTICAL: Final = 0.01  # smaller differences of a ratio from 1 do not count
_TOLD: Final = 0.02  # an interval within this distance of 1 means that there is no difference


class Paired(Struct, frozen=True):
    """The durations of two variants, round by round.

    Attributes:
        baseline: the result of the first variant.
        variant: the result of the other one.
        measure: what the durations are of; None if the two have no measure in common.
        of_baseline, of_variant: the durations in nanoseconds; the same index is the same round.
        at_same_precision: those of the baseline at the variant's lower precision; empty if it was not timed there.
    """

    baseline: BenchResult
    variant: BenchResult
    measure: Measure | None
    of_baseline: tuple[float, ...]
    of_variant: tuple[float, ...]
    at_same_precision: tuple[float, ...] = ()


def pairs_of(results: Sequence[BenchResult]) -> tuple[Paired, ...]:
    """Pair the variants of each case and parameters with the first one, the baseline, round by round.

    ``compared_by`` says which measure is compared.
    """
    groups: dict[tuple[object, ...], list[BenchResult]] = {}
    for result in results:
        groups.setdefault((result.case, *sorted(result.parameters.items())), []).append(result)
    return tuple(_pair(baseline, variant, others) for baseline, *others in groups.values() for variant in others)


def in_a_row_ns(result: BenchResult) -> float | None:
    """Return how long each of many calls in a row takes by a benchmark; None if it was not timed.

    It is as long as issuing one takes, or as the device works on one.
    """
    kernel = result.kernel_warm_ns or result.kernel_ns or result.event_ns
    durations = (result.wall_ns,) if kernel is None else (kernel, result.issue_ns)
    return max((one.median for one in durations if one is not None), default=None)


def at_precision(baseline: str, precision: str) -> str:
    """Return the name of the baseline that runs at a lower precision."""
    return f"{baseline} at {precision}"


def _pair(baseline: BenchResult, variant: BenchResult, others: Sequence[BenchResult]) -> Paired:
    checked = variant.correctness
    name = at_precision(baseline.name, checked.precision or "") if checked is not None else ""
    lower = next((other for other in others if other.name == name and other is not variant), None)
    for measure in compared_by(baseline, variant):
        own, theirs = baseline.duration(measure), variant.duration(measure)
        # Different numbers of samples are not of the same rounds.
        if own is not None and theirs is not None and own.n == theirs.n:
            same = None if lower is None else lower.duration(measure)
            at_same = same.samples if same is not None and same.n == own.n else ()
            return Paired(baseline, variant, measure, own.samples, theirs.samples, at_same)
    return Paired(baseline, variant, None, (), ())


def compare(pairs: Sequence[Paired]) -> tuple[VariantComparison, ...]:
    """Judge all pairs of one benchmark together: the more pairs there are, the more each must differ to be told apart.

    Args:
        pairs: of one benchmark; see `pairs_of`.

    Returns:
        One comparison per pair, in the same order.
    """
    results = [_Judged.of(pair) for pair in pairs]
    # Only pairs that were tested count for the correction.
    timed = [judged for judged in results if judged.p_value is not None]
    corrected = holm([judged.p_value or 0.0 for judged in timed])
    by_pair = {id(judged): p for judged, p in zip(timed, corrected, strict=True)}
    return tuple(judged.said(by_pair.get(id(judged))) for judged in results)


class _Judged(Struct, frozen=True):
    pair: Paired
    ratio: Interval | None  # of the variant's durations to the baseline's; None if nothing was timed, or one is wrong
    p_value: float | None  # of the sign test, not yet corrected

    @classmethod
    def of(cls, pair: Paired) -> "_Judged":
        if _wrong(pair) is not None or pair.measure is None:
            return cls(pair, None, None)
        result = ratios(pair.of_baseline, pair.of_variant)
        return (
            cls(pair, _widened(pair, median_interval(result)), sign_test(result)) if result else cls(pair, None, None)
        )

    def said(self, p_value: float | None) -> VariantComparison:
        verdict, sentence = self._verdict(p_value)
        pair, ratio = self.pair, self.ratio
        return VariantComparison(
            baseline=pair.baseline.name,
            variant=pair.variant.name,
            case=pair.variant.case,
            parameters=pair.variant.parameters,
            measure=pair.measure,
            ratio=None if ratio is None else ratio.median,
            ci_low=None if ratio is None else ratio.low,
            ci_high=None if ratio is None else ratio.high,
            p_value=p_value,
            rounds=0 if ratio is None else ratio.n,
            verdict=verdict,
            sentence=sentence,
        )

    def _verdict(self, p_value: float | None) -> tuple[SpeedVerdict, str]:
        if (reason := _wrong(self.pair)) is not None:
            return SpeedVerdict.WRONG, reason
        if self.ratio is None or p_value is None:
            return SpeedVerdict.INCONCLUSIVE, "Inconclusive: it was not timed."
        doubts = (*self.pair.variant.doubts, *self.pair.baseline.doubts)
        if doubts:
            return SpeedVerdict.INCONCLUSIVE, f"Inconclusive: {doubts[0]}"
        verdict = verdict_of(self.ratio, p_value)
        return verdict, _sentence(verdict, self.ratio) + self._precision(verdict) + self._by_the_host()

    def _by_the_host(self) -> str:
        """Add the ratio by the host's clock if issuing a call takes longer than its kernels; empty text otherwise."""
        pair = self.pair
        own, theirs = pair.baseline.wall_ns, pair.variant.wall_ns
        if pair.measure is Measure.WALL or not (pair.baseline.launch_bound or pair.variant.launch_bound):
            return ""
        if own is None or theirs is None or own.n != theirs.n:
            return ""
        wall = median_interval(ratios(own.samples, theirs.samples))
        between = "" if wall.low is None or wall.high is None else f" ({wall.low:.3f} to {wall.high:.3f})"
        return f" Issuing takes longer than the kernels: by the host's clock {wall.median:.3f} times as long{between}."

    def _precision(self, verdict: SpeedVerdict) -> str:
        checked = self.pair.variant.correctness
        if verdict is not SpeedVerdict.FASTER or checked is None or checked.verdict is not Correct.LOWER_PRECISION:
            return ""
        split = " What of it the precision makes is unknown: the baseline was not timed at that precision."
        if self.pair.at_same_precision:
            own = median_interval(ratios(self.pair.at_same_precision, self.pair.of_variant))
            precision = median_interval(ratios(self.pair.of_baseline, self.pair.at_same_precision))
            split = (
                f" The precision alone makes {1 / precision.median:.3f} times of it, the implementation "
                f"{1 / own.median:.3f} times."
            )
        return f" With lower precision: {checked.sentence}.{split}"


def _widened(pair: Paired, ratio: Interval) -> Interval:
    """Widen the interval of wall times by how much calls differ from themselves, if they had to wait for a core."""
    both = (pair.baseline, pair.variant)
    if pair.measure is not Measure.WALL or ratio.low is None or ratio.high is None:
        return ratio
    if all(one.contention is None for one in both):
        return ratio
    noise = differs_from_itself(one.steady for one in both if one.steady is not None)
    return replace(ratio, low=ratio.low / noise, high=ratio.high * noise)


def _wrong(pair: Paired) -> str | None:
    """Return which of two variants is wrong, and why; None if neither is."""
    for one in (pair.variant, pair.baseline):
        if one.correctness is not None and one.correctness.verdict is Correct.WRONG:
            return f"{one.name} is wrong: {one.correctness.sentence}"
    return None


def verdict_of(ratio: Interval, p_value: float) -> SpeedVerdict:
    """Return the verdict on a ratio of durations, variant to baseline.

    Faster or slower: the interval does not hold 1, the corrected sign test rejects 1 as well, and the interval reaches
    further than 1 % from 1. No difference: the interval lies within 2 % of 1. Otherwise inconclusive.

    Args:
        ratio: its median and interval.
        p_value: of the sign test, corrected for the number of comparisons.
    """
    low, high = ratio.low, ratio.high
    if low is None or high is None:
        return SpeedVerdict.INCONCLUSIVE
    if max(abs(low - 1), abs(high - 1)) > PRACTICAL and p_value < LEVEL:
        if high < 1:
            return SpeedVerdict.FASTER
        if low > 1:
            return SpeedVerdict.SLOWER
    within = low >= 1 - _TOLD and high <= 1 + _TOLD
    return SpeedVerdict.NO_DIFFERENCE if within else SpeedVerdict.INCONCLUSIVE


def _sentence(verdict: SpeedVerdict, ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"Inconclusive: {ratio.n} rounds are too few."
    if verdict is SpeedVerdict.FASTER:
        return f"Faster: {1 / ratio.median:.3f} times as fast ({1 / ratio.high:.3f} to {1 / ratio.low:.3f})."
    if verdict is SpeedVerdict.SLOWER:
        return f"Slower: it takes {ratio.median:.3f} times as long ({ratio.low:.3f} to {ratio.high:.3f})."
    most = max(abs(ratio.low - 1), abs(ratio.high - 1))
    if verdict is SpeedVerdict.NO_DIFFERENCE:
        return f"No difference found, +-{100 * most:.1f} %."
    return f"Inconclusive: {ratio.low:.3f} to {ratio.high:.3f} times as long; more rounds or processes tell."
