"""What changed between two measurements, taken apart: the schema ``opscope.diff/1``.

Changes are whole nanoseconds per step (of the whole recording, if no steps are marked), rounded so that parts add up
exactly to their whole; each is within a nanosecond of its exact value. A positive change means that it takes longer.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from opscope.documents.trace import StepTime


class ChangeVerdict(StrEnum):
    """Whether the step changed."""

    SLOWER = "slower"
    FASTER = "faster"
    NO_DIFFERENCE = "no difference found"
    UNKNOWN = "cannot be known"


class Gate(StrEnum):
    """The result of ``--fail-over``.

    Attributes:
        INCOMPLETE: nothing was found to take longer, but some configurations have no result to compare.
    """

    FINE = "fine"
    REGRESSION = "regression"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"


class DiffBy(StrEnum):
    """What the groups of ``opscope diff --by`` are."""

    KERNEL = "kernel"
    MODULE = "module"
    CATEGORY = "category"


class MatchedBy(StrEnum):
    """How work on one side was matched with work on the other."""

    SAME = "operator and inputs"
    OPERATOR = "operator, inputs not recorded on both sides"
    INPUTS = "operator, with other inputs"
    DOES = "what it does"
    GONE = "only before"
    NEW = "only after"


class Differing(Struct, frozen=True):
    """A difference between the sides that is not a time; the value of a side is null if it is unknown."""

    kind: Literal["environment", "settings", "recording", "measurement"]
    name: str
    before: str | None
    after: str | None


class UnprofiledChange(Struct, frozen=True, kw_only=True):
    """The step without a profiler.

    Attributes:
        verdict: whether it changed.
        sentence: the verdict with numbers, or the reason why it is unknown.
        before, after: the step's time on both sides; null if there is none.
        change_ns: their difference.
        ratio: the step after over the step before.
        ratio_low, ratio_high: the range of that ratio, by the 95 % intervals of both and the usual difference between
            two runs of the same program. Null if unknown.
    """

    verdict: ChangeVerdict
    sentence: str
    before: StepTime | None = None
    after: StepTime | None = None
    change_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


class ChangePart(Struct, frozen=True):
    """A part of a change."""

    name: str
    change_ns: int


class KernelChange(Struct, frozen=True):
    """One kernel of a group of calls. Counts are per step; all figures of a side are null if it does not have it.

    Attributes:
        before, after: its name on either side; the names may differ in spelling.
        calls_before, calls_after: how often it ran.
        mean_before_ns, mean_after_ns: mean duration.
    """

    before: str | None
    after: str | None
    calls_before: float | None
    calls_after: float | None
    mean_before_ns: float | None
    mean_after_ns: float | None


class WorkChange(Struct, frozen=True, kw_only=True):
    """The calls of an operator with the same inputs on both sides; counts and times are per step.

    ``calls_ns + inputs_ns + launches_ns + kernel_changed_ns + same_kernel_ns + clocks_ns = change_ns``.

    Attributes:
        operator: its name before, or after if only that side has it. Null for work of no operator.
        renamed_to: its name after, if that differs; else null.
        category: what kind of work it does.
        matched: how the two sides were matched.
        why: a sentence on the match if it is not exact; else null.
        inputs_before, inputs_after: recorded shapes, JSON text.
        calls_before, calls_after: calls that launched anything.
        before_ns, after_ns: device time; if nothing ran on a device, self CPU time.
        change_ns: the difference.
        calls_ns: the part due to more or fewer calls; all of it if one side has none.
        inputs_ns: the part due to other inputs.
        launches_ns: the part due to more or fewer launches of the same kernels per call.
        kernel_changed_ns: the part due to other kernels.
        same_kernel_ns: the part due to the same kernels taking longer or shorter, except for ``clocks_ns``.
        clocks_ns: the part of such a change that the multiprocessors' clock can explain at most.
        kernels: what ran, the most expensive first.
    """

    operator: str | None
    renamed_to: str | None
    category: str
    matched: MatchedBy
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


class StepChange(Struct, frozen=True, kw_only=True):
    """How much longer a step takes. ``work_ns`` and ``parts`` add up to ``change_ns``, ``idle`` to the idle part.

    Attributes:
        unprofiled: whether this is the median unprofiled step. Else it is the recorded one, as always on a CPU, where
            all operator times are from the profiler.
        per_step: whether figures are for one step; else for the whole recording.
        steps_before, steps_after: number of recorded steps.
        measured_on: ``device``; or ``cpu`` if nothing ran on a device, and then work is operators' self CPU time.
        device_before, device_after: the numbers of the devices that worked most; null on the CPU.
        before_ns, after_ns: how long the step took.
        change_ns: the difference.
        work: by operator and inputs, the largest change first.
        work_ns: sum of their changes.
        parts: the rest: idle time, and work that ran in parallel or outside of the window; on the CPU, time that is
            not an operator's own.
        idle: idle time by cause in the recorded step; for an unprofiled step, also what the profiler adds to it.
        recorded_before_ns, recorded_after_ns: how long the step took under the profiler.
        window: how the recorded step is delimited, in words.
        reason: why it is not taken apart; null if it is.
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
    parts: tuple[ChangePart, ...] = ()
    idle: tuple[ChangePart, ...] = ()
    recorded_before_ns: float
    recorded_after_ns: float
    window: str
    reason: str | None = None


