"""From a device activity to the call that launched it, the operator around that call, and that operator's parents.

An activity's launch is the API call with the same correlation id; a launch belongs to the innermost operator
that encloses its *start* on the same thread; where no operator does, the recorded ``External id`` decides.

Early ROCm and tools that rewrite traces leave out correlation ids, or give host records other threads. Then launches
and activities with the same ``External id`` belong together, in order, if there are equally many of both. And if no
launch of a trace lies in an operator of its thread, a launch belongs to the one operator around it in time, on whatever
thread. Such links are marked, and a check counts them. What has no link by any of these rules stays unlinked: it is
never given to an operator by guess.
"""

from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import calls_that, names_that
from opscope.analysis.structure.arrays import column, nesting_of, numbers_in
from opscope.analysis.structure.nesting import Bools, Ints, Nesting, nearest
from opscope.base.parts import Stage, staged
from opscope.base.processes import together
from opscope.trace.model import Trace

# Operators that only allocate: the operator that called them says more.
_ALLOCATORS: Final = frozenset(
    {
        "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
        "aten::resize_", "aten::empty_quantized", "aten::_resize_output_", "aten::empty_permuted",
    }
)  # fmt: skip


class Links(Struct, frozen=True):
    """Links as row numbers into the trace's tables; -1 stands for "none recorded".

    Attributes:
        activity_launch: per activity its row in ``launches``.
        activity_operator: per activity its row in ``operators``.
        launch_operator: per launch its row in ``operators``.
        operators: the nesting of the operators.
        operator_self_ns: per operator its duration without nested operators, annotations and API calls, in nanoseconds.
        operator_crosses: per operator whether it overlaps another, or an annotation, of its thread without nesting.
        crossing_annotations: how many annotations overlap others in this way.
        inferred: per activity whether its launch or operator follows from shared ids or from time alone.
    """

    activity_launch: Ints
    activity_operator: Ints
    launch_operator: Ints
    operators: Nesting
    operator_self_ns: Ints
    operator_crosses: Bools
    crossing_annotations: int
    inferred: Bools


@staged(Stage.LINK)
def link(trace: Trace) -> Links:
    """Link the activities, launches and operators of a trace."""
    # The profiler numbers operators as they begin; 0 stands for no number.
    number = column(trace.operators, "external_id")
    began = np.where(number > 0, number, -1)

    def nesting_and_owners() -> tuple[Nesting, Ints]:
        operators = nesting_of(trace.operators, began)
        thread, start = column(trace.launches, "thread"), column(trace.launches, "start_ns")
        return operators, operators.innermost_at(thread, start)

    def self_time_and_crossing() -> tuple[Ints, Bools]:
        # If an annotation and an operator have the same rounded times, the annotation is more likely the outer one.
        tables = (trace.annotations, trace.operators)
        ranges = nesting_of(
            pl.concat([table.select("thread", "start_ns", "duration_ns") for table in tables]),
            np.concatenate([np.full(trace.annotations.height, -1), began]),
        )
        return _self_time(ranges, nesting_of(trace.launches)), ranges.crossing()

    (operators, launch_operator), (self_time, crossing) = together(
        (nesting_and_owners, self_time_and_crossing), events=trace.source.event_count
    )
    activity_launch = _match(trace.activities["correlation"], trace.launches["correlation"])
    by_ids = _launches_by_external_id(trace, activity_launch)
    around = launch_operator
    if trace.operators.height and trace.launches.height and not (launch_operator >= 0).any():
        launch_operator = _around_in_time(operators, column(trace.launches, "start_ns"))
    activity_launch = np.where(activity_launch < 0, by_ids, activity_launch)
    activity_operator = _operators_of(trace, activity_launch, around)
    # Recorded ids come first: only what they leave open is decided by time.
    by_time = (activity_operator < 0) & (activity_launch >= 0)
    by_time[by_time] = launch_operator[activity_launch[by_time]] >= 0
    activity_operator[by_time] = launch_operator[activity_launch[by_time]]
    first = trace.annotations.height
    return Links(
        activity_launch,
        activity_operator,
        launch_operator,
        operators,
        self_time[first:],
        crossing[first:],
        int(crossing[:first].sum()),
        (by_ids >= 0) | by_time,
    )


