"""What was measured of one configuration or program, and which steps a script was found to have."""

from enum import StrEnum
from statistics import median
from typing import Final, Literal

from msgspec import Struct, field

from opscope.base.units import format_ns
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.machine import Framework, Machine, Rank

# ---------------------------------------------------------------- steps


class StepKind(StrEnum):
    """What lies between two boundaries. Steps of two kinds are never compared."""

    TRAINING = "training"
    """Ends with the step of an optimizer, or with an update of parameters that is seen at the next call."""
    CALLS = "calls"
    """From one module call that records gradients to the next."""
    REPLAYS = "replays"
    """From one replay of a CUDA graph to the next."""
    EVALUATION = "evaluation"
    """From one module call without gradients, or of a module in ``eval`` mode, to the next."""
    ANNOTATION = "annotation"
    """From one beginning of a named range to the next."""
    OPERATORS = "operators"
    """A repetition of operators, found in a recording."""
    FUNCTION = "function"
    """One call of a function."""
    RUN = "run"
    """All that was recorded of a program in which nothing repeated."""


class AlsoSeen(Struct, frozen=True):
    """Something that repeated in a script and was not chosen as its steps.

    Attributes:
        kind: what it was.
        count: how often it was seen.
        median_ns: median time on the host's clock from one to the next.
    """

    kind: StepKind
    count: int
    median_ns: int


class StepsFound(Struct, frozen=True):
    """Which steps were measured.

    Attributes:
        kind: of the steps.
        boundary: what ends a step, in the plural; None for functions, and if nothing repeated.
        also: what else repeated.
        events: boundaries per step: two if two optimizers step in turn.
        before: boundaries before the timed steps.
        timed: boundaries while the steps were timed; more than the steps have if something else came between them.
        ranks: how many ranks of a job measured the same steps, chosen together; None where there is one rank, or where
            each chose by itself.
        part: which part of a run was recorded in which nothing repeated, in words; None where it is the whole run, or
            steps.
    """

    kind: StepKind
    boundary: str | None = None
    also: tuple[AlsoSeen, ...] = ()
    events: int = 1
    before: int = 0
    timed: int = 0
    ranks: int | None = None
    part: str | None = None


class OwnClock(Struct, frozen=True):
    """Times of the same steps in another run of the script, with only a clock at their boundaries.

    Attributes:
        mean_ns: time per step on the host's clock, from the first boundary to the last.
        median_ns: of single steps; None if something came between them.
        count: number of steps.
    """

    mean_ns: int
    median_ns: int | None
    count: int


class WantedSteps(Struct, frozen=True):
    """Which steps of a script to measure.

    Attributes:
        kind: of the steps; None lets the watcher choose by rank.
        annotation: the name of the ranges if ``kind`` is ``ANNOTATION``, else None.
    """

    kind: StepKind | None = None
    annotation: str | None = None

    @classmethod
    def named(cls, name: str | None) -> "WantedSteps":
        """Return the steps that ``--step-kind`` names: a kind, or ``annotation:NAME``; None leaves the choice open."""
        kind, _, annotation = (name or "").partition(":")
        return cls(StepKind(kind) if kind else None, annotation or None)


class Between(Struct, frozen=True):
    """A stretch between timed steps in which something else came, such as an evaluation.

    Attributes:
        ns: how long it took, by the host's clock, with the steps that it interrupted.
        steps: how many steps lie in it.
        evaluates: whether modules were called in it without gradients, or in ``eval`` mode.
        evaluating_ns: how long it took from the first of these calls to the last one's beginning.
    """

    ns: int
    steps: float
    evaluates: bool = False
    evaluating_ns: int = 0


class Timed(Struct, frozen=True):
    """Times of a script's steps without a profiler, in the order in which they came.

    Attributes:
        wall_ns: durations from boundary to boundary; where steps are short, means of a few each.
        steps_each: how many steps each of these is the mean of.
        by_device: whether they were measured between CUDA events on the device; else by the host's clock.
        data_ns: how long the main thread waited for a DataLoader in a step, for each of ``wall_ns``.
        collecting_ns: how long Python collected garbage in a step, for each of ``wall_ns``.
        between: what came between these steps.
        elapsed_ns: how long it took to time them, with what was dropped; 0 if unknown.
    """

    wall_ns: tuple[int, ...] = ()
    steps_each: int = 1
    by_device: bool = False
    data_ns: tuple[int, ...] = ()
    collecting_ns: tuple[int, ...] = ()
    between: tuple[Between, ...] = ()
    elapsed_ns: int = 0


