"""Section 4 of the report: the most expensive operators, one by one."""

import json
from collections.abc import Iterator

from opscope.report.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.report.document import KernelEntry, OperatorEntry, ProfileDocument, ShapeEntry
from opscope.report.figures import ms, percent, us
from opscope.report.findings import findings_blocks
from opscope.report.source import source_facts
from opscope.units import format_bytes, format_count

_TOP = 10
_SHAPES_SHOWN = 5
_KERNELS_SHOWN = 5
_CALLERS_SHOWN = 3


def operator_sections(document: ProfileDocument) -> Section:
    """Build the section on the ten most expensive operators."""
    measured = document.summary.total_cuda_time_ms is not None
    by = "self device time" if measured else "self CPU time, since no device time was measured"
    top = document.operators[:_TOP]
    return Section(
        (f"Top {len(top)} operators",),
        (Paragraph.of(f"By {by}. Self times may be added up; total times include nested operators and may not."),),
        tuple(
            Section((f"4.{number} ", operator.name), tuple(_operator(operator)))
            for number, operator in enumerate(top, 1)
        ),
    )


def _operator(operator: OperatorEntry) -> Iterator[Block]:
    yield Bullets(tuple(_facts(operator)))
    if operator.findings:
        yield from findings_blocks(operator.findings)
    yield _shape_table(operator.shapes[:_SHAPES_SHOWN])
    if operator.kernels:
        yield _kernel_table(operator.kernels[:_KERNELS_SHOWN])
    hidden = operator.kernel_count - _KERNELS_SHOWN
    if hidden > 0:
        yield Paragraph.of(f"{hidden} further kernels or launch geometries are in the statistics file.")


def _facts(operator: OperatorEntry) -> Iterator[Inline]:
    yield (f"Category: {operator.category} ({operator.category_rule})",)
    yield (f"Calls: {format_count(operator.calls)}; kernels launched: {format_count(operator.kernels_launched)}",)
    if operator.self_cuda_time_ms is not None:
        share = f"{percent(operator.percent_of_device_sum)} of the device sum"
        yield (
            f"Device time: self {ms(operator.self_cuda_time_ms)} ({share}), total {ms(operator.cuda_time_total_ms)}",
        )
    share = f"{percent(operator.percent_of_cpu_self_sum)} of the operators' CPU self time"
    yield (f"CPU time: self {ms(operator.self_cpu_time_ms)} ({share}), total {ms(operator.cpu_time_total_ms)}",)
    yield from _native_function(operator)
    yield from source_facts(operator.source)
    for caller in (operator.called_from or ())[:_CALLERS_SHOWN]:
        device = "" if caller.self_cuda_time_ms is None else f", {ms(caller.self_cuda_time_ms)} on the device"
        yield ("Called from ", Name(caller.place), f" ({format_count(caller.calls)} calls{device})")


def _native_function(operator: OperatorEntry) -> Iterator[Inline]:
    detail = operator.native_function_detail
    if operator.native_function is None:
        yield (f"Native function: unknown ({detail.how})",)
        return
    where = f" (native_functions.yaml line {detail.yaml_line}, PyTorch {detail.torch_version})"
    function: Inline = (", for this device ", Name(detail.cpp_function)) if detail.cpp_function else ()
    key = f" under {detail.dispatch_key}" if detail.dispatch_key else ""
    yield ("Native function: ", Name(operator.native_function), where, *function, f"{key}; known from: {detail.how}")
    if detail.other_overloads:
        yield (f"Other overloads used, for less time: {', '.join(detail.other_overloads)}",)


def _shape_table(shapes: tuple[ShapeEntry, ...]) -> Table:
    rows = tuple(
        (
            *(Name(_dims(shape)), Name(_types(shape)), format_count(shape.calls)),
            *(ms(shape.self_cuda_time_ms), ms(shape.self_cpu_time_ms)),
        )
        for shape in shapes
    )
    return Table(("Input shapes", "Types", "Calls", "Self device time", "Self CPU time"), rows, frozenset({2, 3, 4}))


def _dims(shape: ShapeEntry) -> str:
    if shape.input_dims is None:
        return "not recorded"
    return ", ".join(str(dims) for dims in json.loads(shape.input_dims) if dims) or "scalars"


def _types(shape: ShapeEntry) -> str:
    if shape.input_types is None:
        return "not recorded"
    kinds = [kind for kind in json.loads(shape.input_types) if kind and not kind.startswith("Scalar")]
    return ", ".join(dict.fromkeys(kinds)) or "-"


def _kernel_table(kernels: tuple[KernelEntry, ...]) -> Table:
    columns = ("Kernel", "What it is", "Source", "Calls", "Total", "Mean", "Grid", "Block", "Registers")
    rows = tuple(
        (
            *(Name(k.name), Name(k.summary or "-"), _source(k), format_count(k.calls), ms(k.total_ms), us(k.mean_us)),
            *(k.grid or "-", k.block or "-"),
            *(format_count(k.registers_per_thread), format_bytes(k.shared_memory_bytes)),
            percent(k.theoretical_occupancy_percent),
        )
        for k in kernels
    )
    return Table((*columns, "Shared memory", "Theoretical occupancy"), rows, frozenset({3, 4, 5, 8, 9, 10}))


def _source(kernel: KernelEntry) -> str:
    if kernel.source_file:
        return Name(f"{kernel.source_file.rpartition('/')[2]} ({kernel.source_how})")
    return f"{kernel.library} (library)" if kernel.library else "-"
