"""What is read first of a trace: built once, and written as the first lines of a screen and as a brief."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from opscope.analysis.advice.remedies import saving_span
from opscope.analysis.measured import Measured
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.text import printable, shell_path
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import (
    BriefDocument,
    BriefFinding,
    BriefPart,
    Finding,
    FirstScreen,
    NextCommand,
    Together,
    Unmeasured,
    Where,
)
from opscope.documents.memory import MemoryDocument
from opscope.documents.trace import TraceDocument
from opscope.documents.verdict import BoundKind, CheckName, Trust, Verdict
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table, Tone, Toned, Whole
from opscope.report.step_parts import bar, device_entry, legend, of_trust, step_line, step_parts, step_text

# ---------------------------------------------------------------- findings


_ALIKE = 0.02  # of the step: a smaller difference is not worth a line


def first_things(findings: Sequence[Finding]) -> Iterator[Inline]:
    """Yield two lines for each finding to begin with: what it could save and why, then what to change."""
    chosen = [finding for finding in findings if finding.is_first]
    numbers = {finding.id: number for number, finding in enumerate(chosen, start=1)}
    for number, finding in enumerate(chosen, start=1):
        # Of findings that overlap, only those listed above are named.
        same = ", ".join(str(numbers[name]) for name in finding.overlaps if numbers.get(name, number) < number)
        of_it = f"; some of the same time as {same}" if same else ""
        yield (Toned(f"{number}. {_headline(finding)}", Tone.STRONG),)
        yield ("   ", Name(finding.action), f" [{finding.rule}{of_it}", *place(finding.where), "]")


def together_line(together: Together) -> Inline:
    """Return the line with what findings save together."""
    left, whole = format_ns(max(together.of_step_ns - together.likely_ns, 0.0)), format_ns(together.of_step_ns)
    return (
        f"All of these together ({', '.join(together.findings)}): likely {format_ns(together.likely_ns)}, "
        f"{together.saving}; {left} of {whole} would be left, by replay.",
    )


def left_text(together: Together) -> str:
    """Return what findings save together in a few words."""
    return f"all together likely {format_ns(together.likely_ns)} of {format_ns(together.of_step_ns)}"


def _headline(finding: Finding) -> str:
    """Return one line with what a finding could save, and its title."""
    saving = f"{finding.saving[0].upper()}{finding.saving[1:]}: " if finding.saving else ""
    return f"{saving}{printable(finding.title)}"


def place(where: Where) -> Iterator[str | Name]:
    """Yield where it is: the line of Python if recorded, else the module, operator or range; nothing if unknown."""
    result = where.python or where.module or where.operator or where.annotation
    if result is not None:
        yield ", in "
        yield Name(result)


def findings_section(
    findings: Sequence[Finding], reason: str | None = None, together: Together | None = None
) -> Section:
    """Build the section with all findings and their evidence.

    Args:
        findings: in the order of their rank.
        reason: why there are none, if there are none.
        together: what they save together, where a replay tells.
    """
    if not findings:
        return Section(("What to do",), (Paragraph.of(reason or "-"),))
    blocks: list[Block] = []
    possible = next((place for place, one in enumerate(findings, start=1) if not one.is_promised), None)
    for number, finding in enumerate(findings, start=1):
        if number == possible:
            blocks.append(Paragraph.of(_POSSIBLE))
        blocks.append(Paragraph((f"{number}. ", _headline(finding), *place(finding.where), f" [{finding.id}]")))
        blocks.append(Bullets(tuple(_lines(finding))))
    if together is not None:
        blocks.append(Paragraph(together_line(together)))
    return Section(("What to do",), tuple(blocks))


_POSSIBLE: Final = (
    'Possible, but not promised: what follows saves nothing if the reason under "Wrong if" holds, and no trace tells '
    "whether it does."
)


def _lines(finding: Finding) -> Iterator[Inline]:
    if finding.saving:
        step = f"{format_ns(finding.of_step_ns)} {finding.of_step}"
        yield (f"How much, of the {step}: {finding.derivation}.",)
        if finding.adds_ns is not None and abs(finding.adds_ns - finding.likely_ns) > _ALIKE * finding.of_step_ns:
            yield (f"Likely {format_ns(finding.likely_ns)} alone, {format_ns(finding.adds_ns)} after those above.",)
    for fact in finding.evidence:
        source = "" if fact.source is None else f"; {fact.source}"
        yield (printable(fact.text), f" ({fact.basis}{source}).")
    yield ("Write: ", Name(finding.action))
    yield ("Prove: ", Name(finding.prove))
    yield (f"Wrong if {finding.wrong_if}.",)
    if finding.overlaps:
        yield (f"Saves some of the same time as {', '.join(finding.overlaps)}.",)


# ---------------------------------------------------------------- the first screen


_FACTS: Final = 2  # of a finding's evidence
_DOUBTS: Final = 3
_LEAST_PART: Final = 0.005  # of a step: smaller parts are not listed
_CATEGORIES: Final = 4  # of operators, where nothing ran on a device
_FRAME: Final = re.compile(r"(?:.*[/\\])?([^/\\]+)\((\d+)\): .*")  # as torch.profiler names Python's frames
_SHORT: Final = 18  # characters of a place: at 80 columns, so many are left beside what to do and what it saves
_LINE: Final = 78  # characters of a check: what it says is to take one line
_FAILED: Final = 2  # checks on the first screen
OF_CPU: Final = "the operators' CPU time"


def first_screen(measured: Measured) -> FirstScreen:
    """Build what is read first of a trace. What fails is left out, and named among the failed checks."""
    part = measured.analysis.losses.part
    findings, together = measured.findings, measured.advice.together
    step = measured.step_time
    parts_of, parts, parts_address = part(
        "where a step goes", lambda: _where_it_goes(measured), lambda: ("a recorded step", (), None)
    )
    first = part("the first findings", lambda: tuple(_first(findings)), tuple[BriefFinding, ...])
    not_measured = part("what was not measured", lambda: tuple(_not_measured(measured)), tuple[Unmeasured, ...])
    trust = measured.trust  # last: it says what failed before
    doubts = sorted(trust.doubts(), key=lambda check: check.verdict is not Verdict.FAIL)
    return FirstScreen(
        bound=str(measured.bound.kind),
        sentence=measured.bound.sentence,
        step=step,
        step_address="step_time/ns" if step else None,
        step_count=measured.step_count,
        parts_of=parts_of,
        parts=parts,
        parts_address=parts_address,
        trust=str(trust.verdict),
        failed=tuple(_failed(trust)),
        doubts=tuple(f"{check.verdict} {check.name}: {check.sentence}" for check in doubts),
        findings=first,
        findings_reason=measured.findings_reason,
        further_findings=tuple(finding.id for finding in findings if not finding.is_first),
        together=None if together is None else "".join(together_line(together)),
        # Changes that save only together may count more than those that are replayed one after the other.
        left=None
        if together is None or any(one.likely_ns > together.likely_ns for one in first)
        else left_text(together),
        not_measured=not_measured,
        memory=None if measured.memory is None else _memory_line(measured.memory.document),
    )


def _memory_line(memory: MemoryDocument) -> str | None:
    """Return the peak; where memory was asked for and none was recorded, why."""
    return memory.sentence if memory.devices else next(iter(memory.notes), None)


def build_brief(path: str, measured: Measured, document: TraceDocument) -> BriefDocument:
    """Build the brief of a trace.

    Args:
        path: what the user called it by.
        measured: the trace with its record.
        document: its document.
    """
    part = measured.analysis.losses.part
    following = part("what to run next", lambda: tuple(_next(path, measured, document)), tuple[NextCommand, ...])
    screen = first_screen(measured)
    fields = {name: getattr(screen, name) for name in FirstScreen.__struct_fields__}
    return BriefDocument(trace=printable(path), next=following, **fields)


def _failed(trust: Trust) -> Iterator[str]:
    """Yield the checks that fail, and what is missing on this screen, though that is no reason to distrust the rest."""
    for check in trust.checks:
        if check.verdict is Verdict.FAIL or (check.verdict is Verdict.WARN and check.name in _ALWAYS_TOLD):
            yield f"{check.verdict.upper()} {check.name}: {check.sentence}"


_ALWAYS_TOLD: Final = (CheckName.PARTS_COMPUTED, CheckName.RECORDING_COMPLETE, CheckName.SAME_STEPS)


def _where_it_goes(measured: Measured) -> tuple[str, tuple[BriefPart, ...], str | None]:
    """Return what is divided, its parts, and their address in the document."""
    steps = measured.step_count or 1
    whole = "a recorded step" if measured.step_count else "the recording"
    if measured.bound.kind == BoundKind.CAPTURE:
        return whole, (), None
    if not measured.timed.devices:
        by_category = dict(measured.analysis.categories.select("category", "self_cpu_ns").iter_rows())
        time = sum(by_category.values())
        largest = sorted(by_category.items(), key=lambda item: -item[1])[:_CATEGORIES]
        parts = tuple(BriefPart(name, ns / steps, ns / time) for name, ns in largest if ns)
        return OF_CPU, parts, "categories" if parts else None
    device = device_entry(busiest(measured.timed.devices))
    if not device.window_ns:
        return whole, (), None
    light = "light/" if measured.light is not None and measured.light.analysis is not None else ""
    parts = tuple(BriefPart(name, ns / steps, ns / device.window_ns) for name, ns in step_parts(device).items())
    return whole, parts, f"{light}devices/{device.device}" if parts else None


def _first(findings: Sequence[Finding]) -> Iterator[BriefFinding]:
    chosen = [finding for finding in findings if finding.is_first]
    numbers = {finding.id: number for number, finding in enumerate(chosen, start=1)}
    for number, finding in enumerate(chosen, start=1):
        yield BriefFinding(
            id=finding.id,
            title=finding.title,
            todo=finding.todo,
            where="".join(place(finding.where)).removeprefix(", in ") or None,
            place=_short_place(finding.where),
            saving_ns=finding.saving_ns,
            saving=finding.saving,
            saves=saving_span(finding.saving_ns),
            likely_ns=finding.likely_ns,
            of_step=finding.of_step,
            overlaps=tuple(numbers[name] for name in finding.overlaps if numbers.get(name, number) < number),
            evidence=tuple(f"{fact.text} ({fact.basis})" for fact in finding.evidence[:_FACTS]),
            action=finding.action,
            prove=finding.prove,
            address=f"findings/{finding.id}",
        )


def _short_place(where: Where) -> str | None:
    """Return where a finding is in a few characters: the file and line, the module, the operator or the range."""
    if where.python is not None and (frame := _FRAME.fullmatch(where.python)):
        text = printable(f"{frame[1]}:{frame[2]}")
        return text if len(text) <= _SHORT else f"…{text[1 - _SHORT :]}"  # the line is what leads there
    name = where.python or where.module or where.operator or where.annotation
    return None if name is None else _cut(printable(name), _SHORT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _not_measured(measured: Measured) -> Iterator[Unmeasured]:
    measurement, trace, light = measured.measurement, measured.analysis.trace, measured.light
    if measurement.wall is None:
        yield Unmeasured("a step without the profiler", measurement.benchmark_reason or "none was timed")
    if measured.device_times_reason is not None:
        yield Unmeasured("device times", measured.device_times_reason)
    if not measured.step_count:
        yield Unmeasured("steps", "none are marked (profiler.step())")
    if light is not None and light.analysis is None:
        yield Unmeasured("idle time without the profiler's cost", light.sentence)
    if trace.operators.height and not trace.frames.height:
        yield Unmeasured("lines of Python and modules", "stacks were not recorded (with_stack=True, --with-stack)")
    if trace.operators.height and trace.operators["input_dims"].null_count() == trace.operators.height:
        yield Unmeasured("limits of operators", "shapes were not recorded (record_shapes=True)")
    if not trace.allocations.height and measurement.memory is None:
        yield Unmeasured("memory", "allocations were not recorded (profile_memory=True, --profile-memory)")
    if measurement.wall is not None and measurement.clocks is None and measurement.clocks_reason:
        yield Unmeasured("clocks of the GPU", measurement.clocks_reason)
    for line in measured.analysis.source.not_recorded:
        yield Unmeasured("in the recording", line)


def _next(path: str, measured: Measured, document: TraceDocument) -> Iterator[NextCommand]:
    quoted = shell_path(path)
    is_replayed = measured.advice.replayed is not None  # else whatif gives no saving
    replayable = [
        one.id for one in document.findings if is_replayed and one.is_first and one.id in measured.advice.remedies
    ]
    if replayable:
        changes = " ".join(f"--finding {name}" for name in replayable)
        yield NextCommand(f"opscope whatif {quoted} {changes}", "the step with these findings done, by replay")
    if document.findings:
        address = f"findings/{document.findings[0].id}"
        yield NextCommand(f"opscope show {quoted} {address}", "all evidence of the first finding")
    by = "operator" if document.operators else "kernel"
    if document.operators or document.kernels:
        yield NextCommand(f"opscope analyze {quoted} --by {by} --brief", f"the most expensive {by}s")
    if measured.analysis.limits_of_steps:
        yield NextCommand(f"opscope limits {quoted} --brief", "which work is far from the device's limit")
    yield NextCommand(f"opscope page {quoted}", "a page with timeline, flame view and roofline")


# ---------------------------------------------------------------- as the first lines of a screen


def screen_blocks(screen: FirstScreen, *, on_page: bool = False) -> Iterator[Block]:
    """Yield the first lines of a screen: the verdict, where the time goes, what to do first, and what fails.

    Args:
        screen: what it shows.
        on_page: whether it stands on the page, which has all checks below.
    """
    yield Paragraph((Toned(f"{screen.sentence.rstrip('.')}. [{screen.bound}]", Tone.STRONG),))
    if screen.parts and screen.parts_of != OF_CPU and (drawn := bar(screen.parts)):
        yield Paragraph((Toned(f"  {drawn}", Tone.BAR),))
    if screen.parts:
        yield Paragraph.of(f"  {screen.parts_of}: {legend(screen.parts)}")
    if screen.step is not None:
        more = f". {screen.step.sentence.rstrip('.')}" if screen.step.sentence else ""
        yield Paragraph.of(f"  {step_text(screen.step)}{more}")
    if screen.findings:
        rows = tuple(_row(number, one) for number, one in enumerate(screen.findings, start=1))
        saves = "Saves a step" if screen.step_count else "Saves"
        if any(one.overlaps for one in screen.findings):
            saves = f"{saves} (with)"  # the numbers of those above that save some of the same time
        yield Table(("", "Do first", saves, "Where"), rows, frozenset({2}))
    if screen.left is not None:
        yield Paragraph.of(f"  {screen.left}")
    if screen.memory is not None:
        yield Paragraph.of(f"  {screen.memory}")
    reason = screen.findings_reason
    if (
        reason is not None
        and reason.rstrip(".") not in screen.sentence
        and not any(reason in one for one in screen.failed)
    ):
        yield Paragraph.of(reason)
    for line in screen.failed[:_FAILED]:
        verdict = Verdict.FAIL if line.startswith("FAIL") else Verdict.WARN
        # Of a file that is damaged it must be clear what is lost; a verdict hardly takes any room then.
        short = line if CheckName.FILE_IS_VALID in line else _cut(line, _LINE)
        yield Paragraph((of_trust(short, verdict),))
    if len(screen.failed) > _FAILED:
        more = "see below" if on_page else "--why"
        yield Paragraph.of(f"and {len(screen.failed) - _FAILED} more checks: {more}")


def _row(number: int, finding: BriefFinding) -> tuple[str, ...]:
    same = f" ({min(finding.overlaps)})" if finding.overlaps else ""
    return (
        str(number),
        finding.todo or printable(finding.title),
        f"{finding.saves}{same}" if finding.saves else "-",
        Name(finding.place) if finding.place else "-",
    )


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
        more = f". {step.sentence.rstrip('.')}" if step.sentence else ""
        yield (f"{step_line(step)}{more} [{brief.step_address}]",)
    if brief.parts:
        whole = f"{brief.parts_of} goes"
        parts = ", ".join(
            f"{one.name} {format_ns(one.ns)} ({format_share(one.share, 1)})"
            for one in brief.parts
            if one.share >= _LEAST_PART
        )
        yield (f"where {whole}: {parts} [{brief.parts_address}]",)
    if brief.memory is not None:
        yield (f"{brief.memory} [device_memory]",)
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
