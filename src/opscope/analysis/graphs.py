"""What each node of a replayed CUDA graph cost.

All activities of one replay share its correlation id. Recent drivers number graphs and nodes; where they did not, a
graph is known by the sequence of its kernels, and a node by its place in that sequence.
"""

import numpy as np
import polars as pl

from opscope.analysis.links import Links
from opscope.model import Trace

_BY_ID, _BY_ORDER = "graph and node id", "order in the replay"


def graph_table(trace: Trace, links: Links) -> pl.DataFrame:
    """Return one row per node of every replayed graph, in the order of graphs and nodes.

    Columns: ``device``, ``graph`` and ``node`` (numbers), ``known_by``, ``name``, ``replays`` (how many recorded the
    node), and the durations ``total_ns``, ``mean_ns``, ``min_ns``, ``max_ns``.
    """
    duration = pl.col("duration_ns")
    return (
        _numbered(_replayed(trace, links))
        .group_by("device", "graph", "node", "known_by", "name")
        .agg(
            replays=pl.len(),
            total_ns=duration.sum(),
            mean_ns=duration.mean(),
            min_ns=duration.min(),
            max_ns=duration.max(),
        )
        .sort("device", "graph", "node", "name")
    )


def _replayed(trace: Trace, links: Links) -> pl.DataFrame:
    is_graph_launch = trace.launches["name"].cast(pl.String).str.contains("GraphLaunch").to_numpy()
    replayed = trace.activities["graph_node_id"].fill_null(0).to_numpy() != 0
    launched = links.activity_launch >= 0
    replayed[launched] |= is_graph_launch[links.activity_launch[launched]]
    return trace.activities[np.flatnonzero(replayed)].with_columns(pl.col("name").cast(pl.String))


def _numbered(replayed: pl.DataFrame) -> pl.DataFrame:
    replay = ["device", "correlation"]
    has_ids = pl.col("graph_node_id").fill_null(0) != 0
    placed = replayed.sort("start_ns", maintain_order=True).with_columns(
        place=pl.int_range(pl.len()).over(replay),
        sequence=pl.col("name").str.join("\n").over(replay),
    )
    return placed.with_columns(
        graph=pl.when(has_ids).then("graph_id").otherwise(pl.col("sequence").rank("dense").cast(pl.Int64)),
        node=pl.when(has_ids).then("graph_node_id").otherwise("place"),
        known_by=pl.when(has_ids).then(pl.lit(_BY_ID)).otherwise(pl.lit(_BY_ORDER)),
    )
