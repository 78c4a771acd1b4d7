"""Writes what a memory snapshot says: as a section, and as the table of CSV."""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.base.units import format_bytes, format_share, signed_bytes
from opscope.documents.memory import (
    AliveEntry,
    DeviceMemoryEntry,
    GrowthEntry,
    LineChange,
    MemoryDifference,
    MemoryDocument,
    MemoryFinding,
    PinEntry,
    SettingEntry,
)
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table, Tone, Toned, joined
from opscope.render.table_formats import Column, field_values, table_of

_OWNERS: Final = 5
_FINDINGS: Final = 3
_FIELDS: Final = ("owner", "module", "operator", "line", "bytes", "count")


def memory_section(document: MemoryDocument, top: int | None) -> Section:
    """Build what people read: the peak and whose it is, what to do, then tables.

    Args:
        document: the snapshot.
        top: the most rows of what was alive at the peak; None for all.
    """
    blocks: list[Block] = []
    for device in document.devices:
        blocks += _first(device)
    blocks += map(Paragraph.of, document.notes)
    found = document.findings
    blocks += map(Paragraph, _lines(found[:_FINDINGS])) if found else [Paragraph.of(_nothing(document))]
    if found[_FINDINGS:]:
        more = ", ".join(f"{finding.id} ({format_bytes(finding.saves_bytes)})" for finding in found[_FINDINGS:])
        blocks.append(Paragraph.of(f"Also: {more}. --format json has all of each."))
    for device in document.devices:
        blocks += _tables(device, top)
    return Section((Name(document.snapshot),), tuple(blocks))


def out_of_memory_lines(document: MemoryDocument) -> Iterator[str]:
    """Yield what is said where a program ran out of memory: the request that was refused, and what to do first."""
    for device in document.devices:
        if device.oom is not None:
            yield f"{device_name(device.device)} was out of memory. {device.oom.sentence}"
    for line in _lines(document.findings[:_FINDINGS]):
        yield joined(line)


def memory_values(document: MemoryDocument) -> Table:
    """Build the table of CSV: what was alive at the peak, in bytes."""
    rows = tuple(
        (Name("" if device.device is None else str(device.device)), *field_values(entry, _FIELDS))
        for device in document.devices
        for entry in device.peak
    )
    return Table(("device", *_FIELDS), rows)


def device_name(device: int | None) -> str:
    """Return what people call a device."""
    return "Pinned memory of the host" if device is None else f"GPU {device}"


# ---------------------------------------------------------------- what is read first


def _first(device: DeviceMemoryEntry) -> Iterator[Block]:
    step = f"step {device.peak_step + 1}, " if device.peak_step is not None else ""
    when = f" ({step}{device.peak_phase})" if device.events else ""
    yield Paragraph(
        (
            Toned(
                f"{device_name(device.device)}: at most {format_bytes(device.peak_bytes)} allocated{when}, "
                f"{format_bytes(device.peak_reserved_bytes)} reserved.",
                Tone.STRONG,
            ),
        )
    )
    if device.oom is not None:
        yield Paragraph((Toned("  Out of memory: ", Tone.BAD), Name(device.oom.sentence)))
    shown = [entry for entry in device.owners if entry.bytes]
    listed = ", ".join(
        f"{entry.owner} {format_bytes(entry.bytes)} ({format_share(entry.bytes, device.peak_bytes)})"
        for entry in shown[:_OWNERS]
    )
    if listed:
        yield Paragraph.of(f"  Alive then: {listed}.")
    for note in device.notes:
        yield Paragraph.of(f"  {note}")


def _lines(findings: Sequence[MemoryFinding]) -> Iterator[Inline]:
    for number, finding in enumerate(findings, 1):
        of = "the peak" if finding.of == "allocated" else "what is reserved"
        saving = f": saves {format_bytes(finding.saves_bytes)}, {of} is then {format_bytes(finding.then_bytes)}"
        yield (Toned(f"  {number}. {finding.title}{saving if finding.saves_bytes else ''}", Tone.STRONG),)
        where = (" (", Name(finding.where), ")") if finding.where else ()
        yield ("     ", finding.action, *where, f" Costs: {_lowered(finding.costs)}")


