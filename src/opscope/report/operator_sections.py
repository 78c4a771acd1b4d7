"""Builds section 4 of the report: the most expensive operators, one by one."""

import json
from collections.abc import Iterator

from opscope.base.shapes import input_shapes
from opscope.base.units import format_bytes, format_count, format_ns, format_share
from opscope.documents.trace import KernelRow, OperatorDetail, OperatorRow, ShapeRow, TraceDocument
from opscope.lookup.source_links import source_facts
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.figures import percent
from opscope.render.table_columns import Column, table_of
from opscope.report.statement_sections import statement_blocks

_TOP = 10
_SHAPES_SHOWN = 5
_KERNELS_SHOWN = 5
_CALLERS_SHOWN = 3


def operator_sections(document: TraceDocument) -> Section:
    """Build the section on the ten most expensive operators."""
    by = "self device time" if document.has_device_times else "self CPU time, since no device time was measured"
    top = [row for row in document.operators[:_TOP] if row.detail is not None]
    return Section(
        (f"Top {len(top)} operators",),
        (Paragraph.of(f"By {by}. Self times may be added up; total times include nested operators and may not."),),
        tuple(
            Section((f"4.{number} ", row.name), tuple(_operator(row, row.detail, document)))
            for number, row in enumerate(top, 1)
            if row.detail is not None
        ),
    )


def _operator(row: OperatorRow, detail: OperatorDetail, document: TraceDocument) -> Iterator[Block]:
    yield Bullets(tuple(_facts(row, detail, document)))
    if detail.findings:
        yield from statement_blocks(detail.findings)
    yield _shape_table(detail.shapes[:_SHAPES_SHOWN], document)
    if detail.kernels:
        yield _kernel_table(detail.kernels[:_KERNELS_SHOWN])
    hidden = detail.kernel_count - _KERNELS_SHOWN
    if hidden > 0:
        yield Paragraph.of(f"{hidden} further kernels or launch geometries are in the statistics file.")


def _facts(row: OperatorRow, detail: OperatorDetail, document: TraceDocument) -> Iterator[Inline]:
    yield (f"Category: {row.category} ({detail.category_rule})",)
    yield (f"Calls: {format_count(row.calls)}; kernels launched: {format_count(row.activities)}",)
    if document.has_device_times:
        share = f"{format_share(row.self_device_ns, document.device_sum_ns)} of the device sum"
        yield (f"Device time: self {format_ns(row.self_device_ns)} ({share}), total {format_ns(row.total_device_ns)}",)
    share = f"{format_share(row.self_cpu_ns, document.cpu_self_ns)} of the operators' CPU self time"
    yield (f"CPU time: self {format_ns(row.self_cpu_ns)} ({share}), total {format_ns(row.total_cpu_ns)}",)
    yield from _native_function(row, detail)
    yield from source_facts(detail.source)
    for caller in (detail.called_from or ())[:_CALLERS_SHOWN]:
        device = f", {format_ns(caller.self_device_ns)} on the device" if document.has_device_times else ""
        yield ("Called from ", Name(caller.place), f" ({format_count(caller.calls)} calls{device})")


def _native_function(row: OperatorRow, operator: OperatorDetail) -> Iterator[Inline]:
    detail = operator.native_function
    if row.native_function is None:
        yield (f"Native function: unknown ({detail.how})",)
        return
    where = f" (native_functions.yaml line {detail.yaml_line}, PyTorch {detail.torch_version})"
    function: Inline = (", for this device ", Name(detail.cpp_function)) if detail.cpp_function else ()
    key = f" under {detail.dispatch_key}" if detail.dispatch_key else ""
    yield ("Native function: ", Name(row.native_function), where, *function, f"{key}; known from: {detail.how}")
    if detail.other_overloads:
        yield (f"Other overloads used, for less time: {', '.join(detail.other_overloads)}",)


def _shape_table(shapes: tuple[ShapeRow, ...], document: TraceDocument) -> Table:
    columns: tuple[Column[ShapeRow], ...] = (
        Column("Input shapes", lambda shape: Name(input_shapes(shape.input_dims))),
        Column("Types", lambda shape: Name(_types(shape))),
        Column("Calls", lambda shape: format_count(shape.calls), numeric=True),
        Column(
            "Self device time",
            lambda shape: format_ns(shape.self_device_ns) if document.has_device_times else "-",
            numeric=True,
        ),
        Column("Self CPU time", lambda shape: format_ns(shape.self_cpu_ns), numeric=True),
    )
    return table_of(columns, shapes)


def _types(shape: ShapeRow) -> str:
    if shape.input_types is None:
        return "not recorded"
    # Inputs without a type and scalars are left out: the column is about tensors.
    kinds = [kind for kind in json.loads(shape.input_types) if kind and not kind.startswith("Scalar")]
    return ", ".join(dict.fromkeys(kinds)) or "-"


def _kernel_table(kernels: tuple[KernelRow, ...]) -> Table:
    columns: tuple[Column[KernelRow], ...] = (
        Column("Kernel", lambda kernel: Name(kernel.name)),
        Column("What it is", lambda kernel: Name(kernel.summary or "-")),
        Column("Source", _source),
        Column("Calls", lambda kernel: format_count(kernel.calls), numeric=True),
        Column("Total", lambda kernel: format_ns(kernel.total_ns), numeric=True),
        Column("Mean", lambda kernel: format_ns(kernel.mean_ns), numeric=True),
        Column("Grid", lambda kernel: kernel.grid or "-"),
        Column("Block", lambda kernel: kernel.block or "-"),
        Column("Registers", lambda kernel: format_count(kernel.registers_per_thread), numeric=True),
        Column("Shared memory", lambda kernel: format_bytes(kernel.shared_memory_bytes), numeric=True),
        Column("Theoretical occupancy", lambda kernel: percent(kernel.theoretical_occupancy_percent), numeric=True),
    )
    return table_of(columns, kernels)


def _source(kernel: KernelRow) -> str:
    if kernel.source_file:
        return Name(f"{kernel.source_file.rpartition('/')[2]} ({kernel.source_how})")
    return f"{kernel.library} (library)" if kernel.library else "-"
