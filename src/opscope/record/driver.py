"""What the CUDA driver reports about itself and this machine's devices."""

from msgspec import Struct


class DriverDevice(Struct, frozen=True, kw_only=True):
    """One device, as ``cuDeviceGetAttribute`` describes it.

    Attributes:
        index: its number.
        name: ``NVIDIA H200``; for a slice, the card's name with " MIG " and the slice's profile.
        compute_capability: ``9.0``.
        multiprocessors: their number.
        memory_bytes, l2_bytes: size of its memory, and of the L2 cache that its multiprocessors share.
        clock_khz, memory_clock_khz: the highest clocks.
        memory_bus_bits: width of the memory bus; 0 for a slice.
        threads_per_block: the most threads of a block.
        block, grid: the largest size in each dimension (x, y, z).
        registers_per_block: the most registers of a block.
        shared_memory_per_block_bytes: the most shared memory that a block can opt in to.
        threads_per_multiprocessor, blocks_per_multiprocessor, registers_per_multiprocessor,
            shared_memory_per_multiprocessor_bytes: what one multiprocessor holds.
        ecc: whether memory errors are corrected.
        managed: whether host and device can use managed memory at the same time.
    """

    index: int
    name: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    threads_per_block: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    registers_per_block: int
    shared_memory_per_block_bytes: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_memory_per_multiprocessor_bytes: int
    ecc: bool
    managed: bool

    @property
    def is_slice(self) -> bool:
        """Whether this is a MIG slice of a card."""
        return " MIG " in self.name


class Driver(Struct, frozen=True, kw_only=True):
    """The driver's answer.

    Attributes:
        library: path of ``libcuda``; None if there is none.
        cuda: the newest CUDA that it supports, ``13.0``; None if it does not say.
        release: the driver's own version, ``580.95.05``; None if unknown.
        devices: the devices that ``CUDA_VISIBLE_DEVICES`` lets it list.
        visible: that variable; None if it is not set.
        error: why there are no devices, in the driver's words; None if nothing failed.
    """

    library: str | None
    cuda: str | None
    release: str | None
    devices: tuple[DriverDevice, ...] = ()
    visible: str | None = None
    error: str | None = None
