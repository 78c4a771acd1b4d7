"""Writes what ``torch.compile`` did as a section: breaks, recompilations, skipped CUDA graphs, and kernels' lines."""

from collections.abc import Iterator
from typing import Final

from opscope.base.text import shortened
from opscope.base.units import format_count, format_ns, format_share, format_times
from opscope.documents.compiled import (
    BreakEntry,
    CompiledKernelEntry,
    CompileDocument,
    RecompilationEntry,
    RegionEntry,
)
from opscope.render.blocks import Block, Inline, Name, Paragraph, Section, Tone, Toned
from opscope.render.table_formats import Column, table_of
from opscope.trace.compile_log import CodePlace

_LISTED: Final = 5
_OPERATORS: Final = 6
_NAME: Final = 60


def compile_section(document: CompileDocument, top: int | None = 10) -> Section:
    """Build what people read.

    Args:
        document: what the log and the steps have.
        top: the most rows of a table; None for all.
    """
    return Section(("What torch.compile did",), tuple(_blocks(document, top)))


def _blocks(document: CompileDocument, top: int | None) -> Iterator[Block]:
    yield from map(Paragraph.of, document.notes)
    if document.compilations:
        took = "" if document.compile_ns is None else f", which took {format_ns(document.compile_ns)}"
        yield Paragraph.of(f"{_count(document.compilations, 'compilation')}{took}.")
    for one in document.breaks[:_LISTED]:
        yield from _break(one)
    yield from _more(len(document.breaks), "lines break graphs")
    for recompiled in document.recompilations[:_LISTED]:
        yield from _recompilation(recompiled)
    yield from _more(len(document.recompilations), "guards failed")
    for skipped in document.skipped[:_LISTED]:
        what = "Left out of the CUDA graph" if skipped.is_part else "CUDA graph skipped"
        yield Paragraph((Toned(what, Tone.STRONG), *_at(skipped.place), ": ", Name(skipped.reason)))
    if document.recorded_sizes > 1:
        yield Paragraph.of(f"CUDA graphs were recorded anew for each of {document.recorded_sizes} sets of sizes.")
    if not (document.breaks or document.recompilations or document.skipped):
        yield Paragraph.of("The log names no graph breaks, recompilations or skipped CUDA graphs.")
    if document.guards_ns is not None:
        yield Paragraph.of(f"Guards are checked for {format_ns(document.guards_ns)} of {document.of}, as recorded.")
    if document.regions:
        yield Paragraph.of(f"Compiled functions, in {document.of}:")
        yield table_of(_REGIONS, document.regions[:top])
    if document.kernels:
        share = format_share(document.known_ns, document.graphs_ns)
        yield Paragraph.of(
            f"Kernels of compiled graphs, in {document.of}: the lines of {share} of their time are known."
        )
        yield table_of(_KERNELS, document.kernels[:top])


def _break(entry: BreakEntry) -> Iterator[Block]:
    yield Paragraph((Toned("Graph break", Tone.STRONG), *_at(entry.place), ": ", Name(entry.sentence)))
    yield from _code(entry.place)
    yield from (Paragraph(("    ", Name(hint))) for hint in entry.hints[:2])


def _recompilation(entry: RecompilationEntry) -> Iterator[Block]:
    yield Paragraph((Toned("Recompilation", Tone.STRONG), *_at(entry.place), ": ", Name(entry.sentence)))
    if entry.place is not None:
        yield from _code(entry.place)
    if entry.hint:
        yield Paragraph(("    ", Name(entry.hint)))


def _at(place: CodePlace | None) -> Inline:
    return () if place is None else (" at ", Name(_name(place)))


def _code(place: CodePlace) -> Iterator[Block]:
    if place.text:
        yield Paragraph(("    ", Name(place.text)))


def _name(place: CodePlace) -> str:
    return f"{place.file}:{place.line}"


def _short(place: CodePlace) -> str:
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def _more(count: int, what: str) -> Iterator[Block]:
    if count > _LISTED:
        yield Paragraph.of(f"{count - _LISTED} more {what}: --format json has all.")


def _count(count: int, what: str) -> str:
    return f"{format_count(count)} {what}{'' if count == 1 else 's'}"


_REGIONS: Final[tuple[Column[RegionEntry], ...]] = (
    Column("Compilation", lambda row: Name(row.compilation)),
    Column("Function", lambda row: Name(row.function or "-")),
    Column("Defined at", lambda row: Name("-" if row.place is None else _short(row.place))),
    Column("Calls", lambda row: format_times(row.executions), numeric=True),
    Column("Device time", lambda row: format_ns(row.device_ns), numeric=True),
    Column("its backward pass", lambda row: format_ns(row.elsewhere_ns), numeric=True),
    Column("Host time", lambda row: format_ns(row.host_ns), numeric=True),
    Column("Launched", lambda row: format_times(row.launches), numeric=True),
)
_KERNELS: Final[tuple[Column[CompiledKernelEntry], ...]] = (
    Column("Kernel", lambda row: Name(shortened(row.name, _NAME))),
    Column("Graph", lambda row: Name(row.compilation)),
    Column("Lines", lambda row: Name(", ".join(map(_short, row.places)) or "-")),
    Column("Fused operators", lambda row: Name(_operators(row))),
    Column("Launched", lambda row: format_times(row.activities), numeric=True),
    Column("Device time", lambda row: format_ns(row.device_ns), numeric=True),
)


def _operators(row: CompiledKernelEntry) -> str:
    shown = ", ".join(row.operators[:_OPERATORS])
    return f"{shown}, ..." if len(row.operators) > _OPERATORS else shown or "-"
