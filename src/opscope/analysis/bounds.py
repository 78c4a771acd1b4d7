"""What bounds a step: the device, the host that launches, or the waiting between them."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from opscope.analysis.idle import LAUNCH_BOUND_CAUSES, IdleCause
from opscope.analysis.timeline import DeviceTimeline
from opscope.analysis.window import Window
from opscope.documents.trust import CheckName, Trust, Verdict
from opscope.units import format_ns, format_share

# Above the first share of the step a device counts as busy, below the second as starved.
_BUSY_SHARE = 0.8
_STARVED_SHARE = 0.5
_WITHHOLDING = (
    CheckName.FILE_IS_VALID,
    CheckName.WORK_OUTSIDE_WINDOW,
    CheckName.IMPOSSIBLE_DURATIONS,
    CheckName.LAUNCHES_WITHOUT_ACTIVITY,
    CheckName.GRAPH_REPLAYS_COMPLETE,
)


class BoundKind(enum.StrEnum):
    """What limits the step time."""

    DEVICE = "device-bound"
    COMMUNICATION = "communication-bound"
    MEMCPY = "memcpy-bound"
    LAUNCH = "launch-bound"
    PARTLY_LAUNCH = "partly launch-bound"
    SYNC = "bound by blocking calls"
    HOST_WORK = "bound by host work"
    DEPENDENCY = "dependency-bound"
    HOST_AFTER = "host-bound after the last kernel"
    CPU = "host only"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Bound:
    """The verdict on a step.

    Attributes:
        kind: what limits it.
        device_share: the share of the step in which the busiest device worked; of the unprofiled step where one was
            measured, of the profiled step otherwise. None without a device.
        idle_cause: the largest cause of idle time in the profiled steps.
        sentence: the verdict with its evidence.
    """

    kind: BoundKind
    device_share: float | None
    idle_cause: IdleCause | None
    sentence: str


def withheld(reason: str) -> Bound:
    """Return the verdict of a trace that allows none."""
    return Bound(BoundKind.UNKNOWN, None, None, f"Withheld. {reason}")


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """What the verdict on a step rests on.

    Attributes:
        trust: the checks.
        devices: the timelines of the devices that worked.
        window: of the host's figures.
        operator_time_ns: time in it in which any operator ran on the host.
        steps: how many steps the trace holds; 0 if unknown.
        wall_ns: median wall time of an unprofiled step in nanoseconds, if measured. The profiler slows the host down,
            so without it the device's share is a lower limit.
        ran_on_gpu: whether the workload's device is a GPU; None if only the trace can tell.
    """

    trust: Trust
    devices: Sequence[DeviceTimeline]
    window: Window
    operator_time_ns: int
    steps: int
    wall_ns: float | None = None
    ran_on_gpu: bool | None = None


def bound_of(evidence: StepEvidence) -> Bound:
    """Judge what bounds the steps of a trace."""
    failed = next((c for c in evidence.trust.checks if c.name in _WITHHOLDING and c.verdict is Verdict.FAIL), None)
    if failed is not None:
        return withheld(failed.sentence)
    if not evidence.devices:
        return _without_device(evidence)
    device = max(evidence.devices, key=lambda timeline: timeline.busy_ns)
    share, sentence = _device_share(device, evidence.steps, evidence.wall_ns)
    cause = _largest_cause(device)
    kind = _kind(device, share, cause)
    unprofiled = bool(evidence.wall_ns and evidence.steps)
    return Bound(kind, share, cause, f"{sentence} {_why(device, kind, cause, unprofiled=unprofiled)}")


def _device_share(device: DeviceTimeline, steps: int, wall_ns: float | None) -> tuple[float, str]:
    busy = device.busy_in_window_ns
    if wall_ns and steps:
        share = busy / steps / wall_ns
        of_what = f"of the unprofiled step of {format_ns(wall_ns)}"
    else:
        share = busy / device.window.duration_ns if device.window.duration_ns else 0.0
        of_what = "of the profiled time (the profiler slows the host down, so this is a lower limit)"
    amount = f"{format_ns(busy / steps)} per step" if steps else f"{format_ns(busy)} in the recording"
    return share, f"The device is busy {amount}, {format_share(share, 1)} {of_what}."


def _kind(device: DeviceTimeline, share: float, cause: IdleCause | None) -> BoundKind:
    if share >= _BUSY_SHARE or cause is None:
        waits = max(device.exposed_communication_ns, device.exposed_memcpy_ns)
        if waits > device.compute_ns:
            communicates = waits == device.exposed_communication_ns
            return BoundKind.COMMUNICATION if communicates else BoundKind.MEMCPY
        return BoundKind.DEVICE
    if cause in LAUNCH_BOUND_CAUSES:
        return BoundKind.LAUNCH if share < _STARVED_SHARE else BoundKind.PARTLY_LAUNCH
    by_cause = {
        IdleCause.BLOCKING: BoundKind.SYNC,
        IdleCause.HOST_WORK: BoundKind.HOST_WORK,
        IdleCause.DEPENDENCY: BoundKind.DEPENDENCY,
        IdleCause.TAIL: BoundKind.HOST_AFTER,
    }
    return by_cause.get(cause, BoundKind.UNKNOWN)


def _largest_cause(device: DeviceTimeline) -> IdleCause | None:
    idle = {cause: length for cause, length in device.idle.by_cause().items() if length}
    if not idle:
        return None
    largest = max(idle, key=idle.__getitem__)
    if sum(idle.get(cause, 0) for cause in LAUNCH_BOUND_CAUSES) >= idle[largest]:
        return max(LAUNCH_BOUND_CAUSES, key=lambda cause: idle.get(cause, 0))
    return largest


def _why(device: DeviceTimeline, kind: BoundKind, cause: IdleCause | None, *, unprofiled: bool) -> str:
    if kind is BoundKind.DEVICE:
        return "Faster kernels, or fewer of them, make the step faster."
    if cause is None or kind in (BoundKind.COMMUNICATION, BoundKind.MEMCPY):
        return "Most of it moves data and computes nothing meanwhile."
    idle = device.idle.by_cause()
    length = sum(idle[c] for c in LAUNCH_BOUND_CAUSES) if cause in LAUNCH_BOUND_CAUSES else idle[cause]
    share = format_share(length, device.idle_ns)
    if kind in (BoundKind.LAUNCH, BoundKind.PARTLY_LAUNCH):
        waited = f"For {share} of its idle time in the profile it waited for the host to launch"
        if not unprofiled:
            return (
                f"{waited}, which the profiler slows down: how much of that is left without it, and whether faster "
                "kernels help, the unprofiled step time tells (--step-time, opscope profile)."
            )
        return (
            f"{waited}: fewer or larger kernels, fewer synchronisations, torch.compile, or CUDA graphs help; faster "
            "kernels do not."
        )
    return f"{share} of its idle time in the profile is due to: {cause}."


def _without_device(evidence: StepEvidence) -> Bound:
    if evidence.ran_on_gpu:
        return withheld("The workload ran on a GPU, but no device activity was recorded.")
    if (nothing := evidence.trust.failed(CheckName.DEVICE_WORK_RECORDED)) is not None:
        return withheld(nothing.sentence)
    if (unknown := evidence.trust.failed(CheckName.DEVICES_UNDERSTOOD)) is not None:
        return withheld(unknown.sentence)
    share = format_share(evidence.operator_time_ns, evidence.window.duration_ns)
    sentence = (
        f"Everything ran on the CPU. Operators take {share} of the {evidence.window.kind}; the rest was not "
        "recorded: Python, waiting, or work on threads of the workload's own."
    )
    return Bound(BoundKind.CPU, None, None, sentence)
