"""From a device activity to the call that launched it, the operator around that call, and that operator's parents.

An activity's launch is the API call with the same correlation id; a launch belongs to the innermost operator
that encloses its *start* on the same thread; where no operator does, the recorded ``External id`` decides. What has
neither stays unlinked: it is never given to an operator by guess.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from opscope.analysis.columns import column, nesting_of
from opscope.analysis.nesting import Bools, Ints, Nesting
from opscope.model import Trace
from opscope.threads import together


@dataclass(frozen=True, slots=True)
class Links:
    """Row numbers into the trace's tables; -1 stands for "none recorded".

    Attributes:
        activity_launch: per activity its row in ``launches``.
        activity_operator: per activity its row in ``operators``.
        launch_operator: per launch its row in ``operators``.
        operators: the nesting of the operators.
        operator_self_ns: per operator its duration without nested operators, annotations and API calls, in nanoseconds.
        operator_crosses: per operator whether it overlaps another, or an annotation, of its thread without nesting.
        crossing_annotations: how many annotations do.
    """

    activity_launch: Ints
    activity_operator: Ints
    launch_operator: Ints
    operators: Nesting
    operator_self_ns: Ints
    operator_crosses: Bools
    crossing_annotations: int


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
        # Of an annotation and an operator with the same rounded times, the annotation is rather around the operator.
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
    first = trace.annotations.height
    return Links(
        activity_launch,
        _operators_of(trace, activity_launch, launch_operator),
        launch_operator,
        operators,
        self_time[first:],
        crossing[first:],
        int(crossing[:first].sum()),
    )


def _operators_of(trace: Trace, activity_launch: Ints, launch_operator: Ints) -> Ints:
    """Return per activity its operator: that of its launch, else the one of its recorded id."""
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
    """Duration minus what runs inside on the same thread: nested ranges, and API calls up to the range's end."""
    remaining = ranges.end - ranges.start
    inner = np.flatnonzero(ranges.parent >= 0)
    np.subtract.at(remaining, ranges.parent[inner], ranges.end[inner] - ranges.start[inner])
    # A driver call inside a runtime call is part of it.
    outermost = launches.parent < 0
    start, end = launches.start[outermost], launches.end[outermost]
    around = ranges.innermost_at(launches.thread[outermost], start)
    inside = around >= 0
    covered = np.minimum(end[inside], ranges.end[around[inside]]) - start[inside]
    np.subtract.at(remaining, around[inside], covered)
    return remaining


def device_time_of_operators(trace: Trace, links: Links) -> Ints:
    """Return per operator the durations of the activities that it launched itself, added up, in nanoseconds."""
    result = np.zeros(trace.operators.height, np.int64)
    linked = links.activity_operator >= 0
    np.add.at(result, links.activity_operator[linked], trace.activities["duration_ns"].to_numpy()[linked])
    return result


def operator_self_cpu(links: Links) -> pl.Series:
    """Return per operator its self CPU time in nanoseconds.

    Null for one that overlaps others of its thread without nesting, as asynchronous operators do: what of its duration
    is its own cannot be told.
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
