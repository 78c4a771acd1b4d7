"""Rooflines of the page: what operators and kernels do, below the peaks of their devices."""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.analysis.costs.limits import least_ns
from opscope.base.units import format_count, format_share
from opscope.documents.limits import LimitRow, LimitsEntry, PeaksEntry
from opscope.documents.page import Roof, RoofLabels, Roofline, RoofPoint
from opscope.documents.stats import CountedWork, CounterRow, CountersDocument
from opscope.report.limits_document import inputs_of
from opscope.report.page.timeline import LONGEST_TEXT, cut

_MOST_KERNELS: Final = 200
_TERA: Final = 1e12
_MODELLED: Final = RoofLabels(
    roofline="roofline of products",
    intensity="operations a byte (least bytes)",
    bandwidth="bandwidth of work without products",
    bytes="least bytes of a call",
    moved="moved at least",
)
_COUNTED: Final = RoofLabels(
    roofline="roofline of counted operations",
    intensity="operations a byte (both counted)",
    bandwidth="bandwidth of kernels without arithmetic",
    bytes="bytes that a launch moved",
    moved="moved",
)
_HOW_TO_READ: Final = (
    "Areas are time lost: device time less the ideal time. Operations are those of products; least bytes assume that "
    "each is moved once, so caches can lift a point above the memory's line."
)


def modelled_roofline(limits: LimitsEntry | None, rows: Sequence[LimitRow], reason: str | None) -> Roofline:
    """Build the roofline of a trace, by models of operators.

    Args:
        limits: of its document; None without device times.
        rows: all limits of the trace, by which kernels are summed up.
        reason: why there are no device times; None if there are.
    """
    if limits is None:
        return Roofline(notes=(f"No limits: {reason or 'no device worked'}.",))
    if limits.nothing is not None:
        return Roofline(notes=(limits.nothing,))
    wrong = ", ".join(limits.over_limit)
    return Roofline(
        labels=_MODELLED,
        roofs=tuple(_of_device(peaks, limits, rows) for peaks in limits.peaks),
        notes=(f"Faster than the limit, so a model or a peak is wrong: {wrong}.",) if wrong else (),
        work_note=(
            "The calls that lose most, over the whole recording. Roofline estimates cover "
            f"{format_share(limits.modelled_ns, limits.device_sum_ns or None)} of the device sum; opscope limits has "
            "all calls, and asks PyTorch about those that no model knows."
        ),
    )


def _of_device(peaks: PeaksEntry, limits: LimitsEntry, rows: Sequence[LimitRow]) -> Roof:
    title = f"Device {peaks.device}"
    if peaks.origin is None:
        unknown = f"The peaks of {peaks.name} are not known: opscope gpus --measure measures them."
        return Roof(title=title, notes=(unknown,))
    measured = f" (measured: {', '.join(peaks.measured)})" if peaks.measured else ""
    rate = peaks.memory_bytes_per_s
    memory = "not known" if rate is None else f"{rate / _TERA:.3f} TB/s"
    about = f"{peaks.name}: peaks {peaks.origin}{measured}; memory {memory}."
    operators = (_of_call(row) for row in limits.rows if row.device == peaks.device and _has_point(row))
    return Roof(
        title=title,
        memory_bytes_per_s=peaks.memory_bytes_per_s,
        flop_per_s=peaks.flop_per_s,
        points={"operators by inputs": tuple(operators), "kernels": tuple(_by_kernel(rows, peaks.device))},
        notes=(f"{about} {_HOW_TO_READ}",),
    )


def _has_point(row: LimitRow) -> bool:
    """Tell whether work has a least time, and took any: of what took none, no rate is known."""
    return row.ideal_ns is not None and row.device_ns > 0


def _of_call(row: LimitRow) -> RoofPoint:
    return RoofPoint(
        name=cut(f"{row.operator or row.kernel} {inputs_of(row)}".rstrip(), LONGEST_TEXT),
        operator=row.operator,
        category=row.category,
        precision=row.precision,
        calls=row.calls,
        flop=row.flop or 0,
        bytes=row.least_bytes or 0,
        call_ns=row.call_ns,
        area_ns=row.lost_ns or 0.0,
        lost_ns=row.lost_ns,
        share=row.share,
        limited_by=row.limited_by,
    )


