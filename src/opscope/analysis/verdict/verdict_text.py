"""The words of the verdict: what a device waits for, and what to record if that is unknown."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from opscope.base.units import format_ns, format_share
from opscope.documents.bound import BoundKind
from opscope.documents.trust import Check

WAITS_FOR: Final[Mapping[BoundKind, str]] = {
    BoundKind.DISPATCH: "the host to issue launches",
    BoundKind.BLOCKING: "calls in which the host sits",
    BoundKind.ALLOCATION: "calls that allocate or free memory",
    BoundKind.HOST_WORK: "the host's other work",
    BoundKind.INPUT: "data to be loaded",
    BoundKind.DEPENDENCY: "other streams, devices or programs",
    BoundKind.COLD_START: "contexts to be created and code to be loaded",
    BoundKind.UNKNOWN: "work whose launch was not recorded",
}
MOVES: Final[Mapping[BoundKind, str]] = {
    BoundKind.COMMUNICATION: "between devices",
    BoundKind.MEMCPY: "to, from or within its memory",
}


class Unknown(Struct, frozen=True):
    """Why there is no verdict.

    Attributes:
        sentence: what to record to get one, in at most 25 words.
        evidence: what is wrong with this recording.
    """

    sentence: str
    evidence: str


def launches_lost(check: Check) -> Unknown:
    """Return what to do if launches of much of the work are missing.

    Args:
        check: the check that found it; its ``share`` is that of the device's work.
    """
    share = format_share(check.share or 0.0, 1)
    return Unknown(
        f"Launches of {share} of the device's work are missing: begin the recording before them, with CPU and CUDA "
        "activities.",
        check.sentence,
    )


def host_not_recorded(covered: float) -> Unknown:
    """Return what to do if the host was hardly recorded.

    Args:
        covered: the share of the window in which any operator or call of the host is recorded.
    """
    return Unknown(
        "The host was hardly recorded: record CPU and CUDA activities, from before the launches on.",
        f"Operators and calls of the host cover {format_share(covered, 1)} of the recording.",
    )


def device_not_recorded(sign: str) -> Unknown:
    """Return what to do if a program uses a GPU that was not recorded.

    Args:
        sign: the operator that shows it.
    """
    return Unknown(
        "The program uses a GPU that was not recorded: record CPU and CUDA activities; opscope doctor tests the "
        "profiler.",
        f"{sign} runs only where there is a GPU.",
    )


def works_elsewhere(elsewhere_ns: int, window_ns: int) -> Unknown:
    """Return what to do if the host works for most of the recording before or after all of the device's work.

    Args:
        elsewhere_ns: how long the host works there.
        window_ns: how long the device's window is.
    """
    return Unknown(
        f"Before or after the device's work the host works for {format_ns(elsewhere_ns)}: mark steps "
        "(profiler.step()) to tell whether that counts.",
        f"From its first activity to its last the device takes {format_ns(window_ns)}.",
    )
