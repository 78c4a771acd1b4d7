"""Reads a trace file whole or in pieces, unpacking it if it is packed, with a limit on its unpacked size."""

import importlib
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from opscope.base.errors import BadInputError, EnvironmentLacksError

# ---------------------------------------------------------------- what is wanted


# A device runs work after it was launched, so a launch may lie before what is wanted, and its work after that. No
# source bounds by how long; a host that is further ahead than this loses work at the border, which the trust check of
# launches without activities then counts.
QUEUED_NS: Final = 10_000_000_000
# What the host did shortly before and after a step explains why a device waited in it: pauses of a millisecond and more
# tell work from dispatch, so of longer ones it does not matter by how much.
NEAR_NS: Final = 200_000_000
_LATEST: Final = 1 << 62


class Wanted(Struct, frozen=True):
    """What is kept: the outline of a trace, or what runs in a range of the trace's clock.

    Attributes:
        outline: keep nothing but the profiler's steps, calls, and the work of devices: these decide what idle time of
            each step refers to.
        begin_ns, end_ns: keep what runs on the host from the one up to the other, and for `NEAR_NS` before and after
            that. Calls, and the work of devices, are kept for `QUEUED_NS` before and after, so that work can be told by
            its launch.
    """

    outline: bool = False
    begin_ns: int = -_LATEST
    end_ns: int = _LATEST

    @property
    def near_ns(self) -> tuple[int, int]:
        """From when on and up to when what runs on the host is kept."""
        return self._with(NEAR_NS)

    @property
    def queued_ns(self) -> tuple[int, int]:
        """From when on and up to when calls and the work of devices are kept."""
        return self._with(QUEUED_NS)

    def _with(self, more: int) -> tuple[int, int]:
        return max(self.begin_ns - more, -_LATEST), min(self.end_ns + more, _LATEST)


OUTLINE: Final = Wanted(outline=True)


# ---------------------------------------------------------------- whole files


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


# ---------------------------------------------------------------- unpacking


STORE_MANIFEST = "store.json"  # a directory that has one holds a trace as Parquet files
# A larger trace would not fit in the memory of most machines as columns.
MAX_UNPACKED_BYTES = 16 << 30
# Any file may unpack to this much: a trace of as many equal events as fit takes some 0.5 GB of memory.
UNSUSPICIOUS_BYTES = 64 << 20
# Three times what was seen. Of 186 packed files that others and opscope recorded, xz packs a trace of Kineto's own
# examples best, 49 to 1 (kineto_resnet50_w0_v100, 35 MB), and a small table of Nsight Compute 57 to 1.
MAX_RATIO: Final = 150
# Between two pieces a reader's thread waits for its turn to run Python: larger pieces make it wait less often.
_PIECE = 1 << 22
_PACKED_PIECE = 1 << 18
STANDARD_INPUT: Final = Path("-")
_BEGINNING: Final = 4096  # bytes that show how a file is packed, and its format
_GZIP = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_BITS = 16 + zlib.MAX_WBITS  # zlib's way to ask for a gzip header


