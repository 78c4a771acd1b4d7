"""Hardware counters of kernels, and the calls that are replayed to read them."""

from typing import Final

from msgspec import Struct

# Half-precision instructions also convert numbers (HADD2.F32) and set constants (HFMA2), so their number is an upper
# bound of arithmetic.
UPPER_BOUND: Final = "fp16_vector"


class Counters(Struct, frozen=True):
    """Hardware counters of one kernel, replayed alone under Nsight Compute: caches flushed, clocks at their base.

    Attributes:
        kernel: its name.
        duration_ns: measured under these conditions; not comparable with times at full clocks and warm caches.
        dram_read_bytes, dram_write_bytes: moved between the device's memory and its L2 cache.
        load_sectors_per_request, store_sectors_per_request: 32-byte sectors that a warp's global access touched; 4 are
            ideal for 4-byte elements, 32 the worst. None if there was no access of that kind.
        shared_load_bank_conflicts, shared_store_bank_conflicts: extra passes over shared memory.
        threads_per_instruction: active threads per executed warp instruction; 32 is not a divergence.
        achieved_occupancy_percent: active warps over the most that a multiprocessor holds.
        sm_throughput_percent, dram_throughput_percent: of the peak, while it ran.
        stalls: reasons why warps could not issue, in warps per issued instruction, the largest first.
        operations: arithmetic operations that were executed, by the unit that did them, as peaks of devices name them:
            ``fp32``, ``bf16``; a multiply-add counts two.
        operations_not_counted: units whose operations ncu did not count, or only in part.
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
    operations: dict[str, float] = {}
    operations_not_counted: tuple[str, ...] = ()


class KernelCounters(Struct, frozen=True):
    """One launch of a kernel under Nsight Compute, with all its metrics.

    Attributes:
        kernel: its name, as Nsight Compute spells it.
        process: the process id.
        grid, block: thread blocks and threads of a block, ``x,y,z``; None if this version of ncu does not print them.
        metrics: values by name; times in nanoseconds, sizes in bytes, rates of either per second, others in ncu's
            unit.
        device: the name of the device; None if this page of ncu does not have it.
        compute_capability: ``9.0``; None if this version of ncu does not print it.
    """

    kernel: str
    process: str
    grid: str | None
    block: str | None
    metrics: dict[str, float]
    device: str | None = None
    compute_capability: str | None = None


class Precision(Struct, frozen=True):
    """PyTorch's settings that decide whether float32 is multiplied as TF32."""

    float32_matmul: str
    cudnn_allow_tf32: bool | None


class OperatorCall(Struct, frozen=True):
    """One recorded call with all that is needed to repeat it.

    Attributes:
        operator: its name.
        overload: the overload that ran.
        input_dims, input_types, input_strides, concrete_inputs: the recorded lists, as JSON text.
        precision: the settings it ran with; None leaves those of the process.
    """

    operator: str
    overload: str
    input_dims: str
    input_types: str
    input_strides: str | None
    concrete_inputs: str | None
    precision: Precision | None = None
