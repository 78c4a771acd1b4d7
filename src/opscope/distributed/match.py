"""Which kernels of different ranks are the same collective, or the two ends of the same message."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.distributed.summary import RankSummary
from opscope.knowledge.collectives import MESSAGES, TOGETHER

BY_SEQUENCE: Final = "the sequence numbers that PyTorch recorded"
BY_ORDER: Final = "their order within a step and process group"
_ENDS: Final = 2  # of a message
_MOST_LISTED: Final = 1_000  # ranks of a group; PyTorch lists 30
_LONGEST: Final = 12  # characters of one


class Matched(Struct, frozen=True):
    """The collectives and messages of a job.

    Attributes:
        calls: one row per rank and collective, with the columns of `COMMUNICATIONS`, ``rank``, ``step``, and ``call``,
            which the rows of one collective share; only whole ones.
        partial: how many are not: ranks lack a part of them, or disagree about what they are.
        ambiguous: how many rows were left out as their order does not tell what they belong to.
        by: what the match rests on.
    """

    calls: pl.DataFrame
    partial: int
    ambiguous: int
    by: str


def rows_of(ranks: Mapping[int, RankSummary]) -> pl.DataFrame:
    """Return the collectives and messages of some ranks, with ``rank``, and the number of their ``step``.

    ``cycle`` is how often that number has come before: profilers that record several times count their steps anew.
    """
    parts = [one.communications for one in ranks.values()]
    numbers = np.array(list(ranks), np.int32)
    steps = pl.concat([one.steps.select("step") for one in ranks.values()])
    counts = [one.steps.height for one in ranks.values()]
    steps = steps.with_columns(rank=pl.Series(np.repeat(numbers, counts)))
    steps = steps.with_columns(cycle=pl.int_range(pl.len()).over("rank", "step").cast(pl.Int32))
    # A row of a rank's steps is as many rows behind the first of that rank.
    heights = [one.height for one in parts]
    first = np.repeat(np.cumsum([0, *counts[:-1]]), heights)
    rows = pl.concat(parts)
    at = pl.Series(first + rows["row"].to_numpy())
    rows = rows.with_columns(
        rank=pl.Series(np.repeat(numbers, heights)), step=steps["step"].gather(at), cycle=steps["cycle"].gather(at)
    )
    # Waiting is none, and of a message that does not say between which ranks it goes nothing is known.
    is_message = pl.col("collective").is_in(MESSAGES)
    return rows.filter((pl.col("collective") != "wait") & (~is_message | pl.col("peer").is_not_null()))


def matched(rows: pl.DataFrame, world: int | None = None) -> Matched:
    """Match the collectives of some ranks.

    Args:
        rows: what `rows_of` returns of them.
        world: how many ranks the job has; None where that is unknown.
    """
    # Of a collective those ranks can be there that have a trace; one that says nothing of its group is of all ranks.
    table = _with_channels(rows)
    present = _present(table, world)
    table = table.join(present, on=["members", "size"], how="left", nulls_equal=True).with_columns(
        expected=pl.when(pl.col("operation") == "message").then(_ENDS).otherwise("present")
    )
    numbered = table.height > 0 and not table["sequence"].null_count()
    if numbered:
        keys, unclear = ["group", "members", "channel", "sequence"], 0
    else:
        # Where ranks issued different numbers of them in a step, order tells nothing: one too few shifts all others.
        of_step = ["group", "members", "channel", "step", "cycle"]
        of_rank = table.with_columns(of_step=_numbered(of_step)).with_columns(in_step=pl.len().over("of_step", "rank"))
        agree = pl.col("in_step").min().over("of_step") == pl.col("in_step").max().over("of_step")
        table = of_rank.filter(agree).drop("of_step", "in_step")
        unclear = of_rank.height - table.height
        keys = [*of_step, "ordinal"]
    # One rank may get as much from each, and another not.
    table = table.with_columns(call=_numbered(keys)).with_columns(is_uneven=pl.col("is_uneven").any().over("call"))
    table = table.with_columns(bytes=pl.when(~pl.col("is_uneven")).then("bytes"))
    of_call = table.group_by("call").agg(
        whole=(pl.len() == pl.col("expected").first())
        & ((pl.len() > 1) | (pl.col("size").first() == 1))
        & (pl.col("rank").n_unique() == pl.len())
        & _is_one("operation")
        & ((pl.col("operation") == "message").all() | _is_one("collective"))
        & _is_one("type")
        # Of others, such as scatter, ranks get and give different numbers.
        & (pl.col("is_uneven").first() | ~pl.col("collective").is_in(TOGETHER).all() | _is_one("elements_in"))
    )
    whole = of_call.filter("whole")
    return Matched(
        calls=table.join(whole.select("call"), on="call", how="semi").sort("call", "rank"),
        partial=of_call.height - whole.height,
        ambiguous=unclear,
        by=BY_SEQUENCE if numbered else BY_ORDER,
    )


def _present(rows: pl.DataFrame, world: int | None) -> pl.DataFrame:
    """Return per group how many of its ranks have a trace; null where that is not known."""
    there = set(rows["rank"].unique().to_list())
    groups = rows.select("members", "size").unique()

    def present(members: str | None, size: int | None) -> int | None:
        if size is None:  # without a group: all ranks, or no one can tell
            return None if world is not None and len(there) < world else len(there)
        listed = members_of(members)
        if len(listed) == size:
            return len(there & set(listed))
        # A list that is cut, or none: of a group of all ranks those that are there.
        return len(there) if size == world else size

    counts = pl.Series([present(*row) for row in groups.rows()], dtype=pl.Int32)
    return groups.with_columns(present=counts)


def _numbered(keys: list[str]) -> pl.Expr:
    """Return a number for each combination of some columns."""
    return pl.struct(keys).hash().rank("dense").cast(pl.Int64) - 1


def _is_one(column: str) -> pl.Expr:
    code = pl.col(column) if column == "elements_in" else pl.col(column).to_physical()
    return code.min().eq_missing(code.max())


def _with_channels(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what a row is a part of: a collective of its group, or a message from one rank to another."""
    is_pair = pl.col("peer").is_not_null()
    if rows["peer"].null_count() == rows.height:
        channel, operation = pl.lit(""), pl.lit("collective")
    else:
        pairs = rows.select("members", "rank").unique()
        own = [_place(members, rank) for members, rank in pairs.rows()]
        here = pl.col("own")
        rows = rows.join(
            pairs.with_columns(own=pl.Series(own, dtype=pl.String)),
            on=["members", "rank"],
            how="left",
            nulls_equal=True,
        )
        there = pl.col("peer").cast(pl.String)
        sends = pl.col("collective") == "send"
        forth, back = pl.concat_str(here, pl.lit(">"), there), pl.concat_str(there, pl.lit(">"), here)
        channel = pl.when(is_pair).then(pl.when(sends).then(forth).otherwise(back)).otherwise(pl.lit(""))
        operation = pl.when(is_pair).then(pl.lit("message")).otherwise(pl.lit("collective"))
    return rows.with_columns(channel=channel.cast(pl.Categorical), operation=operation.cast(pl.Categorical))


def _place(members: str | None, rank: int) -> str:
    """Return a rank's place in a group; its own number where the list of members does not have it."""
    listed = members_of(members)
    return str(listed.index(rank) if rank in listed else rank)


def members_of(text: str | None) -> Sequence[int]:
    """Return the ranks of a group as far as PyTorch listed them."""
    try:
        listed = json.loads(text or "[]")
    except (ValueError, RecursionError):  # cut after 30 of them
        parts = (text or "").strip("[] .").split(",")[:_MOST_LISTED]
        listed = [int(part) for part in parts if part.strip().isdecimal() and len(part) < _LONGEST]
    return [one for one in listed if isinstance(one, int)] if isinstance(listed, list) else []
