"""What bounds a step: the device, the host that launches, or the waiting between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opscope.analysis.captures import Captures
from opscope.analysis.idle import IdleCause
from opscope.analysis.timeline import DeviceTimeline
from opscope.analysis.waits import CAUSES, Waits
from opscope.analysis.window import Window, WindowKind
from opscope.documents.bound import Bound, BoundKind
from opscope.documents.trust import CheckName, Trust
from opscope.units import format_ns, format_share

# From this share of the step on, a device is what bounds it: what it waits for allows at most a quarter more speed.
BUSY_SHARE: Final = 0.8
# Clocks differ from run to run, not by as much as this.
_LONGER: Final = 1.1
_SLOWER: Final = 1.3
# What waits for less of the step than this is no bound.
_LEAST_SHARE: Final = 0.1


_LEAST_COVERED: Final = 0.1  # of the window
_LOST: Final = 0.1  # of the device's work, or of the window: what the rest waited for may have been that

# What else the host does than to launch and to wait.
_PAUSES: Final[tuple[BoundKind, ...]] = (BoundKind.HOST_WORK, BoundKind.INPUT)


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """By how much a way of collecting slows the host down: the range measured on an H200 machine (docs/metrics.md)."""

    collected: str
    least: float
    most: float


DEVICE_ONLY: Final = ProfilerCost("device activities only", 1.0, 1.8)
OPERATORS: Final = ProfilerCost("operators", 1.1, 2.8)
SHAPES: Final = ProfilerCost("operators and shapes", 1.2, 2.8)
STACKS: Final = ProfilerCost("stacks", 1.5, 3.5)


@dataclass(frozen=True, slots=True)
class LightEvidence:
    """What a light pass says of the busiest device: without operators, but hardly slowed down.

    Attributes:
        busy_ns: how long it worked, in all steps.
        window_ns: how long they took.
        waits: what it waited for; what else the host did, a pass without operators does not tell apart.
    """

    busy_ns: int
    window_ns: int
    waits: Waits

    def by_kind(self, named: Waits) -> Mapping[BoundKind, float]:
        """Return what the device waited for.

        Without operators a long time between two launches looks like other work of the host. It is dispatch as far as
        the pass with operators has no such work.

        Args:
            named: the waits of the pass with operators.
        """
        found: dict[BoundKind, float] = dict(self.waits.by_kind)
        looks = sum(found.pop(kind, 0.0) for kind in _PAUSES)
        theirs = {kind: float(named.by_kind.get(kind, 0)) for kind in _PAUSES}
        pauses = {kind: time for kind, time in _at_most(theirs, looks).items() if time}
        found[BoundKind.DISPATCH] = found.get(BoundKind.DISPATCH, 0.0) + looks - sum(pauses.values())
        return found | pauses


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """What the verdict on a step rests on.

    Attributes:
        trust: the checks.
        devices: the timelines of the devices that worked.
        waits: what the busiest of them waited for; None without a device.
        cost: what recording cost the host.
        window: of the host's figures.
        operator_time_ns: time in it in which any operator ran on the host.
        steps: how many steps the trace holds; 0 if unknown.
        wall_ns: median wall time of an unprofiled step in nanoseconds, if measured. The profiler slows the host down,
            so without it the device's share is a range.
        ran_on_gpu: whether the workload's device is a GPU; None if only the trace can tell.
        light: what a light pass over as many steps says of the busiest device; None without one.
        captures: which part of the recording is the capture of graphs; None where nobody looked.
        gpu_sign: an operator that only a program with a GPU runs, where one was recorded.
        host_covered: the share of the window in which any operator or call is recorded on the host; None without one.
    """

    trust: Trust
    devices: Sequence[DeviceTimeline]
    waits: Waits | None
    cost: ProfilerCost
    window: Window
    operator_time_ns: int
    steps: int
    wall_ns: float | None = None
    ran_on_gpu: bool | None = None
    light: "LightEvidence | None" = None
    captures: Captures | None = None
    host_covered: float | None = None
    gpu_sign: str | None = None

    @property
    def is_capture(self) -> bool:
        """Whether mostly a capture was recorded: nothing that follows from it is of a step."""
        return self.captures is not None and self.captures.is_mostly_one(self.window)

    @property
    def host_unknown(self) -> str | None:
        """Why nobody can tell what a device waited for; None where that can be told."""
        for name in (CheckName.LAUNCH_RECORDED, CheckName.GRAPH_REPLAYS_COMPLETE):
            lost = self.trust.failed(name)
            if lost is not None and (lost.share or 0.0) >= _LOST:
                return lost.sentence
        if self.host_covered is not None and self.host_covered < _LEAST_COVERED:
            covered = format_share(self.host_covered, 1)
            return (
                f"Operators and calls of the host cover {covered} of the recording. Record the host too "
                "(activities=cpu,cuda), from before the launches on."
            )
        return None

    @property
    def busy_ns(self) -> int:
        """How long the busiest device works in all steps."""
        return busiest(self.devices).busy_in_window_ns if self.light is None else self.light.busy_ns

    @property
    def unprofiled_ns(self) -> float | None:
        """How long an unprofiled step takes, where that is known and how many steps the trace holds.

        One of other steps does not count.
        """
        if not self.wall_ns or not self.steps or self.not_theirs is not None:
            return None
        return self.wall_ns

    @property
    def not_theirs(self) -> str | None:
        """Why the unprofiled step cannot be one of those that were recorded; None where it can."""
        wall = (self.wall_ns or 0.0) * self.steps
        if not wall or not self.devices:
            return None
        if self.busy_ns > _LONGER * wall:
            return "is shorter than the device's work in a recorded one"
        # Steps of a host that has other things to do differ, but recording makes none faster.
        recorded = busiest(self.devices).window.duration_ns
        return "is longer than a recorded one, which no profiler makes shorter" if wall > _SLOWER * recorded else None


def withheld(reason: str) -> Bound:
    """Return the verdict of a trace that allows none."""
    return Bound(BoundKind.UNKNOWN, None, None, f"Withheld. {reason}")


def busiest(devices: Sequence[DeviceTimeline]) -> DeviceTimeline:
    """Return the device that verdicts are about."""
    return max(devices, key=lambda timeline: (timeline.busy_in_window_ns, timeline.busy_ns))


def bound_of(evidence: StepEvidence) -> Bound:
    """Judge what bounds the steps of a trace."""
    if (incomplete := evidence.trust.failed(CheckName.FILE_IS_VALID)) is not None:
        return withheld(incomplete.sentence)
    if not evidence.devices or evidence.waits is None:
        return _without_device(evidence)
    device, waits = busiest(evidence.devices), evidence.waits
    if not device.window.duration_ns:
        return withheld("The steps have no length.")
    if evidence.is_capture and evidence.captures is not None:
        return _of_capture(evidence.captures)
    share = _DeviceShare.of(evidence, device, waits)
    parts = waiting_per_step(evidence, device, waits)
    kind = _kind(device, share, parts, waits, known=evidence.host_unknown is None)
    cause = _largest_cause(device, parts)
    return Bound(
        kind=kind,
        device_share=share.measured,
        idle_cause=None if cause is None else str(cause),
        sentence=f"{share.sentence} {_why_of(evidence, kind, parts, share)}",
        share_low=share.low,
        share_high=share.high,
    )


def _of_capture(captures: Captures) -> Bound:
    sentence = (
        f"The recording is mostly the capture of a graph: {captures.launches:,} of {captures.of_launches:,} launches "
        "are noted in it, and nothing of them runs. Record replays to see what bounds them."
    )
    return Bound(BoundKind.CAPTURE, None, None, sentence)


@dataclass(frozen=True, slots=True)
class _DeviceShare:
    """In which share of a step the device works: as measured, and the range without a profiler; of how much time."""

    measured: float
    low: float
    high: float
    step_ns: float
    sentence: str
    of_steps: bool

    @classmethod
    def of(cls, evidence: StepEvidence, device: DeviceTimeline, waits: Waits) -> "_DeviceShare":
        busy, hidden = evidence.busy_ns, _hidden(evidence.trust, device)
        doubt = "" if not hidden else f" (and for up to {format_ns(hidden)} more, by the checks that failed)"
        steps = evidence.steps or 1
        amount = f"{format_ns(busy / steps)} per step" if evidence.steps else f"{format_ns(busy)} in the recording"
        if (wall := evidence.unprofiled_ns) is not None:
            share, high = busy / steps / wall, (busy + hidden) / steps / wall
            sentence = (
                f"The device is busy {amount}{doubt}, {format_share(min(share, 1.0), 1)} of the unprofiled step of "
                f"{format_ns(wall)}."
            )
            return cls(share, min(share, 1.0), min(high, 1.0), wall, sentence, of_steps=True)
        whole = device.window.duration_ns - waits.profiler_ns
        share = busy / whole if whole > 0 else 0.0
        high = _most(evidence, waits, busy + hidden, whole)
        other = (
            f"An unprofiled step of {format_ns(evidence.wall_ns)} {evidence.not_theirs}: they are not the same steps, "
            "so it does not count. "
            if evidence.wall_ns and evidence.not_theirs
            else ""
        )
        sentence = (
            f"{other}Under the profiler the device is busy {amount}{doubt}, {format_share(share, 1)} of the time; "
            f"recording {evidence.cost.collected} slows the host down, so without it that is {_range(share, high)}."
        )
        return cls(
            share,
            share,
            max(high, share),
            whole / steps,
            sentence,
            of_steps=bool(evidence.steps),
        )


def _range(low: float, high: float) -> str:
    if round(100 * low) >= round(100 * high):
        return f"about {format_share(low, 1)} too"
    return f"between {format_share(low, 1)} and {format_share(high, 1)}"


def _most(evidence: StepEvidence, waits: Waits, busy: int, whole: int) -> float:
    """Return the largest share that the device can have without the profiler.

    The host cannot be faster than by the profiler's factor. What blocks takes as long without it, and so does other
    work of the host unless stacks were recorded, which slow all Python down.
    """
    kinds, most = waits.by_kind, evidence.cost.most
    same = sum(kinds.get(kind, 0) for kind in (BoundKind.BLOCKING, BoundKind.ALLOCATION, BoundKind.COLD_START))
    same += waits.quiet_ns if evidence.cost is STACKS else sum(kinds.get(kind, 0) for kind in _PAUSES)
    # After a wait the queue is empty: nothing runs beside what the host does then, however fast it is.
    serial = waits.after_waits_ns / most
    least = max(busy + min(serial, whole - busy), same + (whole - same) / most)
    return min(busy / least, 1.0) if least > 0 else 0.0


def _hidden(trust: Trust, device: DeviceTimeline) -> int:
    """Return how much longer the device can have been busy in the window, by the checks that failed."""
    if trust.failed(CheckName.IMPOSSIBLE_DURATIONS) is not None:
        return device.idle_ns  # nobody knows how long those activities really were
    hidden = 0
    for name in (CheckName.LAUNCHES_WITHOUT_ACTIVITY, CheckName.GRAPH_REPLAYS_COMPLETE):
        if (check := trust.failed(name)) is not None:
            hidden += device.idle_ns if check.time_ns is None else check.time_ns
    if device.window.kind is WindowKind.STEPS and trust.failed(CheckName.WORK_OUTSIDE_WINDOW) is not None:
        hidden += device.outside_window_ns
    return min(hidden, device.idle_ns)


def waiting_per_step(evidence: StepEvidence, device: DeviceTimeline, waits: Waits) -> Mapping[BoundKind, float]:
    """Return per reason how long the device does not compute, per step.

    Of an unprofiled step's idle time, first what takes as long with a profiler as without one.
    """
    steps = evidence.steps or 1
    by_kind = waits.by_kind if evidence.light is None else evidence.light.by_kind(waits)
    parts = {kind: time / steps for kind, time in by_kind.items()}
    if evidence.unprofiled_ns is not None:
        idle = max(evidence.unprofiled_ns - evidence.busy_ns / steps, 0.0)
        slowed = parts.pop(BoundKind.DISPATCH, 0.0)
        parts = _at_most(parts, idle)
        parts[BoundKind.DISPATCH] = min(slowed, idle - sum(parts.values()))
    parts[BoundKind.COMMUNICATION] = device.exposed_communication_ns / steps
    parts[BoundKind.MEMCPY] = device.exposed_memcpy_ns / steps
    return parts


def _at_most(parts: Mapping[BoundKind, float], whole: float) -> dict[BoundKind, float]:
    """Return the parts, made smaller in proportion where together they exceed a whole."""
    total = sum(parts.values())
    scale = min(1.0, whole / total) if total > 0 else 1.0
    return {kind: time * scale for kind, time in parts.items()}


def _kind(
    device: DeviceTimeline, share: _DeviceShare, parts: Mapping[BoundKind, float], waits: Waits, *, known: bool
) -> BoundKind:
    moving = max((BoundKind.COMMUNICATION, BoundKind.MEMCPY), key=lambda kind: parts[kind])
    waiting = max((device.exposed_communication_ns, device.exposed_memcpy_ns))
    at_work = moving if waiting > device.compute_ns else BoundKind.DEVICE
    if share.low >= BUSY_SHARE:
        return at_work
    if not known:
        return BoundKind.UNKNOWN
    largest = max(parts, key=lambda kind: parts[kind])
    if at_work is largest or parts[largest] < _LEAST_SHARE * share.step_ns:
        return at_work
    if share.high >= BUSY_SHARE:
        return BoundKind.COMMUNICATION if _moves_in_any_case(device, share, parts) else BoundKind.UNKNOWN
    if largest is BoundKind.DISPATCH and _only_for_waiting(device, parts[largest], waits):
        return BoundKind.BLOCKING
    return largest


def _moves_in_any_case(device: DeviceTimeline, share: _DeviceShare, parts: Mapping[BoundKind, float]) -> bool:
    """Tell whether communication keeps the device from computing, however fast the host is without the profiler.

    That is so where what it computes is less than the bound's share even of the shortest step that it can have.
    """
    computed = share.high * device.compute_ns / device.busy_in_window_ns
    return computed < BUSY_SHARE and parts[BoundKind.COMMUNICATION] >= _LEAST_SHARE * share.step_ns


def _only_for_waiting(device: DeviceTimeline, dispatch: float, waits: Waits) -> bool:
    """Tell whether launches come late only because the host waits for the device between them.

    That is so where most of the time followed such a wait, and the host has enough time of its own to issue everything
    while the device is busy.
    """
    total = waits.by_kind.get(BoundKind.DISPATCH, 0)
    issuing = device.window.duration_ns - waits.profiler_ns - waits.host_waits_ns
    return dispatch > 0 and 2 * waits.drained_ns > total and issuing < device.busy_in_window_ns


def _largest_cause(device: DeviceTimeline, parts: Mapping[BoundKind, float]) -> IdleCause | None:
    """Return the cause to which most of what a device mostly waits for is due."""
    idle = device.idle.by_cause()
    of_kind = {kind: max(causes, key=lambda cause: idle[cause]) for kind, causes in CAUSES.items()}
    kinds = [kind for kind, cause in of_kind.items() if idle[cause] and parts.get(kind, 0.0) > 0]
    return of_kind[max(kinds, key=lambda kind: parts[kind])] if kinds else None


_WAITS_FOR: Final[Mapping[BoundKind, str]] = {
    BoundKind.DISPATCH: "the host to issue launches",
    BoundKind.BLOCKING: "calls in which the host sits",
    BoundKind.ALLOCATION: "calls that allocate or free memory",
    BoundKind.HOST_WORK: "the host's other work",
    BoundKind.INPUT: "data to be loaded",
    BoundKind.DEPENDENCY: "other streams or devices",
    BoundKind.COLD_START: "contexts to be created and code to be loaded",
    BoundKind.UNKNOWN: "work whose launch was not recorded",
}


def _why_of(evidence: StepEvidence, kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare) -> str:
    if kind is BoundKind.UNKNOWN and (reason := evidence.host_unknown) is not None:
        return f"Why it waits is unknown. {reason}"
    return _why(kind, parts, share, unprofiled=evidence.unprofiled_ns is not None)


def _why(kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare, *, unprofiled: bool) -> str:
    if kind is BoundKind.DEVICE:
        copied = parts.get(BoundKind.MEMCPY, 0.0) + parts.get(BoundKind.COMMUNICATION, 0.0)
        moving = f" For {format_ns(copied)} of it only data move." if copied >= _LEAST_SHARE * share.step_ns else ""
        return f"Faster kernels, or fewer of them, make the step faster.{moving}"
    if kind in (BoundKind.COMMUNICATION, BoundKind.MEMCPY):
        return _why_moving(kind, parts[kind], share, unprofiled=unprofiled)
    largest = max(_WAITS_FOR, key=lambda reason: parts.get(reason, 0.0))
    of_step = format_share(parts.get(largest, 0.0), share.step_ns)
    whole = f"{'unprofiled' if unprofiled else 'profiled'} step" if share.of_steps else "recording"
    waited = f"Most of its idle time ({of_step} of the {whole})"
    if kind is BoundKind.UNKNOWN and not unprofiled:
        return (
            f"{waited} is spent waiting for {_WAITS_FOR[largest]}: whether that, or the device, bounds the step, the "
            "unprofiled step time tells (--step-time, opscope profile)."
        )
    if largest is BoundKind.DISPATCH and kind is BoundKind.BLOCKING:
        return (
            f"{waited} is spent waiting for launches that come late because the host waited for the device before: "
            "it has the time to issue them while the device is busy."
        )
    if kind is BoundKind.DISPATCH and unprofiled:
        return (
            f"{waited} is spent waiting for {_WAITS_FOR[kind]}: fewer or larger kernels, fewer synchronisations, "
            "torch.compile, or CUDA graphs help; faster kernels do not."
        )
    return f"{waited} is spent waiting for {_WAITS_FOR[largest]}."


def _why_moving(kind: BoundKind, moving: float, share: _DeviceShare, *, unprofiled: bool) -> str:
    what = "between devices" if kind is BoundKind.COMMUNICATION else "to, from or within its memory"
    moves = f"For {format_ns(moving)} of it, data move {what} and nothing is computed"
    if share.low < BUSY_SHARE <= share.high and not unprofiled:
        return f"{moves}, with or without the profiler. The other idle time may be the profiler's own."
    return f"{moves}."


def _without_device(evidence: StepEvidence) -> Bound:
    if evidence.ran_on_gpu:
        return withheld("The workload ran on a GPU, but no device activity was recorded.")
    if (nothing := evidence.trust.failed(CheckName.DEVICE_WORK_RECORDED)) is not None:
        return withheld(nothing.sentence)
    if (unknown := evidence.trust.failed(CheckName.DEVICES_UNDERSTOOD)) is not None:
        return withheld(unknown.sentence)
    if evidence.gpu_sign is not None and evidence.ran_on_gpu is None:
        return withheld(
            f"The program uses a GPU ({evidence.gpu_sign}), and no device activity was recorded: record it too "
            "(activities=cpu,cuda); opscope doctor tells whether the profiler sees the GPU."
        )
    share = format_share(evidence.operator_time_ns, evidence.window.duration_ns)
    sentence = (
        f"Everything ran on the CPU. Operators take {share} of the {evidence.window.kind}; the rest was not "
        "recorded: Python, waiting, or work on threads of the workload's own."
    )
    return Bound(BoundKind.HOST_ONLY, None, None, sentence)
