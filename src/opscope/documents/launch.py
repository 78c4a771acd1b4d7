"""Whether a kernel can be launched so, and how it fills a device: the schema ``opscope.launch/1``."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OccupancyEntry:
    """Theoretical occupancy, computed from the launch and the device's limits.

    ``waves`` is the number of thread blocks over what the whole device holds at a time. ``tail`` is the share of its
    places that stay empty in the last wave, over all waves: of blocks that take the same time, so much time is lost.
    """

    percent: float
    blocks_per_multiprocessor: int
    limiter: str
    waves: float | None
    tail: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDocument:
    """One launch configuration on one device.

    Attributes:
        device: which.
        compute_capability, multiprocessors: its own; the latter null where no device is meant.
        grid, block: of the launch.
        registers_per_thread, shared_memory_bytes: of the kernel, static and dynamic shared memory together.
        can_launch: whether the device accepts it.
        problems: why not, each with the device's limit.
        remarks: what the caller has to do for it, such as opting in to more shared memory.
        occupancy: how it fills the device; null where it cannot be launched.
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
