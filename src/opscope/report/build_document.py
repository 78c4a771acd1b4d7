"""Renders what was built, and checks of launch configurations, as text and tables."""

import linecache
from collections.abc import Iterator
from typing import Final

from opscope.analysis.costs.occupancy import LaunchConfiguration, check_launch, entry_of
from opscope.base.errors import EnvironmentLacksError
from opscope.base.units import format_bytes, format_count
from opscope.documents.build import BuildDocument, KernelListing, KernelResources, LaunchDocument, OccupancyEntry
from opscope.documents.machine import GpuFacts
from opscope.knowledge.devices import compute_capabilities
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, table_of


def build_launch(launch: LaunchConfiguration, device: str, number: str, multiprocessors: int | None) -> LaunchDocument:
    """Build the document.

    Args:
        launch: the launch configuration.
        device: the device's name, as shown to the user.
        number: its compute capability, ``9.0``.
        multiprocessors: their number; None for a compute capability without a certain device.

    Raises:
        EnvironmentLacksError: the limits of the compute capability are not known.
    """
    capability = compute_capabilities().get(number)
    if capability is None:
        raise EnvironmentLacksError(f"the limits of compute capability {number} are not known ({device})")
    result = check_launch(launch, capability, multiprocessors)
    return LaunchDocument(
        device=device,
        compute_capability=number,
        multiprocessors=multiprocessors,
        grid=launch.grid,
        block=launch.block,
        registers_per_thread=launch.registers_per_thread,
        shared_memory_bytes=launch.shared_memory_bytes,
        can_launch=not result.problems,
        problems=result.problems,
        remarks=result.remarks,
        occupancy=entry_of(result.occupancy),
    )


def launch_on(launch: LaunchConfiguration, gpu: GpuFacts) -> LaunchDocument:
    """Build the document of a launch on a GPU of the table, or on a device of this machine.

    Raises:
        EnvironmentLacksError: the limits of its compute capability are not known.
    """
    return build_launch(launch, gpu.name, gpu.compute_capability, gpu.sms)


def launch_lines(document: LaunchDocument) -> Iterator[str]:
    """Yield the document as sentences."""
    yield (
        f"{document.device} (compute capability {document.compute_capability}): grid {_shown(document.grid)}, block "
        f"{_shown(document.block)}, {document.registers_per_thread} registers a thread, "
        f"{document.shared_memory_bytes:,} bytes of shared memory a block"
    )
    if not document.can_launch:
        yield "It cannot be launched:"
        yield from (f"  {problem}" for problem in document.problems)
        return
    yield "It can be launched."
    yield from (f"  {remark}" for remark in document.remarks)
    result = document.occupancy
    if result is not None:
        yield (
            f"Theoretical occupancy {result.percent:.0f} %: a multiprocessor holds {result.blocks_per_multiprocessor} "
            f"{'block' if result.blocks_per_multiprocessor == 1 else 'blocks'} at a time, limited by {result.limiter}."
        )
        yield from _waves(document, result)


def launch_values(document: LaunchDocument) -> Table:
    """Build a table of one row with the document's values, for CSV."""
    result = document.occupancy
    values = {
        "device": Name(document.device),
        "compute_capability": document.compute_capability,
        "grid": ",".join(map(str, document.grid)),
        "block": ",".join(map(str, document.block)),
        "registers_per_thread": str(document.registers_per_thread),
        "shared_memory_bytes": str(document.shared_memory_bytes),
        "can_launch": str(document.can_launch).lower(),
        "problems": Name("; ".join(document.problems)),
        "occupancy_percent": "" if result is None else f"{result.percent:g}",
        "blocks_per_multiprocessor": "" if result is None else str(result.blocks_per_multiprocessor),
        "limiter": "" if result is None else result.limiter,
        "waves": "" if result is None or result.waves is None else f"{result.waves:g}",
        "tail": "" if result is None or result.tail is None else f"{result.tail:g}",
    }
    return Table(tuple(values), (tuple(values.values()),))


def _waves(document: LaunchDocument, result: OccupancyEntry) -> Iterator[str]:
    if result.waves is None or document.multiprocessors is None or result.tail is None:
        return
    blocks = document.grid[0] * document.grid[1] * document.grid[2]
    held = result.blocks_per_multiprocessor * document.multiprocessors
    yield (
        f"{result.waves:.2f} waves: {format_count(blocks)} blocks, of which the device's {document.multiprocessors} "
        f"multiprocessors hold {format_count(held)} at a time; {100 * result.tail:.1f} % of the places in these waves "
        "stay empty."
    )
    if blocks < document.multiprocessors:
        yield f"{document.multiprocessors - blocks} of {document.multiprocessors} multiprocessors have no block."


