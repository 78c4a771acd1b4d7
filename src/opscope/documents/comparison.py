"""All configurations of a sweep side by side, ``opscope.sweep-comparison/1``, and the runs of a folder."""

from typing import Literal

from msgspec import Struct, field

from opscope.documents.findings import Finding, StepBasis
from opscope.documents.verdict import Verdict
from opscope.record.capture import Clocks
from opscope.record.configuration import Value
from opscope.record.machine import Framework, Machine

# ---------------------------------------------------------------- runs


class RunRow(Struct, frozen=True, kw_only=True):
    """One configuration of a run, or one command that ran under ``opscope exec``.

    Attributes:
        folder: the run's folder.
        target: what ran.
        created: UTC, ISO 8601; empty if the run cannot be read.
        configuration: its id; null for a command.
        outcome: what bounds its step, why it failed, or how the command ended.
        step_ns: how long a step takes; null if no steps are known.
        step_basis: whether that is an unprofiled step or a recorded one.
    """

    folder: str
    target: str
    created: str
    configuration: str | None
    outcome: str
    step_ns: float | None
    step_basis: StepBasis | None = None


class RunsDocument(Struct, frozen=True, kw_only=True):
    """The runs in a folder, the oldest first."""

    schema: Literal["opscope.runs/1"] = "opscope.runs/1"
    runs: tuple[RunRow, ...]


# ---------------------------------------------------------------- comparisons


class ComparisonRow(Struct, frozen=True):
    """One configuration. Times are nanoseconds per step.

    Attributes:
        id: the configuration's name in file names.
        batch_size, seq_len: its sizes; null if they are not axes of the sweep.
        axes: the values of all axes, by name.
        wall_ns, wall_low_ns, wall_high_ns: how long an unprofiled step takes, and its 95 % interval (`StepTime`).
        event_ns: median CUDA event time.
        profiled_step_ns: median length of the profiled steps.
        device_sum_ns: durations of all device activities, per profiled step.
        device_busy_ns: time in which a device worked, per profiled step, added up over devices.
        device_share: busy time over the unprofiled wall time, or over the profiled step if that was not measured.
        cpu_self_ns: self CPU time of all operators, per profiled step.
        sequences_per_second, tokens_per_second: from ``wall_ns``.
        peak_memory_bytes, peak_memory_kind: most memory allocated on the device; on a CPU, most memory resident in the
            process, libraries included.
        bound: what bounds the step; see `opscope.documents.verdict.BoundKind`.
        launch_bound: whether launching on the host bounds it; null if unknown.
        trust: verdict of the trust checks.
        contended: whether other processes took the CPU from it while it was timed; null if unknown.
        categories_ns: self time per category and step: device time, or CPU time if no device worked.
        top_operators: the three operators with the most self time.
        step_ns, step_basis: what a step takes, and whether that is an unprofiled step or a recorded one (`StepFigure`).
    """

    id: str
    batch_size: int | None
    seq_len: int | None
    wall_ns: float | None
    wall_low_ns: float | None
    wall_high_ns: float | None
    event_ns: float | None
    profiled_step_ns: float | None
    device_sum_ns: float | None
    device_busy_ns: float | None
    device_share: float | None
    cpu_self_ns: float | None
    sequences_per_second: float | None
    tokens_per_second: float | None
    peak_memory_bytes: int | None
    peak_memory_kind: str
    bound: str
    launch_bound: bool | None
    trust: Verdict
    contended: bool | None
    categories_ns: dict[str, float]
    top_operators: tuple[str, ...]
    axes: dict[str, Value] = field(default_factory=dict)
    step_ns: float | None = None
    step_basis: StepBasis | None = None


