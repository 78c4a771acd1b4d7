"""A job's ranks as tables: one row per rank and step, collective or kind of work."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.distributed.collectives import rows_of, with_last
from opscope.distributed.job import Job, matched_on_clocks
from opscope.distributed.lateness import Collectives, own_times
from opscope.distributed.summary import COMMUNICATIONS, GAPS, IDLE_COLUMNS, STEPS, WORK, RankSummary
from opscope.documents.ranks import RankState


def steps_of(job: Job) -> pl.DataFrame:
    """Return one row per rank and step: ``rank``, the columns of `STEPS`, and four more.

    ``own_ns``, ``late_ns``, ``waits_ns`` and ``waited_for_ns`` are nanoseconds, and null for steps that not all ranks
    recorded.
    """
    every = rows_of(job.ranks)
    result, clocks = matched_on_clocks(every, job.world)
    own = own_times(job.ranks, Collectives(every, with_last(result.calls, clocks), clocks))
    places = np.repeat(np.arange(len(own.ranks)), len(own.steps))
    known = pl.DataFrame(
        {
            "rank": pl.Series([own.ranks[place] for place in places], dtype=pl.Int32),
            "row": pl.Series(own.rows.ravel(), dtype=pl.Int32),
            "own_ns": own.own_ns.ravel(),
            "late_ns": own.late_ns.ravel(),
            "waits_ns": own.waits.waits_ns.ravel(),
            "waited_for_ns": own.waits.for_ns.ravel(),
        }
    )
    return _of_ranks(job, lambda one: one.steps, STEPS).join(known, on=["rank", "row"], how="left").drop("row")


def communications_of(job: Job) -> pl.DataFrame:
    """Return one row per rank and collective or message: ``rank``, ``step``, the columns of `COMMUNICATIONS`.

    ``call`` is the same for all ranks of one that could be matched, and null for others; ``begin_ns`` and ``finish_ns``
    are ``start_ns`` and ``end_ns`` on the common clock, null where there is none.
    """
    every = _of_ranks(job, lambda one: one.communications, COMMUNICATIONS)
    steps = _of_ranks(job, lambda one: one.steps, STEPS).select("rank", "row", "step")
    every = every.join(steps, on=["rank", "row"], how="left")
    result, clocks = matched_on_clocks(rows_of(job.ranks), job.world)
    keys = ["rank", "row", "group", "members", "collective", "ordinal", "peer", "start_ns"]
    every = every.join(result.calls.select(*keys, "call"), on=keys, how="left", nulls_equal=True)
    times = {"begin_ns": "start_ns", "finish_ns": "end_ns"}
    if clocks is None:
        return every.with_columns(pl.lit(None, pl.Int64).alias(name) for name in times).drop("row")
    known = pl.col("rank").is_in(clocks.ranks.tolist())
    rank = np.minimum(every["rank"].to_numpy(), clocks.ranks.max())
    aligned = [
        pl.when(known).then(pl.lit(pl.Series(clocks.true(rank, every[of].to_numpy())))).alias(name)
        for name, of in times.items()
    ]
    return every.with_columns(aligned).drop("row")


def work_of(job: Job) -> pl.DataFrame:
    """Return one row per rank, step and kind of work: ``rank``, ``step``, and the columns of `WORK`."""
    steps = _of_ranks(job, lambda one: one.steps, STEPS).select("rank", "row", "step")
    work = _of_ranks(job, lambda one: one.work, WORK)
    return work.join(steps, on=["rank", "row"], how="left").drop("row")


def _of_ranks(
    job: Job, table: Callable[[RankSummary], pl.DataFrame], schema: dict[str, type[pl.DataType]]
) -> pl.DataFrame:
    parts = [table(one).select(pl.lit(rank, pl.Int32).alias("rank"), pl.all()) for rank, one in job.ranks.items()]
    return pl.concat([pl.DataFrame(schema={"rank": pl.Int32, **schema}), *parts])


def ranks_of(job: Job) -> pl.DataFrame:
    """Return one row per rank, also of those without a trace: ``rank``, ``state``, ``path``, ``host``, ``device``."""
    rows = [
        (rank, str(RankState.DAMAGED if one.facts.damage else RankState.WHOLE), one.facts)
        for rank, one in job.ranks.items()
    ]
    missing = sorted(set(range(job.world or 0)) - set(job.ranks))
    return pl.DataFrame(
        {
            "rank": [rank for rank, _, _ in rows] + missing,
            "state": [state for _, state, _ in rows] + [str(RankState.MISSING)] * len(missing),
            "path": [facts.path for _, _, facts in rows] + [None] * len(missing),
            "host": [facts.host for _, _, facts in rows] + [None] * len(missing),
            "device": [facts.device for _, _, facts in rows] + [None] * len(missing),
        },
        schema={"rank": pl.Int32, **dict.fromkeys(("state", "path", "host", "device"), pl.String)},
    ).sort("rank")


def gaps_of(job: Job) -> pl.DataFrame:
    """Return the longest gaps of each rank's device: ``rank``, ``step``, and the columns of `GAPS`."""
    steps = _of_ranks(job, lambda one: one.steps, STEPS).select("rank", "row", "step")
    return _of_ranks(job, lambda one: one.gaps, GAPS).join(steps, on=["rank", "row"], how="left").drop("row")


