"""Which operators the nodes of a replayed graph came from, by aligning its kernels with the launches of a capture.

A capture records operators and calls, a replay records kernels. Compiled code names operators after its kernels, which
ties both together: if the graph lacks a node, or the capture has a launch more, only what lies between two such kernels
is uncertain.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opscope.analysis.structure.nesting import Bools, Ints

IN_ORDER: Final = "likely: as many launches were captured as the graph has nodes, taken in order"
BY_NAMES: Final = "likely: in order, between kernels whose names the capture has too"
NO_CAPTURE: Final = "unknown: no capture of as many launches as the graph has nodes was recorded"
AMBIGUOUS: Final = "unknown: several captures of as many launches were recorded"
OTHER_COUNT: Final = "unknown: between kernels that the capture names, other numbers were captured and replayed"
_MOST: Final = 0.5  # of the nodes: a capture that explains fewer is of another graph
_MOST_PAIRS: Final = 16_000_000  # nodes times launches: a graph of 4,000 nodes takes a second

Operators = Sequence[str | None]


def operators_of_nodes(nodes: Sequence[str], captures: Sequence[Operators]) -> tuple[list[str | None], list[str]]:
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


def _contradicts(nodes: Sequence[str], capture: Operators) -> bool:
    """Tell whether a capture names a kernel of the graph at the place of another one. Both must be equally long."""
    names = set(nodes)
    return any(operator in names and operator != node for node, operator in zip(nodes, capture, strict=True))


def _aligned(nodes: Sequence[str], capture: Operators) -> list[str | None] | None:
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


def _fits(nodes: Sequence[str], capture: Operators) -> Bools:
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
