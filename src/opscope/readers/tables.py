"""Rows as a reader meets them -> the tables of a `Trace`. Shared by every reader."""

import polars as pl

from opscope import schema
from opscope.model import DeviceProperties, Trace, TraceSource

Rows = list[tuple[object, ...]]


class Tables:
    """Collects rows per table; `build` turns them into a `Trace`, each table sorted by start."""

    def __init__(self) -> None:
        self.operators: Rows = []
        self.launches: Rows = []
        self.activities: Rows = []
        self.annotations: Rows = []
        self.frames: Rows = []
        self.allocations: Rows = []
        self.overheads: Rows = []
        self._threads: dict[tuple[object, object], int] = {}

    def thread(self, process: object, thread: object) -> int:
        """Return the number of a (process, thread) pair; pairs are numbered from 0 as they appear."""
        return self._threads.setdefault((process, thread), len(self._threads))

    def build(self, source: TraceSource, devices: tuple[DeviceProperties, ...]) -> Trace:
        """Build the trace. File order is not time order, so every table is sorted by its start."""
        return Trace(
            source=source,
            devices=devices,
            operators=_frame(self.operators, schema.OPERATORS),
            launches=_frame(self.launches, schema.LAUNCHES),
            activities=_frame(self.activities, schema.ACTIVITIES),
            annotations=_frame(self.annotations, schema.ANNOTATIONS),
            frames=_frame(self.frames, schema.FRAMES),
            allocations=_frame(self.allocations, schema.ALLOCATIONS, by="time_ns"),
            overheads=_frame(self.overheads, schema.OVERHEADS),
        )


def _frame(rows: Rows, columns: schema.Schema, by: str = "start_ns") -> pl.DataFrame:
    return pl.DataFrame(rows, schema=columns, orient="row").sort(by, maintain_order=True)
