"""What each node of a replayed CUDA graph cost, and which operator launched it when the graph was captured.

All activities of one replay share its correlation id. Recent drivers number graphs and nodes; without numbers, a graph
is known by the sequence of its kernels, and a node by its place in that sequence.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.structure.api_masks import calls_of, calls_that
from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.launches import captured_into_graph
from opscope.analysis.structure.links import Links, link
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.knowledge.api_calls import ApiKind
from opscope.trace.model import Trace

NOT_ATTRIBUTED: Final = "(graph replay, not attributed)"
REPLAYED: Final = "(graph replay)"
_BY_ID, _BY_ORDER = "graph and node id", "order in the replay"
IN_ORDER: Final = "likely: as many launches were captured as the graph has nodes, taken in order"
BY_NAMES: Final = "likely: in order, between kernels whose names the capture has too"
NO_CAPTURE: Final = "unknown: no capture of as many launches as the graph has nodes was recorded"
AMBIGUOUS: Final = "unknown: several captures of as many launches were recorded"
OTHER_COUNT: Final = "unknown: between kernels that the capture names, other numbers were captured and replayed"
_MOST: Final = 0.5  # of the nodes: a capture that explains fewer is of another graph
_MOST_PAIRS: Final = 16_000_000  # nodes times launches: a graph of 4,000 nodes takes a second

_Operators = Sequence[str | None]


def operators_of_nodes(nodes: Sequence[str], captures: Sequence[_Operators]) -> tuple[list[str | None], list[str]]:
    """Return per node of a graph the operator that launched it when it was captured, and how that is known.

    Args:
        nodes: the kernels of the graph, in order.
        captures: per capture the operators of its launches, in order; None for a launch of no operator.
    """
    fitting = [capture for capture in captures if len(capture) == len(nodes) and not _contradicts(nodes, capture)]
    if fitting:
        same = len({tuple(capture) for capture in fitting}) == 1
        return (list(fitting[0]) if same else [None] * len(nodes)), [IN_ORDER if same else AMBIGUOUS] * len(nodes)
    aligned = [result for capture in captures if (result := _aligned(nodes, capture)) is not None]
    if not aligned:
        return [None] * len(nodes), [NO_CAPTURE] * len(nodes)
    if len({tuple(result) for result in aligned}) > 1:
        return [None] * len(nodes), [AMBIGUOUS] * len(nodes)
    return aligned[0], [OTHER_COUNT if operator is None else BY_NAMES for operator in aligned[0]]


def _contradicts(nodes: Sequence[str], capture: _Operators) -> bool:
    """Tell whether a capture names a kernel of the graph at the place of another one. Both must be equally long."""
    names = set(nodes)
    return any(operator in names and operator != node for node, operator in zip(nodes, capture, strict=True))


def _aligned(nodes: Sequence[str], capture: _Operators) -> list[str | None] | None:
    """Return the operators of the nodes, by kernels that both sides name; None if the capture is of another graph.

    There may be several ways to pair as many nodes with launches as possible, in order. A node gets an operator only if
    all ways agree on it: where names repeat, a launch too many can be taken for its neighbour.
    """
    if len(nodes) * len(capture) > _MOST_PAIRS or not set(nodes) & set(capture):
        return None
    fits = _fits(nodes, capture)
    # before[n, l]: the most pairs among the first n nodes and l launches; after[n, l]: among those from n and l on.
    before = _paired(fits)
    after = _paired(fits[::-1, ::-1])[::-1, ::-1]
    most = before[-1, -1]
    # Pairs that some best way has, and nodes that some best way leaves out.
    possible = fits & (before[:-1, :-1] + 1 + after[1:, 1:] == most)
    skipped = (before[:-1] + after[1:] == most).any(axis=1)
    results: list[str | None] = []
    for row, skips in zip(possible, skipped.tolist(), strict=True):
        operators = {capture[launch] for launch in np.flatnonzero(row).tolist()}
        results.append(operators.pop() if len(operators) == 1 and not skips else None)
    return results if sum(one is not None for one in results) >= _MOST * len(nodes) else None


def _fits(nodes: Sequence[str], capture: _Operators) -> Bools:
    """Tell per node and launch whether they can belong together: names that both sides have must be equal."""
    both = set(nodes) & {operator for operator in capture if operator is not None}
    numbers = {name: number for number, name in enumerate(sorted(both), start=1)}
    of_nodes = np.array([numbers.get(node, 0) for node in nodes])
    of_launches = np.array([0 if operator is None else numbers.get(operator, 0) for operator in capture])
    fits: Bools = of_nodes[:, None] == of_launches[None, :]
    return fits


def _paired(fits: Bools) -> Ints:
    """Return the most pairs, in order, among the first n nodes and l launches (longest common subsequence)."""
    nodes, launches = fits.shape
    most = np.zeros((nodes + 1, launches + 1), np.int32)
    for node in range(nodes):
        # Leave the node out, or pair it with this launch; the running maximum then leaves launches out.
        paired = np.maximum(most[node, 1:], most[node, :-1] + fits[node])
        most[node + 1, 1:] = np.maximum.accumulate(paired)
    return most


def graph_table(trace: Trace, links: Links, capture: Trace | None = None) -> pl.DataFrame:
    """Return one row per node of every replayed graph, in the order of graphs and nodes.

    Columns: ``device``, ``graph`` and ``node`` (numbers), ``known_by``, ``name``, ``replays`` (how many recorded the
    node), the durations ``total_ns``, ``mean_ns``, ``min_ns``, ``max_ns``, and ``captured_operator`` (the operator
    that launched the node when the graph was captured) with ``captured_how``.

    Args:
        trace: the trace.
        links: its links.
        capture: another trace, in which the graphs were captured; None for the trace itself.
    """
    nodes = _durations(trace, links)
    return _with_operators(nodes, _captures(trace, links) if capture is None else _captures(capture, link(capture)))


def replayed_operators(trace: Trace, links: Links, nodes: pl.DataFrame) -> pl.Series:
    """Return per activity of a replay what it is charged to; null for all others.

    That is the captured operator, marked with `REPLAYED`, where it is known; else `NOT_ATTRIBUTED`.

    Args:
        trace: the trace.
        links: its links.
        nodes: its `graph_table`.
    """
    rows = _replayed_rows(trace, links)
    keys = ["device", "graph", "node"]
    numbered = _numbered(_replayed(trace, links).with_columns(row=pl.Series(rows)))
    known = nodes.select(*keys, "name", "captured_operator")
    joined = numbered.join(known, on=[*keys, "name"], how="left", nulls_equal=True).sort("row")
    charged = joined.select(
        pl.when(pl.col("captured_operator").is_null())
        .then(pl.lit(NOT_ATTRIBUTED))
        .otherwise(pl.col("captured_operator") + f" {REPLAYED}")
    ).to_series()
    result = pl.Series([None] * trace.activities.height, dtype=pl.String)
    return result.scatter(joined["row"], charged) if len(rows) else result


def _captures(trace: Trace, links: Links) -> list[list[str | None]]:
    """Return per captured graph the operators that launched its nodes, in order."""
    launches = trace.launches
    launching = calls_that(launches, lambda call: call.enqueues) & ~calls_of(launches, ApiKind.GRAPH_LAUNCH)
    thread, start = column(launches, "thread"), column(launches, "start_ns")
    begins = calls_of(launches, ApiKind.CAPTURE_BEGIN)
    operators = trace.operators["name"]
    captures: dict[tuple[int, int], list[str | None]] = {}
    captured = np.flatnonzero(launching & captured_into_graph(launches))
    number = np.zeros(len(captured), np.int64)
    for owner in np.unique(thread[captured]):
        own = thread[captured] == owner
        begun = np.sort(start[begins & (thread == owner)])
        # A thread captures one graph after the other: the count of its begins so far tells them apart.
        number[own] = np.searchsorted(begun, start[captured[own]], side="right")
    for row, place in zip(captured.tolist(), number.tolist(), strict=True):
        owner = int(links.launch_operator[row])
        captures.setdefault((int(thread[row]), place), []).append(operators[owner] if owner >= 0 else None)
    return list(captures.values())


def _with_operators(nodes: pl.DataFrame, captures: list[list[str | None]]) -> pl.DataFrame:
    operators: list[str | None] = []
    how: list[str] = []
    # Rows come sorted by device, graph and node, so that the groups' answers, one after the other, match the rows.
    for (_, _), graph in nodes.group_by("device", "graph", maintain_order=True):
        result, known_how = operators_of_nodes(graph["name"].to_list(), captures)
        operators += result
        how += known_how
    return nodes.with_columns(
        captured_operator=pl.Series(operators, dtype=pl.String), captured_how=pl.Series(how, dtype=pl.String)
    )


def _durations(trace: Trace, links: Links) -> pl.DataFrame:
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
        .sort("device", "graph", "node", "name", "known_by")
    )


def _replayed(trace: Trace, links: Links) -> pl.DataFrame:
    return trace.activities[_replayed_rows(trace, links)].with_columns(pl.col("name").cast(pl.String))


def _replayed_rows(trace: Trace, links: Links) -> Ints:
    is_graph_launch = calls_of(trace.launches, ApiKind.GRAPH_LAUNCH)
    # A node's number tells by itself; without numbers the launching call does.
    replayed = trace.activities["graph_node_id"].fill_null(0).to_numpy() != 0
    launched = links.activity_launch >= 0
    replayed[launched] |= is_graph_launch[links.activity_launch[launched]]
    return np.flatnonzero(replayed)


def _numbered(replayed: pl.DataFrame) -> pl.DataFrame:
    replay = ["device", "correlation"]
    has_ids = pl.col("graph_node_id").fill_null(0) != 0
    placed = replayed.sort("start_ns", maintain_order=True).with_columns(place=pl.int_range(pl.len()).over(replay))
    # Once per replay: a sequence is as long as its graph.
    sequences = placed.group_by(replay, maintain_order=True).agg(pl.col("name").str.join("\n").alias("sequence"))
    # Replays of the same sequence of kernels count as one graph.
    numbers = sequences.select(*replay, number=pl.col("sequence").rank("dense").cast(pl.Int64))
    placed = placed.join(numbers, on=replay, how="left", nulls_equal=True, maintain_order="left")
    return placed.with_columns(
        graph=pl.when(has_ids).then("graph_id").otherwise("number"),
        node=pl.when(has_ids).then("graph_node_id").otherwise("place"),
        known_by=pl.when(has_ids).then(pl.lit(_BY_ID)).otherwise(pl.lit(_BY_ORDER)),
    )