class ScriptRun(Struct, frozen=True):
    """What to do in one run of a script. The first run times and profiles; a second makes up for what that lacked.

    Attributes:
        wanted: which steps.
        records: whether to record from the beginning, for programs that end soon or have no boundaries.
        ended_after_s: if it records because an earlier run ended by itself: how long after it imported PyTorch; else
            None.
        may_repeat: whether the script may be run once more.
        patience_s: seconds after which steps of a lower rank are taken; None waits for the script's end.
        times: of steps that an earlier run timed.
        most_timed: the most steps to time, if an earlier run showed how many there are; None for no limit.
        reason: why this run is needed; None for the first.
        clock: whether to do nothing but note the time at the boundaries of the recorded steps.
    """

    wanted: WantedSteps = WantedSteps()
    records: bool = False
    ended_after_s: float | None = None
    may_repeat: bool = True
    patience_s: float | None = None
    times: Timed = Timed()
    most_timed: int | None = None
    reason: str | None = None
    clock: bool = False


# ---------------------------------------------------------------- executions


EXECUTION: Final = "exec.json"  # the record's file in a run directory
RAW: Final = "raw"  # the folder of the recordings in a run directory
RECORDING_ENDING: Final = ".cudarec"


class OtherTool(Struct, frozen=True):
    """A profiler or debugger that the command started, and that ran without the collector.

    Attributes:
        program: its path.
        after_seconds: seconds from the command's start to its own; None if the system has no suitable ``date``.
    """

    program: str
    after_seconds: float | None


