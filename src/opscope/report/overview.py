"""Section 2 of the report: what a step takes, what bounds it, and how the device time adds up."""

from collections.abc import Iterator

from opscope.analysis.statistics import SampleSummary
from opscope.analysis.trust import Verdict
from opscope.record import Clocks
from opscope.report.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.report.document import AccountingEntry, Measurement, ProfileDocument
from opscope.report.figures import ms
from opscope.units import format_bytes, format_count, format_ns, format_share

_PHASE_NAMES = {"forward": "forward, and what is neither backward nor optimizer"}


def overview_section(document: ProfileDocument) -> Section:
    """Build the overview."""
    blocks = (
        *_verdict(document),
        _step_times(document.measurement),
        *_facts(document),
        *_devices(document),
        *_accounting(document),
        *_phases(document),
        *_steps(document),
        *_memory(document),
    )
    return Section(("Overview",), blocks)


def _verdict(document: ProfileDocument) -> Iterator[Block]:
    summary = document.summary
    yield Paragraph.of(f"What bounds the step: {summary.bound.kind}. {summary.bound.sentence}")
    doubts = [c for c in document.trust.checks if c.verdict is Verdict.FAIL]
    if doubts:
        yield Paragraph.of("Do not rely on the figures below before these are cleared up (section 5 has all checks):")
        yield Bullets(tuple((f"{check.name}: {check.sentence}",) for check in doubts))
    if summary.device_times_reason:
        yield Paragraph.of(f"Device times are unknown, not 0: {summary.device_times_reason}.")


def _step_times(measurement: Measurement) -> Table:
    cold = measurement.cold_step_ms
    return Table(
        ("One step", "How it was measured", "Median", "95 % interval of the median", "Min", "Max", "Samples"),
        (
            ("cold", "host clock: the very first step", ms(cold), "-", "-", "-", "-" if cold is None else "1"),
            _step_time("wall", "host clock around step and synchronise, not profiled, warm L2", measurement.wall),
            _step_time("event", "CUDA events around the same steps, warm L2", measurement.event),
            _step_time("profiled", "ProfilerStep ranges of the trace", measurement.profiled_step),
        ),
        frozenset({2, 3, 4, 5, 6}),
    )


def _step_time(name: str, how: str, summary: SampleSummary | None) -> tuple[str, ...]:
    if summary is None:
        return (name, how, "-", "-", "-", "-", "-")
    interval = "-"
    if summary.median_low_ns is not None:
        interval = f"{format_ns(summary.median_low_ns)} to {format_ns(summary.median_high_ns)}"
    ends = (format_ns(summary.min_ns), format_ns(summary.max_ns))
    return (name, how, format_ns(summary.median_ns), interval, *ends, str(summary.count))


def _facts(document: ProfileDocument) -> Iterator[Block]:
    facts = tuple((text,) for text in _fact_texts(document))
    if facts:
        yield Bullets(facts)


def _fact_texts(document: ProfileDocument) -> Iterator[str]:
    measurement, summary = document.measurement, document.summary
    if measurement.profiler_overhead_percent is not None:
        yield f"The profiled step took {measurement.profiler_overhead_percent:+.1f} % against the unprofiled one."
    if measurement.benchmark_reason:
        yield f"No unprofiled step times: {measurement.benchmark_reason}."
    if measurement.sequences_per_second is not None:
        tokens = measurement.tokens_per_second
        more = f", {format_count(tokens)} tokens/s" if tokens is not None else ""
        unit = document.workload.unit if document.workload else "sequences"
        yield f"Throughput, from wall: {format_count(measurement.sequences_per_second)} {unit}/s{more}."
    if measurement.clocks:
        yield _clocks(measurement.clocks)
    elif document.devices and measurement.clocks_reason:
        yield f"GPU clocks unknown: {measurement.clocks_reason}."
    over = f"over {summary.steps} profiled steps" if summary.steps else "in the recording"
    yield (
        f"CPU: operators took {ms(summary.total_cpu_self_time_ms)} of self time {over} "
        f"(recorded threads, profiling included). Window: {ms(summary.window_ms)} ({summary.window})."
    )


