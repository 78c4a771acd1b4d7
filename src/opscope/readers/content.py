"""A file's content, cut into events. Needs neither numpy nor polars: it can be read while those are imported."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opscope.readers.formats import EventReader, Format, format_of
from opscope.readers.odd import decode_event
from opscope.readers.source import Source


@dataclass(slots=True)
class Content:
    """A file that was read to its end, or to where it could not be read on.

    Attributes:
        source: the file; how much was read, and what ended it early.
        format: what kind of file it is.
        reader: what stands before and after the events. The compiled one also holds the columns of plain events.
        events: the other events, decoded.
        replaced_bytes: how many bytes of these had to be replaced.
        unreadable_bytes: the length of the stretches that are no events.
    """

    source: Source
    format: Format
    reader: EventReader
    events: list[Mapping[str, Any]] = field(default_factory=list)
    replaced_bytes: int = 0
    unreadable_bytes: int = 0


def read_content(source: Source) -> Content:
    """Read a file.

    Raises:
        BadInputError: the file cannot be opened or read, or unpacks to more than its limit.
        MemoryError: there is no room for its columns.
    """
    reading = _Reading(source)
    events: list[Mapping[str, Any]] = []
    replaced_bytes = unreadable_bytes = 0
    for raw in reading.texts():
        event, replaced = decode_event(raw)
        replaced_bytes += replaced
        if event is None:
            unreadable_bytes += len(raw)
        else:
            events.append(event)
    form, reader = reading.chosen
    return Content(source, form, reader, events, replaced_bytes, unreadable_bytes)


class _Reading:
    """Chooses the format by the file's beginning, and yields what its reader returns."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chosen: tuple[Format, EventReader] | None = None

    @property
    def chosen(self) -> tuple[Format, EventReader]:
        """The format and its reader; of a file without any content, those that say so."""
        if self._chosen is None:
            self._choose(b"")
        assert self._chosen is not None
        return self._chosen

    def texts(self) -> Iterator[bytes]:
        """Yield the events that are not plain, and the stretches that are no events."""
        yield from self._source.feed(self._choose)
        yield from self.chosen[1].finish()

    def _choose(self, beginning: bytes) -> EventReader:
        form = format_of(beginning, self._source.path)
        self._chosen = form, form.reader()
        return self._chosen[1]
