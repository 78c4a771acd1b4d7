"""What differs apart from times: devices and versions, settings, what was recorded."""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from msgspec.structs import fields

from opscope.analysis.measured import Measured
from opscope.analysis.structure.producer import producer_of
from opscope.documents.difference import Differing
from opscope.record.capture import Clocks
from opscope.record.configuration import heading_of

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
