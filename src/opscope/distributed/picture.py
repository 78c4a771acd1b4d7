"""One step of a job on the clock of all ranks, small enough for a document: what the page draws of it."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from opscope.base.units import format_count
from opscope.distributed.clocks import RankClocks
from opscope.distributed.lateness import Own
from opscope.distributed.summary import RankSummary
from opscope.documents.ranks import JobTimeline, RankLane
from opscope.knowledge.collectives import TOGETHER

_MOST_LANES: Final = 32  # a screen; the ranks that differ most come first
_MOST_CALLS: Final = 60  # of a rank, the longest


def picture_of(
    ranks: Mapping[int, RankSummary], calls: pl.DataFrame, clocks: RankClocks | None, own: Own
) -> JobTimeline | None:
    """Return the step in which a rank is latest, as far as it fits; None without steps or a common clock.

    Args:
        ranks: the summaries.
        calls: the collectives and messages that could be matched, as `Matched.calls`.
        clocks: the ranks' clocks; None where nothing ties them together.
        own: what ranks do of their own in the steps that all of them recorded.
    """
    tied = set() if clocks is None else set(clocks.ranks.tolist())
    places = [place for place, rank in enumerate(own.ranks) if rank in tied]
    if clocks is None or not own.steps or len(places) < 2:
        return None
    late = own.late_ns
    step = int(late.max(axis=0).argmax())
    latest = sorted(places, key=lambda place: -int(late[place, step]))[:_MOST_LANES]
    number, cycle = own.steps[step]
    begins, hosts = {}, {}
    for place in sorted(latest):
        rank = own.ranks[place]
        row = ranks[rank].steps.row(int(own.rows[place, step]), named=True)
        begins[rank] = int(clocks.true(np.array([rank]), np.array([row["begin_ns"]]))[0])
        hosts[rank] = row["host_ns"]
    span = min(begins.values()), max(begins[rank] + hosts[rank] for rank in begins)
    of_step = _of_step(calls, number, cycle, span, set(begins), clocks)
    kinds = list(dict.fromkeys(of_step["kind"].to_list()))
    lanes = []
    for place in sorted(latest):
        rank = own.ranks[place]
        ours = of_step.filter(pl.col("rank") == rank)
        shown = ours.top_k(_MOST_CALLS, by="length_ns").sort("begin_ns")
        lanes.append(
            RankLane(
                rank=rank,
                begin_ns=begins[rank],
                host_ns=hosts[rank],
                late_ns=int(late[place, step]),
                calls=[
                    (start, length, kinds.index(kind), wait)
                    for start, length, kind, wait in shown.select("begin_ns", "length_ns", "kind", "wait_ns").rows()
                ],
                left_out=ours.height - shown.height,
            )
        )
    first = min(time for lane in lanes for time in (lane.begin_ns, *(call[0] for call in lane.calls)))
    moved = [_moved(lane, first) for lane in lanes]
    left_out = len(own.ranks) - len(moved)
    which = "The recording" if number is None else f"Step {number}, the one in which a rank is latest"
    sentence = (
        f"{which}. The line is the step on the host; bars are collectives of the device, pale while they wait for the "
        f"last rank{f'; {format_count(left_out)} ranks that are less late are left out' if left_out else ''}."
    )
    return JobTimeline(step=number, kinds=kinds, lanes=moved, ranks_left_out=left_out, sentence=sentence)


def _of_step(
    calls: pl.DataFrame, step: int | None, cycle: int, span: tuple[int, int], ranks: set[int], clocks: RankClocks
) -> pl.DataFrame:
    """Return the collectives of a step of some ranks: begin on the common clock, length, the part that is waiting.

    Those are what was launched in it, and what ran meanwhile: a rank may wait in it for what it launched before.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    described = pl.coalesce(pl.col("description").cast(pl.String), pl.col("group").cast(pl.String), pl.lit("no group"))
    name = pl.col("collective").cast(pl.String)
    result = calls.with_columns(
        length_ns=length,
        wait_ns=pl.when(name.is_in(TOGETHER)).then(length - length.min().over("call")).otherwise(0),
        kind=pl.concat_str(name, pl.lit(" of "), described),
    ).filter(pl.col("rank").is_in(list(ranks)))
    begin = clocks.true(result["rank"].to_numpy(), result["start_ns"].to_numpy())
    own = pl.col("step").eq_missing(pl.lit(step)) & (pl.col("cycle") == cycle)
    meanwhile = (pl.col("begin_ns") < span[1]) & (pl.col("begin_ns") + pl.col("length_ns") > span[0])
    return result.with_columns(begin_ns=pl.Series(begin, dtype=pl.Int64)).filter(own | meanwhile)


def _moved(lane: RankLane, first: int) -> RankLane:
    calls = [(begin - first, *rest) for begin, *rest in lane.calls]
    return RankLane(lane.rank, lane.begin_ns - first, lane.host_ns, lane.late_ns, calls, lane.left_out)  # type: ignore[arg-type]
