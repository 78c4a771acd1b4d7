"""What each recorded step launched, and how long its devices were busy or waited."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from opscope.analysis.intervals import Intervals
from opscope.analysis.links import Links, column, end_of
from opscope.analysis.nesting import Ints, Nesting
from opscope.analysis.timeline import LAUNCH_BOUND_CAUSES, DeviceTimeline, step_table
from opscope.model import Trace

# Driver and runtime records of code being loaded on first use, which make a first step cold.
MODULE_LOADING = re.compile(r"Module Loading|Lazy Function Loading|cuModuleLoad|cuLibraryLoad|ModuleLoad")
_BACKWARD_RANGE = "^autograd::engine::evaluate_function"
_OPTIMIZER_RANGE = r"^Optimizer\.(step|zero_grad)#"


@dataclass(frozen=True, slots=True)
class Step:
    """One ``ProfilerStep`` on one device. An activity belongs to the step that launched it.

    Attributes:
        number: the profiler's step number.
        device: the device, or None for the host's figures of a step without device work.
        span_ns: length of the step's host range.
        activities: device activities launched in it.
        device_sum_ns: sum of their durations.
        busy_ns: time within the host range in which the device worked.
        idle_ns: the rest of the host range.
        launch_bound_ns: the part of ``idle_ns`` in which the device waited for the host to launch.
        cold: whether code was loaded to the device during the step.
    """

    number: int
    device: int | None
    span_ns: int
    activities: int
    device_sum_ns: int | None
    busy_ns: int | None
    idle_ns: int | None
    launch_bound_ns: int | None
    cold: bool


def steps_of(trace: Trace, links: Links, timelines: Sequence[DeviceTimeline]) -> tuple[Step, ...]:
    """Return the recorded steps in order, one entry per device that worked in the trace."""
    table = step_table(trace)
    launched_in = _step_of_activities(trace, links, table)
    loading = _module_loading_times(trace)
    steps: list[Step] = []
    for row, (number, start, end) in enumerate(table.iter_rows()):
        cold = bool(((loading >= start) & (loading < end)).any())
        if not timelines:
            steps.append(Step(number, None, end - start, 0, None, None, None, None, cold))
        for timeline in timelines:
            mine = (launched_in == row) & (column(trace.activities, "device") == timeline.device)
            idle = timeline.idle.by_cause(start, end)
            idle_ns = sum(idle.values())
            steps.append(
                Step(
                    number=number,
                    device=timeline.device,
                    span_ns=end - start,
                    activities=int(mine.sum()),
                    device_sum_ns=int(trace.activities["duration_ns"].to_numpy()[mine].sum()),
                    busy_ns=end - start - idle_ns,
                    idle_ns=idle_ns,
                    launch_bound_ns=sum(idle[cause] for cause in LAUNCH_BOUND_CAUSES),
                    cold=cold,
                )
            )
    return tuple(steps)


def _step_of_activities(trace: Trace, links: Links, table: pl.DataFrame) -> Ints:
    """Return per activity the row of the step that launched it, or -1."""
    result = np.full(trace.activities.height, -1, np.int64)
    if not table.height:
        return result
    launched = np.flatnonzero(links.activity_launch >= 0)
    time = column(trace.launches, "start_ns")[links.activity_launch[launched]]
    row = np.searchsorted(table["start_ns"].to_numpy(), time, side="right") - 1
    inside = (row >= 0) & (table["end_ns"].to_numpy()[row] > time)
    result[launched[inside]] = row[inside]
    return result


def activities_launched_outside_steps(trace: Trace, links: Links) -> Ints:
    """Return the rows of activities whose launch lies in no recorded step; empty where no steps were recorded."""
    table = step_table(trace)
    if not table.height:
        return np.zeros(0, np.int64)
    outside = (_step_of_activities(trace, links, table) < 0) & (links.activity_launch >= 0)
    return np.flatnonzero(outside)


def _module_loading_times(trace: Trace) -> Ints:
    tables = (trace.overheads, trace.launches)
    times = [
        column(table.filter(table["name"].cast(pl.String).str.contains(MODULE_LOADING.pattern)), "start_ns")
        for table in tables
    ]
    return np.concatenate(times)


def phase_times(trace: Trace, links: Links) -> dict[str, int] | None:
    """Split the device sum into forward, backward and optimizer; None where the trace shows no training step.

    Work is backward when autograd's engine launched it, optimizer when it was launched within an ``Optimizer.`` range.
    """
    ranges = dict(_training_ranges(trace))
    if not trace.activities.height or all(len(nesting.start) == 0 for nesting in ranges.values()):
        return None
    launched = np.flatnonzero(links.activity_launch >= 0)
    rows = links.activity_launch[launched]
    thread, time = column(trace.launches, "thread")[rows], column(trace.launches, "start_ns")[rows]
    phase = np.full(trace.activities.height, "unlinked", dtype=object)
    phase[launched] = "forward"
    for name, nesting in ranges.items():
        phase[launched[nesting.innermost_at(thread, time) >= 0]] = name
    duration = trace.activities["duration_ns"].to_numpy()
    times = {name: int(duration[phase == name].sum()) for name in ("forward", "backward", "optimizer", "unlinked")}
    return {name: value for name, value in times.items() if value or name != "unlinked"}


def _training_ranges(trace: Trace) -> Iterator[tuple[str, Nesting]]:
    sources = (
        ("backward", trace.operators, _BACKWARD_RANGE),
        ("optimizer", trace.annotations, _OPTIMIZER_RANGE),
    )
    for name, table, pattern in sources:
        chosen = table.filter(table["name"].cast(pl.String).str.contains(pattern))
        yield name, Nesting.of(column(chosen, "thread"), column(chosen, "start_ns"), end_of(chosen))


def operator_time_on_host(trace: Trace) -> int:
    """Return how long any operator was running on the host, over all threads (union of the slices)."""
    return Intervals.union_of(column(trace.operators, "start_ns"), end_of(trace.operators)).length
