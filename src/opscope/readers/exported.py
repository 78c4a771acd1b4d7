"""The header of ``opscope export``, by which an exported trace reads back as it was.

Viewers need a thread id per track, and one per lane where slices cross. So the header says which thread of which
process each track was drawn for, what is known of the original file, and which checks of the measurement failed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.text import lazy_pattern
from opscope.trace.model import DeviceProperties, Trace, TraceSource

HEADER: Final = "opscope_export"  # the key before the events
PART: Final = "opscope_part"  # the key after the events, in files that were split: which part (from 1) it is
# Process ids: of the host, of the profiler, of unified memory, and of device 0.
HOST, OVERHEAD, UNIFIED_MEMORY, DEVICE = 1, 2, 3, 1_000
_NUMBER: Final = lazy_pattern(r"[0-9]{1,18}")
LANES: Final = 1_000_000  # thread ids per track: lane L of thread N has the id N * LANES + L


Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Sentence = Annotated[str, msgspec.Meta(max_length=2_000)]


class ExportedFrom(Struct, frozen=True, kw_only=True):
    """What an exported file keeps of the original trace.

    Attributes:
        schema: the version.
        threads: as `Trace.threads`; the lanes of thread number N have the thread ids from N times `LANES` on.
        devices: as `Trace.devices`.
        replaced_bytes, odd_events, unreadable_bytes, damage, not_understood, failed_checks, not_recorded,
            dropped_records: as in `TraceSource`.
    """

    schema: Literal["opscope.export/1"] = "opscope.export/1"
    threads: tuple[tuple[str, str], ...]
    devices: tuple[DeviceProperties, ...]
    replaced_bytes: Count = 0
    odd_events: Count = 0
    unreadable_bytes: Count = 0
    damage: Sentence | None = None
    not_understood: dict[str, Count] = field(default_factory=dict)
    failed_checks: Annotated[dict[str, Sentence], msgspec.Meta(max_length=100)] = field(default_factory=dict)
    not_recorded: Annotated[tuple[Sentence, ...], msgspec.Meta(max_length=1_000)] = ()
    dropped_records: Count = 0


def restored(trace: Trace, header: Mapping[str, Any]) -> Trace:
    """Return the original of a trace that was read from an export; other traces are returned unchanged.

    Args:
        trace: as read from the file.
        header: the file's header, decoded.
    """
    if HEADER not in header:
        return trace
    # Half a surrogate pair is not text that could be shown.
    written = json.dumps(header[HEADER], ensure_ascii=False).encode("utf-8", "replace")
    try:
        origin = msgspec.json.decode(written, type=ExportedFrom)
    except msgspec.DecodeError:  # of a later version, or not ours: then it is a trace like others
        return trace
    threads, numbers = _threads(trace.threads, origin.threads)
    tables = {
        name: table.with_columns(thread=numbers.gather(table["thread"]))
        for name in ("operators", "launches", "annotations", "ranges", "frames", "allocations")
        if (table := getattr(trace, name)).height
    }
    source = _source(trace.source, origin, header.get(PART))
    return replace(trace, source=source, devices=origin.devices, threads=threads, **tables)


def _threads(
    drawn: tuple[tuple[str, str], ...], original: tuple[tuple[str, str], ...]
) -> tuple[tuple[tuple[str, str], ...], pl.Series]:
    """Return the threads, and for each drawn track the number of its thread.

    A track that was added to the file becomes a further thread.
    """
    known = {pair: number for number, pair in enumerate(dict.fromkeys(original))}
    numbers = [known.setdefault(_thread_of(pair, original), len(known)) for pair in drawn]
    return tuple(known), pl.Series(numbers, dtype=pl.Int32)


def _thread_of(track: tuple[str, str], original: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    process, thread = track
    if process != str(HOST) or not _NUMBER.fullmatch(thread) or int(thread) // LANES >= len(original):
        return track
    return original[int(thread) // LANES]


def _source(source: TraceSource, origin: ExportedFrom, part: Any) -> TraceSource:
    """Add the original file's problems to those of the exported one."""
    split = f"it is part {part} of a trace that was exported in parts" if isinstance(part, int) else None
    not_understood = Counter(source.not_understood) + Counter(origin.not_understood)
    return replace(
        source,
        replaced_bytes=source.replaced_bytes + origin.replaced_bytes,
        odd_events=source.odd_events + origin.odd_events,
        unreadable_bytes=source.unreadable_bytes + origin.unreadable_bytes,
        damage=source.damage or origin.damage or split,
        not_understood=dict(sorted(not_understood.items())),
        failed_checks=origin.failed_checks,
        not_recorded=origin.not_recorded,
        dropped_records=origin.dropped_records,
    )
