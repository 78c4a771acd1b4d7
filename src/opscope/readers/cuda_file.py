"""Reads the files of opscope's CUDA collector into tables.

A file begins with a list of its tables and columns (``collect/cuda/native/tables.h``), so this module need not know
them.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.base.text import lazy_pattern

_MAGIC: Final = "opscope.cuda/"
_VERSION: Final = "1"
_LONGEST_HEADER: Final = 1 << 16
_COLUMN: Final = lazy_pattern(r"([a-z_]{1,60}):([ui][1248])")
_BLOCK: Final = struct.Struct("<II")  # the table's number, and how many bytes follow
_TEXT: Final = struct.Struct("<II")  # the text's number, and how many bytes follow
_STRINGS: Final = "strings"
_LONGEST_TEXT: Final = 1 << 20

RecordArray = npt.NDArray[Any]


_MOST_TEXTS: Final = 4_000_000  # each stands once, whatever uses it
# Limits on tables whose rows are read one by one. A process has few of these rows, by their nature (devices, calls of
# an API) or by the system's limits (threads: /proc/sys/kernel/threads-max is at most a few hundred thousand).
_MOST_ROWS: Final = {
    "devices": 1_024,
    "calls": 1 << 16,
    "threads": 500_000,
    "facts": 100_000,
    "events": 100_000,
    "names": 100_000,
    "contexts": 100_000,
    "launches": 2_000_000,
}


class CudaFile(Struct, frozen=True):
    """The content of a file.

    Attributes:
        tables: structured arrays by the table's name; an array is empty if its table has no rows.
        texts: the texts that columns refer to by number.
        damage: why reading stopped before the end; None if the file is whole.
    """

    tables: Mapping[str, RecordArray]
    texts: tuple[str, ...]
    damage: str | None

    def text(self, number: int) -> str:
        """Return a text by its number; empty if the file does not have it."""
        return self.texts[number] if 0 <= number < len(self.texts) else ""


def read_cuda_file(content: bytes, path: str) -> CudaFile:
    """Read all whole blocks of a file, up to the first damage.

    Args:
        content: the file, unpacked.
        path: its name, for messages.

    Raises:
        BadInputError: the header is cut off, of another version, or malformed, or a table has too many rows.
    """
    end = content.find(b"\n\n", 0, _LONGEST_HEADER)
    if end < 0:
        raise BadInputError(f"{path} is cut off in its header: it holds no record")
    layouts = _layouts(content[:end].decode("utf-8", "replace").split("\n"), path)
    names = list(layouts)
    view = memoryview(content)
    parts: dict[str, list[RecordArray]] = {name: [] for name in names if name != _STRINGS}
    counts: Counter[str] = Counter()
    texts: list[str] = []
    damage, at = None, end + 2  # blocks begin after the empty line that ends the header
    while at < len(content):
        if at + _BLOCK.size > len(content):
            damage = "it ends in the middle of a block"
            break
        number, size = _BLOCK.unpack_from(content, at)
        at += _BLOCK.size
        if number >= len(names) or at + size > len(content):
            damage = "it ends in the middle of a block" if number < len(names) else "a block is of no known table"
            break
        name = names[number]
        layout = layouts[name]
        if name == _STRINGS:
            if not _take_texts(content[at : at + size], texts):
                damage = "a block of texts is damaged"
                break
        elif layout is None or not size or size % layout.itemsize:
            damage = "a block holds no whole rows"
            break
        else:
            # A view of the content: rows are copied once, when the parts of a table are joined.
            parts[name].append(np.frombuffer(view[at : at + size], layout))
            counts[name] += size // layout.itemsize
            if name in _MOST_ROWS and counts[name] > _MOST_ROWS[name]:
                raise BadInputError(f"{path} lists more {name} than a process has: no collector wrote it")
        at += size
    tables = {name: np.concatenate(result) if result else np.empty(0, layouts[name]) for name, result in parts.items()}
    return CudaFile(tables, tuple(texts), damage)


def _layouts(lines: list[str], path: str) -> dict[str, np.dtype[Any] | None]:
    """Return the columns of every table in the order of the tables' numbers; None for the table of texts."""
    if lines[0] != _MAGIC + _VERSION:
        raise BadInputError(f"{path} was written by another version of opscope ({lines[0][:40]}): it is not understood")
    layouts: dict[str, np.dtype[Any] | None] = {}
    for line in lines[1:]:
        name, *columns = line.split(" ")
        matches = [_COLUMN.fullmatch(column) for column in columns]
        columns = [column.partition(":")[0] for column in columns]
        if name in layouts or None in matches or len(set(columns)) < len(columns) or (not columns and name != _STRINGS):
            raise BadInputError(f"{path} has a header that is not understood: {line[:80]!r}")
        fields = [(match[1], f"<{match[2]}") for match in matches if match]
        layouts[name] = np.dtype(fields) if fields else None
    if _STRINGS not in layouts:
        raise BadInputError(f"{path} has a header that is not understood: it lists no texts")
    return layouts


def _take_texts(block: bytes, texts: list[str]) -> bool:
    """Append the texts of a block; return whether it is whole and numbers them in order."""
    at = 0
    while at < len(block):
        if at + _TEXT.size > len(block):
            return False
        number, size = _TEXT.unpack_from(block, at)
        at += _TEXT.size
        if number != len(texts) or number >= _MOST_TEXTS or size > _LONGEST_TEXT or at + size > len(block):
            return False
        texts.append(block[at : at + size].decode("utf-8", "replace"))
        at += size
    return True
