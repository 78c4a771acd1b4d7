"""Writes findings as text: a short list of what to do first, and the full section."""

from collections.abc import Iterator, Sequence

from opscope.base.text import printable
from opscope.base.units import format_ns
from opscope.documents.findings import Finding, Where
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section


def first_things(findings: Sequence[Finding]) -> Iterator[Inline]:
    """Yield two lines for each finding to begin with: what it could save and why, then what to change."""
    chosen = [finding for finding in findings if finding.is_first]
    numbers = {finding.id: number for number, finding in enumerate(chosen, start=1)}
    for number, finding in enumerate(chosen, start=1):
        # Of findings that overlap, only those listed above are named.
        same = ", ".join(str(numbers[name]) for name in finding.overlaps if numbers.get(name, number) < number)
        of_it = f"; some of the same time as {same}" if same else ""
        yield (f"{number}. {headline(finding)}",)
        yield ("   ", Name(finding.action), f" [{finding.rule}{of_it}", *place(finding.where), "]")


def headline(finding: Finding) -> str:
    """Return one line with what a finding could save, and its title."""
    saving = f"{finding.saving[0].upper()}{finding.saving[1:]}: " if finding.saving else ""
    return f"{saving}{printable(finding.title)}"


def place(where: Where) -> Iterator[str | Name]:
    """Yield where it is: the line of Python if recorded, else the module, operator or range; nothing if unknown."""
    found = where.python or where.module or where.operator or where.annotation
    if found is not None:
        yield ", in "
        yield Name(found)


def findings_section(findings: Sequence[Finding], reason: str | None = None) -> Section:
    """Build the section with all findings and their evidence.

    Args:
        findings: in the order of their rank.
        reason: why there are none, if there are none.
    """
    if not findings:
        return Section(("What to do",), (Paragraph.of(reason or "-"),))
    blocks: list[Block] = []
    for number, finding in enumerate(findings, start=1):
        blocks.append(Paragraph((f"{number}. ", headline(finding), *place(finding.where), f" [{finding.id}]")))
        blocks.append(Bullets(tuple(_lines(finding))))
    return Section(("What to do",), tuple(blocks))


def _lines(finding: Finding) -> Iterator[Inline]:
    if finding.saving:
        step = f"{format_ns(finding.of_step_ns)} {finding.of_step}"
        yield (f"How much, of the {step}: {finding.derivation}.",)
    for fact in finding.evidence:
        yield (printable(fact.text), f" ({fact.basis}).")
    yield ("Write: ", Name(finding.action))
    yield ("Prove: ", Name(finding.prove))
    yield (f"Wrong if {finding.wrong_if}.",)
    if finding.overlaps:
        yield (f"Saves some of the same time as {', '.join(finding.overlaps)}.",)
