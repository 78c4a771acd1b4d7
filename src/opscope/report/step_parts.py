"""Trust in words; what a step takes, and where it goes: its time in words, and a device's window as a bar of text.

It also says what figures and words mean to their reader: which trust and which changes are good, and which are not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.step_work import Window
from opscope.base.parts import Losses
from opscope.base.text import or_unknown
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import BriefPart, StepBasis, StepFigure
from opscope.documents.trace import DeviceEntry, WindowEntry
from opscope.documents.verdict import Check, CheckName, IdleCause, Trust, Verdict
from opscope.render.blocks import Tone, Toned

# ---------------------------------------------------------------- trust


_RECORD_AGAIN: Final = "Record it again"
_WHAT_TO_DO: Final = {
    CheckName.DEVICE_WORK_RECORDED: "Read what the program printed; opscope doctor tests the profiler",
    CheckName.FILE_IS_VALID: "Copy or record the file again; what is whole of it is shown",
    CheckName.RECORDING_COMPLETE: "Record fewer steps at once, or see what the sentence names",
    CheckName.IMPOSSIBLE_DURATIONS: _RECORD_AGAIN,
    CheckName.CLOCKS_AGREE: "Device times are shifted; what the device waited for is right to within the range given",
    CheckName.IDLE_CAUSES_KNOWN: _RECORD_AGAIN,
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
    CheckName.WAITS_RECORDED: _RECORD_AGAIN,
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


# ---------------------------------------------------------------- steps


_WIDTH: Final = 48  # characters of a bar
_LEAST: Final = 0.005  # of the window: smaller causes are put together as "other"
_NAMED: Final = 2  # causes of idle time
_IDLE: Final = "idle: "
# What the verdict counts each cause of idle time as.
_COUNTED_AS: Final = {str(cause): str(cause.counted_as) for cause in IdleCause}
# What fills the bar: dark for work, lighter for data that move, lightest for idle time.
_FILLS: Final = {"compute": "█", "exposed communication": "▓", "exposed memcpy": "▒"}
_IDLE_FILL: Final = "░"
_TRUST: Final = {Verdict.PASS: Tone.GOOD, Verdict.WARN: Tone.DOUBT, Verdict.FAIL: Tone.BAD}
_COUNTS: Final = 0.01  # of the step


def of_trust(text: str, verdict: Verdict) -> str:
    """Mark words on how far figures can be trusted."""
    return Toned(text, _TRUST[verdict]) if verdict in _TRUST else text


def of_change(text: str, ns: float, step_ns: float) -> str:
    """Mark a change of a time: less is good, more is not, and what hardly counts is neither.

    Args:
        text: the change in words.
        ns: the change, in nanoseconds.
        step_ns: the length of the step that it is a part of.
    """
    return Toned(text, Tone.GOOD if ns < 0 else Tone.BAD) if abs(ns) >= _COUNTS * step_ns > 0 else text


def step_text(step: StepFigure | None) -> str:
    """Return how long a step takes, for the middle of a sentence; of a recorded one, also without the profiler."""
    if step is None:
        return "step not timed"
    text = f"{step.basis} {format_ns(step.ns)}"
    if step.low_ns is not None and step.high_ns is not None:
        return f"{text} ({format_ns(step.low_ns)} to {format_ns(step.high_ns)})"
    if step.estimate_ns is not None:
        return f"{text}, about {format_ns(step.estimate_ns)} without the profiler"
    return text


def step_line(step: StepFigure | None) -> str:
    """Return how long a step takes and what that rests on, without a full stop."""
    return step_text(step) if step is None else f"{step_text(step)}; {_basis(step)}"


def _basis(step: StepFigure) -> str:
    """Return what a step's time rests on."""
    if step.steps is None:
        return "as given by --step-time"
    return "1 step" if step.steps == 1 else f"mean of {step.steps:,} steps"


def step_cell(ns: float | None, basis: str | None) -> str:
    """Return a step's time for a cell of a table; one that was recorded is called so."""
    return f"{format_ns(ns)} recorded" if basis == StepBasis.RECORDED else format_ns(ns)


def device_entry(timeline: DeviceTimeline) -> DeviceEntry:
    """Build the document's entry of a device."""
    return DeviceEntry(
        device=timeline.device,
        name=timeline.name,
        activities=timeline.activities,
        sum_ns=timeline.sum_ns,
        busy_ns=timeline.busy_ns,
        window=window_entry(timeline.window),
        window_ns=timeline.window.duration_ns,
        outside_window_ns=timeline.outside_window_ns,
        idle_ns=timeline.idle_ns,
        compute_ns=timeline.compute_ns,
        exposed_communication_ns=timeline.exposed_communication_ns,
        exposed_memcpy_ns=timeline.exposed_memcpy_ns,
        idle_by_cause_ns={str(cause): length for cause, length in timeline.idle.by_cause().items() if length},
    )


def window_entry(window: Window) -> WindowEntry:
    """Build the document's entry of a window."""
    return WindowEntry(str(window.kind), window.start_ns, window.end_ns, window.duration_ns)


def step_parts(device: DeviceEntry) -> Mapping[str, int]:
    """Return the parts of a device's window in nanoseconds: work first, then idle time by cause, longest first."""
    idle = sorted(device.idle_by_cause_ns.items(), key=lambda item: -item[1])
    parts = {
        "compute": device.compute_ns,
        "exposed communication": device.exposed_communication_ns,
        "exposed memcpy": device.exposed_memcpy_ns,
        **{f"{_IDLE}{cause}": length for cause, length in idle},
    }
    return {name: time for name, time in parts.items() if time}


def bar(parts: Sequence[BriefPart]) -> str:
    """Return parts as a bar of text; empty where there are none."""
    whole = sum(part.share for part in parts)
    drawn, done = "", 0.0
    for part in parts if whole else ():
        done += part.share
        # Rounded by where a part ends, not by its length, so that the bar is always as wide as intended.
        drawn += _FILLS.get(part.name, _IDLE_FILL) * (round(_WIDTH * done / whole) - len(drawn))
    return drawn


def legend(parts: Sequence[BriefPart]) -> str:
    """Return parts with their shares, idle time with its causes in brackets."""
    work = [
        f"{part.name} {format_share(part.share, 1)}"
        for part in parts
        if not part.name.startswith(_IDLE) and part.share >= _LEAST
    ]
    causes: dict[str, float] = {}
    for part in parts:
        if part.name.startswith(_IDLE):
            cause = _COUNTED_AS.get(part.name.removeprefix(_IDLE), part.name.removeprefix(_IDLE))
            causes[cause] = causes.get(cause, 0.0) + part.share
    largest = sorted((cause for cause in causes if causes[cause] >= _LEAST), key=lambda cause: -causes[cause])[:_NAMED]
    named = [f"{cause} {format_share(causes[cause], 1)}" for cause in largest]
    other = sum(share for cause, share in causes.items() if cause not in largest)
    if other and named:
        named.append(f"other {format_share(other, 1)}")
    if not causes:
        return ", ".join(work)
    idle = f"idle {format_share(sum(causes.values()), 1)}"
    return ", ".join([*work, f"{idle} ({', '.join(named)})" if named else idle])
