"""Steps as they would be without a profiler: what recording cost the host is taken out."""

from typing import Final

from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.edit import Edit
from opscope.knowledge.devices import Assumed

# The host's speed without a profiler, over what is left of the recorded one after the profiler's usual cost. It is
# fitted where the step follows the host (an elasticity of 0.4 and more); elsewhere a step does not tell it, and it was
# 0.64 to 1.02 in recorded programs whose steps do.
_FOLLOWS: Final = 0.4
_LEAST: Final = 0.2
# An unprofiled step takes no longer than the recorded one, but for the spread of steps: 3 % in a recorded program.
_SPREAD: Final = 1.05
_UNKNOWN_SPEEDS: Final = (1.02, 0.85, 0.64)
_MOST: Final = 4.0  # recording leaves at least a quarter of a pause
_TRIED: Final = 1.1  # for the elasticity: the host this much slower


def host_speed(steps: Steps, measured_ns: float | None) -> float | None:
    """Return the host's time without a profiler, as a multiple of what is left after the profiler's usual cost.

    Args:
        steps: the steps.
        measured_ns: the time of a step without a profiler; None where it is not known.

    Returns:
        The multiple with which the replay meets the measured step; None where the step does not tell it.
    """
    plain = Edit(steps)
    plain.without_profiler()
    before = plain.step_ns
    if measured_ns is None or before <= 0 or (_at(plain, _TRIED).step_ns / before - 1) / (_TRIED - 1) < _FOLLOWS:
        return None
    if measured_ns > _SPREAD * steps.graph.step_ns:
        return None
    slow, fast = _MOST, _LEAST
    for _ in range(20):
        middle = (slow + fast) / 2
        slow, fast = (middle, fast) if _at(plain, middle).step_ns > measured_ns else (slow, middle)
    return slow


def unprofiled_steps(steps: Steps, measured_ns: float | None) -> tuple[Edit, Edit, Edit]:
    """Return the steps without a profiler, for low, likely and high assumptions: with a slow, a likely and a fast host.

    All are the same where a measured step tells the host's speed.

    Args:
        steps: the steps.
        measured_ns: the time of a step without a profiler; None where it is not known.
    """
    plain = Edit(steps)
    plain.without_profiler()
    speed = host_speed(steps, measured_ns)
    low, likely, high = (_at(plain, one) for one in (_UNKNOWN_SPEEDS if speed is None else (speed,) * 3))
    return low, likely, high


def unprofiled_step(steps: Steps, measured_ns: float | None) -> Edit:
    """Return the steps without a profiler, as they most likely were; see `unprofiled_steps`."""
    return unprofiled_steps(steps, measured_ns)[Assumed.LIKELY]


def _at(plain: Edit, speed: float) -> Edit:
    edit = plain.copy()
    edit.scale_host(speed)
    return edit
