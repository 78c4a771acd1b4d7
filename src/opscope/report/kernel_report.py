"""The report of one profiled configuration, as sections. It shows what `ProfileDocument` holds and computes nothing."""

from collections.abc import Iterator

from opscope.record import Configuration, Environment, Schedule, WorkloadInfo
from opscope.report.blocks import Bullets, Inline, Name, Paragraph, Section, Table
from opscope.report.document import ProfileDocument
from opscope.report.figures import ms, percent
from opscope.report.operator_sections import operator_sections
from opscope.report.overview import overview_section
from opscope.units import format_bytes, format_count

_HOW_TO_READ = (
    "Self time is what an operator's own launches took on the device, or its own code on the CPU. Total time adds the "
    "operators it calls. Self times and unlinked time add up to the device sum; totals do not.",
    "Device sum adds up the durations of all kernels, copies and fills. Busy is the time in which at least one of them "
    "ran. They differ where streams overlap.",
    "Idle is the window minus busy. Every profiled step ends with a synchronise, so the idle time at a step's edges is "
    "part of what is measured.",
    "Launch-bound idle time is time in which the device waited for the host to launch the next kernel. The profiler "
    "slows the host down, so it is larger here than without; the verdict in section 2 uses the unprofiled step time "
    "where there is one.",
    "Wall, event and profiled times are measured differently and are never mixed in one column.",
    "Theoretical occupancy follows from the launch geometry and the device's limits; it was not measured.",
)
_MARKS = {"pass": "pass", "warn": "WARN", "fail": "FAIL"}


def kernel_report(document: ProfileDocument) -> Section:
    """Build the report of one configuration."""
    sections = [
        _configuration(document),
        overview_section(document),
        _categories(document),
        operator_sections(document),
        _trust(document),
        _how_to_read(document),
    ]
    name = document.workload.description if document.workload else document.trace
    which = f" ({document.configuration.id})" if document.configuration else ""
    return Section(
        (f"Kernel analysis: {name}{which}",),
        sections=tuple(
            Section((f"{number}. ", *section.title), section.blocks, section.sections)
            for number, section in enumerate(sections, 1)
        ),
    )


def _configuration(document: ProfileDocument) -> Section:
    title = ("Configuration and environment",)
    settings = tuple(_settings(document))
    if not settings or document.environment is None:
        unknown = Paragraph.of("The trace ", Name(document.trace), " brings no record of its configuration.")
        return Section(title, (unknown,))
    notes = document.workload.notes if document.workload else ()
    return Section(
        title,
        (
            Table(("Setting", "Value"), settings),
            Table(("Environment", "Value"), tuple(_environment(document.environment))),
            *((Bullets(tuple((note,) for note in notes)),) if notes else ()),
        ),
    )


def _settings(document: ProfileDocument) -> Iterator[tuple[str, str]]:
    configuration, options, workload = document.configuration, document.options, document.workload
    if configuration is None or options is None or workload is None:
        return
    yield "Workload", workload.description
    yield "Mode", "what the step does itself" if workload.own_step else configuration.mode
    yield "Data type", "what the step uses itself" if workload.own_step else _dtype(configuration, workload)
    yield from _sizes(configuration)
    yield "Parameters", format_count(workload.parameters)
    yield "Work per step", _work(workload)
    yield "Device asked for", options.device
    yield "torch.compile", "yes" if configuration.compile else "no"
    yield "Profiler schedule", _schedule(options.schedule)
    yield "Collected activities", ", ".join(options.activities)
    yield "Measured at", document.created or "-"


def _schedule(schedule: Schedule | None) -> str:
    if schedule is None:
        return "none: the with block was collected whole"
    return f"wait {schedule.wait}, warmup {schedule.warmup}, active {schedule.active}, repeat {schedule.repeat}"


def _dtype(configuration: Configuration, workload: WorkloadInfo) -> str:
    return workload.dtype or configuration.dtype or "unknown"


def _sizes(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Yield what was asked for; what was left to the workload stands in its description."""
    yield "Batch size", format_count(configuration.batch_size)
    yield "Sequence length", format_count(configuration.seq_len)
    settings = {
        "Image size": configuration.image_size,
        "Hidden size": configuration.hidden_size,
        "Layers": configuration.layers,
        "Attention": configuration.attention,
    }
    for name, value in settings.items():
        if value is not None:
            yield name, str(value)
    if configuration.pretrained is not None:
        yield "Weights", configuration.pretrained or "from the local cache or the hub"


def _work(workload: WorkloadInfo) -> str:
    counts = ((workload.sequences_per_step, workload.unit), (workload.tokens_per_step, "tokens"))
    parts = [f"{format_count(n)} {what}" for n, what in counts if n is not None]
    return ", ".join(parts) or "unknown"


def _environment(environment: Environment) -> Iterator[tuple[str, str]]:
    yield "Device", environment.device
    for gpu in environment.gpus:
        architecture = f"sm_{gpu.compute_capability.replace('.', '')}"
        size = f"{gpu.multiprocessors} multiprocessors, {format_bytes(gpu.memory_bytes)}"
        yield f"GPU {gpu.index}", f"{gpu.name}, {architecture}, {size}"
    yield "CPU", f"{environment.cpu}, {environment.cpu_count} cores, {environment.torch_threads} PyTorch threads"
    yield "PyTorch", f"{environment.torch} (git {environment.torch_git or 'unknown'})"
    versions = {"CUDA": environment.cuda, "cuDNN": environment.cudnn, "driver": environment.driver}
    versions |= {"Triton": environment.triton, "transformers": environment.transformers}
    yield "Libraries", ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "-"
    yield "float32 matrix products", f"precision {environment.float32_matmul_precision}"
    yield "opscope, Python", f"{environment.opscope}, {environment.python}"
    if environment.git_revision:
        yield "Git revision of the working directory", environment.git_revision


def _categories(document: ProfileDocument) -> Section:
    rows = tuple(
        (
            *(c.category, ms(c.self_cuda_time_ms), percent(c.percent_of_device_sum), ms(c.self_cpu_time_ms)),
            *(percent(c.percent_of_cpu_self_sum), format_count(c.calls), format_count(c.kernels_launched)),
        )
        for c in document.category_statistics
    )
    columns = ("Category", "Self device time", "of device sum", "Self CPU time", "of CPU self sum", "Calls", "Kernels")
    return Section(("Time by category",), (Table(columns, rows, frozenset(range(1, 7))),))


def _trust(document: ProfileDocument) -> Section:
    rows = tuple((_MARKS[c.verdict], c.name, c.sentence) for c in document.trust.checks)
    verdict = Paragraph.of(f"Verdict: {_MARKS[document.trust.verdict]}, the worst of the checks.")
    return Section(("Trust checks",), (verdict, Table(("Result", "Check", "What was found"), rows)))


def _how_to_read(document: ProfileDocument) -> Section:
    where: Inline = ("The whole timeline: open ", Name(document.trace), " in ui.perfetto.dev or chrome://tracing.")
    return Section(("How to read this",), (Bullets((*((text,) for text in _HOW_TO_READ), where)),))
