"""The check of a launch configuration, and how it fills a device: the schema ``opscope.launch/1``."""

from typing import Literal

from msgspec import Struct


class OccupancyEntry(Struct, frozen=True):
    """Theoretical occupancy, computed from the launch and the device's limits.

    Attributes:
        percent: of the most warps that a multiprocessor holds.
        blocks_per_multiprocessor: thread blocks that a multiprocessor holds at a time.
        limiter: what limits that number.
        waves: the number of thread blocks over the number that the whole device holds at a time; null if unknown.
        tail: the share of places for blocks, over all waves, that stay empty in the last one. If all blocks take the
            same time, that is the share of time lost. Null if unknown.
    """

    percent: float
    blocks_per_multiprocessor: int
    limiter: str
    waves: float | None
    tail: float | None = None


class LaunchDocument(Struct, frozen=True, kw_only=True):
    """One launch configuration on one device.

    Attributes:
        device: its name.
        compute_capability, multiprocessors: of the device; the latter is null for a capability without a device.
        grid, block: of the launch, x, y, z.
        registers_per_thread, shared_memory_bytes: of the kernel; static and dynamic shared memory per block together.
        can_launch: whether the device accepts it.
        problems: why it does not, each with the device's limit.
        remarks: what the caller has to do for it, such as opting in to more shared memory.
        occupancy: how it fills the device; null if it cannot be launched.
    """

    schema: Literal["opscope.launch/1"] = "opscope.launch/1"
    device: str
    compute_capability: str
    multiprocessors: int | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_memory_bytes: int
    can_launch: bool
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    occupancy: OccupancyEntry | None
