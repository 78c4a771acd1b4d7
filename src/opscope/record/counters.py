"""Hardware counters of kernels, and the calls that are replayed to read them."""

from dataclasses import dataclass


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
class KernelCounters:
    """One launch of a kernel under Nsight Compute, with all that was measured of it.

    Attributes:
        kernel: its name, as Nsight Compute spells it.
        process: the process's number.
        grid, block: thread blocks and threads of a block, x,y,z; None where the version did not say.
        metrics: by their names; times in nanoseconds, sizes in bytes, others in the unit that they are in.
    """

    kernel: str
    process: str
    grid: str | None
    block: str | None
    metrics: dict[str, float]


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