class JobTable(Struct, frozen=True):
    """A table over all ranks.

    Attributes:
        meaning: what a row is.
        frame: makes it.
        columns: what each column means.
    """

    meaning: str
    frame: Callable[[Job], pl.DataFrame]
    columns: Mapping[str, str]


_STEP: Final = {
    "rank": "the rank",
    "step": "the profiler's number of the step; null where no steps are marked",
}
_OF_STEPS: Final = {
    "begin_ns": "when it began, by the rank's own clock",
    "host_ns": "its length on the host",
    "host_waits_ns": "time in which the host waited for the device",
    "host_loading_ns": "time in which the host fetched batches",
    "device_ns": "its length on the device",
    "compute_ns": "time in which the device computed",
    "communication_ns": "time in which the device communicated and did nothing else",
    "hidden_communication_ns": "time in which it communicated and computed",
    "memcpy_ns": "time in which it copied or filled memory and did nothing else",
    **{column: f"time in which the device did nothing: {cause}" for cause, column in IDLE_COLUMNS.items()},
    "own_ns": "what the rank needs when it does not wait for others; null where not all ranks recorded the step",
    "late_ns": "by how much it is late: others waited for it, or it has so much more of its own; null like own_ns",
    "waits_ns": "time in which its device only waited for other ranks; null like own_ns",
    "waited_for_ns": "how long the (lower) median of the other ranks waited for it; null like own_ns",
}
_OF_COMMUNICATIONS: Final = {
    "collective": "the operation",
    "group": "the name of its process group",
    "description": "what the program calls that group",
    "members": "the ranks of the group, as the trace writes them",
    "size": "how many these are",
    "sequence": "its number in the group; null where the trace has none",
    "ordinal": "its place among those of its group in the step, from 0",
    "peer": "of a message, the other rank",
    "type": "data type",
    "elements_in": "how many elements go in",
    "elements_out": "how many come out",
    "is_uneven": "whether ranks have parts of different sizes",
    "bytes": "how much goes in or comes out, whichever is more",
    "start_ns": "when its kernel began, by the rank's own clock",
    "end_ns": "when its kernel ended, by the rank's own clock",
    "exposed_ns": "the part of that in which the device did nothing else",
    "call": "the same number on all ranks that took part; null where they could not be matched",
    "begin_ns": "when its kernel began, on the clock of all ranks; null where there is none",
    "finish_ns": "when its kernel ended, on the clock of all ranks; null where there is none",
}
_OF_WORK: Final = {
    "operator": "the operator that launched it",
    "kernel": "the kernel",
    "grid": "its grid of blocks",
    "dims": "shapes of the operator's inputs, as JSON",
    "calls": "how often it ran",
    "total_ns": "durations added up",
}
_OF_GAPS: Final = {
    "cause": "what most of it is due to",
    "duration_ns": "how long it was",
    "operator": "the innermost operator that the host was in then",
    "annotation": "the innermost named range",
    "module": "the innermost nn.Module",
    "python": "the innermost Python frame of the user's",
    "call": "the call that the host sat in, or that launched what came next",
}
_OF_RANKS: Final = {
    "rank": "the rank",
    "state": "whole, damaged or missing",
    "path": "its trace",
    "host": "the host that it ran on; null where the trace does not say it",
    "device": "the name of its device",
}
TABLES_OF_JOB: Final[Mapping[str, JobTable]] = {
    "ranks": JobTable("the ranks of the job", ranks_of, _OF_RANKS),
    "steps": JobTable("each rank's steps", steps_of, {**_STEP, **_OF_STEPS}),
    "communications": JobTable(
        "each rank's collectives and messages on the device", communications_of, {**_STEP, **_OF_COMMUNICATIONS}
    ),
    "work": JobTable("each rank's work by the step it ran in, operator and kernel", work_of, {**_STEP, **_OF_WORK}),
    "gaps": JobTable("the longest stretches in which a rank's device did nothing", gaps_of, {**_STEP, **_OF_GAPS}),
}
