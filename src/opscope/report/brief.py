"""Builds the brief of a trace from its document, and writes it."""

from collections.abc import Iterator
from typing import Final

from opscope.analysis.measured import Measured
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.text import printable, shell_path
from opscope.base.units import format_ns, format_share
from opscope.documents.brief import BriefDocument, BriefFinding, BriefPart, Command, Unmeasured
from opscope.documents.findings import Finding
from opscope.documents.trace import DeviceEntry, TraceDocument
from opscope.documents.trust import Verdict
from opscope.render.blocks import Bullets, Inline, Name, Paragraph, Section, Table, Whole
from opscope.report.finding_text import place, together_line
from opscope.report.step_parts import step_line, step_parts

_FACTS: Final = 2  # of a finding's evidence
_DOUBTS: Final = 3
_LEAST_PART: Final = 0.005  # of a step: smaller parts are not listed


def build_brief(path: str, measured: Measured, document: TraceDocument) -> BriefDocument:
    """Build the brief of a trace.

    Args:
        path: what the user called it by.
        measured: the trace with its record.
        document: its document.
    """
    part = measured.analysis.losses.part
    first = [finding for finding in document.findings if finding.is_first]
    step = document.step_time
    parts = part("where a step goes", lambda: tuple(_parts(measured, document)), tuple[BriefPart, ...])
    not_measured = part(
        "what was not measured", lambda: tuple(_not_measured(measured, document)), tuple[Unmeasured, ...]
    )
    following = part("what to run next", lambda: tuple(_next(path, measured, document)), tuple[Command, ...])
    trust = measured.trust  # last: it says what failed before
    doubts = sorted(trust.doubts(), key=lambda check: check.verdict is not Verdict.FAIL)
    return BriefDocument(
        trace=printable(path),
        bound=str(document.bound.kind),
        sentence=document.bound.sentence,
        step=step,
        step_address="step_time/ns" if step else None,
        step_count=document.step_count,
        parts=parts,
        parts_address=_device_at(measured, document) if parts else None,
        trust=str(trust.verdict),
        doubts=tuple(f"{check.verdict} {check.name}: {check.sentence}" for check in doubts),
        findings=tuple(_finding(finding) for finding in first),
        findings_reason=document.findings_reason,
        further_findings=tuple(finding.id for finding in document.findings if not finding.is_first),
        together=None if document.together is None else "".join(together_line(document.together)),
        not_measured=not_measured,
        next=following,
    )


def _device(measured: Measured, document: TraceDocument) -> DeviceEntry | None:
    """Return the device that verdicts are about, of the pass whose times count."""
    if not measured.timed.devices:
        return None
    number = busiest(measured.timed.devices).device
    return next(one for one in document.timed_devices if one.device == number)


def _device_at(measured: Measured, document: TraceDocument) -> str | None:
    """Return the address of that device."""
    device = _device(measured, document)
    light = "light/" if document.light is not None and document.light.agrees else ""
    return None if device is None else f"{light}devices/{device.device}"


def _parts(measured: Measured, document: TraceDocument) -> Iterator[BriefPart]:
    device = _device(measured, document)
    if device is None or not device.window_ns:
        return
    steps = document.step_count or 1
    for name, time in step_parts(device).items():
        if time >= _LEAST_PART * device.window_ns:
            yield BriefPart(name, time / steps, time / device.window_ns)


def _finding(finding: Finding) -> BriefFinding:
    return BriefFinding(
        id=finding.id,
        title=finding.title,
        where="".join(place(finding.where)).removeprefix(", in ") or None,
        saving_ns=finding.saving_ns,
        saving=finding.saving,
        likely_ns=finding.likely_ns,
        of_step=finding.of_step,
        evidence=tuple(f"{fact.text} ({fact.basis})" for fact in finding.evidence[:_FACTS]),
        action=finding.action,
        prove=finding.prove,
        address=f"findings/{finding.id}",
    )


