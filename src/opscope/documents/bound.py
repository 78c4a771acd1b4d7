"""What bounds a step: a kind, the range of the device's share, and a sentence."""

from dataclasses import dataclass
from enum import StrEnum


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
        DEPENDENCY: the device waits for another stream.
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


@dataclass(frozen=True, slots=True)
class Bound:
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
