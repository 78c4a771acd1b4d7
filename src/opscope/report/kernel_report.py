"""Builds the report of one configuration as sections. It shows what `TraceDocument` holds and computes nothing.

The operators that cost most have a section each.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from opscope.analysis.analyzed import Accounting
from opscope.base.parts import Losses
from opscope.base.units import format_bytes, format_count, format_ns, format_share, input_shapes, percentage
from opscope.documents.trace import (
    CaptureEntry,
    CategoryRow,
    KernelRow,
    OperatorDetail,
    OperatorRow,
    ShapeRow,
    TraceDocument,
)
from opscope.documents.verdict import Check, Verdict
from opscope.lookup.operator_source import source_facts
from opscope.record.capture import WorkloadInfo
from opscope.record.configuration import SETTINGS, Configuration, Schedule, heading_of
from opscope.record.machine import Framework, Machine
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, table_of
from opscope.report.compiled_document import compile_section
from opscope.report.explain_sections import statement_blocks
from opscope.report.limits_document import limits_blocks
from opscope.report.memory_document import memory_section
from opscope.report.overview import overview_section
from opscope.report.step_parts import of_trust, or_reason

_HOW_TO_READ = (
    "Self time is what an operator's own launches took on the device, or its own code on the CPU. Total time adds the "
    "operators it calls. Self times and unlinked time add up to the device sum; totals do not.",
    "Device sum adds up the durations of all kernels, copies and fills. Busy is the time in which at least one of them "
    "ran. They differ where streams overlap.",
    "Idle is the window minus busy. Every profiled step ends with a synchronise, so the idle time at a step's edges is "
    "part of what is measured.",
    "Launch-bound idle time is time in which the device waited for the host to launch the next kernel. The profiler "
    "slows the host down, so it is larger here than without; the verdict in the overview uses the unprofiled step time "
    "where there is one.",
    "Wall, event and profiled times are measured differently and are never mixed in one column.",
    "Theoretical occupancy follows from the launch geometry and the device's limits; it was not measured.",
)
_ALIVE = 15  # rows of what was alive at the peak
_LIMITS = 10  # calls with their limits
_MARKS = {"pass": "pass", "warn": "WARN", "fail": "FAIL"}
_TOP = 10
_SHAPES_SHOWN = 5
_KERNELS_SHOWN = 5
_CALLERS_SHOWN = 3


def operator_sections(document: TraceDocument) -> Section:
    """Build the section on the ten most expensive operators; `kernel_report` numbers the parts of each section."""
    by = "self device time" if document.has_device_times else "self CPU time, since no device time was measured"
    top = [row for row in document.operators[:_TOP] if row.detail is not None]
    return Section(
        (f"Top {len(top)} operators",),
        (Paragraph.of(f"By {by}. Self times may be added up; total times include nested operators and may not."),),
        tuple(
            Section((row.name,), tuple(_operator(row, row.detail, document))) for row in top if row.detail is not None
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
        Column("Theoretical occupancy", lambda kernel: percentage(kernel.theoretical_occupancy_percent), numeric=True),
    )
    return table_of(columns, kernels)


def _source(kernel: KernelRow) -> str:
    if kernel.source_file:
        return Name(f"{kernel.source_file.rpartition('/')[2]} ({kernel.source_how})")
    return f"{kernel.library} (library)" if kernel.library else "-"


def kernel_report(document: TraceDocument, losses: Losses | None = None) -> Section:
    """Build the report of one configuration.

    Args:
        document: what it shows.
        losses: notes the sections that fail; each is left out with its reason.
    """
    losses = losses or Losses()
    parts: tuple[tuple[str, Callable[[TraceDocument], Iterable[Section]]], ...] = (
        ("Configuration and environment", lambda document: (environment_section(document),)),
        ("Overview", lambda document: (overview_section(document, losses),)),
        ("Time by category", lambda document: (_categories(document),)),
        ("Operators", lambda document: (operator_sections(document),)),
        ("How far from the devices' limits", _limits),
        ("Memory", _memory),
        ("What torch.compile did", _compiled),
        ("Trust checks", lambda document: (_trust(document),)),
        ("How to read this", lambda document: (_how_to_read(document),)),
    )
    sections = [section for title, make in parts for section in _sections(title, partial(make, document), losses)]
    capture = document.capture
    name = capture.workload.description if capture else document.name
    which = f" ({capture.configuration.id})" if capture else ""
    return Section(
        (f"Kernel analysis: {name}{which}",),
        sections=tuple(
            Section((f"{number}. ", *section.title), section.blocks, tuple(_numbered(section.sections, number)))
            for number, section in enumerate(sections, 1)
        ),
    )


def _numbered(parts: Sequence[Section], number: int) -> Iterator[Section]:
    for place, part in enumerate(parts, 1):
        yield Section((f"{number}.{place} ", *part.title), part.blocks, part.sections)


def _sections(title: str, make: Callable[[], Iterable[Section]], losses: Losses) -> tuple[Section, ...]:
    return or_reason(losses, title, make, lambda reason: Section((title,), (Paragraph.of(reason),)))


def environment_section(document: TraceDocument) -> Section:
    """Build the section of what was run, where, and with what."""
    title, capture = ("Configuration and environment",), document.capture
    if capture is None:
        unknown = Paragraph.of("The trace ", Name(document.name), " brings no record of its configuration.")
        return Section(title, (unknown,))
    notes = (*capture.workload.notes, *((capture.steady_state,) if capture.steady_state else ()))
    return Section(
        title,
        (
            Table(("Setting", "Value"), tuple(_settings(capture))),
            Table(("Environment", "Value"), tuple(_environment(capture))),
            *((Bullets(tuple((note,) for note in notes)),) if notes else ()),
        ),
    )


def environment_on_page(document: TraceDocument) -> Section:
    """Build the same for the page, where nothing else says what the file is: that stands first."""
    source = document.source
    rows = [
        ("Trace", Name(source.path)),
        ("Format", f"{source.format}, {format_bytes(source.size_bytes)}, {source.event_count:,} events"),
        ("Steps", f"{document.step_count:,}" if document.step_count else "none marked"),
        *((f"Device {device.device}", Name(device.name)) for device in document.devices),
        *((("Clocks", clocks),) if (clocks := _clocks(document)) else ()),
        *(("Not recorded", Name(line)) for line in source.not_recorded),
    ]
    section = environment_section(document)
    blocks = () if document.capture is None else section.blocks
    return replace(section, blocks=(Table(("Recording", "Value"), tuple(rows)), *blocks))


def _clocks(document: TraceDocument) -> str | None:
    clocks = document.measurement.clocks
    if clocks is None:
        return document.measurement.clocks_reason
    limits = f", limited by {', '.join(clocks.limited_by)}" if clocks.limited_by else ""
    between = f"{clocks.sm_mhz_min} to {clocks.sm_mhz_max}"
    return f"{clocks.sm_mhz_median} MHz ({between}), memory {clocks.memory_mhz} MHz{limits}"


def _settings(capture: CaptureEntry) -> Iterator[tuple[str, str]]:
    configuration, options, workload = capture.configuration, capture.options, capture.workload
    yield "Workload", workload.description
    yield "Mode", "what the step does itself" if workload.own_step else configuration.mode
    yield "Data type", "what the step uses itself" if workload.own_step else _dtype(configuration, workload)
    yield from _sizes(configuration)
    yield "Parameters", format_count(workload.parameters)
    yield "Work per step", _work(workload)
    yield "Device asked for", options.device
    yield "torch.compile", "yes" if configuration.compiled else "no"
    yield "Profiler schedule", _schedule(options.schedule)
    yield "Collected activities", ", ".join(options.activities)
    yield "Measured at", capture.created


def _schedule(schedule: Schedule | None) -> str:
    if schedule is None:
        return "none: the with block was collected whole"
    return f"wait {schedule.wait}, warmup {schedule.warmup}, active {schedule.active}, repeat {schedule.repeat}"


def _dtype(configuration: Configuration, workload: WorkloadInfo) -> str:
    return workload.dtype or configuration.dtype or "unknown"


def _sizes(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Yield the requested settings; values that the workload chose are in its description."""
    for name, setting in SETTINGS.items():
        if setting.is_size:
            yield setting.heading, format_count(configuration.count(name))
    shown_apart = {"mode", "dtype", "compile", "simplified"}
    for name, value in configuration.items():
        if name in shown_apart or (name in SETTINGS and SETTINGS[name].is_size):
            continue
        yield heading_of(name), str(value) or ("from the local cache or the hub" if name == "pretrained" else "none")


