"""Rules on the names of kernels and operators: each is there for a real name, and says where that was seen."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern

_Entry = Mapping[str, str | list[str]]
MANY_NAMES: Final = 2_000  # with as many, patterns are looked for in all of them at once (`many_names.py`)


class NameRule(Struct, frozen=True):
    """A rule on names.

    Attributes:
        pattern: a regular expression that is searched for.
        example: a real name that it is for.
        origin: where that name was seen.
    """

    pattern: str
    example: str
    origin: str

    @classmethod
    def of_entry(cls, entry: _Entry) -> "NameRule":
        """Make a rule of an entry in a file of rules; a list as its pattern is a list of alternatives."""
        pattern = entry["pattern"]
        alternatives = [pattern] if isinstance(pattern, str) else pattern
        return cls("|".join(alternatives), str(entry["example"]), str(entry["origin"]))


def entries_of(file: str) -> Mapping[str, Sequence[_Entry]]:
    """Read a file of rules on the names of kernels.

    Args:
        file: its name in ``data/kernel_names``.

    Returns:
        The entries of each of its tables, in the order in which they are tried.
    """
    text = resources.files("opscope.knowledge").joinpath("data", "kernel_names", file).read_text("utf-8")
    return tomllib.loads(text)


def compiled(rules: Iterable[NameRule], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return one expression that finds what any of the rules does."""
    return lazy_pattern("|".join(f"(?:{rule.pattern})" for rule in rules), flags)
