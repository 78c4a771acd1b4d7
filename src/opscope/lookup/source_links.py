"""Where source is, as documents say it."""

from collections.abc import Iterator

from opscope.documents.source import PlaceEntry, SourceEntry
from opscope.knowledge.kernels.kernel_source import KernelSource, link
from opscope.render.blocks import Inline, Name

_SITES_SHOWN = 3
_CANDIDATES_SHOWN = 8


def source_entry(source: KernelSource) -> SourceEntry:
    """Return what a document says of a kernel's source."""
    sites = tuple(
        PlaceEntry(site.file, site.line or None, site.function or None, link(site.file, site.line, source.git))
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
        else PlaceEntry(place.file, place.line or None, None, link(place.file, place.line, source.git)),
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
