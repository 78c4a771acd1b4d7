"""Cuts a Kineto file's list of events into events, in Python alone: used where the compiled reader is not built."""

import json
import os

from opscope.base.text import lazy_pattern

_EVENTS = lazy_pattern(r'"traceEvents"\s*:\s*\[')
# After text that cannot be decoded, reading goes on where an event seems to begin, or where the list seems to end.
_NEXT = lazy_pattern(r'\}\s*,\s*(?=\{\s*")')
_LAST = lazy_pattern(r"\}\s*(?=\])")
_BOM = "\xef\xbb\xbf"  # UTF-8's byte order mark, as Latin-1
_SPACE = lazy_pattern(r"[\s,]*")
_COLON = lazy_pattern(r"\s*:\s*")


class PythonReader:
    """Collects a file's pieces; `finish` returns the text of every event and of what lies between them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._decoder = json.JSONDecoder(strict=False)
        self.plain_count = 0  # it hands every event back
        self.truncated = False
        self.found_events = False
        self.header = b""
        self.footer = b""

    @property
    def footer_size(self) -> int:
        """The number of bytes after the list of events."""
        return len(self.footer)

    def feed(self, piece: bytes) -> list[bytes]:
        """Keep a piece; `finish` reads them all at once."""
        self._pieces.append(piece)
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Keep a piece of a file; return its size (0 at the end of the file), and no events yet."""
        content = os.read(file, piece)
        return len(content), self.feed(content)

    def finish(self) -> list[bytes]:
        """Return the text of every event, and of stretches that are not events."""
        # Latin-1 keeps every byte as one character, so that nothing is replaced before the events are looked at.
        text = b"".join(self._pieces).decode("latin-1")
        self._pieces.clear()
        begin = self._begin(text)
        if begin is None:
            self.header = text[:4096].encode("latin-1")
            return []
        self.found_events = True
        spans, end = self._spans(text, begin)
        self.footer = text[end:].encode("latin-1")
        return [text[first:last].encode("latin-1") for first, last in spans]

    def _begin(self, text: str) -> int | None:
        """Return where the list of events begins, or None if there is none.

        It is an entry of the outermost object, or the whole file. Entries before it are decoded one by one, so that
        the same key deeper within one of them is not taken for it.
        """
        at = _SPACE.match(text, 3 if text.startswith(_BOM) else 0).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "[":
            return at + 1
        if text[at : at + 1] != "{":
            return None
        at += 1
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if match := _EVENTS.match(text, at):
                self.header = text[:at].encode("latin-1")
                return match.end()
            try:
                key, at = self._decoder.raw_decode(text, at)
                colon = _COLON.match(text, at)
                if not isinstance(key, str) or colon is None:
                    return None
                _, at = self._decoder.raw_decode(text, colon.end())
            except (ValueError, RecursionError):
                return None

    def _spans(self, text: str, at: int) -> tuple[list[tuple[int, int]], int]:
        spans: list[tuple[int, int]] = []
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at >= len(text):
                self.truncated = True
                return spans, at
            if text[at] == "]":
                return spans, at + 1
            try:
                if text[at] != "{":
                    raise ValueError
                _, end = self._decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                result = _NEXT.search(text, at + 1) or _LAST.search(text, at + 1)
                end = result.end() if result else len(text)
            spans.append((at, end))
            at = end
