"""The page's entry of a sweep, with the sizes between which the step's bound changes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from opscope.documents.comparison import ComparisonRow, SweepComparison
from opscope.documents.page import SweepEntry, Turn
from opscope.record.settings import is_count
from opscope.report.comparison_report import sections_on_page
from opscope.report.page.blocks import section_entry


def sweep_entry(name: str, comparison: SweepComparison) -> SweepEntry:
    """Build the page's entry of a sweep."""
    return SweepEntry(
        name=name,
        comparison=comparison,
        turns=tuple(turns(comparison.rows)),
        sections=tuple(map(section_entry, sections_on_page(comparison))),
    )


def turns(rows: Sequence[ComparisonRow]) -> Iterator[Turn]:
    """Yield neighbouring sizes between which the step's bound changes, along each axis with all others fixed."""
    for along in dict.fromkeys(name for row in rows for name in row.axes):
        groups: dict[str, dict[int, ComparisonRow]] = {}
        for row in rows:
            size = row.axes.get(along)
            if is_count(size):  # only whole numbers have neighbours
                others = ", ".join(f"{name} {value}" for name, value in row.axes.items() if name != along)
                groups.setdefault(others, {})[size] = row
        for others, own in groups.items():
            for smaller, larger in pairwise(sorted(own)):
                before, after = own[smaller].bound, own[larger].bound
                if before != after:
                    yield Turn(along, others, smaller, larger, before, after)
