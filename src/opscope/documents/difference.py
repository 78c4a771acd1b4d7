"""What changed between two measurements, taken apart: the schema ``opscope.diff/1``.

Changes are whole nanoseconds a step (of the recording, where no steps are marked), rounded so that parts add up exactly
to what they are parts of; each is within a nanosecond of its exact value. A change above 0 takes longer.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from opscope.documents.trace import SampleSummary


class ChangeVerdict(StrEnum):
    """What may be said of the step."""

    SLOWER = "slower"
    FASTER = "faster"
    NO_DIFFERENCE = "no difference found"
    UNKNOWN = "cannot be known"


class Gate(StrEnum):
    """What ``--fail-over`` says.

    Attributes:
        INCOMPLETE: nothing takes longer as far as can be told, but configurations have no result to compare.
    """

    FINE = "fine"
    REGRESSION = "regression"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"


class Matched(StrEnum):
    """By what work on one side was found again on the other."""

    SAME = "operator and inputs"
    OPERATOR = "operator, inputs not recorded on both sides"
    INPUTS = "operator, with other inputs"
    DOES = "what it does"
    GONE = "only before"
    NEW = "only after"


@dataclass(frozen=True, slots=True)
class Differing:
    """Something that is not the same on both sides; null where a side does not tell."""

    kind: Literal["environment", "settings", "recording", "measurement"]
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprofiledChange:
    """The step without a profiler.

    Attributes:
        verdict: whether it changed.
        sentence: the same, with numbers or the reason.
        before, after: the samples of both sides; null where there are none.
        change_ns: of the medians.
        ratio: median after over median before.
        ratio_low, ratio_high: where that ratio lies: by the 95 % intervals of both medians, and what two runs of the
            same program may differ by. Null where it cannot be told.
    """

    verdict: ChangeVerdict
    sentence: str
    before: SampleSummary | None = None
    after: SampleSummary | None = None
    change_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a change."""

    name: str
    change_ns: int


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One kernel of a group of calls. Counts and times are a step's; null on a side that does not have it.

    Attributes:
        before, after: its name on either side; they differ where only the spelling does.
        calls_before, calls_after: how often it ran.
        mean_before_ns, mean_after_ns: how long once.
    """

    before: str | None
    after: str | None
    calls_before: float | None
    calls_after: float | None
    mean_before_ns: float | None
    mean_after_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkChange:
    """The calls of an operator with the same inputs on both sides; counts and times are a step's.

    ``calls_ns + inputs_ns + launches_ns + kernel_changed_ns + same_kernel_ns + clocks_ns = change_ns``.

    Attributes:
        operator: its name; after, where it is called so on one side only, before. Null for work of no operator.
        renamed_to: its name after, where that is another.
        category: what kind of work it does.
        matched: by what the two sides were matched.
        why: the same in a sentence where it is no exact match; null else.
        inputs_before, inputs_after: shapes as recorded, JSON text.
        calls_before, calls_after: calls that launched anything.
        before_ns, after_ns: device time; where nothing ran on a device, self CPU time.
        change_ns: the difference.
        calls_ns: because there are more or fewer calls; all of it where one side has none.
        inputs_ns: because the inputs are others.
        launches_ns: because a call launches the same kernels more or less often.
        kernel_changed_ns: because other kernels do it.
        same_kernel_ns: because the same kernels take longer or shorter.
        clocks_ns: of that, as much as the change of the multiprocessors' clock can explain at most.
        kernels: what ran, the most expensive first.
    """

    operator: str | None
    renamed_to: str | None
    category: str
    matched: Matched
    why: str | None
    inputs_before: str | None
    inputs_after: str | None
    calls_before: float
    calls_after: float
    before_ns: float
    after_ns: float
    change_ns: int
    calls_ns: int = 0
    inputs_ns: int = 0
    launches_ns: int = 0
    kernel_changed_ns: int = 0
    same_kernel_ns: int = 0
    clocks_ns: int = 0
    kernels: tuple[KernelChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """How much longer a step takes. ``work_ns`` and ``parts`` add up to ``change_ns``, ``idle`` to the part so named.

    Attributes:
        unprofiled: whether it is the median unprofiled step; else the recorded one, as always on a CPU, where all times
            of operators are the profiler's.
        per_step: whether figures are of one step; else of the whole recording.
        steps_before, steps_after: how many steps were recorded.
        measured_on: ``device``, or ``cpu`` where nothing ran on a device: then work is operators' self CPU time.
        device_before, device_after: the numbers of the devices that worked most; null on the CPU.
        before_ns, after_ns: how long it took.
        change_ns: the difference.
        work: by operator and inputs, the largest change first.
        work_ns: their changes added up.
        parts: the rest: idle time, work that ran side by side or outside of the window; on the CPU what is no
            operator's own time.
        idle: idle time by its causes in the recorded step; of an unprofiled step, with what the profiler adds to that.
        recorded_before_ns, recorded_after_ns: how long the step took under the profiler.
        window: what the recorded step is measured by, in words.
        reason: why it is not taken apart, where it is not.
    """

    unprofiled: bool
    per_step: bool
    steps_before: int
    steps_after: int
    measured_on: Literal["device", "cpu"]
    device_before: int | None
    device_after: int | None
    before_ns: float
    after_ns: float
    change_ns: int
    work: tuple[WorkChange, ...] = ()
    work_ns: int = 0
    parts: tuple[Part, ...] = ()
    idle: tuple[Part, ...] = ()
    recorded_before_ns: float
    recorded_after_ns: float
    window: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChange:
    """The host's part of the recorded step; ``parts`` add up to ``change_ns``.

    Attributes:
        launches_before, launches_after: API calls that launch work, a step.
        before_ns, after_ns: how long the step's ranges on the host are (the recorded operators, without steps).
        change_ns: the difference.
        parts: operators' self times, API calls, the rest.
        operators: operators' self times on the host, the largest changes first.
    """

    launches_before: float
    launches_after: float
    before_ns: float
    after_ns: float
    change_ns: int
    parts: tuple[Part, ...]
    operators: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """What was alive at the peaks, of one operator; bytes."""

    name: str
    before_bytes: int
    after_bytes: int
    change_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChange:
    """Peak memory. ``parts`` add up to the change of the recorded peak where there are any.

    Attributes:
        before_bytes, after_bytes: most that was allocated on the device: over the unprofiled steps.
        recorded_before_bytes, recorded_after_bytes: most that was allocated in the recording.
        parts: by the operator that allocated.
    """

    before_bytes: int | None = None
    after_bytes: int | None = None
    recorded_before_bytes: int | None = None
    recorded_after_bytes: int | None = None
    parts: tuple[MemoryPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDiff:
    """Two traces.

    Attributes:
        name: what they are called together.
        before, after: their files.
        differing: what differs before any time does.
        unprofiled: whether the step changed.
        step: the recorded step taken apart.
        host: the host's part; null where nothing was recorded of it.
        memory: null where neither side knows it.
        culprit: of a step that is slower, what grew most, in a sentence; null where the evidence names nothing.
        gate: what ``--fail-over`` says; null without it.
    """

    name: str
    before: str
    after: str
    differing: tuple[Differing, ...]
    unprofiled: UnprofiledChange
    step: StepChange
    host: HostChange | None
    memory: MemoryChange | None
    culprit: str | None
    gate: Gate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffDocument:
    """Two runs: their traces in pairs.

    Attributes:
        before, after: the inputs.
        pairs: configurations that both have.
        only_before, only_after: configurations that one has.
        incomplete: configurations that were not compared, as a side has no result of them; each with the reason.
        fail_over: how much longer a step may take, as a share; null where that was not asked.
        gate: the worst of all pairs, and whether any is missing.
    """

    schema: Literal["opscope.diff/1"] = "opscope.diff/1"
    before: str
    after: str
    pairs: tuple[PairDiff, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    fail_over: float | None = None
    gate: Gate | None = None
    incomplete: tuple[str, ...] = ()
