"""Columns of tables as arrays, and the order of rows."""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl

from opscope.analysis.structure.nesting import Ints, Nesting

T = TypeVar("T")
# What is made of a table again and again, for as long as the table lives. A frame of polars has no hash.
_LOCK: Final = threading.RLock()  # a table may be forgotten, on the same thread, while another one is looked up
_KEPT: dict[int, tuple["weakref.ref[pl.DataFrame]", dict[str, Any]]] = {}


def kept(table: pl.DataFrame, what: str, make: Callable[[], T]) -> T:
    """Return what ``make`` makes of a table; it is called once for each table and ``what``.

    Threads that ask at the same time may each make it; all get the same.
    """
    number = id(table)
    with _LOCK:
        entry = _KEPT.get(number)
        if entry is None or entry[0]() is not table:
            entry = _KEPT[number] = weakref.ref(table, lambda gone: _forget(number, gone)), {}
    made = entry[1]
    if what not in made:
        made.setdefault(what, make())
    result: T = made[what]
    return result


def _forget(number: int, gone: "weakref.ref[pl.DataFrame]") -> None:
    # Another table may have the number of one that is gone by now.
    with _LOCK:
        entry = _KEPT.get(number)
        if entry is not None and entry[0] is gone:
            del _KEPT[number]


def column(table: pl.DataFrame, name: str) -> Ints:
    """Return an integer column as an array, which may not be written to; -1 where it is null."""
    if name == "thread":  # nearly everything needs it, and it has half the width
        return kept(table, name, lambda: _as_array(table[name]))
    return _as_array(table[name])


def _as_array(series: pl.Series) -> Ints:
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


_DENSE: Final = 8  # a table of so many entries per value is quicker than to sort the values


def ranked(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values of an array, ascending, and per value its place among them.

    Args:
        values: numbers from 0 on; the smaller the largest is, the quicker.
    """
    largest = int(values.max(initial=0))
    if largest > _DENSE * len(values):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place
    present = np.zeros(largest + 1, np.bool_)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


def end_of(table: pl.DataFrame) -> Ints:
    """Return the end of every slice of a table, in nanoseconds; a negative duration counts as 0.

    The array may not be written to.
    """
    return kept(table, "end", lambda: _end_of(table))


def _end_of(table: pl.DataFrame) -> Ints:
    end = np.maximum(column(table, "duration_ns"), 0)
    end += column(table, "start_ns")
    end.flags.writeable = False
    return end


def extent_of(tables: Iterable[pl.DataFrame]) -> tuple[int, int] | None:
    """Return when the first slice of some tables begins and when the last one ends; None where there is none."""
    tables = [table for table in tables if table.height]
    if not tables:
        return None
    return min(int(column(t, "start_ns").min()) for t in tables), max(int(end_of(t).max()) for t in tables)


def nesting_of(table: pl.DataFrame, began: Ints | None = None) -> Nesting:
    """Return the nesting of a table's slices; for ``began`` see `Nesting.of`."""
    return Nesting.of(column(table, "thread"), column(table, "start_ns"), end_of(table), began)
