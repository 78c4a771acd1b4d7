"""Writes single values of a document for people."""

from collections.abc import Iterator, Mapping
from typing import Final

from opscope.documents.brief import ShownValue
from opscope.render.blocks import Block, Bullets, Name, Paragraph, Section, Whole

_LISTED: Final = 12  # entries of a list
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
        yield Paragraph.of(f"{len(one.value):,} entries; each has an address:")
        yield Bullets(tuple((Whole(address),) for address in one.inside[:_LISTED]))
    else:
        yield Paragraph.of(Whole(one.text))


def _brief(value: object) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return (f"{len(value)} parts",)
    if isinstance(value, list | tuple):
        flat = all(isinstance(one, str | int | float) for one in value)
        return (Name(", ".join(map(str, value[:_LISTED]))),) if flat and value else (f"{len(value):,} entries",)
    text = "null" if value is None else str(value)
    return (Name(text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"),)
