"""Decodes events whose text may not be quite JSON."""

import json
import re
from decimal import Decimal
from typing import Any, Final

from opscope.base.text import lazy_pattern

# ---------------------------------------------------------------- bytes that JSON does not allow


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
