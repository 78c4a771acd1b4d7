"""A trace file's content in pieces, unpacked where it is gzip, with a limit on what it may unpack to."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from opscope.errors import BadInputError

STORE_MANIFEST = "store.json"  # a directory that has one holds a trace as Parquet files
# How the names of traces end, for those who look for them in a folder.
TRACE_ENDINGS = (".json", ".json.gz", ".json.zst", ".json.xz")
# More would not fit in the memory of most machines once it is columns.
MAX_UNPACKED_BYTES = 16 << 30
# Between pieces, the reading thread waits for its turn to run Python: large ones make it wait less often.
_PIECE = 1 << 22
_PACKED_PIECE = 1 << 18
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 16 + zlib.MAX_WBITS


@dataclass(slots=True)
class Source:
    """A file to read once.

    Attributes:
        path: the file.
        max_bytes: how much it may unpack to.
        size_bytes: how much was read, unpacked.
        damage: why reading ended before the end; None while all is well.
    """

    path: Path
    max_bytes: int = MAX_UNPACKED_BYTES
    size_bytes: int = 0
    damage: str | None = None

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the content; a piece is good until the next one. Damaged gzip data end it early: ``damage`` says so.

        Raises:
            BadInputError: the file cannot be opened or read, or unpacks to more than ``max_bytes``.
        """
        try:
            with self.path.open("rb") as file:
                for piece in _pieces(file):
                    self._count(len(piece))
                    yield piece
        except (EOFError, zlib.error) as error:
            self.damage = f"its gzip data are damaged ({error})"
        except OSError as error:
            raise BadInputError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _count(self, size: int) -> None:
        self.size_bytes += size
        if self.size_bytes > self.max_bytes:
            raise BadInputError(
                f"{self.path} unpacks to more than {self.max_bytes:,} bytes: raise the limit with --max-input if it is "
                "what you expect"
            )


def _pieces(file: BufferedReader) -> Iterator[bytes | memoryview]:
    """Yield the content, unpacked. Nothing is read twice, so the file may be a pipe."""
    first = file.read(len(_GZIP))
    return _unpacked(file, first) if first == _GZIP else _plain(file, first)


def _plain(file: BufferedReader, first: bytes) -> Iterator[memoryview]:
    """Read into one buffer again and again: memory that is not new needs no page faults."""
    buffer = memoryview(bytearray(len(first) + _PIECE))
    buffer[: len(first)] = first
    filled = len(first) + file.readinto(buffer[len(first) :])
    while filled:
        yield buffer[:filled]
        filled = file.readinto(buffer)


def _unpacked(file: BufferedReader, packed: bytes) -> Iterator[bytes]:
    """Unpack all members of a gzip file that begins with ``packed``. One bad byte costs no whole piece."""
    member = zlib.decompressobj(wbits=_GZIP_BITS)
    while packed:
        while packed:
            if member.eof:
                packed = packed.lstrip(b"\0")  # some tools pad
                if not packed:
                    break
                member = zlib.decompressobj(wbits=_GZIP_BITS)
            before = member.copy()
            try:
                piece = member.decompress(packed, _PIECE)
            except zlib.error:
                yield _until_damage(before, packed)
                raise
            if piece:
                yield piece
            packed = member.unconsumed_tail or member.unused_data
        packed = file.read(_PACKED_PIECE)
    if not member.eof:
        raise EOFError("cut short")


def _until_damage(member: "zlib._Decompress", packed: bytes) -> bytes:
    """Unpack byte by byte: what zlib had unpacked in a call before it met bad data is lost otherwise."""
    unpacked = []
    for at in range(len(packed)):
        try:
            unpacked.append(member.decompress(packed[at : at + 1]))
        except zlib.error:
            break
    return b"".join(unpacked)
