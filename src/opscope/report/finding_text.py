"""Findings in words: what to do first, for people who read three lines; and all of it, for those who act."""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.documents.findings import Finding, Rule, Where
from opscope.report.blocks import Block, Bullets, Inline, Name, Paragraph, Section
from opscope.text import printable
from opscope.units import format_ns, format_share

FIRST: Final = 3  # on the first screen


def first_things(findings: Sequence[Finding]) -> Iterator[Inline]:
    """Say what to do first, one line and one action each.

    Those are chosen first that save no time of one before; of possibilities nothing is said while there is more.
    """
    order = sorted(findings, key=lambda finding: finding.rule == Rule.DUPLICATE_WORK)
    apart: list[Finding] = []
    for finding in order:
        if not any(finding.id in other.overlaps for other in apart):
            apart.append(finding)
    preferred = sorted(order, key=lambda finding: (finding.rule == Rule.DUPLICATE_WORK, finding not in apart))
    chosen = [finding for finding in order if finding in preferred[:FIRST]]
    numbers = {finding.id: number for number, finding in enumerate(chosen, start=1)}
    for number, finding in enumerate(chosen, start=1):
        same = ", ".join(str(numbers[name]) for name in finding.overlaps if numbers.get(name, number) < number)
        of_it = f"; some of the same time as {same}" if same else ""
        yield (
            f"{number}. {saving(finding)}",
            printable(finding.title),
            *place(finding.where),
            f" [{finding.rule}{of_it}]",
        )
        yield ("   ", Name(finding.action))


def saving(finding: Finding) -> str:
    """Say what a finding could save."""
    low, high = finding.saving_ns.low, finding.saving_ns.high
    if not high:
        return ""
    share, step = format_share(high, finding.of_step_ns), f"{format_ns(finding.of_step_ns)} {finding.of_step}"
    if low < 0.01 * high:
        return f"May save up to {format_ns(high)} of the {step} ({share}): "
    if format_ns(low) == format_ns(high):
        return f"Likely saves about {format_ns(high)} of the {step} ({share}): "
    least = format_share(low, finding.of_step_ns)
    return f"Likely saves {format_ns(low)} to {format_ns(high)} of the {step} ({least} to {share}): "


def place(where: Where) -> Iterator[str | Name]:
    """Say where it is: the line of Python if that was recorded, else what is nearest to it."""
    found = where.python or where.module or where.operator or where.annotation
    if found is not None:
        yield ", in "
        yield Name(found)


def findings_section(findings: Sequence[Finding], reason: str | None = None) -> Section:
    """Build the section with all findings, their evidence and how to prove them; or why there are none."""
    if not findings:
        return Section(("What to do",), (Paragraph.of(reason or "-"),))
    blocks: list[Block] = []
    for number, finding in enumerate(findings, start=1):
        blocks.append(Paragraph((f"{number}. ", printable(finding.title), *place(finding.where), f" [{finding.id}]")))
        blocks.append(Bullets(tuple(_lines(finding))))
    return Section(("What to do",), tuple(blocks))


def _lines(finding: Finding) -> Iterator[Inline]:
    if finding.saving_ns.high:
        yield (f"{saving(finding)}{finding.derivation}.",)
    for fact in finding.evidence:
        yield (printable(fact.text), f" ({fact.basis}).")
    yield ("Write: ", Name(finding.action))
    yield ("Prove: ", Name(finding.prove))
    yield (f"Wrong if {finding.wrong_if}.",)
    if finding.overlaps:
        yield (f"Saves some of the same time as {', '.join(finding.overlaps)}.",)
