"""A file's content, cut into events. Needs neither numpy nor polars: it can be read while those are imported."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from opscope.readers import native
from opscope.readers.odd import decode_event
from opscope.readers.scan import PythonReader
from opscope.readers.source import Source, Takes


class EventReader(Takes, Protocol):
    """What the compiled reader and the one in Python have in common."""

    def finish(self) -> list[bytes]:
        """Say that there is no more; return what was left that is no plain event."""

    @property
    def event_count(self) -> int:
        """How many whole events were met, of any kind."""

    @property
    def truncated(self) -> bool:
        """Whether the list of events was not closed."""

    @property
    def found_events(self) -> bool:
        """Whether there was a list of events at all."""

    @property
    def header(self) -> bytes:
        """What stands before ``"traceEvents"``; the beginning of a file that has none."""

    @property
    def footer(self) -> bytes:
        """What stands after the list of events, or its beginning."""

    @property
    def footer_size(self) -> int:
        """How many bytes stand after the list of events."""


@dataclass(slots=True)
class Content:
    """A file that was read to its end, or to where it could not be read on.

    Attributes:
        source: the file; how much was read, and what ended it early.
        reader: what stands before and after the events. The compiled one also holds the columns of plain events.
        events: the other events, decoded.
        replaced_bytes: how many bytes of these had to be replaced.
        unreadable_bytes: the length of the stretches that are no events.
    """

    source: Source
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
    library = native.load()
    content = Content(source, PythonReader() if library is None else native.NativeReader(library))
    for raw in _fed(content.reader, source):
        event, replaced = decode_event(raw)
        content.replaced_bytes += replaced
        if event is None:
            content.unreadable_bytes += len(raw)
        else:
            content.events.append(event)
    return content


def _fed(reader: EventReader, source: Source) -> Iterator[bytes]:
    yield from source.feed(reader)
    yield from reader.finish()
