"""Writes single values of a document for people."""

from collections.abc import Iterator, Mapping
from typing import Final

from opscope.documents.brief import ShownValue
from opscope.render.blocks import Block, Bullets, Name, Paragraph, Section, Table, Whole

_LISTED: Final = 12  # entries of a list
_COLUMNS: Final = 7  # of a table of entries, beside their addresses
_LONG: Final = 160  # characters of a value in a list


def shown_section(one: ShownValue) -> Section:
    """Return a value as a section: what it means, then the value with its parts."""
    return Section((Name(one.address or "the document"),), tuple(_blocks(one)))


def _blocks(one: ShownValue) -> Iterator[Block]:
    if one.means is not None:
        yield Paragraph.of(one.means)
    if isinstance(one.value, Mapping):
        lines = ((Name(key), ": ", *_brief(value)) for key, value in one.value.items())
        yield Bullets(tuple(lines))
    elif isinstance(one.value, list | tuple):
        yield Paragraph.of(f"{len(one.value):,} entries:")
        yield _entries(one)
    else:
        yield Paragraph.of(Whole(one.text))


def _entries(one: ShownValue) -> Table:
    """Return the entries of a list with their addresses, and what of them is a number or text."""
    entries = one.value
    called = [address.rpartition("/")[2] for address in one.inside]  # what the address says already
    scalars = dict.fromkeys(
        key
        for name, entry in zip(called, entries, strict=True)
        for key, value in (entry.items() if isinstance(entry, Mapping) else ())
        if isinstance(value, str | int | float) and value != name
    )
    columns = list(scalars)[:_COLUMNS]
    rows = tuple(
        (Name(address), *(Name(_brief(entry.get(key))[0]) for key in columns))
        if isinstance(entry, Mapping)
        else (Name(address), Name(str(entry)))
        for address, entry in zip(one.inside, entries, strict=True)
    )
    return Table(("address", *(columns or ["value"])), rows)


def _brief(value: object) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return (f"{len(value)} parts",)
    if isinstance(value, list | tuple):
        flat = all(isinstance(one, str | int | float) for one in value)
        return (Name(", ".join(map(str, value[:_LISTED]))),) if flat and value else (f"{len(value):,} entries",)
    text = "null" if value is None else str(value)
    return (Name(text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"),)
