"""Whether everything that opscope uses works here: the schema ``opscope.doctor/1``."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Status(StrEnum):
    """What came of a check.

    Attributes:
        FINE: it works.
        WARNING: it works, and something is to be known.
        PROBLEM: it is there and does not work.
        ABSENT: it is not there, and nothing needs it.
    """

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what.
        status: the result.
        found: what was found.
        fix: what to do; null where nothing is to be done.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDocument:
    """All checks.

    Attributes:
        works: whether none is a problem.
        seconds: how long they took.
        checks: each.
    """

    schema: Literal["opscope.doctor/1"] = "opscope.doctor/1"
    works: bool
    seconds: float
    checks: tuple[Check, ...]
