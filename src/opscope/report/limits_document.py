"""Builds a `LimitsDocument` from an analysed trace, and renders it as a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import fields

from opscope.analysis.costs.limits import (
    NO_INPUTS,
    over_limit,
    peaks_of,
    totals_by_module,
    totals_by_name,
    totals_by_step,
    utilisation,
)
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.measured import Measured
from opscope.base.errors import UsageError
from opscope.base.units import format_ns, format_share, tensor_shapes
from opscope.documents.limits import LimitRow, LimitsDocument, LimitsEntry, LimitTotal, PeaksEntry, Utilisation
from opscope.knowledge.devices import Peaks
from opscope.knowledge.kernels.kinds import short_name
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of

BY = ("shape", "operator", "category", "module", "step")
_TERA, _GIGA = 1e12, 1e9


def build_limits(measured: Measured, by: str) -> LimitsDocument:
    """Build the document.

    Args:
        measured: the trace with its record.
        by: one of `BY`: what totals are grouped by.

    Raises:
        UsageError: ``by`` is ``module`` and no modules were recorded, or ``step`` and the trace marks no steps.
    """
    return LimitsDocument(
        trace=measured.analysis.source.path, limits=limits_entry(measured), by=by, totals=_totals(measured, by)
    )


def limits_entry(measured: Measured) -> LimitsEntry:
    """Build the limits of one trace, with all rows."""
    analysis, rows = measured.analysis, measured.analysis.limits
    peaks = peaks_of(analysis.trace.devices)
    return LimitsEntry(
        peaks=tuple(_peaks(line, peaks.get(line.device)) for line in analysis.devices),
        device_sum_ns=analysis.accounting.activities_ns,
        modelled_ns=sum(row.device_ns for row in rows if row.ideal_ns is not None),
        rows=rows,
        utilisation=tuple(_utilisation(measured, peaks)),
        over_limit=over_limit(rows),
        nothing=_nothing(rows),
    )


def _nothing(rows: Sequence[LimitRow]) -> str | None:
    """Return why no work has a limit, in a sentence; None where some has, or nothing ran."""
    if not rows or any(row.ideal_ns is not None for row in rows):
        return None
    by_reason: dict[str, int] = {}
    for row in rows:
        by_reason[row.reason or "unknown"] = by_reason.get(row.reason or "unknown", 0) + row.device_ns
    why = max(by_reason, key=lambda one: by_reason[one])
    remedy = " (the profiler records them with record_shapes=True)" if why == NO_INPUTS else ""
    return f"No work can be compared with a limit. The main reason: {why}{remedy}."


def _peaks(line: DeviceTimeline, peaks: Peaks | None) -> PeaksEntry:
    if peaks is None:
        return PeaksEntry(line.device, line.name, None, {}, None, None)
    return peaks_entry(line.device, line.name, peaks)


def peaks_entry(device: int | None, name: str, peaks: Peaks) -> PeaksEntry:
    """Return the peaks of a device as documents have them.

    Args:
        device: its number; None for several devices that are alike.
        name: its name.
        peaks: what it can do.
    """
    return PeaksEntry(
        device=device,
        name=name,
        origin=peaks.origin,
        flop_per_s=dict(peaks.rates),
        memory_bytes_per_s=peaks.memory_bytes_per_s,
        l2_bytes=peaks.l2_bytes,
        measured=tuple(name for name in peaks.rates if name in peaks.measured),
    )


def _totals(measured: Measured, by: str) -> tuple[LimitTotal, ...]:
    analysis = measured.analysis
    if by == "step":
        if not analysis.step_count:
            raise UsageError("the trace marks no steps")
        return totals_by_step(analysis.trace, analysis.links, analysis.limits)
    if by == "module":
        result = totals_by_module(analysis.trace, analysis.links, analysis.backward_pass, analysis.limits)
        if result is None:
            raise UsageError(
                "the trace records no modules: record stacks (with_stack=True, opscope profile --with-stack)"
            )
        return result
    return totals_by_name(analysis.limits, by)


def _utilisation(measured: Measured, peaks: dict[int | None, Peaks]) -> list[Utilisation]:
    if not measured.step_count:
        return []
    wall = measured.step_evidence.unprofiled_ns
    return [
        utilisation(
            line.device,
            measured.analysis.limits_of_steps,
            measured.analysis.limits_needed,
            wall or line.window.duration_ns / measured.step_count,
            measured.step_count,
            unprofiled=wall is not None,
        )
        for line in measured.analysis.devices
        if line.device in peaks
    ]


# ---------------------------------------------------------------- as text


def limits_table(document: LimitsDocument, top: int | None) -> Table:
    """Build the table for people: the calls if grouped by shape, else the totals.

    Args:
        document: the limits.
        top: the number of rows; None for all.
    """
    if document.by == "shape":
        return _rows(document.limits, top)
    whole = document.limits.device_sum_ns or None
    columns: tuple[Column[LimitTotal], ...] = (
        Column(document.by.capitalize(), lambda total: Name(total.name)),
        Column("Device time", lambda total: format_ns(total.device_ns), numeric=True),
        Column("of device sum", lambda total: format_share(total.device_ns, whole), numeric=True),
        Column("Ideal", lambda total: format_ns(total.ideal_ns) if total.modelled_ns else "-", numeric=True),
        Column("Lost", lambda total: format_ns(total.lost_ns) if total.modelled_ns else "-", numeric=True),
        Column("of limit", _of_limit, numeric=True),
        Column("Modelled", lambda total: format_share(total.modelled_ns, total.device_ns or None), numeric=True),
    )
    return table_of(columns, document.totals[:top])


def _of_limit(row: LimitRow | LimitTotal) -> str:
    return "-" if row.share is None else format_share(row.share, 1)


def limits_values(documents: Sequence[LimitsDocument], top: int | None) -> Table:
    """Build the table for CSV: fields of the JSON document as plain figures, empty if unknown; see `limits_table`."""
    kind = LimitRow if all(document.by == "shape" for document in documents) else LimitTotal
    names = [field.name for field in fields(kind) if field.name != "product"]
    rows = (
        (Name(document.trace), *field_values(row, names))
        for document in documents
        for row in (document.limits.rows if document.by == "shape" else document.totals)[:top]
    )
    return Table(("trace", *names), tuple(rows))


def _rows(limits: LimitsEntry, top: int | None) -> Table:
    return table_of(_COLUMNS, limits.rows[:top])


def inputs_of(row: LimitRow) -> str:
    """Return the sizes of a call's product, or its shapes, as text."""
    if row.product is not None:
        return row.product.text
    return tensor_shapes(row.input_dims)


