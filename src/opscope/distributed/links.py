"""Links between ranks: those over which the same transfers take longer than over others, and what links can carry."""

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from opscope.base.units import NS_PER_S
from opscope.distributed.match import Matched, members_of
from opscope.documents.ranks import RankEntry, SlowLink
from opscope.knowledge.collectives import MESSAGES
from opscope.knowledge.devices import device_called

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
