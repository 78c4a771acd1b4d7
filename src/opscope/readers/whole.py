"""Readers that keep a file's content as it is, for formats that are not cut into events. Need no numpy or polars."""

import os
import stat

from opscope.base.errors import BadInputError

_BATCH = 1 << 24


class WholeReader:
    """Keeps the whole content of a file in memory."""

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
        """End the content; nothing is handed back."""
        return []

    @property
    def plain_count(self) -> int:
        """Always 0: the format's module counts its events."""
        return 0

    def content(self) -> bytes:
        """Return the whole content."""
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def take(self) -> bytes:
        """Return the whole content, and free it here."""
        content, self._pieces = self.content(), []
        return content


class OpenedReader(WholeReader):
    """Keeps a file's content only if the file cannot be opened again (a pipe, or packed data).

    Attributes:
        left_unread: whether the rest of a regular file was left for the format's module to open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_unread = False

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Take the next bytes of a pipe; of a regular file, none."""
        if stat.S_ISREG(os.fstat(file).st_mode):
            self.left_unread = True
            return 0, []
        return super().read(file, piece)


def whole(reader: object) -> WholeReader:
    """Return a reader of a whole file as its type.

    Raises:
        BadInputError: it is another reader, as an empty file has.
    """
    if not isinstance(reader, WholeReader):
        raise BadInputError("the file is empty")
    return reader