def _work(workload: WorkloadInfo) -> str:
    counts = ((workload.sequences_per_step, workload.unit), (workload.tokens_per_step, "tokens"))
    parts = [f"{format_count(n)} {what}" for n, what in counts if n is not None]
    return ", ".join(parts) or "unknown"


def _environment(capture: CaptureEntry) -> Iterator[tuple[str, str]]:
    machine, framework = capture.machine, capture.framework
    if framework is not None:
        yield "Device", framework.device
    for gpu in machine.gpus:
        architecture = f"sm_{gpu.compute_capability.replace('.', '')}"
        size = f"{gpu.multiprocessors} multiprocessors, {format_bytes(gpu.memory_bytes)}"
        yield f"GPU {gpu.index}", f"{gpu.name}, {architecture}, {size}"
    threads = f", {framework.torch_threads} PyTorch threads" if framework else ""
    yield "CPU", f"{machine.cpu}, {machine.cpu_count} cores{threads}"
    if framework is not None:
        yield from _framework(framework, machine)
    if capture.rank is not None:
        yield "Rank", f"{capture.rank.number} of {capture.rank.world_size}"
    yield "opscope, Python", f"{capture.opscope}, {framework.python if framework else '-'}"
    if capture.git_revision:
        yield "Git revision of the working directory", capture.git_revision


