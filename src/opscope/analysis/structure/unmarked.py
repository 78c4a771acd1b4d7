"""Steps of a recording that marks none: between the ends of an optimizer's steps, or by kernels that repeat."""

from typing import Final

import numpy as np
import polars as pl
from msgspec.structs import replace

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.step_work import step_table
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.text import lazy_pattern, or_unknown
from opscope.knowledge.serving import iteration_of
from opscope.trace.model import Trace
from opscope.trace.schema import SCHEMAS

_OPTIMIZER: Final = lazy_pattern(r"^Optimizer\.step#")
_LEAST_OF_OPTIMIZER: Final = 3
_AT_LEAST: Final = 0.8  # times the median: what is before the first end may be a part of a step,
_AT_MOST: Final = 4.0  # or more than a first step, which the profiler's start and loading code make long
_ALTERNATE: Final = 1.5  # times: every second step is longer, so there are two optimizers' in one
_OUTSIDE: Final = 0.05  # of the device's work, as for the windows of marked steps (idle/timeline.py)
_LEAST_KERNELS: Final = 20  # in a step: fewer repeat within one, such as those of a loop over layers


def with_unmarked_steps(trace: Trace, links: Links) -> tuple[Trace, str | None]:
    """Mark the steps of a recording that marks none, where its records tell them.

    Args:
        trace: the trace.
        links: its links.

    Returns:
        The trace, and how its steps are known; the same trace and None where it marks steps, or nothing tells.
    """
    if step_table(trace).height or len(np.flatnonzero(names_that(trace.annotations, iteration_of))):
        return trace, None
    if (known := _of_optimizer(trace, links)) is None and (known := _of_kernels(trace, links)) is None:
        return trace, None
    thread, bounds, how = known
    marks = pl.DataFrame(
        {
            "thread": np.full(len(bounds) - 1, thread),
            "name": [f"ProfilerStep#{number}" for number in range(1, len(bounds))],
            "start_ns": bounds[:-1],
            "duration_ns": np.diff(bounds),
        }
    )
    schema = SCHEMAS["annotations"]
    every = pl.concat([marks.select(pl.col(name).cast(kind) for name, kind in schema.items()), trace.annotations])
    return replace(trace, annotations=every.sort("start_ns", maintain_order=True)), how


def _of_optimizer(trace: Trace, links: Links) -> tuple[int, Ints, str] | None:
    """Return the thread and the bounds of steps that end with an optimizer's."""
    ranges = trace.annotations[np.flatnonzero(names_that(trace.annotations, _OPTIMIZER.match))]
    # An optimizer's step may call that of its base class.
    ranges = ranges[np.flatnonzero(nesting_of(ranges).parent < 0)]
    if ranges["thread"].n_unique() != 1 or ranges["name"].n_unique() != 1 or ranges.height < _LEAST_OF_OPTIMIZER:
        return None
    thread, name = int(ranges["thread"][0]), str(ranges["name"][0])
    ends = np.sort(end_of(ranges))
    lengths = np.diff(ends)
    usual = float(np.median(lengths))
    turns = sorted(float(np.median(lengths[first::2])) for first in (0, 1) if len(lengths) > 2 * _LEAST_OF_OPTIMIZER)
    if turns and turns[1] > _ALTERNATE * turns[0]:
        return None
    first = _first_on(trace, links, thread)
    if first is not None and _AT_LEAST * usual <= ends[0] - first <= _AT_MOST * usual:
        ends = np.append(first, ends)
    launch = links.activity_launch
    launched = np.append(column(trace.launches, "start_ns"), 0)[launch]
    outside = (launch < 0) | (launched < ends[0]) | (launched >= ends[-1])
    duration = column(trace.activities, "duration_ns")
    if duration[outside].sum() > _OUTSIDE * duration.sum():
        return None
    return thread, ends, f"No steps are marked: each ends with {or_unknown(name)}."


def _first_on(trace: Trace, links: Links, thread: int) -> int | None:
    """Return when a thread makes the first call that gives a device work, or begins its first operator; None without.

    What it does before, such as creating a context within its first operator, belongs to no step.
    """
    launched = trace.launches[np.unique(links.activity_launch[links.activity_launch >= 0])]
    for table in (launched, trace.operators):
        first = table.filter(pl.col("thread") == thread)["start_ns"].min()
        if isinstance(first, int):
            return first
    return None


def _begins(trace: Trace, links: Links, launches: Ints) -> Ints:
    """Return when the outermost operators begin in which some calls lie; the calls themselves outside of any."""
    operator = links.launch_operator[launches]
    parent = np.append(links.operators.parent, -1)
    while (inner := np.flatnonzero(parent[operator] >= 0)).size:
        operator[inner] = parent[operator[inner]]
    start = np.append(column(trace.operators, "start_ns"), 0)[operator]
    begins: Ints = np.where(operator >= 0, start, column(trace.launches, "start_ns")[launches])
    return begins


def _of_kernels(trace: Trace, links: Links) -> tuple[int, Ints, str] | None:
    """Return the thread and the bounds of steps in which a device runs the same kernels, all of those recorded."""
    activities = trace.activities
    devices = activities["device"].fill_null(NO_DEVICE)
    if devices.n_unique() != 1 or not trace.operators.height:
        return None  # without operators nothing tells where the host's part of a step begins
    rows = np.flatnonzero((activities["kind"] == "kernel").to_numpy())
    launch = links.activity_launch[rows]
    if len(rows) < 2 * _LEAST_KERNELS or (launch < 0).any():
        return None
    # In the order of their launches, which is that of the program.
    order = np.lexsort((column(activities, "start_ns")[rows], column(trace.launches, "start_ns")[launch]))
    names = activities["name"].to_physical().to_numpy()[rows[order]].astype(np.int64)
    if (period := _period(names)) is None:
        return None
    first = launch[order[::period]]  # in each step: a backward pass launches from a thread of its own
    threads, begins = column(trace.launches, "thread")[first], _begins(trace, links, first)
    if (threads != threads[0]).any():
        return None
    thread = int(threads[0])
    bounds = np.append(begins, _last_on(trace, thread))
    if (np.diff(bounds) <= 0).any():
        return None
    how = f"No steps are marked: the same {period:,} kernels run {len(begins):,} times."
    return thread, bounds, how


def _last_on(trace: Trace, thread: int) -> int:
    """Return when the last call or operator of a thread ends."""
    ends = [end_of(table.filter(pl.col("thread") == thread)) for table in (trace.operators, trace.launches)]
    return int(np.concatenate(ends).max())


def _period(names: Ints) -> int | None:
    """Return after how many names a sequence repeats, all and at least once; None where it does not."""
    count = len(names)
    starts = np.flatnonzero(names == names[0])[1:]
    # A shorter period would be one of this sequence too, so the first that fits is the shortest.
    for period in starts[(count % np.maximum(starts, 1) == 0) & (2 * starts <= count)].tolist():
        if (names[period:] == names[:-period]).all():
            return period if period >= _LEAST_KERNELS else None
    return None
