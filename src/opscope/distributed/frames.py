"""A job's ranks as tables: one row per rank and step, collective or kind of work."""

from collections.abc import Callable

import numpy as np
import polars as pl

from opscope.distributed.job import Job, matched_on_clocks
from opscope.distributed.lateness import Collectives, own_times
from opscope.distributed.match import rows_of
from opscope.distributed.summary import COMMUNICATIONS, STEPS, WORK, RankSummary


def steps_of(job: Job) -> pl.DataFrame:
    """Return one row per rank and step: ``rank``, the columns of `STEPS`, ``own_ns`` and ``late_ns``.

    The latter two are nanoseconds, and null for steps that not all ranks recorded.
    """
    every = rows_of(job.ranks)
    found, _ = matched_on_clocks(every, job.world)
    own = own_times(job.ranks, Collectives(every, found.calls))
    places = np.repeat(np.arange(len(own.ranks)), len(own.steps))
    known = pl.DataFrame(
        {
            "rank": pl.Series([own.ranks[place] for place in places], dtype=pl.Int32),
            "row": pl.Series(own.rows.ravel(), dtype=pl.Int32),
            "own_ns": own.own_ns.ravel(),
            "late_ns": own.late_ns.ravel(),
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
    found, clocks = matched_on_clocks(rows_of(job.ranks), job.world)
    keys = ["rank", "row", "group", "members", "collective", "ordinal", "peer", "start_ns"]
    every = every.join(found.calls.select(*keys, "call"), on=keys, how="left", nulls_equal=True)
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