def _framework(framework: Framework, machine: Machine) -> Iterator[tuple[str, str]]:
    yield "PyTorch", f"{framework.torch} (git {framework.torch_git or 'unknown'})"
    versions = {"CUDA": framework.cuda, "cuDNN": framework.cudnn, "driver": machine.driver}
    versions |= {"Triton": framework.triton, "transformers": framework.transformers}
    yield "Libraries", ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "-"
    yield "float32 matrix products", f"precision {framework.float32_matmul_precision}"


def _categories(document: TraceDocument) -> Section:
    columns: tuple[Column[CategoryRow], ...] = (
        Column("Category", lambda row: row.category),
        Column(
            "Self device time",
            lambda row: format_ns(row.self_device_ns) if document.has_device_times else "-",
            numeric=True,
        ),
        Column("of device sum", lambda row: format_share(row.self_device_ns, document.device_sum_ns), numeric=True),
        Column("Self CPU time", lambda row: format_ns(row.self_cpu_ns), numeric=True),
        Column("of CPU self sum", lambda row: format_share(row.self_cpu_ns, document.cpu_self_ns), numeric=True),
        Column("Calls", lambda row: format_count(row.calls), numeric=True),
        Column("Kernels", lambda row: format_count(row.activities), numeric=True),
    )
    return Section(("Time by category",), (table_of(columns, document.categories),))


def _limits(document: TraceDocument) -> Iterator[Section]:
    if document.limits is not None:
        yield Section(("How far from the devices' limits",), tuple(limits_blocks(document.limits, top=_LIMITS)))


def _memory(document: TraceDocument) -> Iterator[Section]:
    if document.device_memory is not None:
        yield replace(memory_section(document.device_memory, _ALIVE), title=("Memory",))


def _compiled(document: TraceDocument) -> Iterator[Section]:
    if document.compile is not None:
        yield compile_section(document.compile)


def _trust(document: TraceDocument) -> Section:
    verdict = Paragraph.of(f"Verdict: {_MARKS[document.trust.verdict]}, the worst of the checks.")
    return Section(("Trust checks",), (verdict, _check_table(document.trust.checks)))


def trust_on_page(document: TraceDocument, accounting: Accounting) -> Section:
    """Build the same for the page: checks in doubt first, and all of them in a section of their own."""
    checks = document.trust.checks
    doubts = tuple(check for check in checks if check.verdict is not Verdict.PASS)
    how_many = f"{len(doubts)}" if doubts else "none"
    verb = "is" if len(doubts) < 2 else "are"
    verdict = f"{document.trust.verdict.upper()}: {how_many} of {len(checks)} checks {verb} in doubt."
    blocks = (
        Paragraph.of(of_trust(verdict, document.trust.verdict)),
        *((_check_table(doubts),) if doubts else ()),
        *((Paragraph.of(f"{accounting.sentence}."),) if document.has_device_times else ()),
    )
    return Section(("Can it be trusted?",), blocks, (Section(("All checks",), (_check_table(checks),)),))


def _check_table(checks: Iterable[Check]) -> Table:
    rows = tuple((of_trust(_MARKS[one.verdict], one.verdict), one.name, one.sentence) for one in checks)
    return Table(("Result", "Check", "What was found"), rows)


def _how_to_read(document: TraceDocument) -> Section:
    where: Inline = (
        "The whole timeline: open ",
        Name(document.name if document.trace is None else document.trace),
        " in ui.perfetto.dev or chrome://tracing.",
    )
    return Section(("How to read this",), (Bullets((*((text,) for text in _HOW_TO_READ), where)),))
