"""What collectives take over all ranks: the transfer apart from the waiting, bandwidths, and who comes last.

From the same transfers follow slow links between ranks, which take longer than others, and what links can carry.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.base.units import NS_PER_S
from opscope.distributed.clocks import RankClocks
from opscope.distributed.summary import RankSummary
from opscope.documents.ranks import JobCollective, RankEntry, RankGroup, SlowLink
from opscope.knowledge.collectives import MESSAGES, TOGETHER, Collective, collective_of
from opscope.knowledge.devices import device_called

# ---------------------------------------------------------------- matching


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
    ``place`` is the row of the rank's own table.
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
    rows = pl.concat([one.with_columns(place=pl.int_range(pl.len(), dtype=pl.Int32)) for one in parts])
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


# ---------------------------------------------------------------- collectives


_HALF, _DEVIATIONS = 0.5, 3.0  # a rank comes last that often, and that far beyond chance
_NS: Final = 1e9
# On two H100, transfers of one size took 3.4 times as long in all steps of a recording, beside copies from the host,
# while others of nearly that size took as long as ever. So a link is slow only where even its fastest transfers are, of
# all sizes; between recordings the fastest of a size differed by a third.
_SLOWER: Final = 1.5
_LEAST_LIKE: Final = 3  # groups or pairs: of two no one knows which one is as it should be
_LEAST_CALLS: Final = 8
# The rank that comes last leaves later than the others, by up to 25 us on two devices. So where always the same one is
# late, each transfer seems longer by that: a slow link's has to be by twice that.
_LEAST_MORE_NS: Final = 50_000
_OF_BANDWIDTH_NS: Final = 50_000  # shorter transfers are of latency: a slow link does not lengthen those by much


def slow_links(result: Matched, steps: int) -> list[SlowLink]:
    """Return the groups and pairs of ranks whose transfers take longer than those of others, the most expensive first.

    Args:
        result: the matched collectives and messages.
        steps: how many steps each rank recorded.
    """
    calls = result.calls.filter(pl.col("bytes").is_not_null())
    if not calls.height:
        return []
    operation = pl.col("collective").cast(pl.String)
    each = calls.group_by("call").agg(
        kind=pl.when(operation.is_in(MESSAGES)).then(pl.lit("message")).otherwise(operation).first(),
        description=pl.col("description").cast(pl.String).first(),
        bytes=pl.col("bytes").first(),
        # Which ranks: a group's, or the two of a message. Their list would be long for each call.
        group=pl.col("group").first(),
        members=pl.col("members").first(),
        first=pl.col("rank").min(),
        last=pl.col("rank").max(),
        size=pl.len(),
        transfer_ns=(pl.col("end_ns") - pl.col("start_ns")).min(),
        exposed_ns=pl.col("exposed_ns").max(),
    )
    like, link = ["kind", "description", "bytes", "size"], ["group", "members", "first", "last", "size"]
    links = (
        each.filter(pl.col("size") > 1)
        .group_by(*like, *link[:-1])
        .agg(
            call=pl.col("call").first(),
            calls=pl.len(),
            typical_ns=pl.col("transfer_ns").median(),
            fastest_ns=pl.col("transfer_ns").min(),
            exposed_ns=pl.col("exposed_ns").sum(),
        )
        .with_columns(
            others_ns=pl.col("fastest_ns").median().over(like),
            others_typical_ns=pl.col("typical_ns").median().over(like),
            count=pl.len().over(like),
        )
        .filter((pl.col("count") >= _LEAST_LIKE) & (pl.col("others_typical_ns") > 0))
        .with_columns(
            is_slow=(pl.col("fastest_ns") >= _SLOWER * pl.col("others_ns"))
            & (pl.col("typical_ns") >= _SLOWER * pl.col("others_typical_ns"))
            & (pl.col("fastest_ns") - pl.col("others_ns") >= _LEAST_MORE_NS),
            is_fast=((pl.col("fastest_ns") < _SLOWER * pl.col("others_ns")) & (pl.col("others_ns") >= _OF_BANDWIDTH_NS))
            .any()
            .over(link),
            of_link=pl.col("calls").sum().over(link),
        )
    )
    slow = links.filter(pl.col("is_slow") & ~pl.col("is_fast") & (pl.col("of_link") >= _LEAST_CALLS))
    ranks = {
        call: calls.filter(pl.col("call") == call)["rank"].sort().to_list() for call in slow["call"].unique().to_list()
    }
    return sorted(_links(slow, ranks, max(steps, 1)), key=lambda one: (-one.costs_ns, one.ranks))


def _links(slow: pl.DataFrame, ranks: Mapping[int, list[int]], steps: int) -> Iterator[SlowLink]:
    for row in slow.iter_rows(named=True):
        more = (row["typical_ns"] - row["others_typical_ns"]) * row["calls"]
        yield SlowLink(
            ranks=ranks[row["call"]],
            collective=row["kind"],
            group=row["description"],
            bytes=row["bytes"],
            calls=row["calls"],
            bandwidth=row["bytes"] * NS_PER_S / row["typical_ns"],
            others_bandwidth=row["bytes"] * NS_PER_S / row["others_typical_ns"],
            costs_ns=max(0, round(min(more, row["exposed_ns"]) / steps)),
        )


def link_peaks(entries: list[RankEntry]) -> Mapping[int, tuple[str, float]]:
    """Return per rank its host, and the bytes per second that its device's links carry in one direction.

    Ranks whose host or whose device's links are not known are left out.
    """
    peaks: dict[int, tuple[str, float]] = {}
    for one in entries:
        device = None if one.device is None else device_called(one.device)
        if one.host is not None and device is not None and device.link_bytes_per_s is not None:
            peaks[one.rank] = (one.host, device.link_bytes_per_s)
    return peaks


def peaks_of_groups(rows: pl.DataFrame, entries: list[RankEntry]) -> dict[str, float]:
    """Return what the links within a host carry, by the description of process groups that stay within one.

    Args:
        rows: the collectives of all ranks, with ``described``.
        entries: the ranks, with hosts and devices.
    """
    peaks = link_peaks(entries)
    results: dict[str, float] = {}
    for (described,), part in rows.select("described", "members", "size", "rank").unique().group_by("described"):
        assert isinstance(described, str)
        within: set[float] = set()
        for members, size in part.select("members", "size").unique().iter_rows():
            ranks = members_of(members)
            if len(ranks) != size:  # cut, or of all ranks
                ranks = part["rank"].unique().to_list()
                ranks = ranks if len(ranks) == size else []
            hosts = {peaks[rank] for rank in ranks if rank in peaks}
            within |= {peak for _, peak in hosts} if len(hosts) == 1 and set(ranks) <= peaks.keys() else {0.0}
        if len(within) == 1 and (peak := within.pop()):
            results[described] = peak
    return results


def collectives_of(calls: pl.DataFrame, every: pl.DataFrame, entries: list[RankEntry]) -> list[JobCollective]:
    """Return what collectives of one kind and size take, those first that take longest together.

    Args:
        calls: the matched ones, as `with_last` returns them.
        every: all rows of all ranks, matched or not, with ``rank``.
        entries: the ranks, with hosts and devices.
    """
    peaks = peaks_of_groups(every.with_columns(described=_described().cast(pl.String)), entries)
    calls = _each_call(calls)
    keys = ["description", "collective", "bytes"]
    whole = dict(_grouped(calls, keys))
    rows = []
    for key, part in _grouped(every.with_columns(description=_described()), keys):
        own = whole.get(key)
        # A group's calls are what each of its ranks has recorded, or the rank with most of them.
        of_ranks = part.group_by("group", "members", "rank").len()
        count = int(of_ranks.group_by("group", "members").agg(pl.col("len").max())["len"].sum())
        entry = replace(_of_kind(key, own, count), link_bandwidth=peaks.get(str(key[0])))
        rows.append((entry, int((part["end_ns"] - part["start_ns"]).sum())))
    return [one for one, _ in sorted(rows, key=lambda row: -row[1])]


def _described() -> pl.Expr:
    named = pl.concat_str(pl.lit("group "), pl.col("group").cast(pl.String)).cast(pl.Categorical)
    return pl.coalesce("description", named, pl.lit("unnamed group").cast(pl.Categorical))


def _grouped(table: pl.DataFrame, keys: list[str]) -> list[tuple[tuple[object, ...], pl.DataFrame]]:
    return list(table.group_by(keys, maintain_order=True)) if table.height else []


def with_last(calls: pl.DataFrame, clocks: RankClocks | None) -> pl.DataFrame:
    """Return matched collectives with ``transfer_ns``, the shortest over ranks, and ``last``, the rank to enter last.

    Args:
        calls: `Matched.calls`.
        clocks: the ranks' clocks; where they do not tell, the last rank is the one on which the collective is shortest.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    last = shortest = pl.col("rank").get(duration.arg_min())
    entered = pl.col("start_ns")
    if clocks is not None and calls.height:
        known = pl.col("rank").is_in(clocks.ranks.tolist())
        rank = np.minimum(calls["rank"].to_numpy(), clocks.ranks.max())
        entered = pl.when(known).then(pl.lit(pl.Series(clocks.true(rank, calls["start_ns"].to_numpy()))))
        # Of ranks whose clocks nothing ties to the others it is unknown when they enter.
        all_known = pl.col("entered").null_count() == 0
        last = pl.when(all_known).then(pl.col("rank").get(pl.col("entered").arg_max())).otherwise(shortest)
    each = calls.with_columns(entered=entered).group_by("call").agg(transfer_ns=duration.min(), last=last)
    return calls.join(each, on="call", how="left", maintain_order="left")