class ScalingRow(Struct, frozen=True):
    """How one quantity grows from one size to the next, everything else fixed.

    Configurations that were measured on a busy machine are left out.

    Attributes:
        quantity: ``wall``, ``device sum``, a category (times per step), ``sequences/s``, ``tokens/s``, ``peak memory``.
        along: the axis: ``batch_size``, ``seq_len``, or another numeric one.
        fixed: the value of the other one of these two sizes; null if there is none.
        smaller, larger: the two values of the axis.
        ratio: the quantity at the larger size over that at the smaller one.
        ratio_low, ratio_high: for ``wall``, the range of the ratio by the 95 % intervals of both medians; else null.
        exponent: of the growth: 0 is none, 1 proportional, 2 quadratic.
        others: the values of all other axes.
    """

    quantity: str
    along: str
    fixed: int | None
    smaller: int
    larger: int
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    exponent: float
    others: dict[str, Value] = field(default_factory=dict)


class Term(Struct, frozen=True):
    """One term of a law of growth.

    Attributes:
        power: of the size, 0 to 3; 0 is what does not grow.
        ns: its factor in nanoseconds, positive.
    """

    power: int
    ns: float


class LawRow(Struct, frozen=True, kw_only=True):
    """The law by which one time grows along an axis, everything else fixed, and how well it predicts.

    The time is the sum of ``ns * g ** power`` over the terms. g is the size; with ``begins``, what exceeds it there;
    with ``stair``, the number of stairs, the last one counted whole, and ``slope_ns`` of each size is added.

    Attributes:
        quantity: ``wall``, ``device sum``, or the operator.
        is_operator: whether it is an operator's self time per step: on the device, or on the CPU if no device worked.
        along: the axis.
        others: the values of all other axes.
        sizes: the sizes that were measured.
        times_ns: the time at each of them.
        formula: the law in words; empty if it does not predict.
        terms: of the simplest law that predicts about as well as the best one.
        begins: the size at which growth begins; null if it grows from the start.
        stair: the size of one stair, as kernels take that run in waves of blocks; null without stairs.
        slope_ns: what each size adds besides the stairs; 0 without.
        turns: the measured range's sizes at which another term becomes the largest one.
        off, off_at: each size between the smallest and the largest is left out in turn, the law fitted to the others,
            and its time predicted: the worst relative error, or that of the fit at the two ends, and the size of it.
        predicts: whether none of these is off by more than 10 %. If not, no law that so few sizes can tell holds.
    """

    quantity: str
    is_operator: bool
    along: str
    others: dict[str, Value]
    sizes: tuple[int, ...]
    times_ns: tuple[float, ...]
    formula: str
    terms: tuple[Term, ...]
    begins: float | None
    stair: int | None
    slope_ns: float = 0.0
    turns: tuple[float, ...]
    off: float
    off_at: int
    predicts: bool


class FailedRow(Struct, frozen=True):
    """A configuration without a result."""

    id: str
    kind: str
    message: str


class SweepComparison(Struct, frozen=True, kw_only=True):
    """A sweep's results side by side.

    Attributes:
        measured_on: whether the categories' self times are the device's or the CPU's.
        unit: what ``sequences_per_second`` counts.
        notes: name the configurations that were measured in another environment.
        pending: ids of configurations that did not run.
        findings: those that only a sweep shows.
        laws: how the step's times and those of its costliest operators grow.
    """

    schema: Literal["opscope.sweep-comparison/1"] = "opscope.sweep-comparison/1"
    target: str
    mode: str
    dtype: str | None
    description: str
    command: tuple[str, ...]
    created: str
    machine: Machine | None
    framework: Framework | None
    clocks: Clocks | None
    measured_on: Literal["device", "cpu"]
    unit: str
    notes: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    scaling: tuple[ScalingRow, ...]
    failed: tuple[FailedRow, ...]
    pending: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    laws: tuple[LawRow, ...] = ()


class SweepComparisons(Struct, frozen=True, kw_only=True):
    """The comparisons of several sweeps that one command ran: the schema ``opscope.sweep-comparison-list/1``."""

    schema: Literal["opscope.sweep-comparison-list/1"] = "opscope.sweep-comparison-list/1"
    sweeps: tuple[SweepComparison, ...]
