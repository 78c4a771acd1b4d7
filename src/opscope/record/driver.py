"""What the CUDA driver says of itself and of the devices here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDevice:
    """One device, as ``cuDeviceGetAttribute`` describes it.

    Attributes:
        index: its number.
        name: ``NVIDIA H200``; of a slice, that of the card with " MIG " and the slice's profile.
        compute_capability: ``9.0``.
        multiprocessors: how many.
        memory_bytes, l2_bytes: of its memory and of the cache that its multiprocessors share.
        clock_khz, memory_clock_khz: the highest ones.
        memory_bus_bits: the width of the memory's bus; 0 of a slice.
        threads_per_block: the most of a block.
        block, grid: the most in each dimension.
        registers_per_block: the most of a block.
        shared_memory_per_block_bytes: the most that a block can ask for (opt-in).
        threads_per_multiprocessor, blocks_per_multiprocessor, registers_per_multiprocessor,
            shared_memory_per_multiprocessor_bytes: what one multiprocessor holds.
        ecc: whether errors of its memory are corrected.
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
        """Whether this is a part of a card (MIG)."""
        return " MIG " in self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver's answer.

    Attributes:
        library: where ``libcuda`` was found; None where there is none.
        cuda: the newest CUDA that it supports, ``13.0``; None where it does not say.
        release: of the driver itself, ``580.95.05``.
        devices: what it lists, as far as ``CUDA_VISIBLE_DEVICES`` lets it.
        visible: that variable, if it is set.
        error: why there are no devices, in the driver's words; None where nothing failed.
    """

    library: str | None
    cuda: str | None
    release: str | None
    devices: tuple[DriverDevice, ...] = ()
    visible: str | None = None
    error: str | None = None