def _each_call(calls: pl.DataFrame) -> pl.DataFrame:
    """Return one row per matched collective: its transfer, its waits, and the rank that entered last."""
    wait = pl.col("end_ns") - pl.col("start_ns") - pl.col("transfer_ns")
    return (
        calls.with_columns(description=_described())
        .group_by("call")
        .agg(
            pl.col("description", "collective", "bytes", "group", "size", "is_uneven", "transfer_ns", "last").first(),
            wait_ns=wait.mean(),
            worst_wait_ns=wait.max(),
            ranks=pl.len(),
        )
        .sort("call")
    )


def _of_kind(key: tuple[object, ...], calls: pl.DataFrame | None, count: int) -> JobCollective:
    group, name, size = key
    assert isinstance(group, str)
    assert isinstance(name, str)
    assert size is None or isinstance(size, int)
    row = JobCollective(group, name, size, count, 0, *(None,) * 7)
    if calls is None or not calls.height:
        return row
    transfer, ranks = int(_median(calls["transfer_ns"])), int(_median(calls["ranks"]))
    together = name in TOGETHER
    even = size is not None and transfer > 0 and not calls["is_uneven"].any()
    algorithm = size * _NS / transfer if even and size is not None else None
    last, share = _last(calls["last"], ranks) if together else (None, None)
    return JobCollective(
        group=group,
        collective=name,
        bytes=size,
        calls=max(count, calls.height),  # of messages each rank has recorded one half
        whole=calls.height,
        transfer_ns=transfer,
        wait_ns=int(_median(calls["wait_ns"])) if together else None,
        worst_wait_ns=int(_largest(calls["worst_wait_ns"])) if together else None,
        algorithm_bandwidth=algorithm,
        bus_bandwidth=None if algorithm is None else algorithm * _share_of_link(name, ranks),
        last_rank=last,
        last_share=share,
    )


