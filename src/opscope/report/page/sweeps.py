"""What the page shows of a sweep beside its comparison: where what bounds the step changes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from opscope.documents.comparison import Comparison, ComparisonRow
from opscope.documents.page import SweepEntry, Turn


def sweep_entry(name: str, comparison: Comparison) -> SweepEntry:
    """Return a sweep for the page."""
    return SweepEntry(name=name, comparison=comparison, turns=tuple(turns(comparison.rows)))


def turns(rows: Sequence[ComparisonRow]) -> Iterator[Turn]:
    """Yield between which neighbouring sizes what bounds the step changes, along each axis, all others fixed."""
    for along in dict.fromkeys(name for row in rows for name in row.axes):
        groups: dict[str, dict[int, ComparisonRow]] = {}
        for row in rows:
            size = row.axes.get(along)
            if isinstance(size, int) and not isinstance(size, bool):
                others = ", ".join(f"{name} {value}" for name, value in row.axes.items() if name != along)
                groups.setdefault(others, {})[size] = row
        for others, mine in groups.items():
            for smaller, larger in pairwise(sorted(mine)):
                before, after = mine[smaller].bound, mine[larger].bound
                if before != after:
                    yield Turn(along, others, smaller, larger, before, after)
