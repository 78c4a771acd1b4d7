"""Finds what a saved benchmark cannot have measured: it may be anyone's, and a gate rests on it. Needs no PyTorch."""

from collections.abc import Iterator
from typing import Final

from opscope.documents.bench import BenchDocument, BenchResult, Duration, Measure, Steady, VariantComparison

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
