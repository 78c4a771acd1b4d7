"""What a benchmark measured: the schema ``opscope.bench/1``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from opscope.record.bench import BenchRequest
from opscope.record.capture import Clocks
from opscope.record.machine import Framework, Machine


class Measure(StrEnum):
    """What a duration is of. Different measures are never put in one column.

    Attributes:
        KERNEL: the durations of the kernels, copies and fills that a call launched, added up; L2 flushed before it.
        KERNEL_WARM: the same with the cache as the call before left it.
        EVENT: the device from a call's first work to its last, by events, queued so that the host is never late.
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


class Verdict(StrEnum):
    """What may be said of a variant beside the baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    INCONCLUSIVE = "inconclusive"
    WRONG = "wrong"


class Stopped(StrEnum):
    """Why no more was measured."""

    CONFIDENT = "the interval is narrow enough"
    TIME = "the time was up"
    CALLS = "there were calls enough"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Durations of one measure, in nanoseconds. All samples are kept.

    Attributes:
        median: of the samples.
        ci_low, ci_high: the 95 % interval of the median, by order statistics: it assumes nothing of how they spread.
            Null with fewer than six samples.
        n: how many samples.
        samples: each call, in the order in which they were made; of several processes, the median of each.
        stopped: why there are no more.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeError:
    """How far a result is from the reference with some kind of inputs.

    Attributes:
        regime: which kind: ``as given``, ``large``, ``zeros``, ``strided``.
        error: the norm of the difference over the norm of the reference; null where it was not compared.
        problem: what is wrong; null where nothing is.
    """

    regime: str
    error: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """What comparing with a float64 reference gave.

    Attributes:
        verdict: the result.
        sentence: what it rests on.
        reference: what it was compared with; null if with nothing.
        tolerance: largest relative error that counts as right.
        errors: per kind of inputs.
        precision: at which the variant computes, as far as its result and error tell: ``float32``, ``tf32``.
        worst: the kind of inputs that decided the verdict; null where none did.
    """

    verdict: Correct
    sentence: str
    reference: str | None
    tolerance: float | None
    errors: tuple[RegimeError, ...] = ()
    precision: str | None = None
    worst: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitShare:
    """How far the kernels are from what the device allows.

    Attributes:
        flop: operations of products, as ``torch.utils.flop_counter`` counts them for the baseline.
        least_bytes: of the inputs and the result, each once.
        ideal_ns: the least time by these and the peaks; null where no peaks are known.
        share: the ideal over the median kernel time; over 1 is a contradiction.
        flop_per_s, bytes_per_s: achieved, by the median kernel time.
        peaks: where the peaks are from.
        of_peak_flops, of_peak_bandwidth: the achieved rates over these peaks.
        of_datasheet_flops, of_datasheet_bandwidth: over the datasheet's.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """How long a call takes on the CPU while the machine runs at full speed, and beside a yardstick.

    The yardstick is a fixed piece of work, measured in the same rounds. Where the machine is another one than before,
    as other processes share its cores, the yardstick is too.

    Attributes:
        ns: the median of the rounds in which the yardstick ran at full speed, without waiting for a core.
        ci_low, ci_high: its 95 % interval; of several threads up to where all of their waiting counts.
        pieces: the same in pieces of the yardstick.
        pieces_low, pieces_high: its 95 % interval.
        piece_ns: how long a piece of the yardstick took.
        same_low, same_high: the 95 % interval of the ratio of the call to itself, in the same rounds.
        rounds, of_rounds: how many rounds counted, and of how many.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One variant with one choice of parameters. A duration that was not measured is null; ``reasons`` says why.

    Attributes:
        name: of the variant.
        case: what it is a variant of: the file, module or gallery case.
        parameters: the sizes, data types and others that it ran with.
        inputs: what each argument was: a tensor's data type and shape, or the type of anything else.
        reasons: by measure, why it is null.
        kernels: how many kernels, copies and fills a call launches; null without a GPU.
        operators: those of a call, each with those that it calls in brackets; of equal ones the number.
        launched: what a call launches, by short names; several equal ones with their number.
        about: what this is, where it is no function of the user's.
        launch_bound: whether issuing a call takes longer than its kernels; null without a GPU.
        correctness: whether it computes what it should.
        limit: how far it is from what the device allows.
        clocks: of the device while it was measured.
        doubts: what makes its durations unfit for a verdict.
        contention: says that other processes took the CPU meanwhile; null where none did, or nobody knows.
        steady: of what ran on a CPU, its time at the machine's full speed; null without.
        peak_memory_bytes: the most that a call took beyond what was allocated before; null without a GPU.
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

    def duration(self, measure: Measure) -> Duration | None:
        """Return the durations of one measure."""
        found: Duration | None = getattr(self, measure.value)
        return found

    @property
    def kernels_exceed_events(self) -> bool:
        """Whether the kernels add up to more than passes between events around the call.

        They overlap, or recording slows them: kernels of many short blocks took 5 to 8 % longer on an H200. What counts
        is the events' time, which is a few microseconds too long.
        """
        kernel, event = self.kernel_ns, self.event_ns
        if kernel is None or event is None or kernel.ci_low is None or event.ci_high is None:
            return False
        return kernel.ci_low > event.ci_high


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A variant beside the baseline, measured in turns.

    Attributes:
        baseline, variant: their names.
        case, parameters: as of both.
        measure: which durations were compared.
        ratio: the median of the ratios variant / baseline of each round; below 1 the variant is faster. Null where a
            wrong variant was not timed.
        ci_low, ci_high: its 95 % interval by order statistics.
        p_value: of a sign test that the ratio is 1, corrected for the number of comparisons (Holm).
        rounds: how many rounds, or processes.
        verdict: what may be said.
        sentence: the same with numbers.
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
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarms:
    """How often equal functions were said to differ on this machine (``opscope bench --calibrate``).

    Attributes:
        device: where.
        torch: with which PyTorch.
        created: when.
        trials: comparisons of a function with itself.
        alarms: how many of them ended in "faster" or "slower".
        measure: by which durations.
        widths: half the width of each interval of the ratio: what could have been told apart.
    """

    device: str
    torch: str
    created: str
    trials: int
    alarms: int
    measure: Measure
    widths: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchDocument:
    """One benchmark.

    Attributes:
        created: when.
        machine, framework: where it ran.
        processes: how many fresh processes were the samples; 1: calls are.
        results: all variants with all parameters.
        comparisons: all variants beside the first one of their case.
        false_alarms: of this machine, if they were measured.
        request: what was asked for, so that it can be measured again.
    """

    schema: Literal["opscope.bench/1"] = "opscope.bench/1"
    created: str
    machine: Machine
    framework: Framework
    processes: int
    results: tuple[BenchResult, ...]
    comparisons: tuple[Comparison, ...]
    false_alarms: FalseAlarms | None = None
    request: BenchRequest | None = None

    @property
    def device(self) -> str:
        """The name of the device that was measured."""
        gpus = self.machine.gpus
        return gpus[0].name if self.framework.on_gpu and gpus else self.machine.cpu


