"""Steps and their window: which step launched which activities, and when devices worked for which step."""

import enum

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import Intervals, column, end_of, latest_around
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints, Nesting
from opscope.base.text import lazy_pattern
from opscope.trace.model import Trace

# ---------------------------------------------------------------- the window


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
    steps = steps.filter(pl.col("end_ns") > ended).sort("start_ns", maintain_order=True)
    # Two threads of a process may mark one step: of ranges of one number that overlap, the first counts.
    process = pl.Series([pair[0] for pair in trace.threads], dtype=pl.String)
    steps = steps.with_columns(process=process.gather(steps["thread"]))
    before = pl.col("end_ns").cum_max().shift(1).fill_null(-(1 << 62)).over("step", "process")
    return steps.filter(pl.col("start_ns") >= before).select("step", "start_ns", "end_ns", "thread")


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


# ---------------------------------------------------------------- work of steps


def step_of_activities(trace: Trace, links: Links, table: pl.DataFrame) -> Ints:
    """Return per activity the row of the step that launched it, or -1.

    That is the step around the call on its thread. For a call outside of all steps of its thread, as on autograd's
    threads, it is the latest begun step of any thread that the call lies in.

    Args:
        trace: the trace.
        links: its links.
        table: the `step_table`, or rows of it.
    """
    result = np.full(trace.activities.height, -1, np.int64)
    if not table.height:
        return result
    launched = np.flatnonzero(links.activity_launch >= 0)
    thread, time = (column(trace.launches, name)[links.activity_launch[launched]] for name in ("thread", "start_ns"))
    start, end = column(table, "start_ns"), column(table, "end_ns")
    innermost = Nesting.of(column(table, "thread"), start, end).innermost_at(thread, time)
    elsewhere = np.flatnonzero(innermost < 0)
    innermost[elsewhere] = latest_around(start, end, time[elsewhere])
    result[launched] = innermost
    return result


def step_among(trace: Trace, links: Links, steps: pl.DataFrame) -> Ints:
    """Return per activity which of some steps launched it, as a row of theirs, or -1 where another step or none did.

    Args:
        trace: the trace.
        links: its links.
        steps: rows of `step_table`.
    """
    every = step_table(trace)
    keys = ["step", "start_ns", "end_ns", "thread"]
    numbered = steps.select(keys).with_row_index("row").unique(keys, keep="first", maintain_order=True)
    result = every.join(numbered, on=keys, how="left", maintain_order="left")["row"].cast(pl.Int64).fill_null(-1)
    among: Ints = np.append(result.to_numpy(), -1)[step_of_activities(trace, links, every)]
    return among


def activities_of_steps(trace: Trace, links: Links, steps: pl.DataFrame) -> Ints:
    """Return the rows of the activities that some steps launched.

    Args:
        trace: the trace.
        links: its links.
        steps: rows of `step_table`. An activity without a recorded launch belongs to the step that it begins in.
    """
    start = column(trace.activities, "start_ns")
    begins_inside = latest_around(column(steps, "start_ns"), column(steps, "end_ns"), start) >= 0
    launched_inside = step_among(trace, links, steps) >= 0
    return np.flatnonzero(np.where(links.activity_launch >= 0, launched_inside, begins_inside))


def activities_launched_outside_steps(trace: Trace, links: Links) -> Ints:
    """Return the rows of activities whose launch lies in no recorded step; empty where no steps were recorded."""
    table = step_table(trace)
    if not table.height:
        return np.zeros(0, np.int64)
    outside = (step_of_activities(trace, links, table) < 0) & (links.activity_launch >= 0)
    return np.flatnonzero(outside)


def periods_of_device_work(step: Ints, start: Ints, end: Ints, hosts: Intervals, *, apart: bool = True) -> Intervals:
    """Return per step when a device worked for it: from the step's first activity to the next step's first.

    The last step ends with its last activity. So does a step after which the host was not recorded for longer than the
    step took: the next one is of another recording. A step that launched nothing on the device has an empty period.

    Args:
        step: per activity of the device the row of the step that launched it, or -1; at least one is not -1.
        start: per activity when it began.
        end: per activity when it ended.
        hosts: the steps' ranges on the host, by start.
        apart: whether steps may be of several recordings.
    """
    launched = step >= 0
    none = np.iinfo(np.int64).max
    first = np.full(len(hosts), none)
    np.minimum.at(first, step[launched], start[launched])
    last = int(end[launched].max())
    # The least of this and all later steps: on streams that work ahead, a later step may begin before an earlier one.
    # A step without work so gets the begin of the next one, and an empty period.
    begin = np.minimum.accumulate(np.append(first, last)[::-1])[::-1]
    if not apart:
        return Intervals(begin[:-1], begin[1:])
    if len(hosts) == 1:
        begin[0] = min(int(begin[0]), int(hosts.start[0]))
    finish = begin[1:].copy()
    last_end = np.full(len(hosts), np.iinfo(np.int64).min)
    np.maximum.at(last_end, step[launched], end[launched])
    # The host was not recorded for longer than the step took: here another recording begins.
    breaks = np.flatnonzero(hosts.start[1:] - hosts.end[:-1] > hosts.end[:-1] - hosts.start[:-1])
    finish[breaks] = np.clip(np.maximum.accumulate(last_end)[breaks], begin[breaks], finish[breaks])
    return Intervals(begin[:-1], finish)


# ---------------------------------------------------------------- activities joined to what belongs to them


def linked_activities(trace: Trace, links: Links) -> pl.DataFrame:
    """Return one row per activity, with its operator, step and launch; null where none was recorded.

    ``queue_delay_ns`` is the time from the end of the launching call to the activity's start: launch latency if the
    stream was empty, else backlog behind earlier work.
    """
    operator, launch = (
        pl.Series(rows, dtype=pl.Int64).replace(-1, None) for rows in (links.activity_operator, links.activity_launch)
    )
    steps = step_table(trace)
    step = pl.Series(step_of_activities(trace, links, steps), dtype=pl.Int64).replace(-1, None)
    operators, launches = trace.operators, trace.launches
    returned = pl.Series(end_of(launches), dtype=pl.Int64).gather(launch)
    text = pl.col(pl.Categorical).cast(pl.String)
    return trace.activities.with_columns(text).with_columns(
        operator=operators["name"].cast(pl.String).gather(operator),
        input_dims=operators["input_dims"].cast(pl.String).gather(operator),
        step=steps["step"].gather(step),
        launch=launches["name"].cast(pl.String).gather(launch),
        launch_thread=launches["thread"].gather(launch),
        launch_start_ns=launches["start_ns"].gather(launch),
        launch_duration_ns=launches["duration_ns"].gather(launch),
        queue_delay_ns=trace.activities["start_ns"] - returned,
    )