def _limited(row: LimitRow) -> str:
    return (
        f"{row.limited_by} ({row.precision})" if row.precision and row.limited_by == "compute" else str(row.limited_by)
    )


def _scaled(rate: float | None, unit: float) -> str:
    return "-" if rate is None else f"{rate / unit:,.1f}"


def _lower(row: LimitRow) -> str:
    if row.lower_precision is None or not row.lower_ideal_ns or not row.ideal_ns:
        return "-"
    return f"{row.lower_precision}: {row.ideal_ns / row.lower_ideal_ns:.1f} x"


_COLUMNS: Final[tuple[Column[LimitRow], ...]] = (
    Column("Operator", lambda row: Name(row.operator or short_name(row.kernel))),
    Column("Inputs", lambda row: Name(inputs_of(row))),
    Column("Calls", lambda row: str(row.calls), numeric=True),
    Column("Call", lambda row: format_ns(row.call_ns), numeric=True),
    Column("Ideal", lambda row: format_ns(row.ideal_ns), numeric=True),
    Column("of limit", _of_limit, numeric=True),
    Column("TFLOP/s", lambda row: _scaled(row.achieved_flop_per_s or None, _TERA), numeric=True, optional=True),
    Column("GB/s at least", lambda row: _scaled(row.achieved_bytes_per_s, _GIGA), numeric=True, optional=True),
    Column("Limited by", lambda row: row.reason or _limited(row)),
    Column("Lost", lambda row: format_ns(row.lost_ns), numeric=True),
    Column("At a lower precision", _lower),
)


def limits_section(document: LimitsDocument, top: int | None) -> Section:
    """Build the section for people; see `limits_table`."""
    return Section((Name(document.trace),), tuple(limits_blocks(document.limits, limits_table(document, top))))


def limits_blocks(limits: LimitsEntry, table: Table | None = None, *, top: int | None = None) -> list[Block]:
    """Build the section's blocks: peaks, modelled share, utilisation, and the calls with their limits.

    Args:
        limits: the limits.
        table: shown instead of the calls; None shows the calls.
        top: the number of calls shown; None for all.
    """
    blocks: list[Block] = [Bullets(tuple(_facts(limits)))]
    if limits.nothing is not None:
        return blocks
    blocks.append(_rows(limits, top) if table is None else table)
    if limits.over_limit:
        names = ", ".join(limits.over_limit[:5])
        blocks.append(Paragraph(("FAIL: faster than the limit, so a model or a peak is wrong: ", Name(names))))
    return blocks


def _rates(peaks: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rate / _TERA:,.1f}" for name, rate in peaks.items())


def _facts(limits: LimitsEntry) -> Iterator[Inline]:
    for peaks in limits.peaks:
        if peaks.origin is None:
            unknown = "): its peaks are not known; opscope gpus --measure measures them."
            yield (f"Device {peaks.device} (", Name(peaks.name), unknown)
            continue
        rate = peaks.memory_bytes_per_s
        memory = "not known" if rate is None else f"{rate / _TERA:.2f} TB/s"
        others = {name: rate for name, rate in peaks.flop_per_s.items() if name not in peaks.measured}
        of_sheet = f" Datasheet: {_rates(others)} TFLOP/s." if peaks.measured and others else ""
        # Measured peaks, with the datasheet's beside them; the datasheet's alone if none were measured.
        named = {name: peaks.flop_per_s[name] for name in peaks.measured} or others
        yield (
            f"Device {peaks.device} (",
            Name(peaks.name),
            f"), peaks ({peaks.origin}): {_rates(named)} TFLOP/s (dense), memory {memory}.{of_sheet}",
        )
    if limits.nothing is not None:
        yield (limits.nothing,)
        return
    whole = limits.device_sum_ns or None
    yield (
        f"Roofline estimates cover {format_share(limits.modelled_ns, whole)} of the device sum of "
        f"{format_ns(limits.device_sum_ns)}; the rest is listed without an estimate.",
    )
    for use in limits.utilisation:
        step = f"the {'unprofiled' if use.unprofiled else 'profiled'} step of {format_ns(use.of_ns)}"
        products, needed = ("-" if share is None else format_share(share, 1) for share in (use.hfu, use.mfu))
        moved = (use.achieved_bytes_per_s or 0.0) / _TERA
        least = f"at least {moved:.2f} TB/s were moved"
        if use.hfu is None:
            yield (f"Device {use.device}: over {step} {least}.",)
            continue
        yield (
            f"Device {use.device}: products use {products} of their peaks over {step} (HFU), {needed} without what the "
            f"backward pass computes again (MFU); {least}.",
        )
