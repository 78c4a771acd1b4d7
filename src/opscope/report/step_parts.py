"""Divides a device's window into its work and its waits, and draws them as a bar of text."""

from collections.abc import Iterator, Mapping
from typing import Final

from opscope.base.units import format_share
from opscope.documents.bound import IdleCause
from opscope.documents.trace import DeviceEntry
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
