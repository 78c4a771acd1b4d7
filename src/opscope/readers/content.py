"""Cuts a file's content into events. Needs neither numpy nor polars, so it can run while those are imported."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct, field

from opscope.base.errors import BadInputError
from opscope.base.parts import Stage, staged
from opscope.base.text import lazy_pattern
from opscope.readers.formats import ContentReader, TraceFormat, format_of
from opscope.readers.native import library as native
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, STANDARD_INPUT, InputFile, OpenedReader, WholeReader

# ---------------------------------------------------------------- bytes that JSON does not allow
# PyTorch 2.6, for one, records some Python frames with names that are left-over memory: control characters and bytes
# that are not UTF-8. Their meaning is lost, so they become question marks (U+FFFD if they are not UTF-8).


# Tab, line feed and carriage return may stand between values, where a space means the same, but not within strings.
_BLANK = b"\t\n\r"
_CONTROL = bytes(range(0x20)).translate(None, _BLANK)
_CLEAN = bytes.maketrans(_CONTROL + _BLANK, b"?" * len(_CONTROL) + b" " * len(_BLANK))
_REPLACEMENT = "\ufffd"


def repaired(raw: bytes) -> tuple[bytes, int]:
    """Return the content as valid UTF-8 without control characters, and how many bytes were replaced.

    Blanks are replaced by spaces but not counted, because most of them stand between values.
    """
    count = len(raw) - len(raw.translate(None, _CONTROL))
    clean = raw.translate(_CLEAN)
    try:
        clean.decode()
    except UnicodeDecodeError:
        # The content may hold U+FFFD itself: those that `ignore` leaves were there before.
        text = clean.decode("utf-8", "replace")
        count += text.count(_REPLACEMENT) - clean.decode("utf-8", "ignore").count(_REPLACEMENT)
        clean = text.encode()
    return clean, count


# ---------------------------------------------------------------- odd content


_DECODER: Final = json.JSONDecoder(parse_float=Decimal)
BETWEEN: Final = b" \r\n\t,"  # what may stand between events
LONGEST_EVENT: Final = 1 << 20  # longer texts are not mended
# A name with quotes that were not escaped ends where the next known key begins.
_NAME_BEGIN: Final = lazy_pattern(rb'"name"\s*:\s*"')
_NAME_END: Final = lazy_pattern(rb'"\s*[,}]\s*(?:"(?:ph|cat|pid|tid|ts|dur|id|s|bp|args)"\s*:|$)')
_TEXT_OR_NO_NUMBER: Final = lazy_pattern(rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
_BACKSLASH: Final = lazy_pattern(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


def decode_event(raw: bytes) -> tuple[dict[str, Any] | None, int]:
    """Decode an event that may not be quite JSON.

    Understood are NaN and Infinity (also as C writes them: nan, -inf), control characters, bytes that are not UTF-8,
    stray backslashes, and quotes within the name.

    Returns:
        The event, or None if it cannot be read; and how many bytes of it were replaced.
    """
    if len(raw) > LONGEST_EVENT:
        return None, 0
    clean, replaced = repaired(raw.rstrip(BETWEEN))
    # From the mildest repair to the boldest, so that text that is JSON already is never changed.
    tried: set[bytes] = set()
    for mend in (_as_it_is, _with_numbers, _with_backslashes, _with_escaped_name):
        text = mend(clean)
        if text in tried:
            continue
        tried.add(text)
        try:
            event = _DECODER.decode(text.decode())
        except (ValueError, ArithmeticError, RecursionError):
            continue
        return (event if isinstance(event, dict) else None), replaced
    return None, replaced


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _with_numbers(raw: bytes) -> bytes:
    """Write all spellings of NaN and infinity as ``NaN``, which Python's decoder takes; strings stay as they are."""
    return _TEXT_OR_NO_NUMBER.sub(lambda match: match[0] if match[0][:1] == b'"' else b"NaN", raw)


def _with_backslashes(raw: bytes) -> bytes:
    return _BACKSLASH.sub(rb"\\\\", _with_numbers(raw))


def _with_escaped_name(raw: bytes) -> bytes:
    # Two searches: one expression for both would search for the end again from every beginning.
    begin = _NAME_BEGIN.search(raw)
    end = _NAME_END.search(raw, begin.end()) if begin else None
    if begin is None or end is None:
        return raw
    name = raw[begin.end() : end.start()].replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return raw[: begin.end()] + name + raw[end.start() :]


# ---------------------------------------------------------------- content


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
    texts = reading.texts()
    first = next(texts, None)  # the format is known from here on
    form, reader = reading.chosen
    return decoded(source, form, reader, texts if first is None else itertools.chain((first,), texts))


def decoded(source: InputFile, form: TraceFormat, reader: ContentReader, texts: Iterable[bytes]) -> Content:
    """Return a file's content with the events that its reader hands back decoded.

    Args:
        source: the file.
        form: its format.
        reader: what reads it.
        texts: the events that it hands back, and stretches between events.

    Raises:
        BadInputError: as `read_content`.
    """
    events: list[Mapping[str, Any]] = []
    replaced_bytes = unreadable_bytes = slow_bytes = 0
    for raw in texts:
        slow_bytes += max(_LEAST, min(len(raw), LONGEST_EVENT))
        too_slow = slow_bytes > max(source.max_bytes, MAX_UNPACKED_BYTES) // _SLOWER
        if too_slow and isinstance(reader, native.NativeReader):
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
