"""The polars schema of every table. Readers produce exactly these columns, and analyses may rely on them."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import polars as pl

from opscope.trace.columns import TABLES, ColumnKind

Schema: TypeAlias = Mapping[str, pl.DataType | type[pl.DataType]]

# Texts repeat in most rows (names, shapes), so they are categorical: each distinct text is kept once.
_TYPES: Final[Mapping[ColumnKind, type[pl.DataType]]] = {
    ColumnKind.THREAD: pl.Int32,
    ColumnKind.NAME: pl.Categorical,
    ColumnKind.TEXT: pl.Categorical,
    ColumnKind.KIND: pl.Categorical,
    ColumnKind.INT64: pl.Int64,
    ColumnKind.INT32: pl.Int32,
    ColumnKind.FLOAT64: pl.Float64,
}
SCHEMAS: Final[Mapping[str, Schema]] = {
    name: {column.name: _TYPES[column.kind] for column in table.columns} for name, table in TABLES.items()
}
