"""Renders the statements on one operator, and dossiers, for people."""

from collections.abc import Iterator

from opscope.base.shapes import input_shapes
from opscope.documents.dossier import DossierDocument
from opscope.documents.statements import OperatorStatements
from opscope.render.blocks import Block, Name, Paragraph, Section, Table
from opscope.report.explain_sections import explain_section, failed_checks
from opscope.report.finding_text import first_things

_HEADINGS = {
    "parallelism": "Why it runs in parallel",
    "coverage": "How grid and block cover it",
    "resources": "Registers, shared memory, occupancy",
    "memory_access": "Memory access",
    "synchronisation": "Synchronisation",
    "gains": "What could be gained",
}


def statement_blocks(findings: OperatorStatements) -> Iterator[Block]:
    """Yield blocks with all statements on one operator, each with its basis."""
    shapes = None if findings.inputs is None else Name(input_shapes(findings.inputs))
    about = () if shapes is None else (" with the inputs that took most of its time (", shapes, ")")
    kernel = () if findings.kernel is None else (", in kernel ", Name(findings.kernel))
    yield Paragraph.of("How it runs", *about, *kernel, "; each statement says what it rests on:")
    yield Table(("About", "Basis", "What is known"), tuple(_rows(findings)))
    if findings.counters_reason:
        yield Paragraph.of("Hardware counters: none (", Name(findings.counters_reason), ").")


def _rows(findings: OperatorStatements) -> Iterator[tuple[str, str, str]]:
    for topic, statements in findings.by_topic().items():
        for number, statement in enumerate(statements):
            yield ("" if number else _HEADINGS[topic], str(statement.basis), statement.text)


def dossier_section(document: DossierDocument) -> Section:
    """Build the section of a whole dossier document."""
    intro = Paragraph.of("Trace: ", Name(document.trace), f". What bounds it: {document.bound}")
    first = tuple(Paragraph(line) for line in first_things(document.actions))
    sections = tuple(
        Section(
            (f"{number}. ", Name(dossier.explanation.name)),
            tuple(statement_blocks(dossier.findings)),
            (explain_section(dossier.explanation, with_trust=False),),
        )
        for number, dossier in enumerate(document.operators, 1)
    )
    doubts = failed_checks(document.failed_checks)
    nothing = () if sections else (Paragraph.of("No operator of the trace launched work on a device."),)
    return Section(("Operator dossier",), (intro, *first, *doubts, *nothing), sections)
