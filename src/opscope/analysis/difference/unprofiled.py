"""Whether the unprofiled step changed, by the intervals of two times and the usual spread of two runs."""

from opscope.analysis.measured import Measured
from opscope.base.units import format_ns
from opscope.documents.difference import ChangeVerdict, Gate, UnprofiledChange
from opscope.documents.trace import StepTime
from opscope.documents.verdict import CheckName


def unprofiled_change(before: Measured, after: Measured) -> UnprofiledChange:
    """Judge whether the unprofiled step changed."""
    sides = before.measurement.step, after.measurement.step
    first, second = sides
    if first is None or second is None:
        return _unknown(_missing(before, after), *sides)
    if (reason := _unfit(before, after)) is not None:
        return _unknown(reason, *sides)
    low, high = _ratio(first, second, _spread(before, after))
    if low is None or high is None:
        return _unknown("at least six unprofiled steps on either side are needed for an interval", *sides)
    ratio = second.ns / first.ns
    verdict = _verdict(low, high)
    return UnprofiledChange(
        verdict=verdict,
        sentence=_sentence(verdict, first, second, ratio, low, high),
        before=first,
        after=second,
        change_ns=second.ns - first.ns,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
    )


def gate_of(change: UnprofiledChange, fail_over: float) -> Gate:
    """Judge whether the step takes longer than allowed: proven, disproven, or neither.

    Args:
        change: of the unprofiled step.
        fail_over: how much longer it may take, as a share (0.05 is 5 %).
    """
    if change.ratio_low is None or change.ratio_high is None:
        return Gate.INCONCLUSIVE
    if change.ratio_low > 1 + fail_over:
        return Gate.REGRESSION
    return Gate.FINE if change.ratio_high <= 1 + fail_over else Gate.INCONCLUSIVE


def _unknown(reason: str, before: StepTime | None, after: StepTime | None) -> UnprofiledChange:
    change = None if before is None or after is None else after.ns - before.ns
    return UnprofiledChange(
        verdict=ChangeVerdict.UNKNOWN,
        sentence=f"Whether the step changed cannot be known: {reason}.",
        before=before,
        after=after,
        change_ns=change,
        ratio=None if before is None or after is None else after.ns / before.ns,
    )


def _unfit(before: Measured, after: Measured) -> str | None:
    """Return why unprofiled steps cannot be compared; None where they can."""
    for name, one in (("before", before), ("after", after)):
        if one.trust.failed(CheckName.CPU_CONTENTION) is not None:
            return f"other processes took the CPU from the measurement {name}"
        if one.step_evidence.not_theirs is not None:
            return f"an unprofiled step {name} {one.step_evidence.not_theirs}"
    if before.measurement.synchronised != after.measurement.synchronised:
        return "unprofiled steps wait for the device on one side only"
    return None


def _missing(before: Measured, after: Measured) -> str:
    lacking = [name for name, one in (("before", before), ("after", after)) if one.measurement.step is None]
    return f"no unprofiled steps were timed {' and '.join(lacking)} (opscope profile times them)"


def _spread(before: Measured, after: Measured) -> float:
    """Return the share by which runs differ beyond what the intervals hold already: half per side without it."""
    most = max(before.run_to_run, after.run_to_run)
    # Half of the spread for each side whose interval is of its own run only.
    return most * sum(0.5 for one in (before, after) if not one.interval_is_of_any_run)


def _ratio(before: StepTime, after: StepTime, spread: float) -> tuple[float | None, float | None]:
    """Return the least and the greatest ratio: by the intervals of both, widened by the spread of runs."""
    if None in (before.low_ns, before.high_ns, after.low_ns, after.high_ns):
        return None, None
    # The ends that are farthest apart: the true ratio lies between, if the intervals hold both times.
    low = (after.low_ns or 0) / (before.high_ns or 1)
    high = (after.high_ns or 0) / (before.low_ns or 1)
    return low / (1 + spread), high * (1 + spread)


def _verdict(low: float, high: float) -> ChangeVerdict:
    if low > 1:
        return ChangeVerdict.SLOWER
    return ChangeVerdict.FASTER if high < 1 else ChangeVerdict.NO_DIFFERENCE


def _sentence(verdict: ChangeVerdict, before: StepTime, after: StepTime, ratio: float, low: float, high: float) -> str:
    times = f"{format_ns(before.ns)} before, {format_ns(after.ns)} after"
    interval = f"{_percent(low)} to {_percent(high)}"
    if verdict is ChangeVerdict.NO_DIFFERENCE:
        return f"No difference found: the unprofiled step took {times}; it may have changed by {interval}."
    how = "slower" if verdict is ChangeVerdict.SLOWER else "faster"
    return f"The unprofiled step is {how}: {times} ({_percent(ratio)}; {interval} with the spread of both runs)."


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
