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
_LEAST_LIKE: Final = 3  # groups or pairs: of two nobody knows which one is as it should be
_LEAST_CALLS: Final = 8
_LEAST_NS: Final = 20_000  # a transfer: below, latency decides, and not the link


def slow_links(found: Matched, steps: int) -> list[SlowLink]:
    """Return the groups and pairs of ranks whose transfers take longer than those of others, the dearest first.

    Args:
        found: the matched collectives and messages.
        steps: how many steps each rank recorded.
    """
    calls = found.calls.filter(pl.col("bytes").is_not_null())
    if not calls.height:
        return []
    operation = pl.col("collective").cast(pl.String)
    each = calls.group_by("call").agg(
        kind=pl.when(operation.is_in(MESSAGES)).then(pl.lit("message")).otherwise(operation).first(),
        group=pl.col("description").cast(pl.String).first(),
        bytes=pl.col("bytes").first(),
        ranks=pl.col("rank").sort(),
        transfer_ns=(pl.col("end_ns") - pl.col("start_ns")).min(),
        exposed_ns=pl.col("exposed_ns").max(),
    )
    like = ["kind", "group", "bytes", "size"]
    links = (
        each.with_columns(size=pl.col("ranks").list.len())
        .filter(pl.col("size") > 1)
        .group_by(*like, "ranks")
        .agg(
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
        .filter((pl.col("count") >= _LEAST_LIKE) & (pl.col("others_ns") >= _LEAST_NS))
        .with_columns(
            is_slow=(pl.col("fastest_ns") >= _SLOWER * pl.col("others_ns")).all().over("ranks"),
            of_link=pl.col("calls").sum().over("ranks"),
        )
    )
    slow = links.filter(pl.col("is_slow") & (pl.col("of_link") >= _LEAST_CALLS))
    return sorted(_links(slow, max(steps, 1)), key=lambda one: (-one.costs_ns, one.ranks))


def _links(slow: pl.DataFrame, steps: int) -> Iterator[SlowLink]:
    for row in slow.iter_rows(named=True):
        more = (row["typical_ns"] - row["others_typical_ns"]) * row["calls"]
        yield SlowLink(
            ranks=row["ranks"],
            collective=row["kind"],
            group=row["group"],
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
    found: dict[str, float] = {}
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
            found[described] = peak
    return found
