"""What the verdict on a step rests on: devices and their waiting, checks, and what recording cost the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.idle.waits import PAUSES, Waits, at_most
from opscope.analysis.structure.captures import MOSTLY, Captures
from opscope.analysis.structure.window import Window, WindowKind
from opscope.analysis.verdict.verdict_text import Unknown, host_not_recorded, launches_lost
from opscope.documents.bound import BoundKind
from opscope.documents.trust import Check, CheckName, Trust

# Clocks differ from run to run, not by as much as this.
_LONGER: Final = 1.1
_SLOWER: Final = 1.3
_LEAST_COVERED: Final = 0.1  # of the window
_LOST: Final = 0.1  # of the device's work, or of the window: what the rest waited for may have been that


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
        looks = sum(found.pop(kind, 0.0) for kind in PAUSES)
        theirs = {kind: float(named.by_kind.get(kind, 0)) for kind in PAUSES}
        pauses = {kind: time for kind, time in at_most(theirs, looks).items() if time}
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
        warm_up: the share of the window in ranges that call themselves a warm-up.
        host_covered: the share of the window in which any operator or call is recorded on the host; None without one.
        host_elsewhere_ns: how long the host runs operators, or calls that do not wait, before and after that window.
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
    warm_up: float = 0.0
    host_elsewhere_ns: int = 0

    @property
    def is_capture(self) -> bool:
        """Whether mostly a capture was recorded: nothing that follows from it is of a step."""
        return self.captures is not None and self.captures.is_mostly_one(self.window)

    @property
    def is_warm_up(self) -> bool:
        """Whether mostly a warm-up was recorded, by the program's own words."""
        return self.warm_up >= MOSTLY

    @property
    def host_unknown(self) -> Unknown | None:
        """Why nobody can tell what a device waited for; None where that can be told."""
        lost = self.trust.failed(CheckName.LAUNCH_RECORDED)
        if lost is not None and (lost.share or 0.0) >= _LOST:
            return launches_lost(lost)
        lost = self.trust.failed(CheckName.GRAPH_REPLAYS_COMPLETE)
        if lost is not None and (lost.share or 0.0) >= _LOST:
            return Unknown("Records within graph replays were lost: record fewer steps at once.", lost.sentence)
        if self.host_covered is not None and self.host_covered < _LEAST_COVERED:
            return host_not_recorded(self.host_covered)
        return None

    @property
    def timeless(self) -> Check | None:
        """The check that found that no activity of the device has a duration; None where any has one."""
        found = self.trust.failed(CheckName.IMPOSSIBLE_DURATIONS)
        return None if any(device.busy_ns for device in self.devices) else found

    @property
    def mostly_elsewhere(self) -> bool:
        """Whether the host works for most of the recording before or after all of the device's work.

        Without marked steps nobody knows whether that is part of what is repeated.
        """
        whole = self.host_elsewhere_ns + busiest(self.devices).window.duration_ns if self.devices else 0
        return not self.steps and self.host_elsewhere_ns > MOSTLY * whole

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
        # Steps of a host that has other things to do differ, but recording makes none faster. Measured by their work,
        # the last one ends with its last activity, whatever the host does afterwards.
        window = busiest(self.devices).window
        whole = self.steps - 1 if window.kind is WindowKind.STEP_WORK else self.steps
        if not whole:
            return None
        recorded = window.duration_ns * self.steps / whole
        return "is longer than a recorded one, which no profiler makes shorter" if wall > _SLOWER * recorded else None


def busiest(devices: Sequence[DeviceTimeline]) -> DeviceTimeline:
    """Return the device that verdicts are about."""
    return max(devices, key=lambda timeline: (timeline.busy_in_window_ns, timeline.busy_ns))
