"""``did you mean ...``: operators whose names are like one that is not known."""

import difflib
from collections.abc import Iterable
from typing import Final

_LIKE: Final = 0.75  # difflib's ratio; below it, what is found has little to do with what was asked
_MOST: Final = 3


def similar_operators(name: str, operators: Iterable[str]) -> tuple[str, ...]:
    """Return the operators that may be meant, the likeliest first.

    Underscores and case count for nothing, and of ``gelu``, ``gelu_`` and ``_gelu`` one is returned: the shortest.
    """
    bare: dict[str, str] = {}
    for operator in sorted(operators, key=lambda operator: (len(operator), operator)):
        bare.setdefault(_bare(operator), operator)
    asked = _bare(name)
    if len(asked) < 2:
        return ()
    like = difflib.get_close_matches(asked, bare, _MOST, _LIKE)
    starting = [other for other in bare if other.startswith(asked) and other not in like] if len(asked) > 2 else []
    return tuple(bare[other] for other in (*like, *starting)[:_MOST])


def _bare(operator: str) -> str:
    """Return a name without namespace and underscores, in lower case."""
    return operator.rpartition("::")[2].replace("_", "").lower()
