"""Can the figures of this trace be believed? The verdicts; the checks themselves are in `opscope.analysis.checks`."""

import enum
from dataclasses import dataclass
from typing import Literal


class Verdict(enum.StrEnum):
    """The result of a check, and of all checks together (the worst of them)."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a trace.

    Attributes:
        name: stable identifier.
        verdict: the result.
        count: how many records are concerned.
        sentence: what was found, and what it means for the figures.
        time_ns: the time concerned; None where time says nothing.
        time_of: whose time that is.
        share: ``time_ns`` as a fraction of ``share_of``.
        share_of: what the fraction refers to.
    """

    name: str
    verdict: Verdict
    count: int
    sentence: str
    time_ns: int | None = None
    time_of: Literal["device", "host"] | None = None
    share: float | None = None
    share_of: Literal["device sum", "device busy"] | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """All checks of one trace."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all checks."""
        found = {check.verdict for check in self.checks}
        return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.PASS)

    def failed(self, name: str) -> bool:
        """Tell whether the check of this name failed."""
        return any(check.name == name and check.verdict is Verdict.FAIL for check in self.checks)
