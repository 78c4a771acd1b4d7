"""Columns of a trace's tables as arrays."""

import numpy as np
import polars as pl

from opscope.analysis.nesting import Ints


def column(table: pl.DataFrame, name: str) -> Ints:
    """Return an integer column as an array, which may not be written to; -1 where it is null."""
    series = table[name]
    if series.dtype != pl.Int64:
        series = series.cast(pl.Int64)
    if series.null_count():
        series = series.fill_null(-1)
    values: Ints = series.to_numpy()
    return values


def end_of(table: pl.DataFrame) -> Ints:
    """Return the end of every slice of a table, in nanoseconds."""
    return column(table, "start_ns") + np.maximum(column(table, "duration_ns"), 0)
