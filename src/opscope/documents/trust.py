"""Results of the checks whether a trace's figures can be trusted; `opscope.analysis.trust.checks` makes them."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class Verdict(StrEnum):
    """The result of a check, and of all checks together (the worst of them)."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class CheckName(StrEnum):
    """The checks, in the order in which they are made."""

    DEVICE_WORK_RECORDED = "device_work_recorded"
    FILE_IS_VALID = "file_is_valid"
    RECORDING_COMPLETE = "recording_complete"
    IMPOSSIBLE_DURATIONS = "impossible_durations"
    OPERATORS_NEST = "operators_nest"
    ONE_PROCESS = "one_process"
    TIME_RESOLUTION = "time_resolution"
    DEVICES_UNDERSTOOD = "devices_understood"
    HOST_TIME_COVERED = "host_time_covered"
    LAUNCH_RECORDED = "launch_recorded"
    OPERATOR_RECORDED = "operator_recorded"
    LINKS_RECORDED = "links_recorded"
    LAUNCHES_WITHOUT_ACTIVITY = "launches_without_activity"
    LAUNCHED_OUTSIDE_STEPS = "launched_outside_steps"
    WORK_OUTSIDE_WINDOW = "work_outside_window"
    OVERLAP_ON_ONE_STREAM = "overlap_on_one_stream"
    REPEATED_CORRELATIONS = "repeated_correlations"
    COLD_LAUNCHES = "cold_launches"
    PROFILER_INTERRUPTIONS = "profiler_interruptions"
    GRAPH_REPLAYS_COMPLETE = "graph_replays_complete"
    CPU_CONTENTION = "cpu_contention"
    SAME_STEPS = "same_steps"
    STEADY_STEPS = "steady_steps"
    PROFILER_OVERHEAD = "profiler_overhead"
    WITHIN_LIMITS = "within_limits"
    PARTS_COMPUTED = "parts_computed"


class Check(Struct, frozen=True):
    """One check of a trace.

    Attributes:
        name: stable identifier.
        verdict: the result.
        count: number of affected records.
        sentence: what was found, and what it means for the figures.
        time_ns: the affected time; None if time does not apply.
        time_of: whose time that is.
        share: ``time_ns`` as a fraction of ``share_of``.
        share_of: what the fraction refers to.
    """

    name: CheckName
    verdict: Verdict
    count: int
    sentence: str
    time_ns: int | None = None
    time_of: Literal["device", "host"] | None = None
    share: float | None = None
    share_of: Literal["device sum", "device busy", "window"] | None = None


def worst_verdict(checks: tuple[Check, ...]) -> Verdict:
    """Return the worst verdict of some checks; PASS if there are none."""
    results = {check.verdict for check in checks}
    return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in results), Verdict.PASS)


class Trust(Struct, frozen=True):
    """All checks of one trace; the verdict is the worst of them.

    Attributes:
        verdict: the worst of all checks.
        checks: all of them.
    """

    verdict: Verdict
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, checks: tuple[Check, ...]) -> "Trust":
        """Build the result of all checks, with the worst verdict."""
        return cls(worst_verdict(checks), checks)

    def failed(self, name: CheckName) -> Check | None:
        """Return the check with this name if it failed, else None."""
        return next((c for c in self.checks if c.name is name and c.verdict is Verdict.FAIL), None)

    def failures(self) -> tuple[Check, ...]:
        """Return the checks that failed."""
        return tuple(check for check in self.checks if check.verdict is Verdict.FAIL)

    def doubts(self) -> tuple[Check, ...]:
        """Return the checks that did not pass: warnings and failures."""
        return tuple(check for check in self.checks if check.verdict is not Verdict.PASS)