def _median(values: pl.Series) -> float:
    result = values.median()
    assert isinstance(result, int | float)
    return result


def _largest(values: pl.Series) -> float:
    result = values.max()
    assert isinstance(result, int | float)
    return result


def _last(last: pl.Series, ranks: int) -> tuple[int | None, float | None]:
    """Return the rank that is last in at least half of some collectives, and more often than by chance; else none."""
    known = last.drop_nulls()
    if not len(known):
        return None, None
    counts = known.value_counts(name="count").sort("count", known.name, descending=[True, False])
    rank, share = int(counts[known.name][0]), int(counts["count"][0]) / len(known)
    chance = 1 / max(ranks, 1)
    error = (chance * (1 - chance) / len(known)) ** 0.5
    return (rank, share) if share >= max(_HALF, chance + _DEVIATIONS * error) else (None, None)


def _share_of_link(name: str, ranks: int) -> float:
    """Return what each link carries, as a share of the bytes: as NCCL's own tests count it."""
    around = (ranks - 1) / ranks
    match collective_of(name):
        case Collective.ALL_REDUCE:
            return 2 * around
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return around
        case _:
            return 1.0


def groups_of(every: pl.DataFrame, ranks: dict[int, RankSummary]) -> list[RankGroup]:
    """Return the process groups by their use, those first whose kernels run longest."""
    steps = sum(one.steps.height for one in ranks.values())
    results = []
    for (description, size), part in _grouped(every.with_columns(description=_described()), ["description", "size"]):
        assert isinstance(description, str)
        assert size is None or isinstance(size, int)
        counts = part["collective"].value_counts(sort=True)
        results.append(
            RankGroup(
                description=description,
                size=size,
                groups=part.select("group", "members").n_unique(),
                collectives=dict(zip(counts["collective"].to_list(), counts["count"].to_list(), strict=True)),
                busy_ns=int((part["end_ns"] - part["start_ns"]).sum()) // max(steps, 1),
                exposed_ns=int(part["exposed_ns"].sum()) // max(steps, 1),
            )
        )
    return sorted(results, key=lambda group: -group.busy_ns)
