"""Builds section 2 of the report: what a step takes, what bounds it, and how the device time adds up.

The longest idle gap of a device is also written as a sentence, for people who read only the first lines.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from opscope.analysis.analyzed import Accounting
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.parts import Losses
from opscope.base.units import format_bytes, format_count, format_ns, format_share
from opscope.documents.findings import StepFigure
from opscope.documents.page import FigureEntry
from opscope.documents.trace import (
    CounterEntry,
    DeviceEntry,
    GapRow,
    Measurement,
    OperatorRow,
    SampleSummary,
    Step,
    StepTime,
    TraceDocument,
)
from opscope.documents.verdict import Actor, IdleCause, Verdict
from opscope.record.capture import Clocks, OwnClock
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, table_of
from opscope.report.brief import findings_section, screen_blocks
from opscope.report.step_parts import or_reason, step_line

_PHASE_NAMES = {"forward": "forward, and what is neither backward nor optimizer"}
_COSTLIEST: Final = 3  # operators and device work
_NO_OPERATOR: Final = "no operator was recorded"
_REPLAY: Final = "in a replayed CUDA graph"
_WORTH_TELLING: Final = 0.01  # of the window
_STACKS: Final = "the line of Python was not recorded: record stacks (with_stack=True, opscope profile --with-stack)"

# Causes for which the host sits in a call.
_IN_CALLS: Final = tuple(cause for cause in IdleCause if cause.waits_for is Actor.CALL)
_ON_HOST: Final = tuple(cause for cause in IdleCause if cause.waits_for in (Actor.CALL, Actor.HOST))


def longest_gap(
    gaps: Sequence[GapRow], windows_ns: Mapping[int, int], *, with_names: bool, may_have_stacks: bool
) -> Inline | None:
    """Return a sentence on the longest gap and its cause; None if all gaps are too short to matter.

    Args:
        gaps: the longest first.
        windows_ns: length of each device's window by device number, in the pass that the gaps are from.
        with_names: whether the gaps are from the pass with names while the figures around them are from a light pass.
        may_have_stacks: whether the profiler could have recorded lines of Python.
    """
    own = ((gap, windows_ns.get(NO_DEVICE if gap.device is None else gap.device, 0)) for gap in gaps)
    result = next(((gap, window) for gap, window in own if gap.duration_ns >= _WORTH_TELLING * window), None)
    if result is None:
        return None
    gap, window_ns = result
    device = "" if gap.device is None else f" of device {gap.device}"
    step = "" if gap.step is None else f" in step {gap.step}"
    time, share = format_ns(gap.duration_ns), format_share(gap.duration_ns, window_ns)
    mostly = f"{format_ns(gap.causes[gap.cause])} of it {gap.cause}"
    window = f"the {format_ns(window_ns)} of the pass with names" if with_names else "the window"
    sentence = f"Longest gap{device}: {time} ({share} of {window}){step}, {gap.position}; {mostly}"
    return (sentence, *_where(gap, may_have_stacks=may_have_stacks), ".")


def _where(gap: GapRow, *, may_have_stacks: bool) -> Iterator[str]:
    """Yield in which call and where in the program the host was, as far as it was recorded."""
    if gap.call and gap.cause in _IN_CALLS:
        yield from (" (", Name(gap.call), ")")
    if gap.cause == IdleCause.DEPENDENCY:
        if gap.stream is not None:
            yield f", on stream {gap.stream}"
        if gap.waited_for is not None:
            yield from (", for ", Name(gap.waited_for))
    if gap.cause not in _ON_HOST:
        return
    for place in filter(None, (gap.operator, gap.annotation, gap.module, gap.python)):
        yield from (", in ", Name(place))
    if may_have_stacks and gap.cause in (*_IN_CALLS, IdleCause.HOST_WORK, IdleCause.INPUT) and gap.python is None:
        yield f"; {_STACKS}"


def overview_section(document: TraceDocument, losses: Losses) -> Section:
    """Build the overview of a trace.

    Args:
        document: what it shows.
        losses: notes the parts that fail; each is left out with its reason.
    """
    parts: tuple[tuple[str, Callable[[TraceDocument], Iterable[Block]]], ...] = (
        ("what bounds the step", _verdict),
        ("times of a step", lambda document: (_step_times(document.measurement),)),
        ("facts", _facts),
        ("devices", _devices),
        ("the accounting", _accounting),
        ("phases", phase_blocks),
        ("steps", _steps),
        ("memory", _memory),
    )
    blocks = tuple(
        block for name, make in parts for block in or_reason(losses, name, partial(make, document), Paragraph.of)
    )
    further = (
        (findings_section(document.findings, document.findings_reason, document.together),)
        if document.has_device_times or document.findings
        else ()
    )
    return Section(("Overview",), blocks, further)


def _verdict(document: TraceDocument) -> Iterator[Block]:
    if document.first_screen is not None:
        warned = tuple(line for line in document.first_screen.failed if not line.startswith("FAIL"))
        yield from screen_blocks(replace(document.first_screen, failed=warned))  # those that fail are named below
    if document.bound.evidence:
        yield Paragraph.of(f"How that is known: {document.bound.evidence}")
    doubts = [c for c in document.trust.checks if c.verdict is Verdict.FAIL]
    if doubts:
        yield Paragraph.of(
            "Do not rely on the figures below before these are cleared up (the section of trust checks has all):"
        )
        yield Bullets(tuple((f"{check.name}: {check.sentence}",) for check in doubts))
    if document.device_times_reason:
        yield Paragraph.of(f"Device times are unknown, not 0: {document.device_times_reason}.")


def _step_times(measurement: Measurement) -> Table:
    cold = measurement.cold_step_ns
    ends = "around step and synchronise" if measurement.synchronised else "from one step to the next"
    clock = f"host clock {ends}, not profiled, warm L2"
    if measurement.between_marks:
        clock = "marks on the device from one step to the next, not profiled, warm L2"
    return Table(
        ("One step", "How it was measured", "Median", "95 % interval of the median", "Min", "Max", "Samples"),
        (
            ("cold", "host clock: the very first step", format_ns(cold), "-", "-", "-", "-" if cold is None else "1"),
            _step_time("wall", clock, measurement.wall),
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


def _facts(document: TraceDocument) -> Iterator[Block]:
    facts = tuple((text,) for text in _fact_texts(document))
    if facts:
        yield Bullets(facts)


def figures_on_page(document: TraceDocument, device_sum_ns: int, cpu_self_ns: int) -> Iterator[FigureEntry]:
    """Yield the figures that the page shows large: of the step, of the device's work, throughput, memory, MFU.

    Args:
        document: of the trace; its tables may be cut short.
        device_sum_ns: sum of the durations of all activities.
        cpu_self_ns: self time of all operators on the host.
    """
    measurement, step = document.measurement, document.step_time
    if step is None:
        yield FigureEntry(label="step", value=None, unit="ns", about=measurement.benchmark_reason)
    else:
        yield FigureEntry(label=step.basis, value=step.ns, unit="ns", about=_about_step(step))
    profiled = measurement.profiled_step
    if measurement.step is not None and profiled is not None:
        with_names = document.light is not None and document.light.agrees
        label = "profiled step, with names" if with_names else "profiled step"
        percent = measurement.profiler_overhead_percent
        more = "longer" if (percent or 0.0) >= 0 else "shorter"
        about = None if percent is None else f"{format_count(abs(percent))} % {more} than unprofiled"
        yield FigureEntry(label=label, value=profiled.median_ns, unit="ns", about=about)
    yield _work_of_step(document, device_sum_ns, cpu_self_ns)
    if measurement.sequences_per_second is not None:
        unit = f"{document.capture.workload.unit} a second" if document.capture else None
        yield FigureEntry(label="throughput", value=measurement.sequences_per_second, unit="count", about=unit)
    if measurement.memory is not None and measurement.memory.allocated_bytes is not None:
        peak = measurement.memory.allocated_bytes
        yield FigureEntry(label="peak memory", value=peak, unit="bytes", about="allocated on the device")
    for one in document.limits.utilisation if document.limits is not None else ():
        if one.mfu is not None:
            about = f"of the {'unprofiled' if one.unprofiled else 'profiled'} step, device {one.device}"
            yield FigureEntry(label="MFU", value=one.mfu, unit="share", about=about)


def _about_step(step: StepFigure) -> str:
    interval = None if step.low_ns is None else f"{format_ns(step.low_ns)} to {format_ns(step.high_ns)} (95 %)"
    estimate = None if step.estimate_ns is None else f"about {format_ns(step.estimate_ns)} without the profiler"
    count = "as given by --step-time" if step.steps is None else f"{step.steps:,} steps"
    return ". ".join(filter(None, (interval, estimate, count, step.sentence)))


def _work_of_step(document: TraceDocument, device_sum_ns: int, cpu_self_ns: int) -> FigureEntry:
    steps, a_step = document.step_count or 1, "a step" if document.step_count else "in the recording"
    if not document.has_device_times:
        reason = document.device_times_reason
        return FigureEntry(label=f"CPU self time {a_step}", value=cpu_self_ns / steps, unit="ns", about=reason)
    activities = sum(device.activities for device in document.devices)
    over = f" in {document.step_count} {'step' if steps == 1 else 'steps'}" if document.step_count else ""
    about = f"{format_count(activities)} {'activity' if activities == 1 else 'activities'}{over}"
    return FigureEntry(label=f"device sum {a_step}", value=device_sum_ns / steps, unit="ns", about=about)


def own_clock_text(clock: OwnClock, step: StepTime) -> str:
    """Return a sentence on the time of the same steps in a run with nothing but a clock."""
    differs = 100 * (clock.mean_ns / step.ns - 1)
    took = f"{format_ns(clock.mean_ns)} ({clock.count:,} steps"
    return (
        f"By a clock alone, in another run of the script, a step takes {took}; "
        f"{differs:+.1f} % against what is shown here)."
    )


def _fact_texts(document: TraceDocument) -> Iterator[str]:
    measurement = document.measurement
    if (step := document.step_time) is not None:
        more = f" {step.sentence}" if step.sentence else ""
        yield f"{step_line(step).capitalize()}.{more}"
    if document.steps_from is not None:
        yield document.steps_from
    if measurement.own_clock is not None and measurement.step is not None:
        yield own_clock_text(measurement.own_clock, measurement.step)
    if measurement.profiler_overhead_percent is not None:
        percent = measurement.profiler_overhead_percent
        more = "more" if percent >= 0 else "less"
        yield f"The median profiled step took {abs(percent):.1f} % {more} than the median unprofiled one."
    if measurement.benchmark_reason:
        yield f"No unprofiled step times: {measurement.benchmark_reason}."
    if measurement.sequences_per_second is not None:
        tokens = measurement.tokens_per_second
        more = f", {format_count(tokens)} tokens/s" if tokens is not None else ""
        unit = document.capture.workload.unit if document.capture else "sequences"
        yield f"Throughput: {format_count(measurement.sequences_per_second)} {unit}/s{more}."
    if measurement.clocks:
        yield _clocks(measurement.clocks)
    elif document.devices and measurement.clocks_reason:
        yield f"GPU clocks unknown: {measurement.clocks_reason}."
    over = f"over {document.step_count} profiled steps" if document.step_count else "in the recording"
    window = document.timed_devices[0].window if document.devices else document.window
    yield (
        f"CPU: operators took {format_ns(document.cpu_self_ns)} of self time {over} "
        f"(recorded threads, profiling included). Window: {format_ns(window.duration_ns)} ({window.kind})."
    )


def _clocks(clocks: Clocks) -> str:
    limits = f"limited by {', '.join(clocks.limited_by)}" if clocks.limited_by else "not limited"
    return (
        f"GPU clocks during the unprofiled steps: {clocks.sm_mhz_min} to {clocks.sm_mhz_max} MHz "
        f"(median {clocks.sm_mhz_median}, highest offered {clocks.sm_mhz_limit}) in {clocks.samples} samples, {limits}."
    )


def _devices(document: TraceDocument) -> Iterator[Block]:
    if not document.devices:
        return
    if document.light is not None:
        yield Paragraph.of(document.light.sentence)
    yield table_of(_DEVICE_COLUMNS, document.timed_devices)
    for device in document.timed_devices:
        causes = sorted(device.idle_by_cause_ns.items(), key=lambda item: -item[1])
        parts = (f"{cause} {format_ns(value)} ({format_share(value, device.idle_ns)})" for cause, value in causes)
        if causes:
            yield Paragraph.of(f"Idle time of device {device.device} by cause: {', '.join(parts)}.")
    # Gaps are always from the pass with names; the figures above them may be from the light pass.
    light = document.timed_devices != document.devices
    windows = {device.device: device.window_ns for device in document.devices}
    gap = longest_gap(document.gaps, windows, with_names=light, may_have_stacks=bool(document.operators))
    if gap is not None:
        yield Paragraph(gap)
    yield from map(Paragraph.of, sampled(document.counters))


def sampled(counters: Iterable[CounterEntry]) -> Iterator[str]:
    """Yield a sentence per device on its samples of power, clocks and utilisation."""
    by_device: dict[int | None, list[str]] = {}
    for entry in counters:
        by_device.setdefault(entry.device, []).append(entry.sentence)
    for number, sentences in by_device.items():
        yield f"Sampled{'' if number is None else f' of device {number}'}: {'; '.join(sentences)}."


def _accounting(document: TraceDocument) -> Iterator[Block]:
    if document.has_device_times:
        operators_ns, unlinked = sum(row.self_device_ns for row in document.operators), document.unlinked
        whole = Accounting(operators_ns, unlinked.device_ns, unlinked.activities, document.device_sum_ns)
        yield Paragraph.of(f"{whole.sentence}.")


def costliest_work(document: TraceDocument) -> Iterator[Paragraph]:
    """Yield the operators that cost most, and device work without a recorded operator, such as Triton's kernels."""
    device = document.has_device_times
    costs = [
        (row.self_device_ns if device else row.self_cpu_ns, row.name, _what_it_is(row))
        for row in document.operators[:_COSTLIEST]
    ]
    costs += [(row.device_ns, row.name, _REPLAY if row.replayed else _NO_OPERATOR) for row in document.unlinked.longest]
    costs = sorted((cost for cost in costs if cost[0]), key=lambda cost: -cost[0])[:_COSTLIEST]
    if costs:
        others = any(kind in {_NO_OPERATOR, _REPLAY} for _, _, kind in costs)
        yield Paragraph.of(f"The operators {'and device work ' if others else ''}that cost most:")
    for time, name, kind in costs:
        yield Paragraph.of(f"  - {name}: {_of_all_work(time, document)} ({kind})")


