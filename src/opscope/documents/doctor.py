"""Whether everything that opscope uses works here: the schema ``opscope.doctor/1``."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class Status(StrEnum):
    """The result of a check.

    Attributes:
        FINE: it works.
        WARNING: it works, with a reservation.
        PROBLEM: it is there and does not work.
        ABSENT: it is not there, and nothing needs it.
    """

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"
    ABSENT = "absent"


class MachineCheck(Struct, frozen=True, kw_only=True):
    """One check of the machine.

    Attributes:
        name: what was checked.
        status: the result.
        found: details of the result.
        fix: what to do; null if nothing is to be done.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None


class DoctorDocument(Struct, frozen=True, kw_only=True):
    """All checks.

    Attributes:
        works: whether no check found a problem.
        seconds: how long the checks took.
        checks: all checks.
    """

    schema: Literal["opscope.doctor/1"] = "opscope.doctor/1"
    works: bool
    seconds: float
    checks: tuple[MachineCheck, ...]
