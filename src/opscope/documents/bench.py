"""What a benchmark measured: the schema ``opscope.bench/1``."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct, field

from opscope.record.bench import BenchRequest
from opscope.record.capture import Clocks
from opscope.record.machine import Framework, Machine


class Measure(StrEnum):
    """What a duration measures. Different measures are never put in one column.

    Attributes:
        KERNEL: sum of the durations of the kernels, copies and fills that a call launched; L2 flushed before it.
        KERNEL_WARM: the same, with the cache as the previous call left it.
        EVENT: time on the device between events around a call, queued so that the host is never late.
        GRAPH: the same for one replay of the call, captured in a CUDA graph.
        ISSUE: how long the host takes to issue a call to an idle device.
        WALL: the host's clock around a call and a synchronise.
    """

    KERNEL = "kernel_ns"
    KERNEL_WARM = "kernel_warm_ns"
    EVENT = "event_ns"
    GRAPH = "graph_ns"
    ISSUE = "issue_ns"
    WALL = "wall_ns"


class SpeedVerdict(StrEnum):
    """The result of comparing a variant with the baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    INCONCLUSIVE = "inconclusive"
    WRONG = "wrong"


class Stopped(StrEnum):
    """Why measuring stopped."""

    CONFIDENT = "the interval is narrow enough"
    TIME = "the time was up"
    CALLS = "there were calls enough"


class Duration(Struct, frozen=True, kw_only=True):
    """Durations of one measure, in nanoseconds. All samples are kept.

    Attributes:
        median: of the samples.
        ci_low, ci_high: the 95 % interval of the median, by order statistics, which assume no distribution. Null with
            fewer than six samples.
        n: number of samples.
        samples: each call, in order; for several processes, the median of each.
        stopped: why measuring stopped.
    """

    median: float
    ci_low: float | None
    ci_high: float | None
    n: int
    samples: tuple[float, ...]
    stopped: Stopped


class Correct(StrEnum):
    """Whether a variant computes what the reference does."""

    RIGHT = "right"
    LOWER_PRECISION = "lower precision"
    WRONG = "wrong"
    NOT_CHECKED = "not checked"


class RegimeError(Struct, frozen=True, kw_only=True):
    """How far a result is from the reference for one kind of inputs.

    Attributes:
        regime: the kind of inputs: ``as given``, ``large``, ``zeros``, ``strided``.
        error: the norm of the difference over the norm of the reference; null if it was not compared.
        problem: what is wrong; null if nothing is.
    """

    regime: str
    error: float | None
    problem: str | None = None


class Correctness(Struct, frozen=True, kw_only=True):
    """The comparison of a result with a float64 reference.

    Attributes:
        verdict: the result.
        sentence: what it rests on.
        reference: what it was compared with; null if it was not compared.
        tolerance: largest relative error that counts as right.
        errors: per kind of inputs.
        precision: the precision of the variant, as far as its result and error show it: ``float32``, ``tf32``.
        worst: the kind of inputs that decided the verdict; null if none did.
    """

    verdict: Correct
    sentence: str
    reference: str | None
    tolerance: float | None
    errors: tuple[RegimeError, ...] = ()
    precision: str | None = None
    worst: str | None = None


# A gain is confirmed if another process's clock shows it within this factor: on two cores that others used as well,
# calls of one function in two processes differed by up to 1.4.
CONFIRMED_WITHIN: Final = 1.5


class Confirmation(Struct, frozen=True, kw_only=True):
    """What was found when the variant ran alone in its own process, while another timed it and checked its results.

    Attributes:
        correctness: of the results that came back; null if they were not checked.
        call_ns, baseline_ns: the time of a call of the variant and of the baseline, many in a row, by that clock; null
            if they were not timed.
        doubt: a sentence if that clock contradicts the benchmark; null if it does not.
        reason: why nothing was found; null if something was.
    """

    correctness: Correctness | None = None
    call_ns: float | None = None
    baseline_ns: float | None = None
    doubt: str | None = None
    reason: str | None = None


