"""Builds the tables of a `Trace` from rows in file order. Shared by every reader."""

from collections.abc import Iterable, Mapping

import polars as pl

from opscope.trace.model import DeviceProperties, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

_Row = tuple[object, ...]


class Rows:
    """Collects rows per table, with the columns of the table's schema."""

    def __init__(self, threads: Iterable[tuple[str, str]] = ()) -> None:
        self._rows: dict[str, list[_Row]] = {name: [] for name in SCHEMAS}
        self._threads = {pair: number for number, pair in enumerate(threads)}

    def add(self, table: str, **values: object) -> None:
        """Add a row by the names of its columns; other columns of the table are unknown in it.

        Raises:
            KeyError: the table has no such column.
        """
        row = tuple(values.pop(name, None) for name in SCHEMAS[table])
        if values:
            raise KeyError(f"{table} has no column {', '.join(values)}")
        self._rows[table].append(row)

    def thread(self, process: str, thread: str) -> int:
        """Return a preliminary number for a (process, thread) pair; `renumbered` makes it final."""
        return self._threads.setdefault((process, thread), len(self._threads))

    def frame(self, table: str) -> pl.DataFrame:
        """Return a table's rows as a frame, with preliminary thread numbers."""
        return pl.DataFrame(self._rows[table], schema=SCHEMAS[table], orient="row")

    def threads(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs in the order of their final numbers."""
        return tuple(sorted(self._threads))

    def renumbered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace a frame's preliminary thread numbers by final ones, which do not depend on the file's order."""
        # Preliminary numbers follow the order of appearance, which may be the final order already.
        if "thread" not in frame.columns or list(self._threads) == sorted(self._threads):
            return frame
        ordered = {pair: number for number, pair in enumerate(sorted(self._threads))}
        numbers = pl.Series([ordered[pair] for pair in self._threads], dtype=pl.Int32)
        return frame.with_columns(thread=numbers.gather(frame["thread"]))


def build_trace(
    source: TraceSource,
    devices: tuple[DeviceProperties, ...],
    threads: tuple[tuple[str, str], ...],
    frames: Mapping[str, pl.DataFrame],
) -> Trace:
    """Build the trace. File order is not time order, so every table is sorted by time."""
    tables = {name: sorted_by_start(name, frame) for name, frame in frames.items()}
    return Trace(source=source, devices=devices, threads=threads, around=None, **tables)


def shaped(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with exactly a table's columns and types; missing columns and numbers too large become null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype, strict=False).alias(name)
        for name, dtype in SCHEMAS[table].items()
    )


def sorted_by_start(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Sort a table by time; rows with equal times keep their order."""
    by = "time_ns" if name == "allocations" else "start_ns"
    return frame if frame[by].is_sorted() else frame.sort(by, maintain_order=True)


def empty_trace() -> Trace:
    """Return a trace without records; its tables have all columns."""
    source = TraceSource("", "none", 0, 0, 0, 0, 0, None, {})
    return build_trace(source, (), (), {name: pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()})