def _by_kernel(rows: Sequence[LimitRow], device: int | None) -> Sequence[RoofPoint]:
    """Return sums over all modelled calls in which one kernel takes most of the time; the most time lost first."""
    groups: dict[tuple[str, str | None], list[LimitRow]] = {}
    for row in rows:
        if row.device == device and _has_point(row):
            groups.setdefault((row.kernel, row.precision), []).append(row)
    points = (_of_kernel(kernel, precision, own) for (kernel, precision), own in groups.items())
    return sorted(points, key=lambda point: (-point.area_ns, point.name))[:_MOST_KERNELS]


def _of_kernel(kernel: str, precision: str | None, rows: Sequence[LimitRow]) -> RoofPoint:
    calls, time_ns = sum(row.calls for row in rows), sum(row.device_ns for row in rows)
    lost_ns = sum(row.lost_ns or 0.0 for row in rows)
    return RoofPoint(
        name=cut(kernel, LONGEST_TEXT),
        precision=precision,
        calls=calls,
        flop=sum(row.calls * (row.flop or 0) for row in rows) / calls,
        bytes=sum(row.calls * (row.least_bytes or 0) for row in rows) / calls,
        call_ns=time_ns / calls,
        area_ns=lost_ns,
        lost_ns=lost_ns,
        share=sum(map(least_ns, rows)) / time_ns,
    )


def counted_roofline(document: CountersDocument) -> Roofline:
    """Build the roofline of kernels by what Nsight Compute counted."""
    limited = [(row, row.work) for row in document.kernels if row.work is not None and row.work.ideal_ns is not None]
    shown = [(row, work) for row, work in limited if work.dram_bytes > 0]
    if not shown:
        asked = any(row.work is not None or row.reason is not None for row in document.kernels)
        nothing = "no kernel has a limit and moved bytes" if asked else "it takes operations and bytes"
        return Roofline(notes=(f"No roofline: {nothing}{'' if asked else ', which ncu --set roofline counts'}.",))
    assert document.peaks is not None  # no limit is known without
    roof = Roof(
        memory_bytes_per_s=document.peaks.memory_bytes_per_s,
        flop_per_s={work.unit: work.unit_peak_per_s for _, work in shown if work.unit and work.unit_peak_per_s},
        points={"kernels": tuple(_counted(row, work) for row, work in shown)},
        notes=(" ".join(_counted_notes(shown, len(limited) - len(shown))),),
    )
    return Roofline(labels=_COUNTED, roofs=(roof,))


def _counted(row: CounterRow, work: CountedWork) -> RoofPoint:
    return RoofPoint(
        name=row.summary or row.kernel,
        precision=work.unit,
        calls=work.launches,
        flop=_operations(work),
        bytes=work.dram_bytes,
        call_ns=work.ns,
        area_ns=work.launches * work.ns,
        lost_ns=None if work.share is None or work.ideal_ns is None else work.launches * (work.ns - work.ideal_ns),
        share=work.share,
        limited_by=work.limited_by,
    )


def _operations(work: CountedWork) -> float:
    """Return the operations of one unit: a roof is that of one, so a point is of what that unit did."""
    return 0.0 if work.unit is None else work.operations_by_unit[work.unit]


def _counted_notes(shown: Sequence[tuple[CounterRow, CountedWork]], left_out: int) -> Iterator[str]:
    yield "Areas are time."
    if any(_operations(work) > 0 for _, work in shown):
        yield "A point of the roofline is of the operations of one unit, the one that would take longest at its peak."
    if left_out:
        kernels = (
            "kernel that moved no bytes of the device's memory is"
            if left_out == 1
            else ("kernels that moved no bytes of the device's memory are")
        )
        yield f"{format_count(left_out)} {kernels} left out."
