"""Tells what to do about a trust check that fails."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from opscope.base.losses import Losses
from opscope.base.text import or_unknown
from opscope.documents.trust import Check, CheckName, Trust

_RECORD_AGAIN: Final = "Record it again"
_WHAT_TO_DO: Final = {
    CheckName.DEVICE_WORK_RECORDED: "Read what the program printed; opscope doctor tests the profiler",
    CheckName.FILE_IS_VALID: "Copy or record the file again; what is whole of it is shown",
    CheckName.RECORDING_COMPLETE: "Record fewer steps at once, or see what the sentence names",
    CheckName.IMPOSSIBLE_DURATIONS: _RECORD_AGAIN,
    CheckName.OPERATORS_NEST: _RECORD_AGAIN,
    CheckName.ONE_PROCESS: "Analyse the processes one by one",
    CheckName.TIME_RESOLUTION: "Record it with PyTorch 2.0 or newer, which keeps nanoseconds",
    CheckName.DEVICES_UNDERSTOOD: _RECORD_AGAIN,
    CheckName.HOST_TIME_COVERED: "Record the host's operators too (activities=cpu,cuda)",
    CheckName.LAUNCH_RECORDED: "Record from before the launches on: let the profiler warm up for a step",
    CheckName.OPERATOR_RECORDED: "Record the host's operators too (activities=cpu,cuda)",
    CheckName.LINKS_RECORDED: "Record it with a newer ROCm, or analyse it as the profiler wrote it",
    CheckName.LAUNCHES_WITHOUT_ACTIVITY: "Record fewer steps at once: records of the device were lost",
    CheckName.LAUNCHED_OUTSIDE_STEPS: "Let steps end with a wait for the device",
    CheckName.WORK_OUTSIDE_WINDOW: "Let steps end with a wait for the device",
    CheckName.OVERLAP_ON_ONE_STREAM: _RECORD_AGAIN,
    CheckName.REPEATED_CORRELATIONS: _RECORD_AGAIN,
    CheckName.COLD_LAUNCHES: "Record later steps",
    CheckName.PROFILER_INTERRUPTIONS: "Record fewer steps at once",
    CheckName.GRAPH_REPLAYS_COMPLETE: "Record fewer replays at once",
    CheckName.STEADY_STEPS: "Measure again on a machine that does nothing else, or later in the run",
    CheckName.PROFILER_OVERHEAD: "Go by the unprofiled step; times on the host are upper bounds",
    CheckName.PARTS_COMPUTED: "Report it with the traceback that opscope --debug shows",
    CheckName.WITHIN_LIMITS: "Measure the device's peaks (opscope gpus --measure), or report it: a model is wrong",
}

T = TypeVar("T")


def failures(trust: Trust) -> Iterator[str]:
    """Yield a sentence for each failed check, with what to do."""
    yield from map(_sentence, trust.failures())


def _sentence(check: Check) -> str:
    """Return what a check found, and what to do about it."""
    if (what := _WHAT_TO_DO.get(check.name)) is None:  # the sentence says it itself
        return check.sentence
    return f"{check.sentence.rstrip('.')}. {what}."


def or_reason(losses: Losses, part: str, make: Callable[[], Iterable[T]], reason: Callable[[str], T]) -> tuple[T, ...]:
    """Return the pieces of a part of a report; where that fails, the reason in their place.

    Args:
        losses: notes what failed.
        part: what it is, for the middle of a sentence.
        make: makes the pieces.
        reason: makes a piece of a sentence.
    """
    written = f"{part}, as text"  # what it shows may be a part of its own

    def instead() -> tuple[T, ...]:
        why = next((loss.reason for loss in losses.found if loss.part == written), "")
        return (reason(f"Left out: {part}, as writing it failed ({or_unknown(why)}). That is a fault of opscope's."),)

    return losses.part(written, lambda: tuple(make()), instead)