def _shown(dimensions: tuple[int, int, int]) -> str:
    return " x ".join(f"{number:,}" for number in dimensions)


def kernels_table(document: BuildDocument) -> Table:
    """Build a table with a row per kernel and architecture; occupancy is for blocks of ``block_threads`` threads."""
    return table_of(_COLUMNS, document.kernels)


def _occupancy(kernel: KernelResources) -> tuple[str, str]:
    if kernel.problem is not None:
        return "cannot be launched", kernel.problem
    result = kernel.occupancy
    return ("unknown", "-") if result is None else (f"{result.percent:.0f} %", result.limiter)


_COLUMNS: Final[tuple[Column[KernelResources], ...]] = (
    Column("Kernel", lambda kernel: Name(kernel.name)),
    Column("Arch", lambda kernel: kernel.arch),
    Column("Registers", lambda kernel: str(kernel.registers), numeric=True),
    Column("Shared memory", lambda kernel: format_bytes(kernel.shared_memory_bytes), numeric=True),
    Column("Stack", lambda kernel: format_bytes(kernel.stack_bytes), numeric=True, optional=True),
    Column("Spill stores", lambda kernel: format_bytes(kernel.spill_store_bytes), numeric=True),
    Column("Barriers", lambda kernel: str(kernel.barriers), numeric=True, optional=True),
    Column("Occupancy", lambda kernel: _occupancy(kernel)[0], numeric=True),
    Column("Limited by", lambda kernel: _occupancy(kernel)[1]),
)


def build_lines(document: BuildDocument) -> Iterator[str]:
    """Yield lines on what was built, the compiler's warnings, and remarks on the kernels."""
    yield document.command
    held = ", ".join(_contents(document)) or "no code for a GPU"
    if not document.kernels:
        held += "; it has no kernels"
    yield (
        f"{document.output}: {document.kind}, built in {document.seconds:.1f} s by nvcc {document.nvcc_version}; "
        f"holds {held}"
    )
    if not document.linked_figures:
        yield (
            "relocatable device code: what kernels take is of each file before it is linked; functions that they call "
            "elsewhere are not in it"
        )
    for message in document.messages:
        place = "" if message.file is None else f"{message.file}:{message.line}: "
        yield f"warning: {place}{message.text}"
    # One line per kernel and remark, with all architectures that it holds for.
    results: dict[tuple[str, str], list[str]] = {}
    for kernel in document.kernels:
        for remark in _remarks(kernel):
            results.setdefault((kernel.name, remark), []).append(kernel.arch)
    yield from (f"{name} ({', '.join(archs)}): {remark}" for (name, remark), archs in results.items())
    if document.kernels:
        yield f"Occupancy: theoretical, of blocks of {document.block_threads} threads without dynamic shared memory."


def _contents(document: BuildDocument) -> Iterator[str]:
    sass = list(dict.fromkeys(entry.arch for entry in document.contents if entry.kind == "sass"))
    ptx = list(dict.fromkeys(entry.arch for entry in document.contents if entry.kind == "ptx"))
    if sass:
        yield f"machine code for {', '.join(sass)}"
    if ptx:
        yield f"PTX of {', '.join(ptx)}"


def _remarks(kernel: KernelResources) -> Iterator[str]:
    if kernel.spill_store_bytes or kernel.spill_load_bytes:
        yield (
            f"registers are spilled to local memory: {format_bytes(kernel.spill_store_bytes)} a thread are stored, "
            f"{format_bytes(kernel.spill_load_bytes)} loaded; fewer values at a time keep them in registers, or "
            "smaller bounds in __launch_bounds__: these limit the registers of a thread"
        )
    elif kernel.stack_bytes:
        yield (
            f"{format_bytes(kernel.stack_bytes)} of local memory a thread: an array that is indexed by what the "
            "compiler does not know, or a call"
        )


def listing_lines(kernel: KernelListing) -> Iterator[str]:
    """Yield the lines of a listing, with each source line before the instructions that it was compiled to."""
    yield f"// {kernel.name} ({kernel.arch})"
    shown: tuple[str | None, int | None] = (None, None)
    for instruction in kernel.instructions:
        place = (instruction.file, instruction.line)
        if place != shown and instruction.file is not None and instruction.line:
            text = linecache.getline(instruction.file, instruction.line).strip()  # empty if the file is not here
            yield f"// {instruction.file}:{instruction.line}{f'  {text}' if text else ''}"
        shown = place
        yield instruction.text
