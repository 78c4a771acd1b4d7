"""What was measured of one configuration, and of a program that was run."""

from typing import Final, Literal

from msgspec import Struct, field

from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.machine import Framework, Machine, Rank
from opscope.record.step_kinds import Between, OwnClock, StepsFound

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

    @property
    def ran_on_gpu(self) -> bool:
        """Whether the workload ran on a GPU, according to the framework."""
        return self.framework is not None and self.framework.on_gpu
