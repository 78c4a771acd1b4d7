"""Takes a file's content as it is, for formats that are not cut into events. Needs neither numpy nor polars."""

import os
import stat

from opscope.base.errors import BadInputError

_BATCH = 1 << 24


class WholeReader:
    """Keeps all of a file."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece."""
        self._pieces.append(piece)
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Take the next bytes of an open file."""
        content = os.read(file, max(piece, _BATCH))
        self._pieces.append(content)
        return len(content), []

    def finish(self) -> list[bytes]:
        """Say that there is no more: nothing is handed back."""
        return []

    @property
    def plain_count(self) -> int:
        """No events are counted here: what the content means is for the format's module."""
        return 0

    def content(self) -> bytes:
        """Return all that was read."""
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def take(self) -> bytes:
        """Return all that was read, and keep nothing of it."""
        content, self._pieces = self.content(), []
        return content


class OpenedReader(WholeReader):
    """Keeps a file's content only where the file cannot be opened again: a pipe, or packed data."""

    def __init__(self) -> None:
        super().__init__()
        self.left_unread = False

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Take the next bytes, or none of a regular file."""
        if stat.S_ISREG(os.fstat(file).st_mode):
            self.left_unread = True
            return 0, []
        return super().read(file, piece)


def whole(reader: object) -> WholeReader:
    """Return a reader as what it is for formats of whole files.

    Raises:
        BadInputError: it is another one's, as of a file without any content.
    """
    if not isinstance(reader, WholeReader):
        raise BadInputError("the file is empty")
    return reader
