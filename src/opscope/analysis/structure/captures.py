"""How much of a recording is the capture of graphs, in which calls are noted but nothing runs."""

from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import calls_of, calls_that
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.launches import captured_into_graph
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.window import Window
from opscope.knowledge.api_calls import ApiKind
from opscope.trace.model import Trace

MOSTLY: Final = 0.5  # of the launches or the time: from here on, a recording is mostly one thing


class Captures(Struct, frozen=True):
    """The captures of a recording.

    Attributes:
        spans: when a stream was captured.
        launches: how many calls that enqueue work were captured.
        of_launches: how many calls that enqueue work there are in all.
    """

    spans: Intervals
    launches: int
    of_launches: int

    def is_mostly_one(self, window: Window) -> bool:
        """Tell whether most of a window was captured: of the calls that enqueue work, or of the time."""
        if not self.launches:
            return False
        whole = window.duration_ns
        return (
            self.launches >= MOSTLY * self.of_launches or self.spans.within(window.spans).length >= MOSTLY * whole > 0
        )


def captured_table(trace: Trace, links: Links) -> pl.DataFrame:
    """Return what was captured into graphs, the most launches first.

    Columns: ``name`` of the launching operator (null without one), ``input_dims`` and ``input_types`` of its inputs
    (null where not recorded), and ``launches``.
    """
    captured = calls_that(trace.launches, lambda call: call.enqueues) & captured_into_graph(trace.launches)
    operator = links.launch_operator[captured]
    keys = ["name", "input_dims", "input_types"]
    inputs = trace.operators.select(pl.col(keys).cast(pl.String)).with_row_index("operator")
    rows = pl.DataFrame({"operator": operator}).join(inputs, on=pl.col("operator").cast(pl.Int64), how="left")
    return rows.group_by(keys).agg(launches=pl.len()).sort("launches", *keys, descending=[True, False, False, False])


def captures_of(trace: Trace) -> Captures:
    """Return the captures: each lasts from its begin to the next end on its thread."""
    launches = trace.launches
    start, end, thread = column(launches, "start_ns"), end_of(launches), column(launches, "thread")
    begins, ends = calls_of(launches, ApiKind.CAPTURE_BEGIN), calls_of(launches, ApiKind.CAPTURE_END)
    enqueues = calls_that(launches, lambda call: call.enqueues)
    low, high = [], []
    for begin in np.flatnonzero(begins).tolist():
        own = thread == thread[begin]
        closing = end[own & ends & (start >= start[begin])]
        # A capture whose end was not recorded lasts to the last call of its thread.
        last = int(closing.min()) if len(closing) else int(end[own].max())
        low.append(int(start[begin]))
        high.append(last)
    spans = Intervals.union_of(np.array(low, np.int64), np.array(high, np.int64))
    return Captures(spans, int((enqueues & captured_into_graph(launches)).sum()), int(enqueues.sum()))
