"""Compares a benchmark with a saved one: does anything take longer now? Needs no PyTorch.

A saved benchmark may be anyone's, and a gate rests on it: what it cannot have measured is found.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.documents.bench import (
    BenchDocument,
    BenchResult,
    Changed,
    Correct,
    Duration,
    Measure,
    RegressionVerdict,
    Steady,
    VariantComparison,
    compared_by,
)
from opscope.workbench.benchmarking.statistics import differs_from_itself

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


def _verdict(low: float | None, high: float | None, threshold: float, doubts: Sequence[str]) -> RegressionVerdict:
    if low is None or high is None or doubts:
        return RegressionVerdict.INCONCLUSIVE
    if low > 1 + threshold:
        return RegressionVerdict.REGRESSION
    return RegressionVerdict.FINE if high <= 1 + threshold else RegressionVerdict.INCONCLUSIVE
