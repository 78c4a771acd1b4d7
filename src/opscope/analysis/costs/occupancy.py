"""Theoretical occupancy of a launch, and what limits it: from its geometry and the device's limits, not measured."""

import math
from dataclasses import dataclass, replace
from typing import Final

from opscope.analysis.costs.launch_shapes import LaunchShape
from opscope.documents.launch import OccupancyEntry
from opscope.knowledge.compute_capabilities import MultiprocessorLimits, compute_capabilities
from opscope.trace.model import DeviceProperties

WARP: Final = 32  # threads
_REGISTER_UNIT = 256  # registers are given to a warp in units of this
_WARPS_PER_PARTITION = 4  # and to thread blocks by multiples of this many warps


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many thread blocks of a launch one multiprocessor holds at a time.

    Attributes:
        blocks_per_multiprocessor: as many.
        warps_per_multiprocessor: their warps.
        percent: those warps as a percentage of the most that the multiprocessor holds.
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
        """The share of the places in all waves that the last one leaves empty; None where waves are unknown."""
        return None if self.waves is None else 1 - self.waves / math.ceil(self.waves)


def occupancy(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    registers_per_thread: int,
    shared_memory_bytes: int,
    device: DeviceProperties,
) -> Occupancy | None:
    """Compute the theoretical occupancy of a launch.

    None where the device's compute capability is not known, or the launch cannot run on it at all.
    Formulas: CUDA C++ Programming Guide, "Multiprocessor Level" and the occupancy calculator.
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


def entry_of(found: Occupancy | None) -> OccupancyEntry | None:
    """Return what documents hold of an occupancy."""
    if found is None:
        return None
    return OccupancyEntry(found.percent, found.blocks_per_multiprocessor, found.limiter, found.waves, found.tail)


def occupancy_of(launch: LaunchShape, device: DeviceProperties | None) -> Occupancy | None:
    """Compute the theoretical occupancy of a recorded launch; None also where too little of it was recorded."""
    grid, block = dimensions(launch.grid), dimensions(launch.block)
    if device is None or grid is None or block is None or launch.registers_per_thread is None:
        return None
    return occupancy(grid, block, launch.registers_per_thread, launch.shared_memory_bytes or 0, device)


def _limits(device: DeviceProperties) -> MultiprocessorLimits | None:
    """Return the limits of the compute capability, with what the trace itself records of the device."""
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
    """Return how many warps some registers suffice for: each quarter of a multiprocessor has its own."""
    return registers // registers_of_warp(registers_per_thread) // _WARPS_PER_PARTITION * _WARPS_PER_PARTITION


def _by_registers(warps: int, registers_per_thread: int, limits: MultiprocessorLimits) -> int:
    if registers_per_thread < 1:
        return limits.blocks
    return warps_by_registers(registers_per_thread, limits.registers) // warps


def _by_shared_memory(used: int, limits: MultiprocessorLimits) -> int:
    per_block = used + limits.reserved_shared_memory_bytes
    if per_block < 1:
        return limits.blocks
    unit = limits.shared_memory_unit_bytes
    return limits.shared_memory_bytes // (-(-per_block // unit) * unit)


def dimensions(text: str | None) -> tuple[int, int, int] | None:
    """Read a grid or block as tables have it: ``x,y,z``; None for anything else, empty ones included."""
    parts = (text or "").split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        return None
    x, y, z = (int(part) for part in parts)
    return (x, y, z) if x * y * z else None