def _not_measured(measured: Measured, document: TraceDocument) -> Iterator[Unmeasured]:
    measurement, trace = document.measurement, measured.analysis.trace
    if measurement.wall is None:
        yield Unmeasured("a step without the profiler", measurement.benchmark_reason or "none was timed")
    if document.device_times_reason is not None:
        yield Unmeasured("device times", document.device_times_reason)
    if not document.step_count:
        yield Unmeasured("steps", "none are marked (profiler.step())")
    if document.light is not None and not document.light.agrees:
        yield Unmeasured("idle time without the profiler's cost", document.light.sentence)
    if trace.operators.height and not trace.frames.height:
        yield Unmeasured("lines of Python and modules", "stacks were not recorded (with_stack=True, --with-stack)")
    if trace.operators.height and trace.operators["input_dims"].null_count() == trace.operators.height:
        yield Unmeasured("limits of operators", "shapes were not recorded (record_shapes=True)")
    if not trace.allocations.height and measurement.memory is None:
        yield Unmeasured("memory", "allocations were not recorded (profile_memory=True, --profile-memory)")
    if measurement.wall is not None and measurement.clocks is None and measurement.clocks_reason:
        yield Unmeasured("clocks of the GPU", measurement.clocks_reason)
    for line in document.source.not_recorded:
        yield Unmeasured("in the recording", line)


def _next(path: str, measured: Measured, document: TraceDocument) -> Iterator[Command]:
    quoted = shell_path(path)
    told = measured.advice.replayed is not None  # else whatif gives no saving
    replayable = [one.id for one in document.findings if told and one.is_first and one.id in measured.advice.remedies]
    if replayable:
        changes = " ".join(f"--finding {name}" for name in replayable)
        yield Command(f"opscope whatif {quoted} {changes}", "the step with these findings done, by replay")
    if document.findings:
        address = f"findings/{document.findings[0].id}"
        yield Command(f"opscope show {quoted} {address}", "all evidence of the first finding")
    by = "operator" if document.operators else "kernel"
    if document.operators or document.kernels:
        yield Command(f"opscope analyze {quoted} --by {by} --brief", f"the most expensive {by}s")
    if measured.analysis.limits_of_steps:
        yield Command(f"opscope limits {quoted} --brief", "which work is far from the device's limit")
    yield Command(f"opscope page {quoted}", "a page with timeline, flame view and roofline")


# ---------------------------------------------------------------- as text


def brief_section(brief: BriefDocument) -> Section:
    """Return a brief as sections; `opscope.render.brief` writes them within a number of tokens."""
    blocks: list[Paragraph | Bullets | Table] = [Paragraph.of(f"{brief.sentence} [bound: {brief.bound}]")]
    blocks.append(Bullets(tuple(_facts(brief))))
    parts = [Section(("Findings",), tuple(_findings(brief)))]
    if brief.not_measured:
        lines = tuple((f"{one.what}: {one.why}",) for one in brief.not_measured)
        parts.append(Section(("Not measured",), (Bullets(lines),)))
    commands = tuple((Whole(one.command), f" ({one.gives})") for one in brief.next)
    see = ("any number: opscope show TRACE ADDRESS: bound, devices/0/busy_ns, operators/1, findings/ID/saving_ns/low",)
    parts.append(Section(("Next",), (Bullets((see, *commands)),)))
    return Section((Name(brief.trace),), tuple(blocks), tuple(parts))


def _facts(brief: BriefDocument) -> Iterator[Inline]:
    if (step := brief.step) is not None:
        more = f"; {step.sentence.rstrip('.')}" if step.sentence else ""
        yield (f"{step_line(step)}{more} [{brief.step_address}]",)
    if brief.parts:
        whole = "a recorded step goes" if brief.step_count else "the recording goes"
        parts = ", ".join(f"{one.name} {format_ns(one.ns)} ({format_share(one.share, 1)})" for one in brief.parts)
        yield (f"where {whole}: {parts} [{brief.parts_address}]",)
    yield (f"trust: {brief.trust} [trust]",)
    yield from ((doubt,) for doubt in brief.doubts[:_DOUBTS])
    if len(brief.doubts) > _DOUBTS:
        yield (f"{len(brief.doubts) - _DOUBTS} further checks are in doubt",)


def _findings(brief: BriefDocument) -> Iterator[Paragraph | Bullets]:
    if not brief.findings:
        yield Paragraph.of(brief.findings_reason or "None.")
    for number, one in enumerate(brief.findings, start=1):
        yield Paragraph.of(f"{number}. {one.title} [{one.address}]")
        yield Bullets(tuple(_finding_lines(one)))
    if brief.further_findings:
        yield Paragraph.of(f"Further: {', '.join(brief.further_findings)}.")
    if brief.together is not None:
        yield Paragraph.of(brief.together)


def _finding_lines(one: BriefFinding) -> Iterator[Inline]:
    if one.saving:
        yield (f"saves {one.saving}, likely {format_ns(one.likely_ns)}; basis: {one.of_step}",)
    yield ("do: ", Whole(one.action))
    yield ("prove: ", Whole(one.prove))
    if one.where is not None:
        yield ("where: ", Name(one.where))
    yield from ((fact,) for fact in one.evidence)
