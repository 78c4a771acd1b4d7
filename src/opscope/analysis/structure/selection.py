"""Parts of a trace: the records of some steps, or of a range of time."""

from collections.abc import Iterable

import numpy as np
import polars as pl
from msgspec.structs import replace

from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.links import link
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.step_work import activities_of_steps, is_step, step_table
from opscope.base.errors import UsageError
from opscope.trace.model import Trace

_SHOWN = 20  # steps in a message


def chosen_steps(trace: Trace, first: int, last: int) -> pl.DataFrame:
    """Return the rows of `step_table` for some steps.

    Args:
        trace: the trace.
        first: the profiler's number of the first step.
        last: the number of the last step, included.

    Raises:
        UsageError: the trace does not mark any of those steps.
    """
    steps = step_table(trace)
    chosen = steps.filter(pl.col("step").is_between(first, last))
    if not chosen.height:
        numbers = steps["step"].unique().sort().to_list()
        marked = ", ".join(map(str, numbers)) if len(numbers) <= _SHOWN else f"{numbers[0]} to {numbers[-1]}"
        raise UsageError(f"--steps {first}..{last}: the trace marks no such step; it marks {marked or 'none'}")
    return chosen


def select_steps(trace: Trace, first: int, last: int) -> Trace:
    """Return the records of some steps: everything that began on the host within them, and all work they launched.

    Args:
        trace: the trace.
        first: the profiler's number of the first step.
        last: the number of the last step, included.

    Raises:
        UsageError: the trace does not mark any of those steps.
    """
    return records_of_steps(trace, chosen_steps(trace, first, last))


def records_of_steps(trace: Trace, chosen: pl.DataFrame) -> Trace:
    """Return what `select_steps` does.

    Args:
        trace: the trace.
        chosen: rows of its `step_table`.
    """
    # By launch and not by time: work of a step may still run on the device when the next step has begun.
    return records_within(trace, spans_of(chosen), activities_of_steps(trace, link(trace), chosen), chosen)


def spans_of(steps: pl.DataFrame) -> list[tuple[int, int]]:
    """Return when some steps begin and end on the host."""
    return list(zip(steps["start_ns"].to_list(), steps["end_ns"].to_list(), strict=True))


def select_time(trace: Trace, begin_ns: int, end_ns: int, steps: pl.DataFrame | None = None) -> Trace:
    """Return the records of a range of time: what began on the host within it, and all work that was launched there.

    Args:
        trace: the trace.
        begin_ns: when the range begins, on the trace's clock.
        end_ns: when it ends.
        steps: the steps that belong to it; None for those that begin within.
    """
    began, launch = column(trace.activities, "start_ns"), link(trace).activity_launch
    if trace.launches.height:
        launched = column(trace.launches, "start_ns")[launch]
        began = np.where(launch >= 0, launched, began)
    rows = np.flatnonzero((began >= begin_ns) & (began < end_ns))
    steps = steps_begun(step_table(trace), begin_ns, end_ns) if steps is None else steps
    return records_within(trace, [(begin_ns, end_ns)], rows, steps)


def steps_begun(steps: pl.DataFrame, begin_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the steps that begin in a range of time."""
    return steps.filter((pl.col("start_ns") >= begin_ns) & (pl.col("start_ns") < end_ns))


def begins_within(spans: Iterable[tuple[int, int]], time: str = "start_ns") -> pl.Expr:
    """Tell per row of a table whether it begins within any of some spans."""
    return pl.any_horizontal([(pl.col(time) >= low) & (pl.col(time) < high) for low, high in spans])


def records_within(trace: Trace, spans: list[tuple[int, int]], activities: Ints, steps: pl.DataFrame) -> Trace:
    """Return the records that began on the host within some spans, and some work of the devices.

    Args:
        trace: the trace.
        spans: from when to when.
        activities: the rows of the work.
        steps: which steps these are, as rows of `step_table`.
    """

    def within(table: pl.DataFrame, time: str = "start_ns") -> pl.DataFrame:
        return table.filter(begins_within(spans, time))

    annotations = within(trace.annotations)
    # Without the step around it, a range of that name would become a step.
    others = is_step(annotations) & ~_is_any_of(annotations, steps)
    kept = trace.activities[activities]
    communications = trace.communications
    return replace(
        trace,
        operators=within(trace.operators),
        launches=within(trace.launches),
        annotations=annotations.filter(~others),
        frames=within(trace.frames),
        overheads=within(trace.overheads),
        ranges=within(trace.ranges),
        migrations=within(trace.migrations),
        synchronizations=within(trace.synchronizations),
        allocations=within(trace.allocations, "time_ns"),
        counters=within(trace.counters, "time_ns"),
        activities=kept,
        communications=pl.concat(
            [
                within(communications.filter(pl.col("correlation").is_null())),
                communications.join(kept, on=["correlation", "start_ns"], how="semi"),
            ]
        ).sort("start_ns", maintain_order=True),
    )


def _is_any_of(annotations: pl.DataFrame, steps: pl.DataFrame) -> pl.Series:
    times = annotations.select("start_ns", "thread", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    keys = ["start_ns", "end_ns", "thread"]
    numbered = steps.select(keys).unique().with_columns(found=pl.lit(value=True))
    return times.join(numbered, on=keys, how="left", maintain_order="left")["found"].fill_null(value=False)