class Takes(Protocol):
    """A reader: it takes a file's content and hands back texts, as its format defines."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece of the content, unpacked; return texts."""

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Read pieces of some size from a file descriptor; return how many bytes (0 only at its end), and texts."""


class InputFile(Struct):
    """A file to read once.

    Attributes:
        path: the file; ``-`` for standard input.
        max_bytes: the most that it may unpack to.
        wanted: which of its slices are kept by a reader that can leave others out; None for all.
        size_bytes: how much was read so far, unpacked.
        damage: why reading stopped before the end; None if it did not.
        trailing_bytes: how many bytes follow the end of packed data, which are none of it.
    """

    path: Path
    max_bytes: int = MAX_UNPACKED_BYTES
    wanted: Wanted | None = None
    size_bytes: int = 0
    damage: str | None = None
    trailing_bytes: int = 0

    def feed(self, choose: Callable[[bytes], Takes]) -> Iterator[bytes]:
        """Feed the content to a reader, and yield the texts that it returns.

        Damaged packed data end this early; ``damage`` says why.

        Args:
            choose: returns the reader for the beginning of the content, unpacked; not called if the file is empty.

        Raises:
            BadInputError: the file cannot be opened or read, or unpacks to more than ``max_bytes``.
            EnvironmentLacksError: it is packed with Zstandard, and that package is missing.
        """
        try:
            with self._opened() as file:
                for size, returned in self._fed(choose, file):
                    self._count(size)
                    yield from returned
        except _TrailingError as error:
            self.trailing_bytes = error.size
        except _DamageError as error:
            self.damage = str(error)
        except OSError as error:
            raise BadInputError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _opened(self) -> "_File":
        # Nothing is read twice, so the file may be a pipe; nothing is buffered, so that the compiled reader can go on
        # from the descriptor.
        if self.path != STANDARD_INPUT:
            return _File(self.path)
        return _File(os.dup(0))  # a copy, so that closing it leaves Python's own open

    def _fed(self, choose: Callable[[bytes], Takes], file: "_File") -> Iterator[tuple[int, list[bytes]]]:
        """Feed the unpacked content to a reader; yield the number of bytes and the reader's texts, piece by piece."""
        first = _read(file, _BEGINNING)
        pieces = _unpacking(file, first)
        if pieces is not None:
            return _unpacked_to(choose, self._unsuspicious(pieces, file))
        return _as_is_to(choose(first), file, first) if first else iter(())

    def _unsuspicious(self, pieces: Iterator[bytes], file: "_File") -> Iterator[bytes]:
        """Pass pieces on; refuse a file that unpacks to far more than its size, unless the user set the limit."""
        unpacked = 0
        for piece in pieces:
            unpacked += len(piece)
            if self.max_bytes == MAX_UNPACKED_BYTES and unpacked > max(UNSUSPICIOUS_BYTES, MAX_RATIO * file.taken):
                raise BadInputError(
                    f"{self.path} unpacks to more than {MAX_RATIO} times its size, as traces do not: set the limit "
                    "with --max-input if it is what you expect"
                )
            yield piece

    def _count(self, size: int) -> None:
        self.size_bytes += size
        if self.size_bytes > self.max_bytes:
            raise BadInputError(
                f"{self.path} unpacks to more than {self.max_bytes:,} bytes: raise the limit with --max-input if it is "
                "what you expect"
            )


class _DamageError(Exception):
    """Packed data end early or are damaged."""


class _TrailingError(Exception):
    """Something that is not packed follows the end of packed data."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class _File(FileIO):
    """An unbuffered file that counts the bytes read from it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(-1 if size is None else size)
        self.taken += len(content)
        return content


def _unpacking(file: FileIO, first: bytes) -> Iterator[bytes] | None:
    """Return the unpacked pieces of a file that begins with ``first``; None if the file is not packed."""
    if first.startswith(_GZIP):
        return _gunzipped(file, first + file.read(_PACKED_PIECE))
    for magic, (kind, unpacker) in _STREAMS.items():
        if first.startswith(magic):
            return _unpacked(file, first + file.read(_PACKED_PIECE), kind, unpacker)
    return None


def _read(file: FileIO, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end: one read of a pipe may return fewer."""
    content = b""
    while len(content) < size and (more := file.read(size - len(content))):
        content += more
    return content


def _as_is_to(reader: Takes, file: FileIO, first: bytes) -> Iterator[tuple[int, list[bytes]]]:
    size, returned = len(first), reader.feed(first)
    yield size, returned
    while size:  # the last read, of 0 bytes, may return texts that threads were still working on
        size, returned = reader.read(file.fileno(), _PIECE)
        yield size, returned


def _unpacked_to(choose: Callable[[bytes], Takes], pieces: Iterator[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    reader: Takes | None = None
    for piece in pieces:
        if reader is None:
            reader = choose(piece)
        yield len(piece), reader.feed(piece)


class _Unpacker(Protocol):
    """Unpacks one stream of a file, in small pieces however well it is packed."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unused_data(self) -> bytes:
        """The data after the end of the stream."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the unpacked content of further data."""


class _Xz:
    def __init__(self) -> None:
        self._stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield self._stream.decompress(data, _PIECE)
        while not (self._stream.eof or self._stream.needs_input):
            yield self._stream.decompress(b"", _PIECE)


class _Zstandard:
    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise EnvironmentLacksError(f"Zstandard data need the package zstandard: {error}") from error
        self._stream: Any = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
        self._rest = b""

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._stream.unused_data) + self._rest

    def pieces(self, data: bytes) -> Iterator[bytes]:
        # The library has no limit on what it returns, and three bytes can stand for 128 KiB.
        for at in range(0, len(data), _ZSTANDARD_SLICE):
            yield self._stream.decompress(data[at : at + _ZSTANDARD_SLICE])
            if self._stream.eof:
                self._rest = data[at + _ZSTANDARD_SLICE :]
                return


