"""Windows: the parts of a trace that idle time and percentages refer to."""

import enum

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.nesting import Ints
from opscope.base.text import lazy_pattern
from opscope.trace.model import Trace

_STEP = lazy_pattern(r"^ProfilerStep#([0-9]{1,18})$")  # 18 digits always fit into 64 bits


class WindowKind(enum.StrEnum):
    """The kinds of windows, as reports name them."""

    STEPS = "step window"
    STEP_WORK = "device work of the steps"
    DEVICE = "device window"
    HOST = "host window"


class Window(Struct, frozen=True):
    """A part of the trace's clock.

    ``STEPS``: the ``ProfilerStep`` ranges, without what lies between them. ``STEP_WORK``: from the first activity that
    a step launched to the end of the last, where steps do not wait for their work. ``DEVICE``: from the first
    activity's start to the last one's end; idle time before and after cannot be seen in it. ``HOST``: the recorded
    operators, where no device worked.
    """

    kind: WindowKind
    spans: Intervals

    @property
    def duration_ns(self) -> int:
        """The length in nanoseconds."""
        return self.spans.length

    @property
    def start_ns(self) -> int:
        """When the window begins; 0 for an empty window."""
        return int(self.spans.start[0]) if len(self.spans) else 0

    @property
    def end_ns(self) -> int:
        """When the window ends; 0 for an empty window."""
        return int(self.spans.end[-1]) if len(self.spans) else 0


def is_step(annotations: pl.DataFrame) -> pl.Series:
    """Tell per annotation whether it is one of the profiler's steps."""
    return annotations["name"].cast(pl.String).str.contains(_STEP.pattern)


def step_table(trace: Trace) -> pl.DataFrame:
    """Return the recorded steps by start: ``step`` (the profiler's number), ``start_ns``, ``end_ns``, ``thread``."""
    named = trace.annotations.with_columns(
        step=pl.col("name").cast(pl.String).str.extract(_STEP.pattern).cast(pl.Int64),
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
    )
    # Of ranges that begin together the outer one comes first.
    steps = named.drop_nulls("step").sort("start_ns", "duration_ns", descending=[False, True])
    # A range of that name within another one is the workload's own, not a step of the profiler.
    ended = pl.col("end_ns").cum_max().shift(1).fill_null(-(1 << 62)).over("thread")
    return steps.filter(pl.col("end_ns") > ended).select("step", "start_ns", "end_ns", "thread").sort("start_ns")


def window_of(trace: Trace) -> Window:
    """Return the window that the host's figures refer to: the steps, else the recorded operators."""
    if (steps := step_window(trace)) is not None:
        return steps
    return _from_first_to_last(WindowKind.HOST, column(trace.operators, "start_ns"), end_of(trace.operators))


def step_window(trace: Trace) -> Window | None:
    """Return the window of the recorded steps; None where there are none."""
    steps = step_ranges(trace)
    return Window(WindowKind.STEPS, Intervals.union_of(steps.start, steps.end)) if len(steps) else None


def step_ranges(trace: Trace) -> Intervals:
    """Return the steps' ranges on the host, by start; those of several threads may overlap."""
    steps = step_table(trace)
    return Intervals(column(steps, "start_ns"), column(steps, "end_ns"))


def device_window(start: Ints, end: Ints) -> Window:
    """Return the window of a device in a trace without steps: from the first start to the last end of activities."""
    return _from_first_to_last(WindowKind.DEVICE, start, end)


def _from_first_to_last(kind: WindowKind, start: Ints, end: Ints) -> Window:
    if not len(start):
        return Window(kind, Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64)))
    return Window(kind, Intervals.union_of(start.min(keepdims=True), end.max(keepdims=True)))
