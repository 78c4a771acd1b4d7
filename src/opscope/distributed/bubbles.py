"""How long the devices of a pipeline's stages have nothing to do."""

from collections.abc import Mapping

import polars as pl

from opscope.distributed.summary import IDLE_COLUMNS, RankSummary
from opscope.documents.ranks import Bubble
from opscope.knowledge.collectives import MESSAGES


def bubbles_of(ranks: Mapping[int, RankSummary], every: pl.DataFrame) -> list[Bubble]:
    """Return the bubbles of the ranks that exchange messages, the largest share of a step first.

    Args:
        ranks: the summaries.
        every: the collectives and messages of all of them, with ``rank``.
    """
    messages = every.filter(pl.col("collective").cast(pl.String).is_in(MESSAGES))
    if not messages.height:
        return []
    exposed = messages.group_by("rank", "row").agg(messages_ns=pl.col("exposed_ns").sum())
    results = []
    for (rank,), of_rank in exposed.group_by("rank"):
        assert isinstance(rank, int)
        steps = ranks[rank].steps.join(of_rank, on="row", how="left")
        messages_ns = pl.min_horizontal(pl.col("messages_ns").fill_null(0), "communication_ns")
        middle = steps.select(
            bubble_ns=(pl.sum_horizontal(*IDLE_COLUMNS.values()) + messages_ns).median(),
            messages_ns=messages_ns.median(),
            of_step_ns=pl.col("device_ns").median(),
        ).row(0)
        if middle[2]:
            results.append(Bubble(rank, *map(round, middle)))
    return sorted(results, key=lambda one: (-one.bubble_ns / one.of_step_ns, one.rank))
