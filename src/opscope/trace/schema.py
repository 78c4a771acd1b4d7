"""The polars schema of every table. Readers produce exactly these columns, and analyses may rely on them."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import polars as pl

from opscope.trace.columns import TABLES, Kind

Schema: TypeAlias = Mapping[str, pl.DataType | type[pl.DataType]]

# Texts repeat in most rows (names, shapes), so they are categorical: each distinct text is kept once.
_TYPES: Final[Mapping[Kind, type[pl.DataType]]] = {
    Kind.THREAD: pl.Int32,
    Kind.NAME: pl.Categorical,
    Kind.TEXT: pl.Categorical,
    Kind.KIND: pl.Categorical,
    Kind.INT64: pl.Int64,
    Kind.INT32: pl.Int32,
    Kind.FLOAT64: pl.Float64,
}
SCHEMAS: Final[Mapping[str, Schema]] = {
    name: {column.name: _TYPES[column.kind] for column in table.columns} for name, table in TABLES.items()
}
