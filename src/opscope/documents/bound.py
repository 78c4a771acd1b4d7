"""What bounds a step: a kind, the range of the device's share, and a sentence; and what keeps a device idle."""

from enum import StrEnum
from typing import Self

from msgspec import Struct


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
    """

    DEVICE = "device"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    DISPATCH = "dispatch"
    BLOCKING = "blocking"
    ALLOCATION = "allocation"
    HOST_WORK = "host_work"
    INPUT = "input"
    DEPENDENCY = "dependency"
    COLD_START = "cold_start"
    CAPTURE = "capture"
    HOST_ONLY = "host_only"
    UNKNOWN = "unknown"


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

    @property
    def counted_as(self) -> "IdleCause":
        """The cause that the verdict counts it as: the one that its kind of bound is named after."""
        return self if self.bound is None else causes_of(self.bound)[0]


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
