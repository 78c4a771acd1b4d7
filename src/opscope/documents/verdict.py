"""What bounds a step, and results of the checks whether a trace's figures can be trusted."""

from enum import StrEnum
from typing import Literal, Self

from msgspec import Struct

# ---------------------------------------------------------------- what bounds a step


class BoundKind(StrEnum):
    """What limits the step time.

    Attributes:
        DEVICE: the device computes nearly all the time.
        COMMUNICATION, MEMCPY: the device moves data while nothing is computed.
        DISPATCH: the device waits for launches.
        BLOCKING: the device waits while the host sits in a call.
        ALLOCATION: the same, in a call that allocates or frees memory.
        HOST_WORK: the device waits for other work of the host.
        INPUT: the device waits for data to be loaded.
        DEPENDENCY: queued work waits: for another stream, device or program.
        COLD_START: contexts are created and code is loaded most of the time.
        CAPTURE: the recording is mostly a graph's capture, in which nothing runs.
        HOST_ONLY: nothing ran on a device.
        UNKNOWN: the recording allows opposite answers.
        awaited: what the device waits for in such a step, as the object of "waits for"; None if it does not.
        is_pause: whether the host does something else than launching and waiting meanwhile.
    """

    awaited: str | None
    is_pause: bool

    def __new__(cls, word: str, awaited: str | None = None, is_pause: bool = False) -> Self:
        """Make a member whose value is its word."""
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.awaited, kind.is_pause = awaited, is_pause
        return kind

    DEVICE = "device"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    DISPATCH = "dispatch", "the host to issue launches"
    BLOCKING = "blocking", "calls in which the host sits"
    ALLOCATION = "allocation", "calls that allocate or free memory"
    HOST_WORK = "host_work", "the host's other work", True
    INPUT = "input", "data to be loaded", True
    DEPENDENCY = "dependency", "other streams, devices or programs"
    COLD_START = "cold_start", "contexts to be created and code to be loaded"
    CAPTURE = "capture"
    HOST_ONLY = "host_only"
    UNKNOWN = "unknown", "work whose launch was not recorded"


class Actor(StrEnum):
    """Whom a device waits for, and so who can act."""

    HOST = "host"  # a thread of the program, which computes, loads or dispatches
    CALL = "call"  # the same, which sits in a call
    DEVICE = "device"  # work on other streams or devices, or the device between two kernels
    PROFILER = "profiler"
    UNKNOWN = "unknown"


class IdleCause(StrEnum):
    """What kept a device idle, judged by the launch of the activity that ended the gap.

    Until that call began, the device waited for the thread that made it. This thread sat in a call that blocks or took
    long (``BLOCKING``), did something that issues nothing (``HOST_WORK``), or dispatched operators and launches without
    a pause (``DISPATCH``). From the beginning of the call on it is ``LATENCY``, unless the call itself took long. If
    the call had returned before the gap began, the work was queued and waited for something else (``DEPENDENCY``).

    Attributes:
        bound: what bounds a step in which such waiting is the largest part; None for the profiler's own, which a step
            without a profiler does not have.
        waits_for: whom the device waits for.
        color: of its time in pictures, as CSS writes it.
    """

    bound: BoundKind | None
    waits_for: Actor
    color: str

    def __new__(cls, words: str, bound: BoundKind | None, waits_for: Actor, color: str) -> Self:
        """Make a member whose value is its words."""
        cause = str.__new__(cls, words)
        cause._value_ = words
        cause.bound, cause.waits_for, cause.color = bound, waits_for, color
        return cause

    BLOCKING = "blocking call", BoundKind.BLOCKING, Actor.CALL, "#d1495b"
    DISPATCH = "dispatch", BoundKind.DISPATCH, Actor.HOST, "#edae49"
    HOST_WORK = "host work", BoundKind.HOST_WORK, Actor.HOST, "#8d6a9f"
    LATENCY = "launch latency", BoundKind.DISPATCH, Actor.HOST, "#f4d58d"
    DEPENDENCY = "dependency", BoundKind.DEPENDENCY, Actor.DEVICE, "#5b8e7d"
    PROFILER = "profiler", None, Actor.PROFILER, "#adb5bd"
    UNKNOWN = "launch not recorded", BoundKind.UNKNOWN, Actor.UNKNOWN, "#868e96"
    TAIL = "after the last activity", BoundKind.HOST_WORK, Actor.HOST, "#a98467"
    ALLOCATION = "allocation", BoundKind.ALLOCATION, Actor.CALL, "#bc4749"
    INPUT = "data loading", BoundKind.INPUT, Actor.HOST, "#6d597a"
    COLD_START = "cold start", BoundKind.COLD_START, Actor.CALL, "#e09f3e"
    QUEUED = "between kernels", BoundKind.DEVICE, Actor.DEVICE, "#c9cba3"
    CLOCKS = "clocks disagree", BoundKind.UNKNOWN, Actor.UNKNOWN, "#b8bec4"
    COMPILING = "compilation", BoundKind.HOST_WORK, Actor.HOST, "#6f4e7c"
    GUARDS = "guard checks", BoundKind.HOST_WORK, Actor.HOST, "#b39ddb"

    @property
    def counted_as(self) -> "IdleCause":
        """The cause that pictures of a step count it as: the one that its kind of bound is named after.

        What torch.compile does has a part of its own: another change is needed there.
        """
        if self.bound is None or self in (IdleCause.COMPILING, IdleCause.GUARDS):
            return self
        return causes_of(self.bound)[0]


def causes_of(kind: BoundKind) -> tuple[IdleCause, ...]:
    """Return the causes of idle time that a kind of bound takes together, the one that it is named after first."""
    return tuple(cause for cause in IdleCause if cause.bound is kind)


class Bound(Struct, frozen=True):
    """The verdict on a step.

    Attributes:
        kind: what limits it; see `BoundKind`.
        sentence: the verdict in at most 25 words; if it is unknown, what to record instead.
        evidence: how the verdict is known, and how certain it is.
        share_low: the least share of the step, without a profiler, in which the busiest device works. None if no
            device worked, or nothing can be said.
        share_high: the largest such share; equal to ``share_low`` if an unprofiled step was measured.
        device_share: the measured share: of the unprofiled step if there is one, else of the profiled one.
        idle_cause: the largest cause of the device's idle time in the pass with names, named as in
            ``idle_by_cause_ns`` of ``devices``.
    """

    kind: str
    device_share: float | None
    idle_cause: str | None
    sentence: str
    evidence: str = ""
    share_low: float | None = None
    share_high: float | None = None


# ---------------------------------------------------------------- trust


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
    CLOCKS_AGREE = "clocks_agree"
    IDLE_CAUSES_KNOWN = "idle_causes_known"
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
    WAITS_RECORDED = "waits_recorded"
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
        share: ``time_ns`` as a fraction of ``share_of``; of launches, ``count`` is.
        share_of: what the fraction refers to.
    """

    name: CheckName
    verdict: Verdict
    count: int
    sentence: str
    time_ns: int | None = None
    time_of: Literal["device", "host"] | None = None
    share: float | None = None
    share_of: Literal["device sum", "device busy", "window", "launches"] | None = None


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