class HostChange(Struct, frozen=True, kw_only=True):
    """The host's part of the recorded step; ``parts`` add up to ``change_ns``.

    Attributes:
        launches_before, launches_after: API calls per step that launch work.
        before_ns, after_ns: length of the step's ranges on the host (of the recorded operators, without steps).
        change_ns: the difference.
        parts: operators' self times, API calls, the rest.
        operators: operators' self times on the host, the largest changes first.
    """

    launches_before: float
    launches_after: float
    before_ns: float
    after_ns: float
    change_ns: int
    parts: tuple[ChangePart, ...]
    operators: tuple[ChangePart, ...]


class GroupChange(Struct, frozen=True, kw_only=True):
    """Device time of a kernel, a module or a category in a recorded step.

    Attributes:
        name: of the group.
        before_ns, after_ns: durations added up.
        change_ns: the difference.
        calls_before, calls_after: how often it ran, or was called.
    """

    name: str
    before_ns: float
    after_ns: float
    change_ns: int
    calls_before: float
    calls_after: float


class MemoryPart(Struct, frozen=True, kw_only=True):
    """Bytes allocated by one operator that were alive at the peaks."""

    name: str
    before_bytes: int
    after_bytes: int
    change_bytes: int


class MemoryChange(Struct, frozen=True, kw_only=True):
    """Peak memory. ``parts`` add up to the change of the recorded peak where there are any.

    Attributes:
        before_bytes, after_bytes: most memory allocated on the device over the unprofiled steps; null if unknown.
        recorded_before_bytes, recorded_after_bytes: most memory allocated in the recording; null if not recorded.
        parts: by the operator that allocated.
    """

    before_bytes: int | None = None
    after_bytes: int | None = None
    recorded_before_bytes: int | None = None
    recorded_after_bytes: int | None = None
    parts: tuple[MemoryPart, ...] = ()


class PairDiff(Struct, frozen=True, kw_only=True):
    """The difference of two traces.

    Attributes:
        name: of the pair.
        before, after: their files.
        differing: differences that are not times, such as settings.
        unprofiled: whether the step without a profiler changed.
        step: the step taken apart.
        host: the host's part; null if the host was not recorded.
        memory: null if neither side has any.
        culprit: for a slower step, what grew most, in a sentence; null if the evidence names nothing.
        gate: the result of ``--fail-over``; null without it.
        by: what ``groups`` are, if they were asked for; else null.
        groups: work by kernel, module or category, the largest change first; null where it was not asked for, or where
            a side recorded no modules.
        kernels: device time of a recorded step by kernel, the largest change first; empty where no device worked.
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
    by: DiffBy | None = None
    groups: tuple[GroupChange, ...] | None = None
    kernels: tuple[GroupChange, ...] = ()


class DiffDocument(Struct, frozen=True, kw_only=True):
    """The difference of two runs, whose traces are compared in pairs.

    Attributes:
        before, after: the inputs.
        pairs: configurations that both runs have.
        only_before, only_after: configurations that only one run has.
        incomplete: configurations that were not compared because a side has no result, each with the reason.
        fail_over: how much longer a step may take, as a share; null without ``--fail-over``.
        gate: the worst result of all pairs, or `Gate.INCOMPLETE` if that is worse; null without ``--fail-over``.
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
