"""Renders `BuildDocument` and `ListingDocument` as text and tables."""

import linecache
from collections.abc import Iterator
from typing import Final

from opscope.base.units import format_bytes
from opscope.documents.build import BuildDocument, KernelListing, KernelResources
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, table_of


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
