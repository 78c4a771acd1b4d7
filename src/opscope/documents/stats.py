"""Sums of what a program did with CUDA, in the tables of ``nsys stats``: the schema ``opscope.stats/1``."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


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
