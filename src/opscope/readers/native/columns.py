"""The columns that the compiled reader has filled, as arrays."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opscope.readers.native import TABLES, NativeReader

Array: TypeAlias = npt.NDArray[Any]


def take(reader: NativeReader, table: str) -> dict[str, Array]:
    """Return copies of a table's columns by name, and free the originals. polars builds on them without copying."""
    position = list(TABLES).index(table)
    numbers, codes = TABLES[table]
    columns = {name: _copied(reader, "numbers", position, at) for at, name in enumerate(numbers)}
    columns |= {name: _copied(reader, "codes", position, at) for at, name in enumerate(codes)}
    if table == "activities":
        columns["theoretical_occupancy_percent"] = _copied(reader, "occupancy")
    reader.release(position)
    return columns


def _copied(reader: NativeReader, name: str, *arguments: int) -> Array:
    pointer, size = reader.column(name, *arguments)
    if not size:
        return np.zeros(0, np.dtype(pointer._type_))
    return np.ctypeslib.as_array(pointer, (size,)).copy()
