"""The schema ``opscope.stats/1``: sums of what a program did with CUDA, in the tables that nsys users know."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Report(StrEnum):
    """The tables, by the names that ``nsys stats`` gives them."""

    API = "cuda_api_sum"
    KERNELS = "cuda_gpu_kern_sum"
    MEMORY_TIME = "cuda_gpu_mem_time_sum"
    MEMORY_SIZE = "cuda_gpu_mem_size_sum"
    GPU = "cuda_gpu_sum"
    UNIFIED_MEMORY = "um_sum"
    NVTX = "nvtx_sum"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Some values, in the unit of the row: of a row, never of rows added up.

    Attributes:
        total: added up.
        count: how many.
        mean, median, min, max: of them.
        stddev: of a sample (n - 1); 0 of a single value.
    """

    total: int
    count: int
    mean: float
    median: float
    min: int
    max: int
    stddev: float


@dataclass(frozen=True, slots=True)
class TimeRow:
    """Durations in nanoseconds of all that has one name.

    Attributes:
        name: of the call, kernel, operation or range.
        time_percent: the total's share of the totals of all rows of the table.
        duration_ns: the durations.
        category: CUDA_KERNEL or MEMORY_OPER, where a table holds both.
        style: PushPop or StartEnd, of ranges.
    """

    name: str
    time_percent: float
    duration_ns: Distribution
    category: str | None = None
    style: str | None = None


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Sizes in bytes of all memory operations of one kind."""

    name: str
    bytes: Distribution


@dataclass(frozen=True, slots=True)
class UnifiedMemoryRow:
    """What happened to unified memory at one address; addresses are those of the pages' beginnings as recorded.

    Attributes:
        address: the first address.
        to_device_bytes, to_host_bytes: moved.
        cpu_faults, gpu_faults: page faults.
        bytes_per_s: moved in both directions over the time that this took; None where nothing was moved.
    """

    address: int
    to_device_bytes: int
    to_host_bytes: int
    cpu_faults: int
    gpu_faults: int
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class UnifiedMemoryTotals:
    """The same over all addresses."""

    to_device_bytes: int
    to_host_bytes: int
    cpu_faults: int
    gpu_faults: int
    lowest_address: int
    highest_address: int


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """One table; the largest total comes first. Only the rows of its kind are there.

    Attributes:
        name: which.
        times: of calls, kernels, memory operations, ranges.
        sizes: of memory operations.
        addresses: of unified memory.
        totals: over all addresses.
        empty: why there is no row.
    """

    name: Report
    times: tuple[TimeRow, ...] = ()
    sizes: tuple[SizeRow, ...] = ()
    addresses: tuple[UnifiedMemoryRow, ...] = ()
    totals: UnifiedMemoryTotals | None = None
    empty: str | None = None

    @property
    def rows(self) -> "tuple[TimeRow, ...] | tuple[SizeRow, ...] | tuple[UnifiedMemoryRow, ...]":
        """The rows, of whatever kind they are."""
        return self.times or self.sizes or self.addresses


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process, or trace.

    Attributes:
        name: rank, program and process number, as far as they are known; else the file.
        trace: the file.
        format: who recorded it.
        devices: those it used, by name.
        kernels: how many it ran.
        device_ns: the durations of its device activities, added up.
        first_ns, last_ns: when its first record began and its last ended, on the clock that all processes share.
        checks: what its trust checks say that do not pass.
        failed_calls: calls that returned an error: the function, the code and how often.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Sums over all processes together."""

    schema: Literal["opscope.stats/1"] = "opscope.stats/1"
    processes: tuple[ProcessEntry, ...]
    reports: tuple[ReportEntry, ...]