def _what_it_is(row: OperatorRow) -> str:
    return f"{row.category}, {row.cpp_function}" if row.cpp_function else row.category


def _of_all_work(time: int, document: TraceDocument) -> str:
    steps = document.step_count
    took = f"{format_ns(time / steps)} per profiled step" if steps else f"{format_ns(time)} in the recording"
    if document.has_device_times:
        return f"{took}, {format_share(time, document.device_sum_ns)} of the device sum"
    return f"{took}, {format_share(time, document.cpu_self_ns)} of the operators' CPU self time"


def phase_blocks(document: TraceDocument) -> Iterator[Block]:
    """Yield a table of the phases of a training step; nothing without phases."""
    if not document.phases_ns:
        return
    steps, whole = document.step_count or 1, document.device_sum_ns
    rows = tuple(
        (_PHASE_NAMES.get(phase, phase), format_ns(value / steps), format_share(value, whole))
        for phase, value in document.phases_ns.items()
    )
    time = "Device sum a step" if document.step_count else "Device sum of the recording"
    yield Table(("Phase", time, "of device sum"), rows, frozenset({1, 2}))


def _steps(document: TraceDocument) -> Iterator[Block]:
    if not document.timed_steps:
        return
    yield table_of(_STEP_COLUMNS, document.timed_steps)
    if (text := steps_note(document)) is not None:
        yield Paragraph.of(text)


