"""Records that cannot be true. They are taken out before anything is computed, and counted."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.structure.api_masks import calls_that
from opscope.analysis.structure.arrays import column, end_of, extent_of
from opscope.analysis.trust.clocks import placed, unchanged
from opscope.base.errors import BadInputError
from opscope.base.units import NS_PER_S
from opscope.trace.model import Trace


class Implausible(Struct, frozen=True):
    """How many records were taken out of a trace because of their durations.

    Attributes:
        activities: device activities with a negative duration, one of more than an hour, or one that outlasts a host
            that waited for them; those that begin before their launch or end after a call that waited for them; and
            those that run on while their successors on the stream do.
        activities_claimed_ns: the durations that these claim, added up.
        claims_hold: whether each of them claims a duration above zero, which is the most that it can have taken.
        launches: the numbers of the launches of the activities that were taken out.
        shifts: see `opscope.analysis.trust.clocks.Placed`.
        misplaced: whether any activity was impossible on the host's clock.
        host_records: operators, launches, annotations, frames and overheads with a negative duration or one of more
            than a month.
    """

    activities: int
    activities_claimed_ns: int
    claims_hold: bool
    host_records: int
    launches: frozenset[int]
    shifts: Mapping[int, int]
    misplaced: bool


def plausible(
    trace: Trace, host_ns: tuple[int, int] | None = None, *, misplaced: bool | None = None
) -> tuple[Trace, Implausible]:
    """Return the trace without impossible records, and how many there were.

    Negative durations are impossible, and so are activities of more than an hour and host records of more than a month.
    So is an activity that began before the host's last blocking call returned, but claims to take longer than the time
    from the first host record to the last: the host has waited for it. A device whose clock is off is set right (see
    `opscope.analysis.trust.clocks`), which is noted among the trace's failed checks.

    Args:
        trace: the trace, or a part of it.
        host_ns: when the first host record of the whole trace begins and when the last one ends; None for what the
            trace holds, or what it says of the whole.
        misplaced: whether activities may be impossible on the host's clock; None for what a part says of the whole.

    Raises:
        BadInputError: what is left adds up to more than 64 bits of nanoseconds hold.
    """
    cleaned = plausible_host(trace)
    host, kept = _host_tables(trace), _host_tables(cleaned)
    within_bounds = pl.col("duration_ns").is_between(0, _LONGEST_ACTIVITY_NS)
    if host_ns is None and trace.around is not None:
        host_ns = trace.around.host_ns
    possible = trace.activities.select(within_bounds & ~_outlasts_waiting_host(cleaned, host_ns)).to_series()
    activities, out = trace.activities.filter(possible), trace.activities.filter(~possible)
    overrun = _overruns(activities)
    if misplaced is None:
        misplaced = trace.around is None or trace.around.misplaced
    possible_times = replace(cleaned, activities=activities.filter(~overrun))
    placement = placed(possible_times) if misplaced else unchanged(possible_times)
    out = pl.concat([out, activities.filter(overrun), placement.left_out])
    implausible = Implausible(
        activities=out.height,
        # Python's integers: claims of impossible records may add up to more than 64 bits hold.
        activities_claimed_ns=sum(out["duration_ns"].to_list()),
        claims_hold=bool((out["duration_ns"] > 0).all()),
        host_records=sum(table.height for table in host) - sum(table.height for table in kept),
        launches=frozenset(out["correlation"].drop_nulls()),
        shifts=placement.shifts,
        misplaced=bool(placement.failed) or placement.left_out.height > 0,
    )
    activities = placement.trace.activities
    for table in (*kept, activities):
        if float(table["duration_ns"].cast(pl.Float64).sum()) > _LARGEST_SUM_NS:
            raise BadInputError(f"{trace.source.path}: durations add up to more than a century, which no program ran")
    return placement.trace, implausible


def plausible_host(trace: Trace) -> Trace:
    """Return the trace without records of the host whose duration is impossible."""
    operators, launches, annotations, frames, overheads = (t.filter(_NOT_NEGATIVE) for t in _host_tables(trace))
    return replace(
        trace, operators=operators, launches=launches, annotations=annotations, frames=frames, overheads=overheads
    )


def _host_tables(trace: Trace) -> tuple[pl.DataFrame, ...]:
    return trace.operators, trace.launches, trace.annotations, trace.frames, trace.overheads


# No kernel runs for an hour, and no recording lasts a month; sums of such claims would not even fit into 64 bits.
_LONGEST_ACTIVITY_NS = 3_600 * NS_PER_S
_LONGEST_RECORD_NS = 30 * 24 * 3_600 * NS_PER_S
_LARGEST_SUM_NS = 1 << 62
_NOT_NEGATIVE = pl.col("duration_ns").is_between(0, _LONGEST_RECORD_NS)


def _outlasts_waiting_host(trace: Trace, host_ns: tuple[int, int] | None) -> pl.Expr:
    blocking = trace.launches.filter(calls_that(trace.launches, lambda call: call.blocks))
    if not blocking.height:
        return pl.lit(value=False)
    begin, end = host_ns or host_extent(trace) or (0, 0)
    return (pl.col("start_ns") < int(end_of(blocking).max())) & (pl.col("duration_ns") > end - begin)


def host_extent(trace: Trace) -> tuple[int, int] | None:
    """Return when the first operator, call or range of a trace begins and when the last one ends; None without any."""
    return extent_of((trace.operators, trace.launches, trace.annotations))


# Choices: kernels of one name and shape differ by less, and one that is launched early overlaps the next one alone.
_LIKES: Final = 5
_TIMES_ITS_LIKES: Final = 100
_SUCCESSORS: Final = 2


def _overruns(activities: pl.DataFrame) -> pl.Series:
    """Tell per activity whether it is a kernel that runs on while later ones of its stream do, unlike all of its name.

    Nodes of one replay share a number of a stream though they run in branches.
    """
    alike = ("name", "grid")
    middle = pl.col("duration_ns").median().over(alike)
    is_kernel = pl.col("kind").cast(pl.String) == "kernel"
    suspect = is_kernel & (pl.len().over(alike) > _LIKES) & (pl.col("duration_ns") > _TIMES_ITS_LIKES * middle)
    rows = activities.select(suspect.fill_null(value=False)).to_series()
    if not rows.any():
        return rows
    start, end = column(activities, "start_ns"), end_of(activities)
    lane = activities.select(pl.struct("device", "context", "stream").rank("dense")).to_series().to_numpy()
    correlation = activities["correlation"].fill_null(-1).to_numpy()
    result = np.zeros(activities.height, np.bool_)
    for row in np.flatnonzero(rows.to_numpy()).tolist():
        first, last = np.searchsorted(start, (start[row], end[row]), side="right").tolist()  # in order of time
        others = slice(first, last)
        within = (lane[others] == lane[row]) & (end[others] <= end[row]) & (correlation[others] != correlation[row])
        result[row] = int(within.sum()) >= _SUCCESSORS
    return pl.Series(result)
