"""Device time per named range of the program: ``record_function``, NVTX ranges, the optimizer's own ranges."""

import numpy as np
import polars as pl

from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints, Nesting
from opscope.analysis.structure.step_work import is_step
from opscope.trace.model import Trace

RANGE_SEPARATOR = " / "
NO_RANGE = "(in no range)"
_DEEPEST = 64  # ranges in a path; deeper ones go by their names alone, as paths would grow without bounds
_CUT = f"...{RANGE_SEPARATOR}"


def annotation_table(trace: Trace, links: Links, backward: BackwardPass) -> pl.DataFrame:
    """Return one row per path of nested ranges, in the order in which they first began.

    Columns: ``path`` (the names from the outermost range inwards), ``name``, ``depth``, ``calls``, ``span_ns`` (host
    time, added up), ``self_device_ns`` (of what was launched in the range and in none inside), ``total_device_ns``
    (ranges inside included) and ``self_cpu_ns`` (the span without ranges inside). ``ProfilerStep#N`` does not count.
    What was launched in no range is the last row, so that ``self_device_ns`` adds up to the device sum. Empty where no
    range was recorded.

    An activity belongs to the innermost range around its launch, on the launching thread. Autograd's threads have no
    ranges of their own: their work belongs to the range that was open at that moment on the thread of the forward
    operator.
    """
    ranges = trace.annotations.filter(~is_step(trace.annotations))
    if not ranges.height:
        return _empty()
    nesting = nesting_of(ranges)
    duration = trace.activities["duration_ns"].to_numpy()
    owner = _range_of_activities(trace, links, nesting, backward)
    own = np.zeros(ranges.height, np.int64)
    np.add.at(own, owner[owner >= 0], duration[owner >= 0])
    path, depth = _paths(ranges, nesting)
    span = end_of(ranges) - column(ranges, "start_ns")
    inside = np.zeros(ranges.height, np.int64)
    inner = np.flatnonzero(nesting.parent >= 0)
    np.add.at(inside, nesting.parent[inner], span[inner])
    rows = (
        pl.DataFrame(
            {
                "path": path,
                "name": ranges["name"].cast(pl.String),
                "depth": depth,
                "span_ns": span,
                "self_device_ns": own,
                "total_device_ns": nesting.subtree_sums(own),
                "self_cpu_ns": span - inside,
                "start_ns": column(ranges, "start_ns"),
            }
        )
        .group_by("path", "name", "depth", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("span_ns", "self_device_ns", "total_device_ns", "self_cpu_ns").sum(),
            pl.col("start_ns").min(),
        )
        .sort("start_ns", "depth", "path")
        .select(_empty().columns)
    )
    elsewhere = int(duration[owner < 0].sum())
    if not (owner < 0).any():
        return rows
    rest = pl.DataFrame([(NO_RANGE, NO_RANGE, 0, 0, 0, elsewhere, elsewhere, 0)], schema=rows.schema, orient="row")
    return pl.concat([rows, rest])


def _empty() -> pl.DataFrame:
    numbers = ("depth", "calls", "span_ns", "self_device_ns", "total_device_ns", "self_cpu_ns")
    return pl.DataFrame(schema={"path": pl.String, "name": pl.String, **dict.fromkeys(numbers, pl.Int64)})


def _range_of_activities(trace: Trace, links: Links, ranges: Nesting, backward: BackwardPass) -> Ints:
    """Return per activity the row of the innermost range around its launch, or -1."""
    launch, operator = links.activity_launch, links.activity_operator
    thread, time = np.full(len(launch), -1, np.int64), np.full(len(launch), -1, np.int64)
    for rows, table in ((operator, trace.operators), (launch, trace.launches)):  # a known launch decides
        known = rows >= 0
        thread[known] = column(table, "thread")[rows[known]]
        time[known] = column(table, "start_ns")[rows[known]]
    result = ranges.innermost_at(thread, time)
    missing = np.flatnonzero((result < 0) & (operator >= 0))
    # Autograd's threads have no ranges: look at the same moment on the thread of the forward operator.
    missing = missing[backward.inside[operator[missing]]]
    every = np.arange(trace.operators.height)
    forward = backward.through_forward(np.where(backward.inside, -1, every), operator[missing])
    missing, forward = missing[forward >= 0], forward[forward >= 0]
    result[missing] = ranges.innermost_at(backward.thread[forward], time[missing])
    return result


def _paths(ranges: pl.DataFrame, nesting: Nesting) -> tuple[pl.Series, Ints]:
    """Return per range its path of names, from the outermost range inwards, and how many ranges enclose it."""
    names = ranges["name"].cast(pl.String).to_list()
    depth = nesting.depth()
    paths = list(names)
    # By depth, so that the path of the range around it is there already.
    for row in np.argsort(depth, kind="stable").tolist():
        above = int(nesting.parent[row])
        if above >= 0 and depth[row] < _DEEPEST:
            paths[row] = f"{paths[above]}{RANGE_SEPARATOR}{names[row]}"
        elif above >= 0:
            paths[row] = f"{_CUT}{names[row]}"
    return pl.Series(paths, dtype=pl.String), depth
