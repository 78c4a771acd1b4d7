"""Activities joined to what belongs to them: operator, step, launch, named range."""

import polars as pl

from opscope.analysis.structure.arrays import end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.step_work import step_of_activities
from opscope.analysis.structure.window import step_table
from opscope.trace.model import Trace


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
