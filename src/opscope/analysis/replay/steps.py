"""Which steps of a trace become a graph: a few around the one of median length, and what was recorded in them."""

from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, extent_of
from opscope.analysis.structure.window import step_table
from opscope.trace.model import Trace

_MOST_STEPS: Final = 3  # more say little more about what holds a step back
_MOST_MOMENTS: Final = 120_000  # of several steps; a single one may have more
LARGEST_REPLAY: Final = 1_000_000  # moments of a step, or of a recording without steps


class Chosen(Struct, frozen=True):
    """Some consecutive steps of one thread, or the whole of a recording that marks none.

    Attributes:
        marks: when each step begins and ends on the host, in nanoseconds.
        numbers: the profiler's numbers of the steps; empty where none are marked.
        thread: the thread that marked them; where none did, the one with the most calls; -1 without any.
    """

    marks: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    thread: int

    @property
    def begin_ns(self) -> int:
        """When the first step begins."""
        return self.marks[0][0]

    @property
    def end_ns(self) -> int:
        """When the last step ends on the host."""
        return self.marks[-1][1]


def steps_to_replay(trace: Trace) -> Chosen | None:
    """Choose the steps; None where the trace has no slice that could be a part of one."""
    table = step_table(trace)
    if not table.height:
        return _whole(trace)
    lengths = (table["end_ns"] - table["start_ns"]).to_numpy()
    median = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    thread = int(table["thread"][median])
    own = table.filter(pl.col("thread") == thread)
    start, end, number = (own[name].to_list() for name in ("start_ns", "end_ns", "step"))
    middle = start.index(int(table["start_ns"][median]))
    moments = np.sort(np.concatenate([column(trace.launches, "start_ns"), column(trace.activities, "start_ns")]))

    def size(first: int, last: int) -> int:
        return 2 * int(np.searchsorted(moments, end[last]) - np.searchsorted(moments, start[first]))

    low = high = middle
    while high - low + 1 < _MOST_STEPS:
        if high + 1 < len(start) and size(low, high + 1) <= _MOST_MOMENTS:
            high += 1
        elif low and size(low - 1, high) <= _MOST_MOMENTS:
            low -= 1
        else:
            break
    marks = tuple(zip(start[low : high + 1], end[low : high + 1], strict=True))
    return Chosen(marks, tuple(number[low : high + 1]), thread)


def _whole(trace: Trace) -> Chosen | None:
    extent = extent_of((trace.operators, trace.launches, trace.activities))
    if extent is None:
        return None
    callers = trace.launches if trace.launches.height else trace.operators
    threads = callers["thread"].value_counts(sort=True) if callers.height else None
    return Chosen((extent,), (), -1 if threads is None else int(threads["thread"][0]))
