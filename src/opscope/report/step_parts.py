"""What a step takes, and where it goes: its time in words, and a device's window as a bar of text."""

from collections.abc import Iterator, Mapping
from typing import Final

from opscope.base.units import format_ns, format_share
from opscope.documents.bound import IdleCause
from opscope.documents.findings import StepBasis
from opscope.documents.trace import DeviceEntry, StepFigure
from opscope.render.blocks import Tone, Toned

_WIDTH: Final = 48  # characters of a bar
_LEAST: Final = 0.005  # of the window: smaller causes are put together as "other"
_CATEGORIES: Final = 4  # how many are named
_IDLE: Final = "idle: "
# Causes of idle time that the verdict counts as one.
_SAME: Final = {str(IdleCause.LATENCY): str(IdleCause.DISPATCH), str(IdleCause.TAIL): str(IdleCause.HOST_WORK)}
# What fills the bar: dark for work, lighter for data that move, lightest for idle time.
_FILLS: Final = {"compute": "█", "exposed communication": "▓", "exposed memcpy": "▒"}
_IDLE_FILL: Final = "░"


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


def bar_lines(device: DeviceEntry, *, steps: int) -> Iterator[str]:
    """Yield the bar of a device's window, and a line that names its parts.

    Args:
        device: the device.
        steps: the number of steps in its window; 0 if none are marked.
    """
    parts = step_parts(device)
    whole = sum(parts.values())
    if not whole:
        return
    title = "Where a recorded step goes: " if steps else "Where the recording goes: "
    yield Toned(f"{title}{_bar(parts, whole)}", Tone.BAR)
    yield f"{'':{len(title)}}{_legend(parts, whole)}"


def categories_line(self_cpu_ns: Mapping[str, int]) -> str | None:
    """Return a line on the categories that take the most CPU time; None if no operators were recorded.

    Args:
        self_cpu_ns: the operators' self CPU time by category, in nanoseconds.
    """
    whole = sum(self_cpu_ns.values())
    if not whole:
        return None
    largest = sorted(self_cpu_ns.items(), key=lambda item: -item[1])[:_CATEGORIES]
    shares = ", ".join(f"{category} {format_share(time, whole)}" for category, time in largest if time)
    return f"Where the operators' CPU time goes: {shares}"


def _bar(parts: Mapping[str, int], whole: int) -> str:
    drawn, done = "", 0
    for name, time in parts.items():
        done += time
        # Rounded by where a part ends, not by its length, so that the bar is always as wide as intended.
        drawn += _FILLS.get(name, _IDLE_FILL) * (round(_WIDTH * done / whole) - len(drawn))
    return drawn


def _legend(parts: Mapping[str, int], whole: int) -> str:
    """Return the parts with their shares, idle time with its causes in brackets."""
    work = [f"{name} {format_share(time, whole)}" for name, time in parts.items() if name in _FILLS]
    causes: dict[str, int] = {}
    for name, time in parts.items():
        if name.startswith(_IDLE):
            cause = _SAME.get(name.removeprefix(_IDLE), name.removeprefix(_IDLE))
            causes[cause] = causes.get(cause, 0) + time
    named = [f"{cause} {format_share(time, whole)}" for cause, time in causes.items() if time >= _LEAST * whole]
    other = sum(time for time in causes.values() if time < _LEAST * whole)
    if other and named:
        named.append(f"other {format_share(other, whole)}")
    if not causes:
        return ", ".join(work)
    idle = f"idle {format_share(sum(causes.values()), whole)}"
    return ", ".join([*work, f"{idle} ({', '.join(named)})" if named else idle])