class LimitShare(Struct, frozen=True, kw_only=True):
    """How far the kernels are from the device's limits.

    Attributes:
        flop: operations of products, as ``torch.utils.flop_counter`` counts them for the baseline.
        least_bytes: size of the inputs and the result, each counted once.
        ideal_ns: the least time by these and the peaks; null if no peaks are known.
        share: the ideal over the median kernel time; over 1 is a contradiction.
        flop_per_s, bytes_per_s: achieved rates, by the median kernel time.
        peaks: the source of the peaks.
        of_peak_flops, of_peak_bandwidth: the achieved rates over these peaks.
        of_datasheet_flops, of_datasheet_bandwidth: the achieved rates over the datasheet's peaks.
    """

    flop: int
    least_bytes: int
    ideal_ns: float | None
    share: float | None
    flop_per_s: float | None
    bytes_per_s: float | None
    peaks: str | None
    of_peak_flops: float | None = None
    of_peak_bandwidth: float | None = None
    of_datasheet_flops: float | None = None
    of_datasheet_bandwidth: float | None = None


class Steady(Struct, frozen=True, kw_only=True):
    """How long a call takes on the CPU while the machine runs at full speed, absolute and relative to a yardstick.

    The yardstick is a fixed piece of work, measured in the same rounds. If the machine is slower than before, for
    example because other processes share its cores, the yardstick is slower too.

    Attributes:
        ns: the median of the rounds in which the yardstick ran at full speed, without waiting for a core.
        ci_low, ci_high: its 95 % interval; for several threads, up to where all of their waiting counts.
        pieces: the same in pieces of the yardstick.
        pieces_low, pieces_high: its 95 % interval.
        piece_ns: how long a piece of the yardstick took.
        same_low, same_high: the 95 % interval of the ratio of the call to itself, in the same rounds.
        rounds, of_rounds: how many rounds counted, and out of how many.
        several_threads: whether more than one thread worked.
    """

    ns: float
    ci_low: float
    ci_high: float
    pieces: float
    pieces_low: float
    pieces_high: float
    piece_ns: float
    same_low: float
    same_high: float
    rounds: int
    of_rounds: int
    several_threads: bool = False


