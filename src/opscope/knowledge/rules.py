"""Rules on the names of kernels and operators: each is there for a real name, and says where that was seen."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameRule:
    """A rule on names.

    Attributes:
        pattern: a regular expression that is searched for.
        example: a real name that it is for.
        origin: where that name was seen.
    """

    pattern: str
    example: str
    origin: str


def compiled(rules: Iterable[NameRule], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return one expression that finds what any of the rules does."""
    return re.compile("|".join(f"(?:{rule.pattern})" for rule in rules), flags)
