"""What bounds a step: one word, the range of the device's share, a sentence."""

from dataclasses import dataclass
from enum import StrEnum


class BoundKind(StrEnum):
    """What limits the step time.

    ``DEVICE``: the device computes nearly all the time. ``COMMUNICATION``, ``MEMCPY``: it moves data meanwhile. Else it
    waits: for launches to be issued (``DISPATCH``), for a call in which the host sits (``BLOCKING``; one that allocates
    or frees: ``ALLOCATION``), for the host's other work (``HOST_WORK``; for data to be loaded: ``INPUT``), for another
    stream (``DEPENDENCY``). ``HOST_ONLY``: nothing ran on a device. ``COLD_START``: contexts are created and code is
    loaded most of the time. ``CAPTURE``: what was recorded is mostly a graph's capture, in which nothing runs.
    ``UNKNOWN``: what was recorded allows opposite answers.
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
        sentence: the verdict in at most 25 words; where it is unknown, what to record to know.
        evidence: how it is known, and how far.
        share_low: the least share of the step, without a profiler, in which the busiest device works. None where no
            device worked, or nothing can be said.
        share_high: the most; the same where an unprofiled step was measured.
        device_share: the share as measured: of the unprofiled step where there is one, else of the profiled one.
        idle_cause: the largest cause of the device's idle time in the pass with names, as ``idle_by_cause_ns`` of
            ``devices`` names it.
    """

    kind: str
    device_share: float | None
    idle_cause: str | None
    sentence: str
    evidence: str = ""
    share_low: float | None = None
    share_high: float | None = None
