"""The verdict on two variants that were measured in turns, and on two runs of one."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.documents.bench import (
    BenchDocument,
    BenchResult,
    Changed,
    Correct,
    Duration,
    Measure,
    RegressionVerdict,
    SpeedVerdict,
    Steady,
    VariantComparison,
    compared_by,
)
from opscope.documents.difference import Gate
from opscope.measuring.rounds import (
    Interval,
    differs_from_itself,
    holm,
    median_interval,
    ratios,
    sign_test,
)

# ---------------------------------------------------------------- regressions
# A saved benchmark may be anyone's, and a gate rests on it: figures that cannot be true are refused.


# By how much a machine may be faster in one session than in another, where no yardstick tells: processors run at
# 0.8 GHz when they save power, and at about 4 GHz at most.
_MACHINES: Final = 5.0
_SHORTEST_NS: Final = 1e-3  # a call takes longer than light needs for a third of a millimetre
_LONGEST_NS: Final = 30 * 24 * 3600 * 1e9  # a month
_ROUNDING: Final = 1e-6  # relative: by this much a median may lie outside of its samples


def impossible(document: BenchDocument) -> str | None:
    """Return what in a document cannot have been measured; None if nothing stands out.

    Every duration lies between a picosecond and a month, its median within its interval, and the interval within the
    samples.
    """
    if document.processes < 1:
        return f"{document.processes} processes"
    for result in document.results:
        for problem in _of_result(result):
            return f"{result.name}: {problem}"
    return next((f"{one.variant}: {problem}" for one in document.comparisons for problem in _of_comparison(one)), None)


def _of_result(result: BenchResult) -> Iterator[str]:
    for measure in Measure:
        duration = result.duration(measure)
        if duration is not None and (problem := _of_duration(duration)):
            yield f"{measure}: {problem}"
    if result.steady is not None and (problem := _of_steady(result.steady)):
        yield problem


def _of_steady(result: Steady) -> str | None:
    # Each list must be in ascending order; its first and last numbers are the bounds of what is possible.
    ordered = [_SHORTEST_NS, result.ci_low, result.ns, result.ci_high, _LONGEST_NS]
    pieces = [1e-12, result.pieces_low, result.pieces, result.pieces_high, 1e15]
    same = [1e-6, result.same_low, result.same_high, 1e6]
    if any(one != sorted(one) for one in (ordered, pieces, same)) or not _SHORTEST_NS <= result.piece_ns <= _LONGEST_NS:
        return "a time at full speed outside its interval, or that nothing takes"
    if not 0 < result.rounds <= result.of_rounds:
        return f"{result.rounds} of {result.of_rounds} rounds"
    return None


def _of_duration(duration: Duration) -> str | None:
    times = (duration.median, *duration.samples, duration.ci_low, duration.ci_high)
    if not all(time is None or _SHORTEST_NS <= time <= _LONGEST_NS for time in times):
        return "a duration that nothing takes"
    if duration.n != len(duration.samples) or not duration.samples:
        return f"{duration.n} samples, of which {len(duration.samples)} are there"
    low, middle, high = duration.ci_low, duration.median, duration.ci_high
    least, most = min(duration.samples) * (1 - _ROUNDING), max(duration.samples) * (1 + _ROUNDING)
    if (low is None) != (high is None):
        return "an interval with one end"
    ordered = [least, middle if low is None else low, middle, middle if high is None else high, most]
    if ordered != sorted(ordered):
        return "a median outside its interval, or an interval beyond its samples"
    return None


def _of_comparison(result: VariantComparison) -> Iterator[str]:
    ratios = [ratio for ratio in (result.ci_low, result.ratio, result.ci_high) if ratio is not None]
    if ratios != sorted(ratios) or any(not 1e-12 <= ratio <= 1e12 for ratio in ratios):
        yield "a ratio that is none, or lies outside its interval"
    if result.p_value is not None and not 0 <= result.p_value <= 1:
        yield f"a probability of {result.p_value:g}"


def differences(before: BenchDocument, now: BenchDocument) -> list[str]:
    """Return how the environments or inputs of two benchmarks differ: then durations say nothing about the code."""
    pairs: dict[str, tuple[object, object]] = {
        "device": (before.device, now.device),
        "PyTorch": (before.framework.torch, now.framework.torch),
        "CUDA": (before.framework.cuda, now.framework.cuda),
        "driver": (before.machine.driver, now.machine.driver),
        "float32 precision": (before.framework.float32_matmul_precision, now.framework.float32_matmul_precision),
        "number of processes": (before.processes, now.processes),
    }
    if not now.framework.on_gpu:  # how many threads work is a setting, or the machine's, and not the code's
        pairs["threads of PyTorch"] = (before.framework.torch_threads, now.framework.torch_threads)
        pairs["CPUs"] = (before.machine.cpu_count, now.machine.cpu_count)
    results = {_name(result): result for result in now.results}
    for name, result in ((_name(result), result) for result in before.results):
        if name in results and result.inputs and results[name].inputs:
            pairs[f"inputs of {name}"] = (", ".join(result.inputs), ", ".join(results[name].inputs))
    return [f"{what}: {one}, now {other}" for what, (one, other) in pairs.items() if one != other]


def changes(before: BenchDocument, now: BenchDocument, threshold: float) -> tuple[Changed, ...]:
    """Compare every saved result with the one measured now.

    Args:
        before: the saved document.
        now: the document measured now; results that are only in it are ignored.
        threshold: by how much more time a call may take, as a fraction: 0.05 for 5 %.
    """
    results = {_name(result): result for result in now.results}
    return tuple(_changed(_name(result), result, results.get(_name(result)), threshold) for result in before.results)


def worst_change(results: Sequence[Changed]) -> RegressionVerdict:
    """Return the worst of some changes; a certain one is worse than an inconclusive one."""
    order = (
        RegressionVerdict.WRONG,
        RegressionVerdict.REGRESSION,
        RegressionVerdict.MISSING,
        RegressionVerdict.INCONCLUSIVE,
    )
    return next((change for change in order if any(one.change is change for one in results)), RegressionVerdict.FINE)


def _name(result: BenchResult) -> str:
    parameters = ", ".join(f"{name}={value}" for name, value in sorted(result.parameters.items()))
    return f"{result.case}: {result.name}" + (f" ({parameters})" if parameters else "")


def _changed(name: str, before: BenchResult, now: BenchResult | None, threshold: float) -> Changed:
    nothing = (None, None, None, None, None)
    if now is None:
        return Changed(name, *nothing, RegressionVerdict.MISSING)
    if now.correctness is not None and now.correctness.verdict is Correct.WRONG:
        return Changed(name, *nothing, RegressionVerdict.WRONG)
    doubts = (*before.doubts, *now.doubts)
    # The first measure that both have decides. On a CPU, that is the time at full speed where both know it.
    for measure in compared_by(before, now):
        old, new = before.duration(measure), now.duration(measure)
        if old is not None and new is not None:
            if measure is Measure.WALL and before.steady is not None and now.steady is not None:
                low, high = between_sessions(before.steady, now.steady)
                verdict = _verdict(low, high, threshold, doubts)
                return Changed(name, measure, before.steady.ns, now.steady.ns, low, high, verdict)
            least, most = _between(old, new)
            contended = [one.contention for one in (before, now) if measure is Measure.WALL and one.contention]
            verdict = _verdict(least, most, threshold, (*doubts, *contended))
            return Changed(name, measure, old.median, new.median, least, most, verdict)
    return Changed(name, *nothing, RegressionVerdict.MISSING)


def between_sessions(before: Steady, now: Steady) -> tuple[float, float]:
    """Return the least and the greatest possible ratio of two sessions' times, now to before.

    The ratio is taken by the clock and in pieces of the yardstick. If the machine itself was faster or slower, only one
    of the two is right, and it is unknown which, so the result covers both. It is widened by how much the call differs
    from itself within a session. If only one of the two works on several threads, there is no common yardstick, and the
    clock alone is widened by what machines may differ in speed.
    """
    noise = differs_from_itself((before, now))
    by_clock = (now.ci_low / before.ci_high, now.ci_high / before.ci_low)
    if before.several_threads != now.several_threads:  # pieces of different yardsticks
        return by_clock[0] / (noise * _MACHINES), by_clock[1] * noise * _MACHINES
    by_yardstick = (now.pieces_low / before.pieces_high, now.pieces_high / before.pieces_low)
    return min(by_clock[0], by_yardstick[0]) / noise, max(by_clock[1], by_yardstick[1]) * noise


def _between(before: Duration, now: Duration) -> tuple[float | None, float | None]:
    """Return the least and the greatest ratio if both medians lie in their intervals; None without intervals."""
    if before.ci_low is None or before.ci_high is None or now.ci_low is None or now.ci_high is None:
        return None, None
    return now.ci_low / before.ci_high, now.ci_high / before.ci_low


def exceeds(low: float | None, high: float | None, allowed: float) -> bool | None:
    """Tell whether a ratio of times is proven to exceed what is allowed (True), or not to (False); None if neither is.

    Args:
        low: the least ratio that is possible; None where there is no interval.
        high: the greatest; None likewise.
        allowed: how much longer it may take, as a share (0.05 is 5 %).
    """
    if low is None or high is None:
        return None
    if low > 1 + allowed:
        return True
    return False if high <= 1 + allowed else None


def gate_of(low: float | None, high: float | None, fail_over: float) -> Gate:
    """Judge whether a step takes longer than allowed: proven, disproven, or neither; see `exceeds`."""
    return _GATES[exceeds(low, high, fail_over)]


_GATES: Final = {True: Gate.REGRESSION, False: Gate.FINE, None: Gate.INCONCLUSIVE}
_REGRESSION: Final = {
    True: RegressionVerdict.REGRESSION,
    False: RegressionVerdict.FINE,
    None: RegressionVerdict.INCONCLUSIVE,
}


def _verdict(low: float | None, high: float | None, threshold: float, doubts: Sequence[str]) -> RegressionVerdict:
    return RegressionVerdict.INCONCLUSIVE if doubts else _REGRESSION[exceeds(low, high, threshold)]


# ---------------------------------------------------------------- verdicts


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
