"""Cuts a file's content into events. Needs neither numpy nor polars, so it can run while those are imported."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from opscope.base.errors import BadInputError
from opscope.base.stages import Stage, staged
from opscope.readers.formats import ContentReader, TraceFormat, format_of
from opscope.readers.native import library as native
from opscope.readers.odd import BETWEEN, LONGEST_EVENT, decode_event
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, STANDARD_INPUT, InputFile
from opscope.readers.whole import OpenedReader, WholeReader

# Events that the compiled reader hands back are decoded one by one, and slowly. So they are limited to a 1,024th of the
# size limit: of 16 GiB, as many as fill 16 MiB, or 131,072 short ones.
_SLOWER = 1024
_LEAST = 128  # bytes that the shortest event counts as


class Content(Struct):
    """A file that was read to its end, or to where damage stopped the reader.

    Attributes:
        source: the file, how much of it was read, and its damage.
        format: the file's format.
        reader: holds what stands before and after the events. The compiled one also holds the columns of plain events.
        events: the events that the reader handed back, decoded.
        replaced_bytes: how many bytes of these had to be replaced.
        unreadable_bytes: total length of the stretches that are not events.
    """

    source: InputFile
    format: TraceFormat
    reader: ContentReader
    events: list[Mapping[str, Any]] = field(default_factory=list)
    replaced_bytes: int = 0
    unreadable_bytes: int = 0

    @property
    def event_count(self) -> int:
        """How many events were understood, of any kind."""
        return self.reader.plain_count + len(self.events)


@staged(Stage.READ)
def read_content(source: InputFile) -> Content:
    """Read a file.

    Raises:
        BadInputError: the file cannot be opened or read, is of no known format, unpacks to more than its limit, or
            holds too many events that no profiler writes in that form.
        MemoryError: there is no room for its columns.
    """
    reading = _Reading(source)
    events: list[Mapping[str, Any]] = []
    replaced_bytes = unreadable_bytes = slow_bytes = 0
    for raw in reading.texts():
        slow_bytes += max(_LEAST, min(len(raw), LONGEST_EVENT))
        too_slow = slow_bytes > max(source.max_bytes, MAX_UNPACKED_BYTES) // _SLOWER
        if too_slow and isinstance(reading.chosen[1], native.NativeReader):
            raise BadInputError(
                f"{source.path}: too many events are not written as profilers write them, and take very long to read: "
                f"set --max-input beyond {MAX_UNPACKED_BYTES:,} bytes if you want to wait"
            )
        event, replaced = decode_event(raw)
        replaced_bytes += replaced
        if event is None:
            unreadable_bytes += len(raw.rstrip(BETWEEN))
        else:
            events.append(event)
    form, reader = reading.chosen
    return Content(source, form, reader, events, replaced_bytes, unreadable_bytes)


class _Reading:
    """Chooses the format by the beginning of the file, and yields what the format's reader hands back."""

    def __init__(self, source: InputFile) -> None:
        self._source = source
        self._chosen: tuple[TraceFormat, ContentReader] | None = None

    @property
    def chosen(self) -> tuple[TraceFormat, ContentReader]:
        """The format and its reader; for an empty file, Kineto's, which reports that it is empty."""
        if self._chosen is None:
            self._choose(b"")
        assert self._chosen is not None
        return self._chosen

    def texts(self) -> Iterator[bytes]:
        """Yield the text of events that are not plain, and of stretches that are not events."""
        yield from self._source.feed(self._choose)
        yield from self.chosen[1].finish()

    def _choose(self, beginning: bytes) -> ContentReader:
        form = format_of(beginning, self._source.path)
        # Standard input cannot be opened by its path, whatever it is.
        whole = form.reader is OpenedReader and self._source.path == STANDARD_INPUT
        reader = WholeReader() if whole else form.reader()
        if self._source.wanted is not None and isinstance(reader, native.NativeReader):
            reader.want(self._source.wanted)
        self._chosen = form, reader
        return reader
