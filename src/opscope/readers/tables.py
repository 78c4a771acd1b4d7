"""Rows as a reader meets them -> the tables of a `Trace`. Shared by every reader."""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from opscope import schema
from opscope.model import DeviceProperties, Trace, TraceSource

Row = tuple[object, ...]

SCHEMAS: Mapping[str, schema.Schema] = {
    "operators": schema.OPERATORS,
    "launches": schema.LAUNCHES,
    "activities": schema.ACTIVITIES,
    "annotations": schema.ANNOTATIONS,
    "frames": schema.FRAMES,
    "allocations": schema.ALLOCATIONS,
    "overheads": schema.OVERHEADS,
}


class Rows:
    """Collects rows per table, with the columns of the table's schema."""

    def __init__(self, threads: Iterable[tuple[str, str]] = ()) -> None:
        self.operators: list[Row] = []
        self.launches: list[Row] = []
        self.activities: list[Row] = []
        self.annotations: list[Row] = []
        self.frames: list[Row] = []
        self.allocations: list[Row] = []
        self.overheads: list[Row] = []
        self._threads = {pair: number for number, pair in enumerate(threads)}

    def thread(self, process: str, thread: str) -> int:
        """Return a number for a (process, thread) pair; `build` numbers them anew."""
        return self._threads.setdefault((process, thread), len(self._threads))

    def frame(self, table: str) -> pl.DataFrame:
        """Return a table's rows as a frame."""
        rows: Sequence[Row] = getattr(self, table)
        return pl.DataFrame(rows, schema=SCHEMAS[table], orient="row")

    def threads(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs in the order of their final numbers."""
        return tuple(sorted(self._threads))

    def renumbered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Number the threads of a frame in the order of their names, so that it does not depend on the file's order."""
        if "thread" not in frame.columns or list(self._threads) == sorted(self._threads):
            return frame
        ordered = {pair: number for number, pair in enumerate(sorted(self._threads))}
        numbers = pl.Series([ordered[pair] for pair in self._threads], dtype=pl.Int32)
        return frame.with_columns(thread=numbers.gather(frame["thread"]))


def build(
    source: TraceSource,
    devices: tuple[DeviceProperties, ...],
    threads: tuple[tuple[str, str], ...],
    frames: Mapping[str, pl.DataFrame],
) -> Trace:
    """Build the trace. File order is not time order, so every table is sorted by its start."""
    tables = {
        name: _sorted(frame, "time_ns" if name == "allocations" else "start_ns") for name, frame in frames.items()
    }
    return Trace(source=source, devices=devices, threads=threads, **tables)


def _sorted(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    return frame if frame[by].is_sorted() else frame.sort(by, maintain_order=True)