class BenchResult(Struct, frozen=True, kw_only=True):
    """One variant with one choice of parameters. A duration that was not measured is null; ``reasons`` says why.

    Attributes:
        name: of the variant.
        case: the file, module or gallery case that it is a variant of.
        parameters: the sizes, data types and other parameters that it ran with.
        inputs: each argument: a tensor's data type and shape, or the type of anything else.
        reasons: by measure, why it is null.
        kernels: kernels, copies and fills that a call launches; null without a GPU.
        operators: operators of a call, with the operators that they call in brackets; equal ones once, with their
            number.
        launched: short names of what a call launches; equal ones once, with their number.
        about: what this measures, if it is not a function of the user.
        launch_bound: whether issuing a call takes longer than its kernels; null without a GPU.
        correctness: whether the result is right; null if it was not checked.
        limit: how far it is from the device's limits.
        clocks: of the device while it was measured.
        doubts: what makes its durations unfit for a verdict.
        contention: a sentence if other processes took the CPU meanwhile; null if none did, or it is unknown.
        steady: on a CPU, its time at the machine's full speed; null without.
        peak_memory_bytes: the most memory that a call allocated beyond what was allocated before; null without a GPU.
        confirmation: what it did in its own process; null for baselines, the gallery and the Python API.
    """

    name: str
    case: str
    parameters: dict[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    kernel_ns: Duration | None = None
    kernel_warm_ns: Duration | None = None
    event_ns: Duration | None = None
    graph_ns: Duration | None = None
    issue_ns: Duration | None = None
    wall_ns: Duration | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    kernels: float | None = None
    operators: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()
    about: str | None = None
    launch_bound: bool | None = None
    correctness: Correctness | None = None
    limit: LimitShare | None = None
    clocks: Clocks | None = None
    doubts: tuple[str, ...] = ()
    peak_memory_bytes: int | None = None
    contention: str | None = None
    steady: Steady | None = None
    confirmation: Confirmation | None = None

    def duration(self, measure: Measure) -> Duration | None:
        """Return the durations of one measure; None if it was not measured."""
        result: Duration | None = getattr(self, measure.value)
        return result

    @property
    def kernels_exceed_events(self) -> bool:
        """Whether the kernels add up to more than the time between events around the call.

        Then they overlap, or recording slows them: kernels of many short blocks took 5 to 8 % longer on an H200. The
        events' time, a few microseconds too long, is used instead.
        """
        kernel, event = self.kernel_ns, self.event_ns
        if kernel is None or event is None or kernel.ci_low is None or event.ci_high is None:
            return False
        return kernel.ci_low > event.ci_high


class VariantComparison(Struct, frozen=True, kw_only=True):
    """The comparison of a variant with the baseline, measured in turns.

    Attributes:
        baseline, variant: their names.
        case, parameters: of both.
        measure: the compared durations; null if the variant was not timed.
        ratio: median over the rounds of the ratio variant / baseline; below 1, the variant is faster. Null for a wrong
            variant, which was not timed.
        ci_low, ci_high: its 95 % interval by order statistics.
        p_value: of a sign test that the ratio is 1, corrected for the number of comparisons (Holm).
        rounds: number of rounds, or of processes.
        verdict: the result.
        sentence: the result with numbers.
    """

    baseline: str
    variant: str
    case: str
    parameters: dict[str, str]
    measure: Measure | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: float | None
    rounds: int
    verdict: SpeedVerdict
    sentence: str


class FalseAlarms(Struct, frozen=True, kw_only=True):
    """How often a function was reported to differ from itself on this machine (``opscope bench --calibrate``).

    Attributes:
        device: the device's name.
        torch: the version of PyTorch.
        created: UTC, ISO 8601.
        trials: comparisons of a function with itself.
        alarms: how many of them ended in "faster" or "slower".
        measure: the compared durations.
        widths: half of the width of each ratio's interval, over the ratio: the smallest difference that could have been
            seen.
    """

    device: str
    torch: str
    created: str
    trials: int
    alarms: int
    measure: Measure
    widths: tuple[float, ...] = ()


class BenchDocument(Struct, frozen=True, kw_only=True):
    """One benchmark.

    Attributes:
        created: UTC, ISO 8601.
        machine, framework: where it ran.
        processes: number of fresh processes, each of which is one sample; with 1, calls are the samples.
        results: all variants with all parameters.
        comparisons: all variants compared with the first one of their case.
        false_alarms: of this machine; null if they were not measured.
        request: the request, by which it can be measured again; null for benchmarks of the Python API.
    """

    schema: Literal["opscope.bench/1"] = "opscope.bench/1"
    created: str
    machine: Machine
    framework: Framework
    processes: int
    results: tuple[BenchResult, ...]
    comparisons: tuple[VariantComparison, ...]
    false_alarms: FalseAlarms | None = None
    request: BenchRequest | None = None

    @property
    def device(self) -> str:
        """The name of the device that was measured."""
        gpus = self.machine.gpus
        return gpus[0].name if self.framework.on_gpu and gpus else self.machine.cpu


class RegressionVerdict(StrEnum):
    """How one benchmark changed since it was saved."""

    REGRESSION = "regression"
    FINE = "fine"
    INCONCLUSIVE = "inconclusive"
    WRONG = "wrong"
    MISSING = "missing"


class Changed(Struct, frozen=True):
    """One benchmark, then and now.

    Attributes:
        name: case and variant, with parameters.
        measure: the compared durations.
        before_ns, now_ns: their medians.
        ratio_low, ratio_high: the range of now / before: by the intervals of both medians, or for times at full speed
            by clock and yardstick. These five are null where a variant is wrong or missing.
        change: the result.
    """

    name: str
    measure: Measure | None
    before_ns: float | None
    now_ns: float | None
    ratio_low: float | None
    ratio_high: float | None
    change: RegressionVerdict


class ChangesDocument(Struct, frozen=True, kw_only=True):
    """Two benchmarks, then and now: the schema ``opscope.bench-diff/1``.

    Attributes:
        threshold: how much longer a benchmark may take, as a share.
        changes: of all saved benchmarks.
    """

    schema: Literal["opscope.bench-diff/1"] = "opscope.bench-diff/1"
    threshold: float
    changes: tuple[Changed, ...]


def compared_by(*results: BenchResult) -> tuple[Measure, ...]:
    """Return the measures to compare results by, the best first: kernels, else the host's clock.

    If kernels of any result take longer than the events around them, events come first.
    """
    if any(result.kernels_exceed_events for result in results):
        return (Measure.EVENT, Measure.KERNEL, Measure.WALL)
    return (Measure.KERNEL, Measure.WALL)


def headline(results: Sequence[BenchResult]) -> Measure:
    """Return the best measure that all timed results have; `Measure.WALL` if none was timed."""
    timed = [result for result in results if result.wall_ns is not None]
    measures = (m for m in compared_by(*timed) if all(result.duration(m) is not None for result in timed))
    return next(measures, Measure.WALL) if timed else Measure.WALL