class Execution(Struct, frozen=True, kw_only=True):
    """One command that ran under the collector.

    Attributes:
        command: the program and its arguments.
        folder: where it ran.
        created: UTC, ISO 8601.
        seconds: how long it ran; None until it has ended.
        exit_code: its exit code, or 128 plus the signal's number if a signal ended it, as in shells. None until it has
            ended, and for good if opscope was killed before that.
        opscope: the version that collected.
        cupti: the version of the CUPTI that the collector was built for.
        cupti_library: that CUPTI's path; processes that have no CUPTI of their own load it.
        recordings: the files of the processes that used CUDA or NVTX, in the order in which they began.
        other_tools: tools that ran without the collector.
        digests: the BLAKE2b digest of each recording by file name. Only files that still have it are ever removed.
    """

    schema: Literal["opscope.exec/1"] = "opscope.exec/1"
    command: tuple[str, ...]
    folder: str
    created: str
    seconds: float | None
    exit_code: int | None
    opscope: str
    cupti: str
    cupti_library: str
    recordings: tuple[str, ...]
    other_tools: tuple[OtherTool, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def cut_off(self) -> bool:
        """Whether opscope was killed before the command ended; the recordings are then incomplete."""
        return self.exit_code is None


# ---------------------------------------------------------------- captures


class WorkloadInfo(Struct, frozen=True):
    """What was built for a configuration.

    Attributes:
        name: short name for file names (``bert``).
        description: one line for people.
        parameters: number of model parameters; None for a plain function.
        sequences_per_step: sequences or images that one step works on; None if unknown.
        unit: what ``sequences_per_step`` counts, in words.
        tokens_per_step: tokens that one step works on; None if there are none or their number is unknown.
        notes: what a reader must know to compare it (random weights, autocast, ...).
        own_step: whether the step is the user's own code, to which the configuration's mode and data type do not apply.
        dtype: data type of the parameters in inference, of autocast in training; None for a plain function.
    """

    name: str
    description: str
    parameters: int | None = None
    sequences_per_step: int | None = None
    unit: str = "sequences"
    tokens_per_step: int | None = None
    notes: tuple[str, ...] = ()
    own_step: bool = False
    dtype: str | None = None


class Clocks(Struct, frozen=True):
    """GPU clocks while the unprofiled steps ran, sampled by ``nvidia-smi``.

    Attributes:
        samples: number of samples.
        sm_mhz_min, sm_mhz_median, sm_mhz_max: clock of the multiprocessors.
        sm_mhz_limit: the highest clock the device offers.
        memory_mhz: median clock of the memory.
        temperature_c: highest temperature.
        power_w: median power draw.
        limited_by: the driver's reasons for lower clocks, except idling.
    """

    samples: int
    sm_mhz_min: int
    sm_mhz_median: int
    sm_mhz_max: int
    sm_mhz_limit: int
    memory_mhz: int
    temperature_c: int
    power_w: float
    limited_by: tuple[str, ...]


class Benchmark(Struct, frozen=True):
    """Unprofiled steps. Every sample is kept.

    Attributes:
        warmup_steps: steps run before, not counted.
        wall_ns: host clock around one step and a synchronise of the device.
        event_ns: CUDA events around the same steps; None on a CPU. Includes launch gaps. Warm L2.
        clocks: GPU clocks meanwhile; None with the reason in ``clocks_reason``.
        waited_for_cpu_ns: how long the process's threads were ready to run but had no CPU core while the steps were
            timed, added up over the threads; None if the system does not tell.
        synchronised: whether each time ends with a wait for the device. Steps of a script are timed without one, from
            boundary to boundary.
        between_marks: whether ``wall_ns`` was measured between CUDA events at the boundaries. Else it is the host's
            clock, and the host runs ahead of the device.
        steps_each: how many steps each of ``wall_ns`` is the mean of: several where a script's steps are short.
        data_ns: how long the main thread waited for a DataLoader in a step, for each of ``wall_ns``; empty if unknown.
        collecting_ns: how long Python collected garbage in a step, likewise.
        between: what came between these steps.
        elapsed_ns: how long it took to time them, with what came between and what was dropped; 0 if unknown.
    """

    warmup_steps: int
    wall_ns: tuple[int, ...]
    event_ns: tuple[int, ...] | None
    clocks: Clocks | None
    clocks_reason: str | None = None
    waited_for_cpu_ns: int | None = None
    synchronised: bool = True
    between_marks: bool = False
    steps_each: int = 1
    data_ns: tuple[int, ...] = ()
    collecting_ns: tuple[int, ...] = ()
    between: tuple[Between, ...] = ()
    elapsed_ns: int = 0


class PeakMemory(Struct, frozen=True):
    """Peak memory over all unprofiled steps, including the cold one; for a ``with`` block, over the block.

    Attributes:
        allocated_bytes: most bytes that tensors took on the device (PyTorch's allocator); None on a CPU.
        reserved_bytes: most bytes the allocator had taken from the device; None on a CPU.
        resident_bytes: peak resident set of the whole process since it began, libraries included.
    """

    allocated_bytes: int | None
    reserved_bytes: int | None
    resident_bytes: int


class RawTrace(Struct, frozen=True):
    """A trace file.

    Attributes:
        file: its path, relative to the run directory.
        replaced_bytes: bytes of names that were not valid text and were replaced.
    """

    file: str
    replaced_bytes: int = 0


class MemoryRecording(Struct, frozen=True):
    """PyTorch's history of a GPU's memory, recorded over a few steps more than the profile has.

    Attributes:
        snapshot: the snapshot's file, relative to the run directory; None where there is none.
        trace: the trace of the same steps, likewise.
        with_ns: how long these steps took, by the host's clock; empty where the profile itself is of them.
        without_ns: how long as many steps took just before, recorded alike but for that history.
        reason: why there is no snapshot; None where there is one.
    """

    snapshot: str | None = None
    trace: str | None = None
    with_ns: tuple[int, ...] = ()
    without_ns: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def sentence(self) -> str:
        """Over which steps it was recorded, and what that cost; or why it was not."""
        if self.reason is not None:
            return f"No snapshot was taken: {self.reason}."
        if not self.with_ns or not self.without_ns:
            return "It was recorded together with the profile: profiled times contain its cost, which is not known."
        took, without = median(self.with_ns), max(median(self.without_ns), 1)
        count = "1 step" if len(self.with_ns) == 1 else f"{len(self.with_ns)} steps"
        costs = f"and {format_ns(without)} without it ({100 * (took / without - 1):+.0f} %)"
        if took <= without:
            costs = f"no longer than without it ({format_ns(without)})"
        return (
            f"It was recorded over {count} after the profile, of which no other figure is: a step took "
            f"{format_ns(took)}, {costs}."
        )


class CaptureRecord(Struct, frozen=True, kw_only=True):
    """One measured configuration.

    Attributes:
        configuration, options: the request.
        workload: what was built.
        machine: where it ran.
        framework: the PyTorch that ran it; None for a program without PyTorch.
        rank: its place in a distributed job; None if it was alone.
        opscope: the version that measured.
        git_revision: commit of the working directory, marked if it has changes; None outside a repository.
        created: UTC, ISO 8601.
        cold_step_ns: wall time of the very first step, with everything a first use costs (loading code, choosing
            algorithms, compiling); None if it was not timed by itself.
        benchmark: the unprofiled steps; None if none were timed.
        benchmark_reason: why none were timed; None if they were skipped on request.
        memory: peak memory.
        traces: the trace files, one per cycle of the schedule.
        light: the trace of an earlier pass that collected device activities only; None without one.
        functions: the operator table's file relative to the run directory; None with the reason.
        functions_reason: why there is none.
        steady_state: how the steps of a script were found, in a sentence; None for workloads that have a step.
        steps: which steps they are; None in records of earlier versions.
        own_clock: their times in a run with nothing but a clock; None if there was no such run.
        memory_recording: the history of a GPU's memory; None if that was not asked for.
    """

    schema: Literal["opscope.capture/1"] = "opscope.capture/1"
    configuration: Configuration
    options: CaptureOptions
    workload: WorkloadInfo
    machine: Machine
    framework: Framework | None
    rank: Rank | None = None
    opscope: str
    git_revision: str | None
    created: str
    cold_step_ns: int | None
    benchmark: Benchmark | None
    memory: PeakMemory
    traces: tuple[RawTrace, ...]
    light: RawTrace | None = None
    functions: str | None = None
    functions_reason: str | None = None
    steady_state: str | None = None
    steps: StepsFound | None = None
    benchmark_reason: str | None = None
    own_clock: OwnClock | None = None
    memory_recording: MemoryRecording | None = None

    @property
    def ran_on_gpu(self) -> bool:
        """Whether the workload ran on a GPU, according to the framework."""
        return self.framework is not None and self.framework.on_gpu
