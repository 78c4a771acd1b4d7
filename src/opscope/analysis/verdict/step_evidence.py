"""What the verdict on a step rests on: devices, what they waited for, checks, the cost of recording. Its words."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from opscope.analysis.idle.steps import PAUSES, Waits, at_most
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.launches import MOSTLY, Captures
from opscope.analysis.structure.step_work import Window, WindowKind
from opscope.base.units import format_ns, format_share
from opscope.documents.trace import LongSteps, OddStep
from opscope.documents.verdict import BoundKind, Check, CheckName, Trust

# ---------------------------------------------------------------- the verdict in words


WAITS_FOR: Final[Mapping[BoundKind, str]] = {kind: kind.awaited for kind in BoundKind if kind.awaited is not None}
MOVES: Final[Mapping[BoundKind, str]] = {
    BoundKind.COMMUNICATION: "ranks exchange data or wait for each other",
    BoundKind.MEMCPY: "data move to, from or within its memory",
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


def host_not_recorded(covered: float, *, of_pytorch: bool) -> Unknown:
    """Return what to do if the host was hardly recorded.

    Args:
        covered: the share of the window in which any operator or call of the host is recorded.
        of_pytorch: whether PyTorch recorded it; other profilers record calls of CUDA alone.
    """
    return Unknown(
        "The host was hardly recorded: record CPU and CUDA activities, from before the launches on."
        if of_pytorch
        else "What the host did between its CUDA calls was not recorded: opscope profile shows it for Python scripts, "
        "NVTX ranges name it elsewhere.",
        f"Operators and calls of the host cover {format_share(covered, 1)} of the recording.",
    )


def device_not_recorded(sign: str) -> Unknown:
    """Return what to do if a program uses a GPU that was not recorded.

    Args:
        sign: the operator that shows it.
    """
    if "_mps_" in sign:
        return Unknown(
            "The program ran on Apple's GPU, whose work torch.profiler does not record: use torch.mps.profiler or "
            "Instruments.",
            f"{sign} runs only where there is such a GPU.",
        )
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


# ---------------------------------------------------------------- evidence of a step


# The factor by which the device's work may exceed an unprofiled step: clocks do not differ more from run to run.
_LONGER: Final = 1.1
_SLOWER: Final = 1.3
_LEAST_COVERED: Final = 0.1  # of the window
_MEANWHILE: Final = "other programs may have run meanwhile, or other steps were timed"
_LOST: Final = 0.1  # of the device's work, or of the window: the rest may have waited for what was lost


class ProfilerCost(Struct, frozen=True):
    """By which factor a way of collecting slows the host down, as measured on an H200 machine (docs/metrics.md).

    Attributes:
        collected: what is collected, in words.
        least, most: the least and the greatest factor; 1 is not a slowdown.
    """

    collected: str
    least: float
    most: float


DEVICE_ONLY: Final = ProfilerCost("device activities only", 1.0, 1.8)
OPERATORS: Final = ProfilerCost("operators", 1.1, 2.8)
SHAPES: Final = ProfilerCost("operators and shapes", 1.2, 2.8)
STACKS: Final = ProfilerCost("stacks", 1.5, 3.5)


class LightEvidence(Struct, frozen=True):
    """What a light pass says of the busiest device: without operators, but hardly slowed down.

    Attributes:
        device: that device's timeline.
        waits: what it waited for; without operators, dispatch cannot be told from other work of the host.
    """

    device: DeviceTimeline
    waits: Waits

    @property
    def busy_ns(self) -> int:
        """How long the device worked, in all steps."""
        return self.device.busy_in_window_ns

    @property
    def window_ns(self) -> int:
        """How long all steps took."""
        return self.device.window.duration_ns

    def by_kind(self, named: Waits) -> Mapping[BoundKind, float]:
        """Return how long the device waited per kind, in nanoseconds of all steps.

        Without operators, a long time between two launches looks like other work of the host. Of that, no more counts
        as other work than the pass with operators has; the rest is dispatch. But recording operators makes dispatch
        slower, not faster: what is longer than dispatch in that pass is other work again, or a wait that has no record.

        Args:
            named: the waits of the pass with operators.
        """
        results: dict[BoundKind, float] = dict(self.waits.by_kind)
        looks = sum(results.pop(kind, 0.0) for kind in PAUSES)
        theirs = {kind: float(named.by_kind.get(kind, 0)) for kind in PAUSES}
        pauses = {kind: time for kind, time in at_most(theirs, looks).items() if time}
        seen, rest = results.get(BoundKind.DISPATCH, 0.0), looks - sum(pauses.values())
        taken = min(rest, max(named.by_kind.get(BoundKind.DISPATCH, 0) - seen, 0.0))
        results[BoundKind.DISPATCH] = seen + taken
        if rest > taken:
            pauses[BoundKind.HOST_WORK] = pauses.get(BoundKind.HOST_WORK, 0.0) + rest - taken
        return results | pauses


class StepEvidence(Struct, frozen=True):
    """What the verdict on a step rests on.

    Attributes:
        trust: the checks.
        devices: the timelines of the devices that worked.
        waits: what the busiest of them waited for; None without a device.
        cost: by how much recording slowed the host down.
        window: the window of the host's figures.
        operator_time_ns: time in that window in which any operator ran on the host.
        steps: how many steps the trace holds; 0 if unknown.
        wall_ns: how long an unprofiled step takes, in nanoseconds; None if not measured: then the device's share is a
            range, as the profiler slowed the host down.
        typical_ns: how long one takes of the kind that is recorded, where a few take much longer; None if that is
            ``wall_ns``.
        data_ns: for how much of ``wall_ns`` the host waited for a DataLoader, as measured with it.
        typical_data_ns: the same of the median step.
        collecting_ns: for how much of it Python collected garbage, likewise.
        between_ns: how much of ``wall_ns`` comes between steps, such as evaluations: what the device does then is not
            recorded.
        long: the few timed steps that take much longer than the others; None without any.
        between: what that is, in a few words; empty where nothing comes.
        ran_on_gpu: whether the workload's device is a GPU; None if only the trace can tell.
        light: what a light pass over as many steps says of the busiest device; None without one.
        captures: which part of the recording is the capture of graphs; None if that was not looked for.
        gpu_sign: an operator that only a program with a GPU runs; None if none was recorded.
        warm_up: the share of the busiest device's window in ranges that call themselves a warm-up.
        host_covered: the share of that window in which any operator, call or frame is recorded on the host; None where
            that says nothing.
        host_elsewhere_ns: how long the host runs operators, or calls that do not wait, outside of that window.
        cold_elsewhere_ns: how much of that is calls before the window that create a context or load code.
        of_pytorch: whether PyTorch's profiler made the recording.
        lacks_cuda: whether it is an export of Nsight Systems without work of a device.
        cold_first: the first step of a recording that marks none, where it is unlike the others and takes most of it.
    """

    trust: Trust
    devices: Sequence[DeviceTimeline]
    waits: Waits | None
    cost: ProfilerCost
    window: Window
    operator_time_ns: int
    steps: int
    wall_ns: float | None = None
    typical_ns: float | None = None
    data_ns: float = 0.0
    typical_data_ns: float = 0.0
    collecting_ns: float = 0.0
    between_ns: float = 0.0
    between: str = ""
    long: LongSteps | None = None
    ran_on_gpu: bool | None = None
    light: "LightEvidence | None" = None
    captures: Captures | None = None
    host_covered: float | None = None
    gpu_sign: str | None = None
    warm_up: float = 0.0
    host_elsewhere_ns: int = 0
    cold_elsewhere_ns: int = 0
    of_pytorch: bool = True
    lacks_cuda: bool = False
    cold_first: OddStep | None = None

    @property
    def is_capture(self) -> bool:
        """Whether mostly a capture was recorded, of which nothing follows for a step."""
        return self.captures is not None and self.captures.is_mostly_one(self.window)

    @property
    def is_warm_up(self) -> bool:
        """Whether mostly a warm-up was recorded, by the names of the program's ranges."""
        return self.warm_up >= MOSTLY

    @property
    def host_unknown(self) -> Unknown | None:
        """Why it is unknown what a device waited for; None where it is known."""
        if (contradiction := self.trust.failed(CheckName.IDLE_CAUSES_KNOWN)) is not None:
            return Unknown(
                "The clocks of the host and of the device disagree: record it again.", contradiction.sentence
            )
        lost = self.trust.failed(CheckName.LAUNCH_RECORDED)
        if lost is not None and (lost.share or 0.0) >= _LOST:
            return launches_lost(lost)
        lost = self.trust.failed(CheckName.LAUNCHES_WITHOUT_ACTIVITY)
        if lost is not None and (lost.share or 0.0) > MOSTLY:
            return Unknown("Most launches have no recorded work: record fewer steps at once.", lost.sentence)
        lost = self.trust.failed(CheckName.GRAPH_REPLAYS_COMPLETE)
        if lost is not None and (lost.share or 0.0) >= _LOST:
            return Unknown("Records within graph replays were lost: record fewer steps at once.", lost.sentence)
        if self.host_covered is not None and self.host_covered < _LEAST_COVERED:
            return host_not_recorded(self.host_covered, of_pytorch=self.of_pytorch)
        return None

    @property
    def timeless(self) -> Check | None:
        """The check that failed because no activity has a duration; None where any has one."""
        result = self.trust.failed(CheckName.IMPOSSIBLE_DURATIONS)
        return None if any(device.busy_ns for device in self.devices) else result

    @property
    def mostly_elsewhere(self) -> bool:
        """Whether the host works for most of the recording before or after all of the device's work.

        Always False where steps are marked: without marks it is unknown whether that work is part of what is repeated.
        """
        whole = self.host_elsewhere_ns + busiest(self.devices).window.duration_ns if self.devices else 0
        return not self.steps and self.host_elsewhere_ns > MOSTLY * whole

    @property
    def timed_device(self) -> DeviceTimeline:
        """The busiest device, as the pass saw it whose times count: the light pass, if there is one."""
        return busiest(self.devices) if self.light is None else self.light.device

    @property
    def timed_cost(self) -> ProfilerCost:
        """By how much recording slowed the host down in that pass."""
        return self.cost if self.light is None else DEVICE_ONLY

    @property
    def busy_ns(self) -> int:
        """How long the busiest device works in all steps; in the light pass, if there is one."""
        return self.timed_device.busy_in_window_ns

    @property
    def unprofiled_ns(self) -> float | None:
        """How long an unprofiled step takes.

        None where that or the number of recorded steps is unknown, or the step cannot be one of those recorded.
        """
        if not self.wall_ns or not self.steps or self.not_theirs is not None:
            return None
        return self.wall_ns

    @property
    def inside_ns(self) -> float | None:
        """How long an unprofiled step takes without what comes between steps; None likewise."""
        return None if self.unprofiled_ns is None else self.unprofiled_ns - self.between_ns

    @property
    def waits_beyond_recorded_ns(self) -> float:
        """For how much longer an unprofiled step waits for data than a recorded one: it is the same step, but for that.

        Starting the profiler takes a while, in which workers load ahead: the few steps that follow find their batches
        ready. No more than the device idles in an unprofiled step: while it works, the host may wait in both. Where a
        median stands for the step, its own wait counts: most steps wait less than the mean.
        """
        if not self.steps or not self.wall_ns or self.waits is None:
            return 0.0
        is_median = self.typical_ns not in (None, self.wall_ns)
        waited = self.typical_data_ns if is_median else self.data_ns
        step = self.like_recorded_ns - (0.0 if is_median else self.between_ns)
        idle = max(step - self.busy_ns / self.steps, 0.0)
        return max(min(waited, idle) - self.waits.by_kind.get(BoundKind.INPUT, 0) / self.steps, 0.0)

    @property
    def like_recorded_ns(self) -> float:
        """How long an unprofiled step takes of the kind that is recorded; 0 if that is not known."""
        return self.typical_ns or self.wall_ns or 0.0

    @property
    def not_theirs(self) -> str | None:
        """Why the unprofiled step cannot be one of those recorded, as the end of a sentence; None where it can."""
        wall = self.like_recorded_ns * self.steps
        if not wall or not self.devices:
            return None
        if self.busy_ns > _LONGER * wall:
            work = format_ns(self.busy_ns / self.steps)
            return f"is shorter than the device's work in a recorded one ({work}): {_MEANWHILE}"
        # Steps of a busy host differ, but recording makes none faster. In a window of device work, the last step ends
        # with its last activity, whatever the host does afterwards, so it does not count as a whole one.
        window = busiest(self.devices).window
        whole = self.steps - 1 if window.kind is WindowKind.STEP_WORK else self.steps
        if not whole:
            return None
        recorded = window.duration_ns * self.steps / whole
        if self.light is not None:  # steps of a busy host differ from pass to pass
            recorded = max(recorded, self.light.window_ns * self.steps / whole)
        if wall - self.waits_beyond_recorded_ns * self.steps <= _SLOWER * recorded:
            return None
        return f"is longer than a recorded one ({format_ns(recorded / self.steps)}): {_MEANWHILE}"


def busiest(devices: Sequence[DeviceTimeline]) -> DeviceTimeline:
    """Return the device that verdicts are about: the one that works most in its window.

    Args:
        devices: at least one.
    """
    return max(devices, key=lambda timeline: (timeline.busy_in_window_ns, timeline.busy_ns))
