"""What a measurement leaves behind beside its trace: the nouns of a capture and of a sweep.

Captures write them, everything else only reads them; none of it needs PyTorch. They are stored as JSON with the
field names below.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from opscope.errors import BadInputError

Mode = Literal["inference", "training"]
Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["eager", "sdpa"]
Activity = Literal["cpu", "cuda"]
T = TypeVar("T")
DEVICE_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")  # what a device can be asked for as


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of a sweep: what runs. ``None`` leaves a size or the data type to the workload."""

    target: str
    mode: Mode = "inference"
    dtype: Dtype | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    image_size: int | None = None
    hidden_size: int | None = None
    layers: int | None = None
    attention: Attention | None = None
    compile: bool = False
    simplified: bool = False
    pretrained: str | None = None

    @property
    def id(self) -> str:
        """The name in file names: ``bs8_seq128``; ``default`` where no size is swept."""
        parts = (("bs", self.batch_size), ("seq", self.seq_len))
        return "_".join(f"{name}{value}" for name, value in parts if value is not None) or "default"


@dataclass(frozen=True, slots=True)
class Schedule:
    """torch.profiler's schedule, in steps: ``repeat`` cycles of ``wait``, ``warmup`` and ``active``."""

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """How a configuration is measured.

    Attributes:
        device: ``auto`` is the first GPU, else the CPU.
        activities: what torch.profiler collects.
        schedule: its schedule; None for a ``with`` block, which is collected whole.
        with_stack: whether Python stacks are recorded.
        profile_memory: whether allocations are recorded.
        benchmark: whether unprofiled steps are timed beside the profile.
    """

    device: str = "auto"
    activities: tuple[Activity, ...] = ("cpu", "cuda")
    schedule: Schedule | None = Schedule()
    with_stack: bool = False
    profile_memory: bool = False
    benchmark: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """What was built for a configuration.

    Attributes:
        name: short name for file names (``bert``).
        description: one line for people.
        parameters: number of model parameters; None for a plain function.
        sequences_per_step: sequences or images that one step works on; None if unknown.
        unit: what ``sequences_per_step`` counts, in words.
        tokens_per_step: tokens that one step works on; None where there are none or it is unknown.
        notes: what a reader must know to compare it (random weights, autocast, ...).
        own_step: whether it is code of the user's, to which the configuration's mode and data type were not applied.
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


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as PyTorch and the driver describe it."""

    index: int
    name: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a measurement ran. Versions of what is not installed are None.

    ``torch_libraries`` has the build ids of PyTorch's libraries with CUDA kernels.
    """

    opscope: str
    python: str
    platform: str
    cpu: str
    cpu_count: int
    torch: str
    torch_git: str | None
    torch_threads: int
    cuda: str | None
    cudnn: str | None
    driver: str | None
    triton: str | None
    transformers: str | None
    device: str
    gpus: tuple[GpuInfo, ...]
    float32_matmul_precision: str
    cudnn_allow_tf32: bool | None
    git_revision: str | None
    torch_libraries: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clocks:
    """GPU clocks while the unprofiled steps ran, sampled by ``nvidia-smi``.

    Attributes:
        samples: number of samples.
        sm_mhz_min, sm_mhz_median, sm_mhz_max: clock of the multiprocessors.
        sm_mhz_limit: the highest clock the device offers.
        memory_mhz: median clock of the memory.
        temperature_c: highest temperature.
        power_w: median power draw.
        limited_by: reasons the driver gave for lower clocks, other than idling.
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


@dataclass(frozen=True, slots=True)
class Counters:
    """Hardware counters of one kernel, replayed alone under Nsight Compute: caches flushed, clocks at their base.

    Attributes:
        kernel: its name.
        duration_ns: measured meanwhile; not comparable with times at full clocks and warm caches.
        dram_read_bytes, dram_write_bytes: moved between the device's memory and its L2 cache.
        load_sectors_per_request, store_sectors_per_request: 32-byte sectors that a warp's global access touched; 4 are
            ideal for 4-byte elements, 32 the worst. None where there was no such access.
        shared_load_bank_conflicts, shared_store_bank_conflicts: extra passes over shared memory.
        threads_per_instruction: active threads per executed warp instruction; 32 is no divergence.
        achieved_occupancy_percent: active warps over the most that a multiprocessor holds.
        sm_throughput_percent, dram_throughput_percent: of the peak, while it ran.
        stalls: reasons why warps could not issue, in warps per issued instruction, the largest first.
    """

    kernel: str
    duration_ns: float | None
    dram_read_bytes: float | None
    dram_write_bytes: float | None
    load_sectors_per_request: float | None
    store_sectors_per_request: float | None
    shared_load_bank_conflicts: float | None
    shared_store_bank_conflicts: float | None
    threads_per_instruction: float | None
    achieved_occupancy_percent: float | None
    sm_throughput_percent: float | None
    dram_throughput_percent: float | None
    stalls: dict[str, float]


