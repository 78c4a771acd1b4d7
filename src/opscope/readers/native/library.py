"""The compiled reader of Kineto events (``kineto.cpp``): text in, columns out. `load_kineto` finds it.

The build compiles it with any C++17 compiler; without one, the same rules run in Python, slowly. Nothing here needs
numpy, so that files can be read while it is imported; `opscope.readers.kineto` takes the columns.
"""

import ctypes
import errno
import functools
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

from opscope.base.compiled import load_library
from opscope.base.processes import cores
from opscope.readers.unpacked import Wanted

LIBRARY: Final = Path(__file__).with_name("libkineto.so")
_VERSION: Final = 16  # of the interface; a library of another version is not used
NULL: Final = -(1 << 63)  # stands for an unknown number
_MOST_THREADS: Final = 16  # more wait for the one that reads the file
_BLOCK: Final = 1 << 20  # what a thread reads at a time; files of less than a few of these need no threads
_MOST_READ: Final = 1 << 26  # between looks at events that are not plain, and for signals

# The pools of strings that codes refer to, by their number in the interface.
NAMES, TEXTS, IDENTITIES, CATEGORIES = range(4)
# Whose extents are known.
ALL, HOST, OPERATORS, FRAMES = range(4)


@functools.cache
def load_kineto() -> ctypes.CDLL | None:
    """Return the compiled library; None if it was not built, or has another interface version."""
    library = load_library(LIBRARY, "opscope_kineto_version", _VERSION)
    if library is not None:
        _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the types of the interface; see the end of kineto.cpp."""
    size = POINTER(c_size_t)
    functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "new": (c_void_p, (c_size_t, c_size_t)),
        "free": (None, (c_void_p,)),
        "want": (None, (c_void_p, c_int32, *[c_int64] * 6)),
        "extent": (c_int64, (c_void_p, c_int32, c_int32)),
        "feed": (c_int32, (c_void_p, c_void_p, c_size_t)),
        "read": (c_int64, (c_void_p, c_int32, c_size_t, c_size_t)),
        "finish": (c_int32, (c_void_p,)),
        "plain_count": (c_int64, (c_void_p,)),
        "truncated": (c_int32, (c_void_p,)),
        "found_events": (c_int32, (c_void_p,)),
        "height": (c_size_t, (c_void_p, c_int32)),
        "copy": (c_int32, (c_void_p, c_int32, POINTER(c_void_p))),
        "release": (None, (c_void_p, c_int32)),
        "string_count": (c_size_t, (c_void_p, c_int32)),
        "string_bytes": (c_size_t, (c_void_p, c_int32)),
        "strings": (None, (c_void_p, c_int32, c_void_p, c_void_p)),
        "threads": (POINTER(c_int32), (c_void_p, size)),
        "ignored": (POINTER(c_int64), (c_void_p, size)),
        "header": (c_void_p, (c_void_p, size)),
        "footer": (c_void_p, (c_void_p, size)),
        "footer_size": (c_size_t, (c_void_p,)),
        "odd": (c_void_p, (c_void_p, size)),
        "odd_ends": (POINTER(c_int64), (c_void_p, size)),
        "clear_odd": (None, (c_void_p,)),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"opscope_kineto_{name}")
        function.restype, function.argtypes = result, arguments


class NativeReader:
    """One file being read. Feed it all pieces, call `finish`, then take the columns.

    Args:
        library: from `load_kineto`.
        threads: how many threads read; None takes the number of cores, up to a limit.
        block: bytes that a thread reads at a time.

    Raises:
        MemoryError: there is no room for its buffers.
    """

    def __init__(self, library: ctypes.CDLL, threads: int | None = None, block: int = _BLOCK) -> None:
        self._library = library
        threads = min(cores(), _MOST_THREADS) if threads is None else threads
        self._reader = c_void_p(library.opscope_kineto_new(threads, block))
        if self._reader.value is None:
            raise MemoryError

    def __del__(self) -> None:
        self._library.opscope_kineto_free(self._reader)

    def want(self, wanted: Wanted) -> None:
        """Keep only some of the slices from now on; to be called before anything is read."""
        near, queued = wanted.near_ns, wanted.queued_ns
        times = wanted.begin_ns, wanted.end_ns, *near, *queued
        self._library.opscope_kineto_want(self._reader, wanted.outline, *times)

    def extent(self, which: int) -> tuple[int, int] | None:
        """When the first slice began and the last one ended, in nanoseconds, after `want`; None if there was none.

        Slices that were handed back do not count.

        Args:
            which: `ALL` slices; or those that can be true of the `HOST` (operators, calls, ranges), of `OPERATORS`, or
                of Python's `FRAMES`.
        """
        first, last = (int(self._library.opscope_kineto_extent(self._reader, which, end)) for end in (0, 1))
        return (first, last) if first <= last else None

    def feed(self, piece: bytes) -> list[bytes]:
        """Read a piece; return the text of events that are not plain, and of stretches that are not events.

        Raises:
            MemoryError: there is no room for more.
        """
        if not self._library.opscope_kineto_feed(self._reader, piece, len(piece)):
            raise MemoryError
        return self._take_odd()

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Read on from a file descriptor.

        Args:
            file: the descriptor.
            piece: bytes per call of the system's ``read``.

        Returns:
            How many bytes were read, 0 only at the end of the file; and texts as from `feed`, possibly even then.

        Raises:
            OSError: the file cannot be read.
            MemoryError: there is no room for more.
        """
        size = self._library.opscope_kineto_read(self._reader, file, piece, max(piece, _MOST_READ))
        if size == -errno.ENOMEM:
            raise MemoryError
        if size < 0:
            raise OSError(-size, os.strerror(-size))
        return size, self._take_odd()

    def finish(self) -> list[bytes]:
        """End the content; return the remaining texts as from `feed`.

        Raises:
            MemoryError: there is no room for more.
        """
        if not self._library.opscope_kineto_finish(self._reader):
            raise MemoryError
        return self._take_odd()

    @property
    def plain_count(self) -> int:
        """The number of events that became rows or belong to no table."""
        return int(self._library.opscope_kineto_plain_count(self._reader))

    @property
    def truncated(self) -> bool:
        """Whether the list of events was not closed."""
        return bool(self._library.opscope_kineto_truncated(self._reader))

    @property
    def found_events(self) -> bool:
        """Whether there was a list of events at all."""
        return bool(self._library.opscope_kineto_found_events(self._reader))

    @property
    def header(self) -> bytes:
        """The text before ``"traceEvents"``; of a file without it, the beginning."""
        return self._bytes("header")

    @property
    def footer(self) -> bytes:
        """The text after the list of events, at most 64 MiB of it."""
        return self._bytes("footer")

    @property
    def footer_size(self) -> int:
        """The number of bytes after the list of events; `footer` has at most 64 MiB of them."""
        return int(self._library.opscope_kineto_footer_size(self._reader))

    def strings(self, which: int) -> list[bytes]:
        """Return the JSON text of every string of a pool, in the order of its codes.

        Args:
            which: `NAMES`, `TEXTS`, `IDENTITIES` or `CATEGORIES`.
        """
        count = self._library.opscope_kineto_string_count(self._reader, which)
        size = self._library.opscope_kineto_string_bytes(self._reader, which)
        whole, ends = ctypes.create_string_buffer(size + 1), (c_int64 * count)()
        self._library.opscope_kineto_strings(self._reader, which, whole, ends)
        text, bounds = whole.raw, ends[:]
        return [text[begin:end] for begin, end in zip([0, *bounds], bounds, strict=False)]

    def threads(self) -> list[tuple[int, int]]:
        """Return, for each thread number, the codes (in `IDENTITIES`) of its process and thread."""
        pairs = self._numbers("threads")
        return list(zip(pairs[::2], pairs[1::2], strict=True))

    def ignored(self) -> list[int]:
        """Return, for each category (in `CATEGORIES`), how many plain slices belong to no table."""
        return self._numbers("ignored")

    def height(self, table: int) -> int:
        """Return the number of rows of a table, by the table's position in ``columns.h``."""
        return int(self._library.opscope_kineto_height(self._reader, table))

    def copy(self, table: int, addresses: Sequence[int]) -> None:
        """Copy the columns of a table to memory.

        Args:
            table: its position in ``columns.h``.
            addresses: one per column, in the order of ``columns.h``, each with room for `height` values.

        Raises:
            MemoryError: there is no room.
        """
        if not self._library.opscope_kineto_copy(self._reader, table, (c_void_p * len(addresses))(*addresses)):
            raise MemoryError

    def release(self, table: int) -> None:
        """Free the columns of a table."""
        self._library.opscope_kineto_release(self._reader, table)

    def _numbers(self, name: str) -> list[int]:
        size = c_size_t()
        pointer = getattr(self._library, f"opscope_kineto_{name}")(self._reader, byref(size))
        numbers: list[int] = pointer[: size.value]
        return numbers

    def _bytes(self, name: str) -> bytes:
        size = c_size_t()
        address = getattr(self._library, f"opscope_kineto_{name}")(self._reader, byref(size))
        return ctypes.string_at(address, size.value) if size.value else b""

    def _take_odd(self) -> list[bytes]:
        # All texts stand in one buffer, one after the other; ``odd_ends`` has where each of them ends.
        ends = self._numbers("odd_ends")
        if not ends:
            return []
        text = self._bytes("odd")
        self._library.opscope_kineto_clear_odd(self._reader)
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
