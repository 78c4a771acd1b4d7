"""The page's entry of a sweep."""

from opscope.documents.comparison import SweepComparison
from opscope.documents.page import SweepEntry
from opscope.report.comparison_report import sections_on_page
from opscope.report.page.blocks import section_entry


def sweep_entry(name: str, comparison: SweepComparison) -> SweepEntry:
    """Build the page's entry of a sweep."""
    return SweepEntry(
        name=name, comparison=comparison, sections=tuple(map(section_entry, sections_on_page(comparison)))
    )
