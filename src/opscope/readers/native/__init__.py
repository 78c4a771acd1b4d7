"""The compiled reader of Kineto events (``kineto.cpp``): text in, columns out. `load` says whether it is there.

The build makes it with any C++17 compiler; without one, the same rules run in Python, and slowly. Nothing here needs
numpy, so that files are read while that is imported; ``columns.py`` takes the columns.
"""

import ctypes
import functools
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char, c_double, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = Path(__file__).with_name("libkineto.so")
_VERSION: Final = 5  # of the interface; a library of another version is not used
NULL: Final = -(1 << 63)  # stands for an unknown number

# Which string a code means.
NAMES, TEXTS, IDENTITIES = range(3)

# Numbers and codes of each table, in the order of kineto.cpp. Codes of -1 mean no text.
TABLES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "operators": (
        ("start_ns", "duration_ns", "external_id", "sequence_number", "forward_thread"),
        ("thread", "name", "input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_file"),
    ),
    "launches": (("start_ns", "duration_ns", "correlation", "external_id"), ("thread", "name")),
    "activities": (
        ("device", "stream", "start_ns", "duration_ns", "correlation", "external_id", "graph_id", "graph_node_id",
         "bytes", "registers_per_thread", "shared_memory_bytes"),
        ("kind", "name", "grid", "block", "collective"),
    ),
    "annotations": (("start_ns", "duration_ns"), ("thread", "name")),
    "frames": (("start_ns", "duration_ns"), ("thread", "name")),
    "allocations": (("time_ns", "device_type", "device", "bytes", "total_allocated_bytes"), ("thread",)),
    "overheads": (("start_ns", "duration_ns"), ("name",)),
}  # fmt: skip


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the compiled library; None where it was not built, or not for this version."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.opscope_kineto_version.restype = c_int32
        if library.opscope_kineto_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the types of the interface; see the end of kineto.cpp."""
    size = POINTER(c_size_t)
    functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "new": (c_void_p, ()),
        "free": (None, (c_void_p,)),
        "feed": (c_int32, (c_void_p, c_void_p, c_size_t)),
        "finish": (c_int32, (c_void_p,)),
        "event_count": (c_int64, (c_void_p,)),
        "truncated": (c_int32, (c_void_p,)),
        "found_events": (c_int32, (c_void_p,)),
        "numbers": (POINTER(c_int64), (c_void_p, c_int32, c_int32, size)),
        "codes": (POINTER(c_int32), (c_void_p, c_int32, c_int32, size)),
        "occupancy": (POINTER(c_double), (c_void_p, size)),
        "release": (None, (c_void_p, c_int32)),
        "string_count": (c_size_t, (c_void_p, c_int32)),
        "string": (c_void_p, (c_void_p, c_int32, c_size_t, size)),
        "threads": (POINTER(c_int32), (c_void_p, size)),
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
    """One file being read. Feed it all pieces, call `finish`, then take the columns (``columns.py``)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._reader = c_void_p(library.opscope_kineto_new())

    def __del__(self) -> None:
        self._library.opscope_kineto_free(self._reader)

    def feed(self, piece: bytes | memoryview) -> list[bytes]:
        """Read on; return the events that are not plain, and stretches that are no events. Views must be writable.

        Raises:
            MemoryError: there is no room for more.
        """
        content = piece if isinstance(piece, bytes) else (c_char * len(piece)).from_buffer(piece)
        if not self._library.opscope_kineto_feed(self._reader, content, len(piece)):
            raise MemoryError
        return self._take_odd()

    def finish(self) -> list[bytes]:
        """Say that there is no more; return what was left that is no plain event."""
        if not self._library.opscope_kineto_finish(self._reader):
            raise MemoryError
        return self._take_odd()

    @property
    def event_count(self) -> int:
        """How many whole events were met, of any kind."""
        return int(self._library.opscope_kineto_event_count(self._reader))

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
        """What stands before ``"traceEvents"``; the beginning of a file that has none."""
        return self._bytes("header")

    @property
    def footer(self) -> bytes:
        """What stands after the list of events."""
        return self._bytes("footer")

    @property
    def footer_size(self) -> int:
        """How many bytes stand after the list of events; `footer` has no more than 64 MiB of them."""
        return int(self._library.opscope_kineto_footer_size(self._reader))

    def strings(self, which: int) -> list[bytes]:
        """Return the JSON text of every string that codes refer to: `NAMES`, `TEXTS` or `IDENTITIES`."""
        size, found = c_size_t(), []
        for code in range(self._library.opscope_kineto_string_count(self._reader, which)):
            address = self._library.opscope_kineto_string(self._reader, which, code, byref(size))
            found.append(ctypes.string_at(address, size.value))
        return found

    def threads(self) -> list[tuple[int, int]]:
        """Return the codes (in `IDENTITIES`) of process and thread of every thread number."""
        pairs = self._numbers("threads")
        return list(zip(pairs[::2], pairs[1::2], strict=True))

    def column(self, name: str, *arguments: int) -> tuple[Any, int]:
        """Return the address of a column of the library's, typed, and its length. It lives until `release`."""
        size = c_size_t()
        pointer = getattr(self._library, f"opscope_kineto_{name}")(self._reader, *arguments, byref(size))
        return pointer, size.value

    def release(self, table: int) -> None:
        """Free the columns of a table."""
        self._library.opscope_kineto_release(self._reader, table)

    def _numbers(self, name: str) -> list[int]:
        pointer, size = self.column(name)
        numbers: list[int] = pointer[:size]
        return numbers

    def _bytes(self, name: str) -> bytes:
        size = c_size_t()
        address = getattr(self._library, f"opscope_kineto_{name}")(self._reader, byref(size))
        return ctypes.string_at(address, size.value) if size.value else b""

    def _take_odd(self) -> list[bytes]:
        ends = self._numbers("odd_ends")
        if not ends:
            return []
        text = self._bytes("odd")
        self._library.opscope_kineto_clear_odd(self._reader)
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
