"""Takes the columns of the compiled reader as numpy arrays."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opscope.readers.native.library import NativeReader
from opscope.trace.columns import TABLES, ColumnKind

Array: TypeAlias = npt.NDArray[Any]


def take(reader: NativeReader, table: str) -> dict[str, Array]:
    """Return copies of a table's columns by name, and free the originals. polars uses the copies without copying."""
    position = list(TABLES).index(table)
    height = reader.height(position)
    columns: dict[str, Array] = {
        column.name: np.empty(height, _type_of(column.kind)) for column in TABLES[table].columns
    }
    reader.copy(position, [column.ctypes.data for column in columns.values()])
    reader.release(position)
    return columns


def _type_of(kind: ColumnKind) -> type[np.number[Any]]:
    """Return the type in which the reader keeps a column. A code of -1 means that there is no text."""
    if kind.is_code:
        return np.int32
    return np.float64 if kind is ColumnKind.FLOAT64 else np.int64
