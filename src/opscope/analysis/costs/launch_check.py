"""Checks launch configurations: the limits of grid, block, registers and shared memory.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from opscope.analysis.costs.occupancy import WARP, Occupancy, occupancy, warps_by_registers
from opscope.knowledge.compute_capabilities import ComputeCapability
from opscope.trace.model import DeviceProperties

Dimensions = tuple[int, int, int]
_GRID: Final = (2**31 - 1, 65_535, 65_535)
_BLOCK: Final = (1024, 1024, 64)
_THREADS: Final = 1024
_REGISTERS: Final = 65_536
_REGISTERS_PER_THREAD: Final = 255
_WITHOUT_ASKING: Final = 48 << 10  # bytes of shared memory; for more a kernel has to opt in
_AXES: Final = "xyz"


class LaunchConfiguration(Struct, frozen=True):
    """A launch configuration, and the resources that the kernel needs.

    Attributes:
        grid: thread blocks along x, y and z.
        block: threads of a block along x, y and z.
        registers_per_thread: as the compiler reports it.
        shared_memory_bytes: static and dynamic shared memory of a block together.
    """

    grid: Dimensions
    block: Dimensions
    registers_per_thread: int
    shared_memory_bytes: int

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


class LaunchCheck(Struct, frozen=True):
    """Whether a launch configuration is accepted, and how it fills the device.

    Attributes:
        problems: why the device refuses the launch; empty where it accepts it.
        remarks: what to keep in mind about an accepted launch.
        occupancy: how it fills the device; None where it cannot be launched.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    occupancy: Occupancy | None


def check_launch(
    launch: LaunchConfiguration, capability: ComputeCapability, multiprocessors: int | None
) -> LaunchCheck:
    """Check a launch configuration.

    Args:
        launch: the configuration and the kernel's needs.
        capability: the compute capability to launch on.
        multiprocessors: how many the device has; None without a particular device: then waves are unknown.
    """
    problems = tuple(_problems(launch, capability))
    if problems:
        return LaunchCheck(problems, (), None)
    device = DeviceProperties(0, capability.number, capability.number, multiprocessors)
    registers, shared = launch.registers_per_thread, launch.shared_memory_bytes
    return LaunchCheck((), tuple(_remarks(launch)), occupancy(launch.grid, launch.block, registers, shared, device))


def _problems(launch: LaunchConfiguration, capability: ComputeCapability) -> Iterator[str]:
    yield from _dimensions("grid", launch.grid, _GRID)
    yield from _dimensions("block", launch.block, _BLOCK)
    if launch.threads > _THREADS:
        yield f"a block of {launch.threads:,} threads: at most {_THREADS:,}"
    if launch.registers_per_thread > _REGISTERS_PER_THREAD:
        yield f"{launch.registers_per_thread} registers a thread: at most {_REGISTERS_PER_THREAD}"
    # A block starts whole warps, so the last one takes its registers even if it is not full.
    elif (warps := -(-launch.threads // WARP)) > (most := warps_by_registers(launch.registers_per_thread, _REGISTERS)):
        yield (
            f"{launch.threads:,} threads with {launch.registers_per_thread} registers: the {_REGISTERS:,} "
            f"registers of a block suffice for {most} warps, not for {warps} (__launch_bounds__({launch.threads}) "
            "makes the compiler use fewer)"
        )
    if launch.shared_memory_bytes > capability.block_shared_memory_bytes:
        yield (
            f"{launch.shared_memory_bytes:,} bytes of shared memory: a block has at most "
            f"{capability.block_shared_memory_bytes:,} on compute capability {capability.number}"
        )


def _dimensions(what: str, values: Dimensions, most: Dimensions) -> Iterator[str]:
    for axis, number, limit in zip(_AXES, values, most, strict=True):
        if not 1 <= number <= limit:
            yield f"the {what}'s {axis} is {number:,}: 1 to {limit:,} are allowed"


def _remarks(launch: LaunchConfiguration) -> Iterator[str]:
    if launch.shared_memory_bytes > _WITHOUT_ASKING:
        yield (
            "more than 48 KiB of shared memory has to be dynamic, and allowed by "
            "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)"
        )
    if launch.threads % WARP:
        yield (
            f"{launch.threads} threads are not a whole number of warps: {-launch.threads % WARP} lanes of the last idle"
        )