def _lowered(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _nothing(document: MemoryDocument) -> str:
    if not document.devices and document.notes:
        return "So nothing can be said of it."
    if not document.devices:
        return "The snapshot has no memory of any device: nothing had been allocated when it was taken."
    if any(device.events for device in document.devices):
        return "No change was found that would save 2 % of the peak or more."
    return "Without a history nothing can be said of peaks and of what to change."


# ---------------------------------------------------------------- tables


def _tables(device: DeviceMemoryEntry, top: int | None) -> Iterator[Block]:
    name = device_name(device.device)
    for title, table in (
        (f"{name}, alive at the peak:", _alive(device.peak[:top], device.peak_bytes)),
        (f"{name}, growing from step to step ({device.steps_by}):", _growth(device.growth)),
        (f"{name}, settings of the allocator, replayed:", _settings(device.settings)),
        (
            f"{name}, {format_bytes(device.fragmentation_bytes)} are free in segments that hold something, at the end:",
            _pins(device.pins),
        ),
    ):
        if table.rows:
            yield Paragraph.of(title)
            yield table


def _alive(rows: Sequence[AliveEntry], whole: int) -> Table:
    columns = [
        Column[AliveEntry]("Owner", lambda one: str(one.owner)),
        Column[AliveEntry]("Line", lambda one: Name(one.line or "-")),
        Column[AliveEntry]("Operator", lambda one: Name(one.operator or "-"), optional=True),
        Column[AliveEntry]("Module", lambda one: Name(one.module or "-"), optional=True),
        Column[AliveEntry]("Blocks", lambda one: f"{one.count:,}", numeric=True),
        Column[AliveEntry]("Bytes", lambda one: format_bytes(one.bytes), numeric=True),
        Column[AliveEntry]("of peak", lambda one: format_share(one.bytes, whole), numeric=True),
    ]
    empty = {
        heading
        for heading, is_empty in (
            ("Operator", all(one.operator is None for one in rows)),
            ("Module", all(one.module is None for one in rows)),
        )
        if is_empty
    }
    return table_of([column for column in columns if column.heading not in empty], rows)


def _growth(rows: Sequence[GrowthEntry]) -> Table:
    return table_of(
        [
            Column[GrowthEntry]("Line", lambda one: Name(one.line or "-")),
            Column[GrowthEntry]("A step", lambda one: format_bytes(one.bytes_per_step), numeric=True),
            Column[GrowthEntry]("Steps in a row", lambda one: str(one.steps), numeric=True),
            Column[GrowthEntry]("At the end", lambda one: format_bytes(one.bytes), numeric=True),
        ],
        rows,
    )


def _settings(rows: Sequence[SettingEntry]) -> Table:
    fits = {True: "yes", False: "no", None: "-"}
    columns = [
        Column[SettingEntry]("PYTORCH_CUDA_ALLOC_CONF", lambda one: one.setting or "(as recorded)"),
        Column[SettingEntry]("Reserved", lambda one: format_bytes(one.reserved_bytes), numeric=True),
        Column[SettingEntry]("Requests fit", lambda one: fits[one.fits]),
    ]
    limited = any(row.fits is not None for row in rows)
    return table_of(columns if limited else columns[:2], rows)


def _pins(rows: Sequence[PinEntry]) -> Table:
    return table_of(
        [
            Column[PinEntry]("Segment", lambda one: format_bytes(one.bytes), numeric=True),
            Column[PinEntry]("Free in it", lambda one: format_bytes(one.free_bytes), numeric=True),
            Column[PinEntry]("Held by", lambda one: format_bytes(one.pinned_by), numeric=True),
            Column[PinEntry]("Line of its largest block", lambda one: Name(one.line or "-")),
        ],
        rows,
    )


# ---------------------------------------------------------------- two snapshots


_CHANGE_FIELDS: Final = ("owner", "place", "line", "before_bytes", "after_bytes")


def memory_difference_section(document: MemoryDifference, top: int | None) -> Section:
    """Build what people read of two snapshots: the change of each peak, by owner and by place.

    Args:
        document: what changed.
        top: the most rows by place; None for all.
    """
    blocks: list[Block] = [
        Paragraph.of("Before: ", Name(document.before)),
        Paragraph.of("After: ", Name(document.after)),
    ]
    blocks += [
        Paragraph((Toned(f"{device_name(device.device)}: {device.sentence}", Tone.STRONG),))
        for device in document.devices
    ]
    for heading, titles in (("Only before", document.gone), ("Only after", document.new)):
        if titles:
            blocks += [Paragraph.of(f"{heading}:"), Bullets(tuple((title,) for title in titles))]
    blocks += [Paragraph.of(note) for note in document.notes]
    for device in document.devices:
        rows = [one for one in device.lines if one.before_bytes != one.after_bytes][:top]
        if rows:
            blocks += [Paragraph.of(f"{device_name(device.device)}, at the peak, by place:"), _changes(rows)]
    return Section(("Two snapshots",), tuple(blocks))


def memory_difference_values(document: MemoryDifference) -> Table:
    """Build the table of CSV: each place at both peaks, in bytes."""
    rows = tuple(
        (Name("" if device.device is None else str(device.device)), *field_values(one, _CHANGE_FIELDS))
        for device in document.devices
        for one in device.lines
    )
    return Table(("device", *_CHANGE_FIELDS), rows)


def _changes(rows: Sequence[LineChange]) -> Table:
    return table_of(
        [
            Column[LineChange]("Owner", lambda one: str(one.owner)),
            Column[LineChange]("Line", lambda one: Name(one.line or one.place)),
            Column[LineChange]("Before", lambda one: format_bytes(one.before_bytes), numeric=True),
            Column[LineChange]("After", lambda one: format_bytes(one.after_bytes), numeric=True),
            Column[LineChange]("Change", lambda one: signed_bytes(one.after_bytes - one.before_bytes), numeric=True),
        ],
        rows,
    )
