"""Whether the unprofiled step changed, by two intervals and the usual spread of two runs, and what else differs."""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from msgspec.structs import fields

from opscope.analysis.measured import Measured
from opscope.analysis.structure.origin import producer_of
from opscope.base.units import format_ns
from opscope.documents.difference import ChangeVerdict, Differing, UnprofiledChange
from opscope.documents.trace import StepTime
from opscope.documents.verdict import CheckName
from opscope.record.capture import Clocks
from opscope.record.configuration import heading_of

# ---------------------------------------------------------------- what differs apart from times


DifferenceKind: TypeAlias = Literal["environment", "settings", "recording", "measurement"]
_NOT_TOLD: Final = frozenset({"torch_libraries", "gpus"})
_CALLED: Final = {"device": "PyTorch device"}
_CLOCK: Final = "multiprocessors' clock (MHz, median)"


def devices_of(measured: Measured) -> tuple[str, ...]:
    """Return the names of the devices that a measurement ran on, or of its CPU; empty where nothing tells."""
    names = sorted({line.name for line in measured.analysis.devices})
    if names or measured.record is None:
        return tuple(names)
    machine = measured.record.machine
    return tuple(sorted({gpu.name for gpu in machine.gpus})) if measured.record.ran_on_gpu else (machine.cpu,)


def differing(before: Measured, after: Measured) -> Iterator[Differing]:
    """Yield each fact that is not the same on both sides; None stands for a side that does not tell."""
    sides = [dict(_facts(one)) for one in (before, after)]
    # Facts of either side: one that a side lacks differs too.
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(key) for side in sides)
        if one != other:
            yield Differing(*key, one, other)


_Fact: TypeAlias = tuple[tuple[DifferenceKind, str], str]


def _facts(one: Measured) -> Iterator[_Fact]:
    if devices := devices_of(one):
        yield ("environment", "device"), ", ".join(devices)
    yield from _of_record(one)
    if one.record is not None and one.record.steps is not None and (part := one.record.steps.part) is not None:
        yield ("recording", "part of the run"), part
    trace = one.analysis.trace
    recorded = {
        "operators": trace.operators.height > 0,
        "input shapes": bool(len(trace.operators["input_dims"].drop_nulls())),
        "Python stacks": trace.frames.height > 0,
        "allocations": trace.allocations.height > 0,
        "device activities": trace.activities.height > 0,
    }
    for name, present in recorded.items():
        yield ("recording", name), "recorded" if present else "not recorded"
    for check in one.trust.failures():
        yield ("measurement", f"trust check {check.name}"), f"fails: {check.sentence}"


def _of_record(one: Measured) -> Iterator[_Fact]:
    record = one.record
    if record is None:
        # A trace that opscope did not capture has no record, but may say which PyTorch wrote it.
        torch = producer_of(one.analysis.source).torch
        if torch is not None:
            yield ("environment", "torch"), torch
        return
    for source in (record.machine, record.framework):
        for field in fields(source) if source is not None else ():
            if field.name not in _NOT_TOLD and (value := getattr(source, field.name)) is not None:
                yield ("environment", _CALLED.get(field.name, field.name.replace("_", " "))), str(value)
    yield ("environment", "opscope"), record.opscope
    if record.git_revision is not None:
        yield ("settings", "git revision"), record.git_revision
    configuration = record.configuration
    yield ("settings", "target"), configuration.target
    for name, value in {**configuration.settings, **configuration.axes}.items():
        yield ("settings", heading_of(name)), str(value)
    for option in fields(record.options):
        yield ("recording", option.name.replace("_", " ")), str(getattr(record.options, option.name))
    if record.benchmark is not None:
        waits = "end with a wait for the device" if record.benchmark.synchronised else "are timed as they come"
        yield ("measurement", "unprofiled steps"), waits
    if (clocks := measured_clocks(one)) is not None:
        yield ("measurement", _CLOCK), str(clocks.sm_mhz_median)
        yield ("measurement", "memory clock (MHz, median)"), str(clocks.memory_mhz)
        if clocks.limited_by:
            yield ("measurement", "clocks limited by"), ", ".join(clocks.limited_by)


def measured_clocks(one: Measured) -> Clocks | None:
    """Return the clocks during the unprofiled steps; None where they are not known."""
    return one.record.benchmark.clocks if one.record and one.record.benchmark else None


# ---------------------------------------------------------------- the unprofiled step


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