class Change(StrEnum):
    """What may be said of one benchmark since it was saved."""

    REGRESSION = "regression"
    FINE = "fine"
    INCONCLUSIVE = "inconclusive"
    WRONG = "wrong"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Changed:
    """One benchmark, then and now.

    Attributes:
        name: of case and variant, with its parameters.
        measure: which durations were compared.
        before_ns, now_ns: their medians.
        ratio_low, ratio_high: between which now / before lies, by the intervals of both medians.
        change: what may be said.
    """

    name: str
    measure: Measure | None
    before_ns: float | None
    now_ns: float | None
    ratio_low: float | None
    ratio_high: float | None
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesDocument:
    """Two benchmarks, then and now: the schema ``opscope.compare/1``.

    Attributes:
        threshold: by how much longer one may take.
        changes: of all that were saved.
    """

    schema: Literal["opscope.compare/1"] = "opscope.compare/1"
    threshold: float
    changes: tuple[Changed, ...]


def compared_by(*results: BenchResult) -> tuple[Measure, ...]:
    """Return by which durations to compare results, the best first: those of kernels, else the host's clock.

    Where kernels take longer than the events around them, the events come first.
    """
    if any(result.kernels_exceed_events for result in results):
        return (Measure.EVENT, Measure.KERNEL, Measure.WALL)
    return (Measure.KERNEL, Measure.WALL)


def headline(results: Sequence[BenchResult]) -> Measure:
    """Return the best measure to compare results by that all of them have which were timed."""
    timed = [result for result in results if result.wall_ns is not None]
    measures = (m for m in compared_by(*timed) if all(result.duration(m) is not None for result in timed))
    return next(measures, Measure.WALL) if timed else Measure.WALL