def _clocks(clocks: Clocks) -> str:
    limits = f"limited by {', '.join(clocks.limited_by)}" if clocks.limited_by else "not limited"
    return (
        f"GPU clocks during the unprofiled steps: {clocks.sm_mhz_min} to {clocks.sm_mhz_max} MHz "
        f"(median {clocks.sm_mhz_median}, highest offered {clocks.sm_mhz_limit}) in {clocks.samples} samples, {limits}."
    )


def _devices(document: ProfileDocument) -> Iterator[Block]:
    if not document.devices:
        return
    columns = ("Device", "Device sum", "Busy", "Outside window", "Window", "Idle", "Busy of window")
    rows = tuple(
        (
            *(f"{d.device} ({d.name})", ms(d.sum_ms), ms(d.busy_ms), ms(d.outside_window_ms)),
            *(f"{ms(d.window_ms)} ({d.window})", ms(d.idle_ms), format_share(d.window_ms - d.idle_ms, d.window_ms)),
            *(ms(d.exposed_communication_ms), ms(d.exposed_memcpy_ms)),
        )
        for d in document.devices
    )
    yield Table((*columns, "Exposed communication", "Exposed memcpy"), rows, frozenset(range(1, 9)))
    for device in document.devices:
        causes = sorted(device.idle_by_cause_ms.items(), key=lambda item: -item[1])
        parts = (f"{cause} {ms(value)} ({format_share(value, device.idle_ms)})" for cause, value in causes)
        if causes:
            yield Paragraph.of(f"Idle time of device {device.device} by cause: {', '.join(parts)}.")


def _accounting(document: ProfileDocument) -> Iterator[Block]:
    if document.summary.total_cuda_time_ms is not None:
        yield Paragraph.of(_identity(document.accounting))


def _identity(accounting: AccountingEntry) -> str:
    sign = "=" if accounting.holds else "IS NOT"
    return (
        f"Accounting: operators {accounting.operators_self_ms:,.6f} ms + unlinked {accounting.unlinked_ms:,.6f} ms "
        f"({accounting.unlinked_activities} activities) {sign} device sum {accounting.device_sum_ms:,.6f} ms."
    )


def _phases(document: ProfileDocument) -> Iterator[Block]:
    if not document.phases_ms:
        return
    whole = document.summary.total_cuda_time_ms
    rows = tuple(
        (_PHASE_NAMES.get(phase, phase), ms(value), format_share(value, whole))
        for phase, value in document.phases_ms.items()
    )
    yield Table(("Phase", "Device sum", "of device sum"), rows, frozenset({1, 2}))


def _steps(document: ProfileDocument) -> Iterator[Block]:
    if not document.steps:
        return
    columns = ("Step", "Device", "Span", "Activities", "Device sum", "Busy", "Idle", "of it launch-bound", "Cold")
    rows = tuple(
        (
            *(str(s.step), "-" if s.device is None else str(s.device), ms(s.span_ms), str(s.activities)),
            *(ms(s.device_sum_ms), ms(s.busy_ms), ms(s.idle_ms), ms(s.launch_bound_ms), "yes" if s.cold else "no"),
        )
        for s in document.steps
    )
    yield Table(columns, rows, frozenset(range(8)))


def _memory(document: ProfileDocument) -> Iterator[Block]:
    peak = document.measurement.memory
    if peak is not None:
        parts: Inline = (f"Peak memory: {format_bytes(peak.resident_bytes)} resident in the process",)
        if peak.allocated_bytes is not None:
            parts += (f", {format_bytes(peak.allocated_bytes)} allocated by tensors on the device",)
            parts += (f" (allocator: {format_bytes(peak.reserved_bytes)})",)
        yield Paragraph.of(*parts, ".")
    for use in document.memory:
        where = "host" if use.device is None else f"device {use.device}"
        total = f"{format_count(use.allocations)}, {format_bytes(use.allocated_bytes)} in all"
        most = f"at most {format_bytes(use.peak_allocated_bytes)} at a time"
        yield Paragraph.of(f"Recorded allocations on the {where}: {total}, {most}. The operators that allocated most:")
        rows = tuple((Name(name), format_bytes(size)) for name, size in use.top_operators.items())
        yield Table(("Operator", "Allocated"), rows, frozenset({1}))
