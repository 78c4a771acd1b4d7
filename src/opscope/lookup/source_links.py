"""Where source is, and which native function is behind an operator of a trace, as documents say it."""

import json
from collections.abc import Iterator

import polars as pl

from opscope.documents.source import NativeFunctionDetail, PlaceEntry, SourceEntry
from opscope.knowledge.kernels.kernel_source import KernelSource, repository_link
from opscope.knowledge.native_functions import NativeFunctions, RecordedCalls, Resolution
from opscope.render.blocks import Inline, Name

_SITES_SHOWN = 3
_CANDIDATES_SHOWN = 8


def native_function_of(
    name: str, shapes: pl.DataFrame, functions: NativeFunctions, device_key: str, weight: str
) -> tuple[NativeFunctionDetail, str | None]:
    """Resolve an operator by the input types that were recorded of its calls.

    Args:
        name: the operator.
        shapes: its rows of `Analysis.shapes`.
        functions: the operators of a PyTorch build.
        device_key: the dispatch key of the device, ``CPU`` or ``CUDA``.
        weight: the column of ``shapes`` that says which overload matters most.

    Returns:
        The detail, and the name in ``native_functions.yaml``, or None where it has no entry there.
    """
    calls = [
        RecordedCalls(
            input_types=None if row["input_types"] is None else tuple(json.loads(row["input_types"])),
            time_ns=row[weight] or 0,
        )
        for row in shapes.iter_rows(named=True)
    ]
    return detail_of(functions.resolve(name, calls, device_key), functions)


def detail_of(resolution: Resolution, functions: NativeFunctions) -> tuple[NativeFunctionDetail, str | None]:
    """Return what documents say of a resolution, and the name in ``native_functions.yaml``; None if not listed."""
    function = resolution.function
    detail = NativeFunctionDetail(
        schema=function.schema if function else None,
        yaml_line=function.yaml_line if function else None,
        dispatch_key=resolution.dispatch_key,
        cpp_function=resolution.cpp_function,
        torch_version=functions.torch_version,
        how=resolution.how,
        other_overloads=resolution.other_overloads,
    )
    listed = function is not None and function.yaml_line is not None
    return detail, function.yaml_name if function and listed else None


def source_entry(source: KernelSource) -> SourceEntry:
    """Return what a document says of a kernel's source."""
    sites = tuple(
        PlaceEntry(
            site.file, site.line or None, site.function or None, repository_link(site.file, site.line, source.git)
        )
        for site in source.launch_sites
    )
    place = source.definition
    return SourceEntry(
        file=source.file,
        line=source.line,
        how=source.how,
        basis=source.basis,
        definition=None
        if place is None
        else PlaceEntry(place.file, place.line or None, None, repository_link(place.file, place.line, source.git)),
        launch_site=sites[0] if len(sites) == 1 else None,
        launch_sites=sites,
        library=source.library,
        candidates=source.candidates[:_CANDIDATES_SHOWN],
        candidate_count=len(source.candidates),
        url=source.url,
        torch=source.torch,
        git=source.git,
    )


def source_facts(source: SourceEntry) -> Iterator[Inline]:
    """Yield what is known of a kernel's source: what instantiates it, what defines it, and what launches it."""
    if source.file:
        line = f" line {source.line}" if source.line else ""
        calls = f", which calls {source.library}" if source.library not in (None, "Triton") else ""
        yield ("Source: ", Name(source.file), f"{line}{calls} ({source.how}: {source.basis})")
    elif source.library:
        yield (f"Source: {source.library} (library: {source.basis})",)
    elif source.candidates:
        hidden = source.candidate_count - len(source.candidates)
        more = f" and {hidden} more" if hidden else ""
        yield ("Source: one of ", Name(", ".join(source.candidates)), f"{more} ({source.how}: {source.basis})")
    else:
        yield (f"Source: {source.how} ({source.basis})",)
    if source.url:
        yield ("At the exact commit: ", Name(source.url))
    if source.definition and source.definition.file != source.file:
        line = f" line {source.definition.line}" if source.definition.line else ""
        yield ("Kernel template defined in ", Name(source.definition.file), line)
    for site in source.launch_sites[:_SITES_SHOWN]:
        function = (" in ", Name(site.function)) if site.function else ()
        place = f"{site.file}:{site.line}" if site.line else site.file
        yield ("Launched from ", Name(place), *function)
