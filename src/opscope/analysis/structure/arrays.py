"""Columns of tables as arrays, and the order of rows."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from opscope.analysis.structure.nesting import Ints, Nesting


def column(table: pl.DataFrame, name: str) -> Ints:
    """Return an integer column as an array, which may not be written to; -1 where it is null."""
    series = table[name]
    if series.dtype != pl.Int64:
        series = series.cast(pl.Int64)
    if series.null_count():
        series = series.fill_null(-1)
    values: Ints = series.to_numpy()
    return values


def costliest_first(table: pl.DataFrame, costs: Sequence[str], ties: Sequence[str]) -> pl.DataFrame:
    """Sort by costs, descending, then by ``ties``, ascending, so that the order does not depend on the file's."""
    return table.sort(*costs, *ties, descending=[*(True for _ in costs), *(False for _ in ties)])


def numbers_in(values: Ints) -> Ints:
    """Return the distinct values of an array of small numbers, from -1 on (threads, devices), ascending."""
    return np.flatnonzero(np.bincount(values + 1)) - 1


def count_distinct(rows: Ints, height: int) -> int:
    """Return how many rows of a table with so many rows an array names; -1 stands for none."""
    named = np.zeros(height + 1, np.bool_)
    named[rows] = True
    return int(named[:-1].sum())


def end_of(table: pl.DataFrame) -> Ints:
    """Return the end of every slice of a table, in nanoseconds; a negative duration counts as 0."""
    return column(table, "start_ns") + np.maximum(column(table, "duration_ns"), 0)


def nesting_of(table: pl.DataFrame, began: Ints | None = None) -> Nesting:
    """Return the nesting of a table's slices; for ``began`` see `Nesting.of`."""
    return Nesting.of(column(table, "thread"), column(table, "start_ns"), end_of(table), began)
