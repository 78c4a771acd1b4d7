"""What ran on each stream of each device."""

from typing import Final

import polars as pl

from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.intervals import Intervals
from opscope.trace.model import Trace

NO_DEVICE: Final = -1  # stands for the device of activities whose device was not recorded


def stream_table(trace: Trace) -> pl.DataFrame:
    """Return one row per ``device`` and ``stream``.

    Columns: ``activities``, ``sum_ns`` (durations added up), ``busy_ns`` (union of the activities), ``first_ns`` and
    ``last_ns`` (begin of the first, end of the last; nanoseconds of the trace's clock).
    """
    rows = [
        {
            "device": device,
            "stream": stream,
            "activities": group.height,
            "sum_ns": int(group["duration_ns"].sum()),
            "busy_ns": Intervals.union_of(column(group, "start_ns"), end_of(group)).length,
            "first_ns": int(column(group, "start_ns").min()),
            "last_ns": int(end_of(group).max()),
        }
        for (device, stream), group in trace.activities.group_by("device", "stream")
    ]
    names = ("activities", "sum_ns", "busy_ns", "first_ns", "last_ns")
    schema = {"device": pl.Int32, "stream": pl.Int64, **dict.fromkeys(names, pl.Int64)}
    return pl.DataFrame(rows, schema=schema).sort("device", "stream")