def steps_note(document: TraceDocument) -> str | None:
    """Return what to know of steps whose work runs in others; None where none is seen to."""
    if not any((step.busy_ns or 0) > (step.device_sum_ns or 0) for step in document.timed_steps):
        return None
    return (
        "Busy and idle time are of the span of a step. The device sum is of the work that the step launched, which may "
        "run in a later one."
    )


def _memory(document: TraceDocument) -> Iterator[Block]:
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


_DEVICE_COLUMNS: Final[tuple[Column[DeviceEntry], ...]] = (
    Column("Device", lambda row: Name(f"{row.device} ({row.name})")),
    Column("Device sum", lambda row: format_ns(row.sum_ns), numeric=True),
    Column("Busy", lambda row: format_ns(row.busy_ns), numeric=True),
    Column("Outside window", lambda row: format_ns(row.outside_window_ns), numeric=True),
    Column("Window", lambda row: f"{format_ns(row.window_ns)} ({row.window.kind})", numeric=True),
    Column("Idle", lambda row: format_ns(row.idle_ns), numeric=True),
    Column("Busy of window", lambda row: format_share(row.window_ns - row.idle_ns, row.window_ns), numeric=True),
    Column("Exposed communication", lambda row: format_ns(row.exposed_communication_ns), numeric=True),
    Column("Exposed memcpy", lambda row: format_ns(row.exposed_memcpy_ns), numeric=True),
)
_STEP_COLUMNS: Final[tuple[Column[Step], ...]] = (
    Column("Step", lambda step: str(step.number), numeric=True),
    Column("Device", lambda step: "-" if step.device is None else str(step.device), numeric=True),
    Column("Span", lambda step: format_ns(step.span_ns), numeric=True),
    Column("Activities", lambda step: str(step.activities), numeric=True),
    Column("Device sum", lambda step: format_ns(step.device_sum_ns), numeric=True),
    Column("Busy", lambda step: format_ns(step.busy_ns), numeric=True),
    Column("Idle", lambda step: format_ns(step.idle_ns), numeric=True),
    Column("Launch-bound idle", lambda step: format_ns(step.launch_bound_ns), numeric=True),
    Column("Cold", lambda step: "yes" if step.cold else "no"),
)
