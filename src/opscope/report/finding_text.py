"""Writes findings as text: a short list of what to do first, and the full section."""

from collections.abc import Iterator, Sequence

from opscope.base.text import printable
from opscope.base.units import format_ns
from opscope.documents.findings import Finding, Together, Where
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Tone, Toned

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
    for number, finding in enumerate(findings, start=1):
        blocks.append(Paragraph((f"{number}. ", _headline(finding), *place(finding.where), f" [{finding.id}]")))
        blocks.append(Bullets(tuple(_lines(finding))))
    if together is not None:
        blocks.append(Paragraph(together_line(together)))
    return Section(("What to do",), tuple(blocks))


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
