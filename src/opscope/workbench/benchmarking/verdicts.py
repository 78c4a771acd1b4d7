"""What may be said of two variants that were measured in turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from opscope.documents.bench import BenchResult, Comparison, Correct, Measure, Verdict, compared_by
from opscope.workbench.benchmarking.statistics import (
    Interval,
    differs_from_itself,
    holm,
    median_interval,
    ratios,
    sign_test,
)

LEVEL: Final = 0.01  # of the corrected p-value; the intervals are of 95 %
PRACTICAL: Final = 0.01  # a smaller difference is none
_TOLD: Final = 0.02  # an interval that reaches no further from 1 says that there is no difference


@dataclass(frozen=True, slots=True)
class Paired:
    """The durations of two variants, round by round; and of the baseline at the variant's lower precision."""

    baseline: BenchResult
    variant: BenchResult
    measure: Measure | None
    of_baseline: tuple[float, ...]
    of_variant: tuple[float, ...]
    at_same_precision: tuple[float, ...] = ()


def pairs_of(results: Sequence[BenchResult]) -> tuple[Paired, ...]:
    """Pair the variants of each case and choice of parameters with the first one, the baseline, round by round.

    By the durations that ``compared_by`` names.
    """
    groups: dict[tuple[object, ...], list[BenchResult]] = {}
    for result in results:
        groups.setdefault((result.case, *sorted(result.parameters.items())), []).append(result)
    return tuple(_pair(baseline, variant, others) for baseline, *others in groups.values() for variant in others)


def at_precision(baseline: str, precision: str) -> str:
    """Return what the baseline is called where it runs at a lower precision."""
    return f"{baseline} at {precision}"


def _pair(baseline: BenchResult, variant: BenchResult, others: Sequence[BenchResult]) -> Paired:
    checked = variant.correctness
    name = at_precision(baseline.name, checked.precision or "") if checked is not None else ""
    lower = next((other for other in others if other.name == name and other is not variant), None)
    for measure in compared_by(baseline, variant):
        mine, theirs = baseline.duration(measure), variant.duration(measure)
        if mine is not None and theirs is not None and mine.n == theirs.n:
            same = None if lower is None else lower.duration(measure)
            at_same = same.samples if same is not None and same.n == mine.n else ()
            return Paired(baseline, variant, measure, mine.samples, theirs.samples, at_same)
    return Paired(baseline, variant, None, (), ())


def compare(pairs: Sequence[Paired]) -> tuple[Comparison, ...]:
    """Judge all pairs of one benchmark together: the more there are, the more must each differ to be told apart."""
    found = [_Judged.of(pair) for pair in pairs]
    timed = [judged for judged in found if judged.p_value is not None]
    corrected = holm([judged.p_value or 0.0 for judged in timed])
    by_pair = {id(judged): p for judged, p in zip(timed, corrected, strict=True)}
    return tuple(judged.said(by_pair.get(id(judged))) for judged in found)


@dataclass(frozen=True, slots=True)
class _Judged:
    pair: Paired
    ratio: Interval | None
    p_value: float | None

    @classmethod
    def of(cls, pair: Paired) -> "_Judged":
        if _wrong(pair) is not None or pair.measure is None:
            return cls(pair, None, None)
        found = ratios(pair.of_baseline, pair.of_variant)
        return cls(pair, _widened(pair, median_interval(found)), sign_test(found)) if found else cls(pair, None, None)

    def said(self, p_value: float | None) -> Comparison:
        verdict, sentence = self._verdict(p_value)
        pair, ratio = self.pair, self.ratio
        return Comparison(
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

    def _verdict(self, p_value: float | None) -> tuple[Verdict, str]:
        if (reason := _wrong(self.pair)) is not None:
            return Verdict.WRONG, reason
        if self.ratio is None or p_value is None:
            return Verdict.INCONCLUSIVE, "Inconclusive: it was not timed."
        doubts = (*self.pair.variant.doubts, *self.pair.baseline.doubts)
        if doubts:
            return Verdict.INCONCLUSIVE, f"Inconclusive: {doubts[0]}"
        verdict = verdict_of(self.ratio, p_value)
        return verdict, _sentence(verdict, self.ratio) + self._precision(verdict) + self._by_the_host()

    def _by_the_host(self) -> str:
        """Of what the host issues more slowly than the device runs it, say how long a call takes by its clock."""
        pair = self.pair
        mine, theirs = pair.baseline.wall_ns, pair.variant.wall_ns
        if pair.measure is Measure.WALL or not (pair.baseline.launch_bound or pair.variant.launch_bound):
            return ""
        if mine is None or theirs is None or mine.n != theirs.n:
            return ""
        wall = median_interval(ratios(mine.samples, theirs.samples))
        between = "" if wall.low is None or wall.high is None else f" ({wall.low:.3f} to {wall.high:.3f})"
        return f" Issuing takes longer than the kernels: by the host's clock {wall.median:.3f} times as long{between}."

    def _precision(self, verdict: Verdict) -> str:
        checked = self.pair.variant.correctness
        if verdict is not Verdict.FASTER or checked is None or checked.verdict is not Correct.LOWER_PRECISION:
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
    """Widen the interval, where calls had to wait for a core, by what each call then differs from itself."""
    both = (pair.baseline, pair.variant)
    if pair.measure is not Measure.WALL or ratio.low is None or ratio.high is None:
        return ratio
    if all(one.contention is None for one in both):
        return ratio
    noise = differs_from_itself(one.steady for one in both if one.steady is not None)
    return replace(ratio, low=ratio.low / noise, high=ratio.high * noise)


def _wrong(pair: Paired) -> str | None:
    """Say which of two variants computes something else; None if neither does."""
    for one in (pair.variant, pair.baseline):
        if one.correctness is not None and one.correctness.verdict is Correct.WRONG:
            return f"{one.name} is wrong: {one.correctness.sentence}"
    return None


def verdict_of(ratio: Interval, p_value: float) -> Verdict:
    """Return what a ratio says.

    Faster or slower: the interval does not hold 1, the sign test, corrected, neither, and 1 % or more is possible. No
    difference: the interval lies within 2 % of 1, or within 1 % of it. Else inconclusive.
    """
    low, high = ratio.low, ratio.high
    if low is None or high is None:
        return Verdict.INCONCLUSIVE
    if max(abs(low - 1), abs(high - 1)) > PRACTICAL and p_value < LEVEL:
        if high < 1:
            return Verdict.FASTER
        if low > 1:
            return Verdict.SLOWER
    within = low >= 1 - _TOLD and high <= 1 + _TOLD
    return Verdict.NO_DIFFERENCE if within else Verdict.INCONCLUSIVE


def _sentence(verdict: Verdict, ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"Inconclusive: {ratio.n} rounds are too few."
    if verdict is Verdict.FASTER:
        return f"Faster: {1 / ratio.median:.3f} times as fast ({1 / ratio.high:.3f} to {1 / ratio.low:.3f})."
    if verdict is Verdict.SLOWER:
        return f"Slower: it takes {ratio.median:.3f} times as long ({ratio.low:.3f} to {ratio.high:.3f})."
    most = max(abs(ratio.low - 1), abs(ratio.high - 1))
    if verdict is Verdict.NO_DIFFERENCE:
        return f"No difference found, +-{100 * most:.1f} %."
    return f"Inconclusive: {ratio.low:.3f} to {ratio.high:.3f} times as long; more rounds or processes tell."