_ZSTANDARD_SLICE: Final = 2048
_LARGEST_WINDOW: Final = 1 << 27  # what Zstandard may ask to be kept in memory
_STREAMS: Final[Mapping[bytes, tuple[str, Callable[[], _Unpacker]]]] = {
    _XZ_MAGIC: ("xz", _Xz),
    _ZSTANDARD_MAGIC: ("Zstandard", _Zstandard),
}


def _unpacked(file: FileIO, packed: bytes, kind: str, unpacker: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """Yield the unpacked content of all frames of a file that begins with ``packed``."""
    frame = unpacker()
    try:
        while packed:
            while packed:
                if frame.eof:
                    frame = unpacker()
                yield from filter(None, frame.pieces(packed))
                packed = frame.unused_data if frame.eof else b""
            packed = file.read(_PACKED_PIECE)
    except (lzma.LZMAError, EOFError, ValueError, RuntimeError) as error:
        raise _DamageError(f"its {kind} data are damaged ({error})") from error
    except Exception as error:  # zstandard has an error of its own, and need not be installed
        if type(error).__name__ != "ZstdError":
            raise
        raise _DamageError(f"its {kind} data are damaged ({error})") from error
    if not frame.eof:
        raise _DamageError(f"its {kind} data are damaged (cut short)")


def _gunzipped(file: FileIO, packed: bytes) -> Iterator[bytes]:
    """Yield the unpacked content of all members of a gzip file that begins with ``packed``, up to the first bad byte.

    Checksums at the end of members are checked last, so a wrong one costs no content.
    """
    inflating = _inflating()
    member = inflating.decompressobj(wbits=_GZIP_BITS)
    while packed:
        while packed:
            if member.eof:
                packed = packed.lstrip(b"\0")  # some tools pad
                if not packed:
                    break
                if not _GZIP.startswith(packed[: len(_GZIP)]):
                    raise _TrailingError(len(packed) + sum(map(len, iter(lambda: file.read(_PACKED_PIECE), b""))))
                member = inflating.decompressobj(wbits=_GZIP_BITS)
            before = member.copy()  # to unpack this piece again, up to the damage in it
            try:
                piece = member.decompress(packed, _PIECE)
            except inflating.error as error:
                yield _until_damage(before, packed, inflating.error)
                raise _DamageError(f"its gzip data are damaged ({error})") from error
            if piece:
                yield piece
            packed = member.unconsumed_tail or member.unused_data
        packed = file.read(_PACKED_PIECE)
    if not member.eof:
        raise _DamageError("its gzip data are damaged (cut short)")


def _inflating() -> Any:
    """Return the module that unpacks gzip: zlib-ng, which has the interface of zlib and takes a fifth; else zlib."""
    try:
        return importlib.import_module("zlib_ng.zlib_ng")
    except ImportError:
        return zlib


def _until_damage(member: Any, packed: bytes, error: type[Exception]) -> bytes:
    """Unpack byte by byte: a call of zlib that meets bad data discards what it had unpacked before them."""
    unpacked = []
    for at in range(len(packed)):
        try:
            unpacked.append(member.decompress(packed[at : at + 1]))
        except error:
            break
    return b"".join(unpacked)
