"""What nvcc built: the schemas ``opscope.build/1`` and ``opscope.listing/1``.

The schema ``opscope.launch/1`` has the check of a launch configuration, and how it fills a device.
"""

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


class KernelResources(Struct, frozen=True, kw_only=True):
    """The resources of one kernel on one architecture, as reported by ptxas.

    Attributes:
        name, symbol: the demangled and the mangled name.
        arch: ``sm_90``.
        registers: per thread.
        stack_bytes: local memory per thread, for arrays whose indices the compiler does not know.
        spill_store_bytes, spill_load_bytes: bytes per thread written and read because registers did not suffice.
        shared_memory_bytes: static shared memory per block.
        constant_bytes: constant memory; null if the compiler does not say.
        barriers: used by a block.
        occupancy: theoretical, for blocks of ``block_threads``; null if such a block cannot be launched, or the
            architecture is unknown.
        problem: why such a block cannot be launched; null if it can, or the architecture is unknown.
    """

    name: str
    symbol: str
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_memory_bytes: int
    constant_bytes: int | None
    barriers: int
    occupancy: OccupancyEntry | None = None
    problem: str | None = None


class CompilerMessage(Struct, frozen=True, kw_only=True):
    """A warning or an error of a compiler.

    Attributes:
        file, line: the place; null if the message is about none.
        kind: ``warning`` or ``error``.
        text: the message.
    """

    file: str | None
    line: int | None
    kind: str
    text: str


class BinaryEntry(Struct, frozen=True, kw_only=True):
    """GPU code in a file.

    Attributes:
        kind: ``sass`` (machine code) or ``ptx``.
        arch: ``sm_90``, ``compute_90``.
        size_bytes: stored size, compressed if ``compressed``.
        compressed: whether it is stored compressed.
    """

    kind: str
    arch: str
    size_bytes: int
    compressed: bool


class BuildDocument(Struct, frozen=True, kw_only=True):
    """One build.

    Attributes:
        source, output: files.
        kind: ``executable``, ``library`` or ``extension``.
        nvcc, nvcc_version: the compiler.
        command: the command as run, quoted for a shell.
        seconds: how long it took.
        block_threads: threads per block, for the kernels' ``occupancy``.
        kernels: one entry per kernel and architecture.
        contents: the GPU code in the output, read from it.
        messages: warnings.
        linked_figures: whether the kernels' figures hold for the final program; false for relocatable device code,
            which is linked afterwards.
    """

    schema: Literal["opscope.build/1"] = "opscope.build/1"
    source: str
    output: str
    kind: str
    nvcc: str
    nvcc_version: str
    command: str
    seconds: float
    block_threads: int
    kernels: tuple[KernelResources, ...]
    contents: tuple[BinaryEntry, ...]
    messages: tuple[CompilerMessage, ...]
    linked_figures: bool = True


class Instruction(Struct, frozen=True):
    """One line of a listing, and its source line; None if unknown."""

    text: str
    file: str | None = None
    line: int | None = None


class KernelListing(Struct, frozen=True, kw_only=True):
    """The PTX or the machine code of one kernel.

    Attributes:
        name, symbol: the demangled and the mangled name.
        arch: ``sm_90``.
        instructions: all lines, in order.
    """

    name: str
    symbol: str
    arch: str
    instructions: tuple[Instruction, ...]


class ListingDocument(Struct, frozen=True, kw_only=True):
    """Listings of kernels.

    Attributes:
        kind: ``ptx`` or ``sass``.
        origin: what was compiled.
        kernels: one listing per kernel.
    """

    schema: Literal["opscope.listing/1"] = "opscope.listing/1"
    kind: str
    origin: str
    kernels: tuple[KernelListing, ...]
