"""Sums of what a program did with CUDA, in the tables of ``nsys stats``: the schema ``opscope.stats/1``. Counters."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from opscope.documents.limits import PeaksEntry

# ---------------------------------------------------------------- counters


class CountedWork(Struct, frozen=True, kw_only=True):
    """What launches of a kernel did: means of a launch, over the launches for which all of it is known.

    Attributes:
        launches: their number. With a run they are joined ones alone.
        ns: duration: in the run, or under Nsight Compute if there is no run.
        dram_bytes: read from and written to the device's memory, with caches empty at the start.
        operations: arithmetic operations, a multiply-add counted as two, without those of ``fp16_vector``.
        operations_by_unit: the same by the unit that did them, named as peaks are (``fp32``, ``bf16``), with
            ``fp16_vector``: half-precision instructions, which also convert numbers and set constants.
        operations_per_byte: ``operations`` over ``dram_bytes``; null if no bytes were moved.
        operations_per_s: ``operations`` over ``ns``. It and ``operations_per_byte`` are null where half-precision
            instructions may have done more than all others.
        unit: the unit that needs longest for its operations at its peak; null without operations or peaks.
        unit_peak_per_s: that peak: the highest at which the unit may have worked.
        ideal_ns: the least time at the device's peaks, the longest of bytes and each unit's operations; null with the
            reason beside it.
        limited_by: what determines ``ideal_ns``: ``memory`` or ``compute``.
        share: ``ideal_ns`` over ``ns``; null without a run, because peaks are at full clocks and Nsight Compute sets
            others.
        reason: why there is no least time; null if there is one.
    """

    launches: int
    ns: float
    dram_bytes: float
    operations: float
    operations_by_unit: dict[str, float]
    operations_per_byte: float | None
    operations_per_s: float | None
    unit: str | None = None
    unit_peak_per_s: float | None = None
    ideal_ns: float | None = None
    limited_by: str | None = None
    share: float | None = None
    reason: str | None = None


class CounterRow(Struct, frozen=True):
    """All launches of one kernel with one geometry. Figures are medians over the launches that have them, else None.

    Attributes:
        kernel: the name, as Nsight Compute spells it; a mangled one as people write it.
        grid, block: thread blocks and threads of a block, ``x,y,z``.
        measured: launches that Nsight Compute measured.
        joined: how many of these were found in the run: the n-th launch of a name and geometry is taken for the n-th
            one there.
        run_ns: duration of the joined launches in the run.
        ncu_ns: duration under Nsight Compute, which sets clocks and empties caches unless told otherwise.
        sm_percent, memory_percent, dram_percent: throughput of the multiprocessors, the memory system and the device's
            memory, in percent of their peaks.
        dram_bytes: read from and written to the device's memory.
        occupancy_percent: achieved occupancy.
        work: operations and bytes together, and how far they are from the limit; null if they are not known together
            for any launch.
        reason: why there is no ``work``; null if there is, or if no operations were asked for.
        not_counted: which operations, or bytes, were not counted for at least one launch; empty if no operations were
            asked for.
        name_in_run: the name in the run, which is often longer; null if no launch was found there.
        summary: a short name, from the name in the run; null without one, or if it says nothing.
    """

    kernel: str
    grid: str | None
    block: str | None
    measured: int
    joined: int
    run_ns: float | None
    ncu_ns: float | None
    sm_percent: float | None
    memory_percent: float | None
    dram_percent: float | None
    dram_bytes: float | None
    occupancy_percent: float | None
    work: CountedWork | None = None
    reason: str | None = None
    not_counted: tuple[str, ...] = ()
    name_in_run: str | None = None
    summary: str | None = None


class CounterLaunch(Struct, frozen=True):
    """One measured launch.

    Attributes:
        kernel: as in `CounterRow`.
        number: its position among the launches of its name and geometry, from 0.
        run_ns: how long the same launch took in the run; None if the run has no such launch.
        metrics: all metrics by name; times in nanoseconds, sizes in bytes, rates of either per second.
    """

    kernel: str
    number: int
    run_ns: int | None
    metrics: dict[str, float]


class CountersDocument(Struct, frozen=True, kw_only=True):
    """Counters, joined with a run if there is one.

    Attributes:
        files: the files of the counters.
        trace: the run's traces; None without a run.
        kernels: sorted by time in the run, then those that it does not have by time under Nsight Compute.
        launches: every measured launch, in order.
        unmatched_launches: number of measured launches that the run does not have.
        kernels_of_run_without: number of the run's kernels that were not measured.
        peaks: of the devices that ran the kernels; null if these are unknown, or differ.
        notes: how to read the figures, and why some are missing.
    """

    schema: Literal["opscope.counters/1"] = "opscope.counters/1"
    files: tuple[str, ...]
    trace: str | None
    kernels: tuple[CounterRow, ...]
    launches: tuple[CounterLaunch, ...]
    unmatched_launches: int
    kernels_of_run_without: int
    peaks: PeaksEntry | None = None
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- statistics


class Report(StrEnum):
    """The tables, by the names that ``nsys stats`` gives them."""

    API = "cuda_api_sum"
    KERNELS = "cuda_gpu_kern_sum"
    MEMORY_TIME = "cuda_gpu_mem_time_sum"
    MEMORY_SIZE = "cuda_gpu_mem_size_sum"
    GPU = "cuda_gpu_sum"
    UNIFIED_MEMORY = "um_sum"
    NVTX = "nvtx_sum"


class Distribution(Struct, frozen=True):
    """The distribution of a row's values, in the row's unit.

    Attributes:
        total: sum of the values.
        count: number of values.
        mean, median, min, max: of the values.
        stddev: standard deviation of a sample (n - 1); 0 for a single value.
    """

    total: int
    count: int
    mean: float
    median: float
    min: int
    max: int
    stddev: float


class TimeRow(Struct, frozen=True):
    """Durations in nanoseconds of everything with one name.

    Attributes:
        name: of the call, kernel, operation or range.
        time_percent: its total in percent of the sum over all rows of the table.
        duration_ns: the durations.
        category: CUDA_KERNEL or MEMORY_OPER, in a table with both; else null.
        style: PushPop or StartEnd for ranges; else null.
    """

    name: str
    time_percent: float
    duration_ns: Distribution
    category: str | None = None
    style: str | None = None


class SizeRow(Struct, frozen=True):
    """Sizes in bytes of all memory operations of one kind."""

    name: str
    bytes: Distribution


class UnifiedMemoryRow(Struct, frozen=True):
    """Events of unified memory at one address.

    Attributes:
        address: the first address, as recorded.
        to_device_bytes, to_host_bytes: bytes moved.
        cpu_faults, gpu_faults: page faults.
        bytes_per_s: bytes moved in both directions over the time that it took; None if nothing was moved.
    """

    address: int
    to_device_bytes: int
    to_host_bytes: int
    cpu_faults: int
    gpu_faults: int
    bytes_per_s: float | None


class UnifiedMemoryTotals(Struct, frozen=True):
    """The same over all addresses."""

    to_device_bytes: int
    to_host_bytes: int
    cpu_faults: int
    gpu_faults: int
    lowest_address: int
    highest_address: int


class ReportEntry(Struct, frozen=True):
    """One table, the largest total first. Only one of ``times``, ``sizes`` and ``addresses`` has rows.

    Attributes:
        name: the table.
        times: rows of calls, kernels, memory operations or ranges.
        sizes: rows of memory operations.
        addresses: rows of unified memory.
        totals: over all addresses; null for other tables.
        empty: why there is no row; null if there are rows.
    """

    name: Report
    times: tuple[TimeRow, ...] = ()
    sizes: tuple[SizeRow, ...] = ()
    addresses: tuple[UnifiedMemoryRow, ...] = ()
    totals: UnifiedMemoryTotals | None = None
    empty: str | None = None

    @property
    def rows(self) -> "tuple[TimeRow, ...] | tuple[SizeRow, ...] | tuple[UnifiedMemoryRow, ...]":
        """The rows, whatever their kind."""
        return self.times or self.sizes or self.addresses


class ProcessEntry(Struct, frozen=True):
    """One process, which is one trace.

    Attributes:
        name: rank, program and process id, as far as known; else the file.
        trace: the file.
        format: the name of its format.
        devices: the devices that it used, as ``number: name``.
        kernels: number of kernels that it ran.
        device_ns: sum of the durations of its device activities.
        first_ns, last_ns: when its first record began and its last ended, on the clock that all processes share.
        checks: sentences of the trust checks that do not pass.
        failed_calls: calls that returned an error: the function, the error code, and how often.
    """

    name: str
    trace: str
    format: str
    devices: tuple[str, ...]
    kernels: int
    device_ns: int
    first_ns: int | None
    last_ns: int | None
    checks: tuple[str, ...]
    failed_calls: tuple[tuple[str, int, int], ...]


class Stats(Struct, frozen=True, kw_only=True):
    """Sums over all processes together."""

    schema: Literal["opscope.stats/1"] = "opscope.stats/1"
    processes: tuple[ProcessEntry, ...]
    reports: tuple[ReportEntry, ...]
