"""What nvcc built: the schemas ``opscope.build/1`` and ``opscope.listing/1``."""

from dataclasses import dataclass
from typing import Literal

from opscope.documents.launch import OccupancyEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What one kernel takes on one architecture, as ptxas says.

    Attributes:
        name, symbol: as people and as linkers write it.
        arch: ``sm_90``.
        registers: of a thread.
        stack_bytes: of a thread, in local memory: arrays that are indexed by what the compiler does not know.
        spill_store_bytes, spill_load_bytes: written and read because registers did not suffice, per thread.
        shared_memory_bytes: of a block, static.
        constant_bytes: of constant memory; null where the compiler does not say.
        barriers: used by a block.
        occupancy: theoretical, of blocks of the size that was asked for; null where such a block cannot be launched, or
            nothing is known of the architecture.
        problem: why such a block cannot be launched; null where it can, or nothing is known.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerMessage:
    """A warning or an error of a compiler.

    Attributes:
        file, line: where; null where it is of none.
        kind: ``warning`` or ``error``.
        text: what it says.
    """

    file: str | None
    line: int | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryEntry:
    """Code for a GPU in a file.

    Attributes:
        kind: ``sass`` (machine code) or ``ptx``.
        arch: ``sm_90``, ``compute_90``.
        size_bytes: as it is stored.
        compressed: whether it is stored compressed.
    """

    kind: str
    arch: str
    size_bytes: int
    compressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDocument:
    """One build.

    Attributes:
        source, output: files.
        kind: ``executable``, ``library`` or ``extension``.
        nvcc, nvcc_version: the compiler.
        command: as it was run, for a shell.
        seconds: how long it took.
        block_threads: of the blocks that ``occupancy`` is of.
        kernels: per architecture.
        contents: what the output holds, read from it.
        messages: warnings.
        linked_figures: whether the kernels' figures are of what runs; false for relocatable device code, which is
            linked afterwards.
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


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a listing, and the source line that it is of."""

    text: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelListing:
    """The PTX or the machine code of one kernel.

    Attributes:
        name, symbol: as people and as linkers write it.
        arch: ``sm_90``.
        instructions: all lines, in order.
    """

    name: str
    symbol: str
    arch: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingDocument:
    """Listings of kernels.

    Attributes:
        kind: ``ptx`` or ``sass``.
        origin: what was compiled.
        kernels: each.
    """

    schema: Literal["opscope.listing/1"] = "opscope.listing/1"
    kind: str
    origin: str
    kernels: tuple[KernelListing, ...]