@dataclass(frozen=True, slots=True)
class Precision:
    """PyTorch's settings that decide whether float32 is multiplied as TF32."""

    float32_matmul: str
    cudnn_allow_tf32: bool | None


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One recorded call, as it can be made again: JSON text of the recorded lists, and the overload that it ran."""

    operator: str
    overload: str
    input_dims: str
    input_types: str
    input_strides: str | None
    concrete_inputs: str | None
    precision: Precision | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Unprofiled steps. Every sample is kept.

    Attributes:
        warmup_steps: steps run before, not counted.
        wall_ns: host clock around one step and a synchronise of the device.
        event_ns: CUDA events around the same steps; None on a CPU. Includes launch gaps. Warm L2.
        clocks: GPU clocks meanwhile; None with the reason in ``clocks_reason``.
        waited_for_cpu_ns: how long threads of the process were ready to run but had no CPU core, added up over the
            threads, while the steps were timed; None where the system does not tell.
    """

    warmup_steps: int
    wall_ns: tuple[int, ...]
    event_ns: tuple[int, ...] | None
    clocks: Clocks | None
    clocks_reason: str | None = None
    waited_for_cpu_ns: int | None = None


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak memory over all unprofiled steps, the cold one included (of a ``with`` block: over the block).

    Attributes:
        allocated_bytes: most bytes that tensors took on the device (PyTorch's allocator); None on a CPU.
        reserved_bytes: most bytes the allocator had taken from the device; None on a CPU.
        resident_bytes: peak resident set of the whole process since it began, libraries included.
    """

    allocated_bytes: int | None
    reserved_bytes: int | None
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRecord:
    """One measured configuration.

    Attributes:
        configuration, options: what was asked for.
        workload: what was built.
        environment: where it ran.
        created: UTC, ISO 8601.
        cold_step_ns: wall time of the very first step, with everything a first use costs (loading code, choosing
            algorithms, compiling); None where it was not timed by itself.
        benchmark: the unprofiled steps, or None where they were skipped.
        memory: peak memory.
        traces: the trace files, one per cycle of the schedule, relative to the run directory.
        replaced_bytes: per trace, how many bytes of names that were no text were replaced when it was written.
        functions: the operator table's file relative to the run directory, or None with the reason.
        functions_reason: why there is none.
    """

    schema: Literal["opscope.capture/1"] = "opscope.capture/1"
    configuration: Configuration
    options: CaptureOptions
    workload: WorkloadInfo
    environment: Environment
    created: str
    cold_step_ns: int | None
    benchmark: Benchmark | None
    memory: PeakMemory
    traces: tuple[str, ...]
    replaced_bytes: tuple[int, ...] = ()
    functions: str | None = None
    functions_reason: str | None = None


FailureKind = Literal["usage", "environment", "out of memory", "error", "killed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a configuration has no result.

    Attributes:
        kind: what went wrong; ``usage`` and ``environment`` would hit every configuration alike.
        message: one line for people.
        log: the process's output, relative to the run directory.
    """

    kind: FailureKind
    message: str
    log: str | None = None


Status = Literal["pending", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration of a sweep and what became of it. Files are relative to the run directory.

    ``trust`` is the verdict of the trust checks; ``problem`` says what makes a result worthless although it exists.
    """

    configuration: Configuration
    status: Status = "pending"
    failure: Failure | None = None
    seconds: float | None = None
    record: str | None = None
    statistics: str | None = None
    report: str | None = None
    trace: str | None = None
    trust: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A sweep: what was run, with what, and what became of each configuration.

    ``environment``, ``git_revision`` and ``clocks`` are those of the first configuration that was measured; ``notes``
    name configurations that were measured in another environment. ``target_digest`` is the SHA-256 of the file that
    defines a target of the user's.
    """

    schema: Literal["opscope.sweep/1"] = "opscope.sweep/1"
    command: tuple[str, ...]
    created: str
    opscope: str
    options: CaptureOptions
    entries: tuple[Entry, ...]
    environment: Environment | None = None
    git_revision: str | None = None
    clocks: Clocks | None = None
    notes: tuple[str, ...] = ()
    target_digest: str | None = None


def encode(value: object) -> bytes:
    """Encode a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def decode(path: Path, kind: type[T]) -> T:
    """Read a record of a given kind.

    Raises:
        BadInputError: the file is missing, damaged, or something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} is not what opscope wrote there: {error}") from error
