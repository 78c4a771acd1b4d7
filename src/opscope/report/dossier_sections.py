"""Renders dossiers for people."""

from opscope.documents.dossier import DossierDocument
from opscope.render.blocks import Name, Paragraph, Section
from opscope.report.explain_sections import explain_section, failed_checks
from opscope.report.finding_text import first_things
from opscope.report.statement_sections import statement_blocks


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