def _launches_by_external_id(trace: Trace, activity_launch: Ints) -> Ints:
    """Return per activity the launch that shares its external id, or -1.

    The n-th activity of an id gets the n-th launch of that id, if there are as many of both without a counterpart.
    """
    result = np.full(trace.activities.height, -1, np.int64)
    enqueues = calls_that(trace.launches, lambda call: call.enqueues)
    taken = np.zeros(trace.launches.height, np.bool_)
    taken[activity_launch[activity_launch >= 0]] = True
    left = {
        # An external id of 0 stands for none.
        name: pl.DataFrame({"id": table["external_id"].replace(0, None), "start": table["start_ns"]})
        .with_row_index(name)
        .filter(pl.Series(free, dtype=pl.Boolean) & pl.col("id").is_not_null())
        .with_columns(place=pl.int_range(pl.len()).over("id", order_by="start"), count=pl.len().over("id"))
        for name, table, free in (
            ("activity", trace.activities, activity_launch < 0),
            ("launch", trace.launches, enqueues & ~taken),
        )
    }
    # Ids that an unequal number of activities and launches share find no partner, since the count is part of the key.
    pairs = left["activity"].join(left["launch"], on=["id", "place", "count"])
    result[pairs["activity"].to_numpy()] = pairs["launch"].to_numpy()
    return result


def _around_in_time(operators: Nesting, start: Ints) -> Ints:
    """Return per moment the innermost operator then; -1 if none runs, or operators run on several threads."""
    threads = numbers_in(operators.thread)
    inside = np.stack([operators.innermost_at(np.full(len(start), thread), start) for thread in threads])
    alone = (inside >= 0).sum(axis=0) == 1
    return np.where(alone, inside.max(axis=0), -1)


def _operators_of(trace: Trace, activity_launch: Ints, launch_operator: Ints) -> Ints:
    """Return per activity its operator: that of its launch, else the one with its external id; or -1."""
    result = np.full(trace.activities.height, -1, np.int64)
    launched = activity_launch >= 0
    result[launched] = launch_operator[activity_launch[launched]]
    missing = np.flatnonzero(result < 0)
    if len(missing):
        # Producers write an external id of 0 for "none".
        external_id = trace.activities["external_id"].gather(missing).replace(0, None)
        result[missing] = _match(external_id, trace.operators["external_id"])
    return result


def _self_time(ranges: Nesting, launches: Nesting) -> Ints:
    """Return per range its duration without nested ranges, and without API calls in it up to the range's end."""
    remaining = ranges.end - ranges.start
    inner = np.flatnonzero(ranges.parent >= 0)
    np.subtract.at(remaining, ranges.parent[inner], ranges.end[inner] - ranges.start[inner])
    # A driver call inside a runtime call is part of it.
    outermost = launches.parent < 0
    start, end = launches.start[outermost], launches.end[outermost]
    around = ranges.innermost_at(launches.thread[outermost], start)
    inside = around >= 0
    # A call may outlive the range in which it began: the part behind the end is not the range's.
    covered = np.minimum(end[inside], ranges.end[around[inside]]) - start[inside]
    np.subtract.at(remaining, around[inside], covered)
    return remaining


def device_time_of_operators(trace: Trace, links: Links) -> Ints:
    """Return per operator the summed durations of the activities that it launched itself, in nanoseconds."""
    result = np.zeros(trace.operators.height, np.int64)
    linked = links.activity_operator >= 0
    np.add.at(result, links.activity_operator[linked], trace.activities["duration_ns"].to_numpy()[linked])
    return result


def operators_of_allocations(trace: Trace, links: Links) -> Ints:
    """Return per allocation the row of the innermost operator that does more than allocate; -1 without any."""
    innermost = links.operators.innermost_at(column(trace.allocations, "thread"), column(trace.allocations, "time_ns"))
    does_more = ~names_that(trace.operators, _ALLOCATORS.__contains__)
    # -1, no operator, picks the appended -1.
    above = np.append(nearest(links.operators.parent, does_more), -1)[innermost]
    rows: Ints = np.where(above >= 0, above, innermost)
    return rows


def operator_self_cpu(links: Links) -> pl.Series:
    """Return per operator its self CPU time in nanoseconds.

    Null where nested records last longer than the operator, as those of asynchronous operators do: how much of its
    duration is its own cannot be told.
    """
    own = pl.Series("self_cpu_ns", links.operator_self_ns, dtype=pl.Int64)
    return own.set(own < 0, None)


def _match(wanted: pl.Series, keys: pl.Series) -> Ints:
    """Return per wanted value the one row of ``keys`` that holds it, or -1. Nulls match nothing.

    A key of several rows matches nothing either: which of them is meant would be a guess.
    """
    rows = (
        pl.DataFrame({"key": keys})
        .with_row_index("row")
        .filter(pl.col("key").is_not_null())
        .unique("key", keep="none", maintain_order=True)
    )
    joined = pl.DataFrame({"key": wanted}).join(rows, on="key", how="left", maintain_order="left")
    return joined["row"].cast(pl.Int64).fill_null(-1).to_numpy()
