"""The theoretical occupancy of a launch and what limits it, from its geometry and the device's limits."""

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.costs.launch_shapes import LaunchShape
from opscope.documents.launch import OccupancyEntry
from opscope.knowledge.compute_capabilities import MultiprocessorLimits, compute_capabilities
from opscope.trace.model import DeviceProperties

WARP: Final = 32  # threads
_REGISTER_UNIT = 256  # a warp gets registers in multiples of this
_WARPS_PER_PARTITION = 4  # registers suffice for warps in multiples of this, one per quarter of a multiprocessor


class Occupancy(Struct, frozen=True):
    """How many thread blocks of a launch one multiprocessor holds at a time.

    Attributes:
        blocks_per_multiprocessor: the number of these blocks.
        warps_per_multiprocessor: the warps of these blocks.
        percent: these warps as a percentage of the most that the multiprocessor holds.
        limiter: what allows no further block: ``threads``, ``blocks``, ``registers`` or ``shared memory``; several are
            joined by " and ".
        waves: thread blocks of the launch per thread blocks that the whole device holds; None where the number of
            multiprocessors is unknown. Below 1 the device is not filled once.
    """

    blocks_per_multiprocessor: int
    warps_per_multiprocessor: int
    percent: float
    limiter: str
    waves: float | None

    @property
    def tail(self) -> float | None:
        """The share of the places in all waves that the last wave leaves empty; None where waves are unknown."""
        return None if self.waves is None else 1 - self.waves / math.ceil(self.waves)


def occupancy(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    registers_per_thread: int,
    shared_memory_bytes: int,
    device: DeviceProperties,
) -> Occupancy | None:
    """Compute the theoretical occupancy of a launch.

    Formulas: CUDA C++ Programming Guide, "Multiprocessor Level" and the occupancy calculator.

    Args:
        grid: thread blocks along x, y and z.
        block: threads of a block along x, y and z.
        registers_per_thread: below 1, registers set no limit.
        shared_memory_bytes: static and dynamic shared memory of a block together.
        device: what is known of it; its own figures replace those of its compute capability.

    Returns:
        The occupancy; None where the compute capability is not known, or the device cannot run the launch at all.
    """
    limits = _limits(device)
    threads = block[0] * block[1] * block[2]
    if limits is None or threads < 1:
        return None
    warps = -(-threads // WARP)
    most_warps = limits.threads // WARP
    bounds = {
        "threads": most_warps // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(warps, registers_per_thread, limits),
        "shared memory": _by_shared_memory(shared_memory_bytes, limits),
    }
    blocks = min(bounds.values())
    if blocks < 1:
        return None
    resident = blocks * (device.multiprocessors or 0)
    return Occupancy(
        blocks_per_multiprocessor=blocks,
        warps_per_multiprocessor=blocks * warps,
        percent=100 * blocks * warps / most_warps,
        limiter=" and ".join(name for name, bound in bounds.items() if bound == blocks),
        waves=grid[0] * grid[1] * grid[2] / resident if resident else None,
    )


def entry_of(result: Occupancy | None) -> OccupancyEntry | None:
    """Return an occupancy as documents hold it."""
    if result is None:
        return None
    return OccupancyEntry(result.percent, result.blocks_per_multiprocessor, result.limiter, result.waves, result.tail)


def occupancy_of(launch: LaunchShape, device: DeviceProperties | None) -> Occupancy | None:
    """Compute the theoretical occupancy of a recorded launch; None where it cannot run or too little was recorded."""
    grid, block = dimensions(launch.grid), dimensions(launch.block)
    if device is None or grid is None or block is None or launch.registers_per_thread is None:
        return None
    return occupancy(grid, block, launch.registers_per_thread, launch.shared_memory_bytes or 0, device)


def _limits(device: DeviceProperties) -> MultiprocessorLimits | None:
    """Return the limits of a device: what the trace records of it, else those of its compute capability."""
    known = compute_capabilities().get(device.compute_capability or "")
    if known is None:
        return None
    limits = known.multiprocessor
    return replace(
        limits,
        threads=device.threads_per_multiprocessor or limits.threads,
        registers=device.registers_per_multiprocessor or limits.registers,
        shared_memory_bytes=device.shared_memory_per_multiprocessor_bytes or limits.shared_memory_bytes,
    )


def registers_of_warp(registers_per_thread: int) -> int:
    """Return how many registers a warp is given."""
    return -(-registers_per_thread * WARP // _REGISTER_UNIT) * _REGISTER_UNIT


def warps_by_registers(registers_per_thread: int, registers: int) -> int:
    """Return how many warps a multiprocessor's registers suffice for; each quarter of it has registers of its own."""
    return registers // registers_of_warp(registers_per_thread) // _WARPS_PER_PARTITION * _WARPS_PER_PARTITION


def _by_registers(warps: int, registers_per_thread: int, limits: MultiprocessorLimits) -> int:
    # Registers that are not known, or not used, set no limit of their own.
    if registers_per_thread < 1:
        return limits.blocks
    return warps_by_registers(registers_per_thread, limits.registers) // warps


def _by_shared_memory(used: int, limits: MultiprocessorLimits) -> int:
    # The system takes a part for each block, and a block gets whole units.
    per_block = used + limits.reserved_shared_memory_bytes
    if per_block < 1:
        return limits.blocks
    unit = limits.shared_memory_unit_bytes
    return limits.shared_memory_bytes // (-(-per_block // unit) * unit)


def dimensions(text: str | None) -> tuple[int, int, int] | None:
    """Read a grid or block of a table, ``x,y,z``; None for anything else, and where one of the three is 0."""
    parts = (text or "").split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        return None
    x, y, z = (int(part) for part in parts)
    return (x, y, z) if x * y * z else None
