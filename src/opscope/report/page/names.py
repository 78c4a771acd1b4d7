"""What keeps a page's pictures small: names that slices and nodes refer to by number, few points of a long curve."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opscope.analysis.structure.nesting import Ints

LONGEST_TEXT: Final = 2_000  # characters
_SHORTEST_CUT: Final = 60
_ALL_NAMES: Final = 4_000_000  # characters of all names of slices and nodes


def extremes(values: Ints, most: int) -> Ints:
    """Return the positions of the first and last value and of each stretch's lowest and highest; all if few enough."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2, dtype=np.int64)
    begins, lengths = bounds[:-1], np.diff(bounds)
    ends = np.array([0, len(values) - 1])
    return np.unique(np.concatenate([ends, *(_first(values, of, begins, lengths) for of in (np.minimum, np.maximum))]))


def _first(values: Ints, of: np.ufunc, begins: Ints, lengths: Ints) -> Ints:
    """Return where each stretch first has its lowest or highest value."""
    equal = np.flatnonzero(values == np.repeat(of.reduceat(values, begins), lengths))
    result: Ints = equal[np.searchsorted(equal, begins)]
    return result


class Names:
    """Numbers texts; each is kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def of(self, table: Sequence[str], used: Ints) -> list[int]:
        """Return the numbers of the texts at positions ``used`` of a table; -1 stays -1."""
        entries, place = np.unique(used, return_inverse=True)
        numbers = np.array([self.number(table[entry]) if entry >= 0 else -1 for entry in entries.tolist()], np.int64)
        return list(numbers[place].tolist())

    def cut(self, whole: frozenset[str]) -> tuple[str, ...]:
        """Return all texts in the order of their numbers, cut so that their total length stays within a limit.

        Args:
            whole: names by which tables are looked up; they are cut only as much as the tables' names are.
        """
        most = max(_SHORTEST_CUT, min(LONGEST_TEXT, _ALL_NAMES // max(len(self._numbers), 1)))
        return tuple(cut(name, LONGEST_TEXT if name in whole else most) for name in self._numbers)


def cut(text: str, most: int) -> str:
    """Return a text with at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short(text: str) -> str:
    """Return a text short enough for a label."""
    return cut(text, _SHORTEST_CUT)
