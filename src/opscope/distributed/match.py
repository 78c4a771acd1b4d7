"""Which kernels of different ranks are the same collective, or the two ends of the same message."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl
from msgspec import Struct

from opscope.distributed.summary import RankSummary

BY_SEQUENCE: Final = "the sequence numbers that PyTorch recorded"
BY_ORDER: Final = "their order within a step and process group"
_ENDS: Final = 2  # of a message


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


def matched(ranks: Mapping[int, RankSummary]) -> Matched:
    """Match the collectives of some ranks, by their numbers."""
    table = pl.concat([_of_rank(rank, summary) for rank, summary in ranks.items()])
    numbered = table.height > 0 and not table["sequence"].null_count()
    if numbered:
        keys, unclear = ["group", "members", "channel", "sequence"], table.clear()
    else:
        # Where ranks issued different numbers of them in a step, order tells nothing: one too few shifts all others.
        of_step = ["group", "members", "channel", "step", "cycle"]
        counts = table.group_by(*of_step, "rank").agg(pl.len())
        agree = counts.group_by(of_step).agg(agree=pl.col("len").n_unique() == 1)
        table = table.join(agree, on=of_step, how="left", nulls_equal=True)
        unclear = table.filter(~pl.col("agree"))
        table = table.filter("agree").drop("agree")
        keys = [*of_step, "ordinal"]
    table = table.with_columns(call=pl.struct(keys).rank("dense").cast(pl.Int64) - 1)
    # One rank may get as much from each, and another not.
    table = table.with_columns(is_uneven=pl.col("is_uneven").any().over("call"))
    table = table.with_columns(
        bytes=pl.when(~pl.col("is_uneven")).then("bytes"), told=pl.when(~pl.col("is_uneven")).then("elements_in")
    )
    alike = pl.struct("operation", "type", "told").n_unique() == 1
    of_call = table.group_by("call").agg(
        whole=(pl.len() == pl.col("expected").first()) & (pl.col("rank").n_unique() == pl.len()) & alike
    )
    whole = of_call.filter("whole")
    return Matched(
        calls=table.join(whole.select("call"), on="call", how="semi").sort("call", "rank"),
        partial=of_call.height - whole.height,
        ambiguous=unclear.height,
        by=BY_SEQUENCE if numbered else BY_ORDER,
    )


def _of_rank(rank: int, summary: RankSummary) -> pl.DataFrame:
    # Profilers that record several times count their steps anew.
    steps = summary.steps.select("row", "step", cycle=pl.int_range(pl.len()).over("step").cast(pl.Int32))
    rows = summary.communications.join(steps, on="row", how="left").filter(pl.col("collective") != "wait")
    own = {text: _place(text, rank) for text in rows["members"].unique().to_list()}
    places = pl.Series([own[text] for text in rows["members"].to_list()], dtype=pl.String)
    sends = pl.col("collective") == "send"
    is_pair = pl.col("peer").is_not_null()
    there, here = pl.col("peer"), pl.lit(places)
    return rows.with_columns(
        rank=pl.lit(rank, pl.Int32),
        channel=pl.when(is_pair)
        .then(
            pl.when(sends)
            .then(pl.concat_str(here, pl.lit(">"), there))
            .otherwise(pl.concat_str(there, pl.lit(">"), here))
        )
        .otherwise(pl.lit("")),
        operation=pl.when(is_pair).then(pl.lit("message")).otherwise("collective"),
        expected=pl.when(is_pair).then(_ENDS).otherwise("size"),
    )


def _place(members: str | None, rank: int) -> str:
    """Return a rank's place in a group; its own number where the list of members does not have it."""
    listed = members_of(members)
    return str(listed.index(rank) if rank in listed else rank)


def members_of(text: str | None) -> Sequence[int]:
    """Return the ranks of a group as far as PyTorch listed them."""
    try:
        listed = json.loads(text or "[]")
    except ValueError:  # cut after 30 of them
        listed = [int(part) for part in (text or "").strip("[] .").split(",") if part.strip().isdecimal()]
    return [one for one in listed if isinstance(one, int)] if isinstance(listed, list) else []
