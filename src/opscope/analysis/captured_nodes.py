"""Which operators the nodes of a replayed graph came from: its kernels beside the launches of a capture, in order.

A capture records operators and calls, a replay the kernels. Compiled code calls operators by the names of its kernels,
so these hold both together: where the graph lacks a node, or the capture has a launch more, only what lies between two
such kernels is uncertain.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

IN_ORDER: Final = "likely: as many launches were captured as the graph has nodes, taken in order"
BY_NAMES: Final = "likely: in order, between kernels whose names the capture has too"
NO_CAPTURE: Final = "unknown: no capture of as many launches as the graph has nodes was recorded"
AMBIGUOUS: Final = "unknown: several captures of as many launches were recorded"
OTHER_COUNT: Final = "unknown: between kernels that the capture names, other numbers were captured and replayed"
_MOST: Final = 0.5  # of the nodes: a capture that explains fewer of them is of another graph

Operators = Sequence[str | None]


def operators_of_nodes(nodes: Sequence[str], captures: Sequence[Operators]) -> tuple[list[str | None], list[str]]:
    """Return per node of a graph the operator that launched it when it was captured, and how that is known.

    Args:
        nodes: the kernels of the graph, in order.
        captures: of each capture the operators that launched something, in order.
    """
    fitting = [capture for capture in captures if len(capture) == len(nodes) and not _contradicts(nodes, capture)]
    if fitting:
        same = len({tuple(capture) for capture in fitting}) == 1
        return (list(fitting[0]) if same else [None] * len(nodes)), [IN_ORDER if same else AMBIGUOUS] * len(nodes)
    aligned = [found for capture in captures if (found := _aligned(nodes, capture)) is not None]
    if not aligned:
        return [None] * len(nodes), [NO_CAPTURE] * len(nodes)
    if len({tuple(found) for found in aligned}) > 1:
        return [None] * len(nodes), [AMBIGUOUS] * len(nodes)
    return aligned[0], [OTHER_COUNT if operator is None else BY_NAMES for operator in aligned[0]]


def _contradicts(nodes: Sequence[str], capture: Operators) -> bool:
    """Tell whether a capture of as many launches has another kernel than the graph where it names one."""
    names = set(nodes)
    return any(operator in names and operator != node for node, operator in zip(nodes, capture, strict=True))


def _aligned(nodes: Sequence[str], capture: Operators) -> list[str | None] | None:
    """Return the operators of nodes between kernels that both name; None where a capture is not of this graph.

    Where names repeat, a node or launch too many can be taken for its neighbour: only what is the same from the
    beginning and from the end is certain.
    """
    forward = _from_begin(nodes, capture)
    backward = _from_begin(nodes[::-1], capture[::-1])[::-1]
    found = [one if one == other else None for one, other in zip(forward, backward, strict=True)]
    return found if sum(one is not None for one in found) >= _MOST * len(nodes) else None


def _from_begin(nodes: Sequence[str], capture: Operators) -> list[str | None]:
    both = set(nodes) & {operator for operator in capture if operator is not None}
    named_nodes = [place for place, node in enumerate(nodes) if node in both]
    named_launches = [place for place, operator in enumerate(capture) if operator in both]
    matcher = SequenceMatcher(
        None, [nodes[place] for place in named_nodes], [capture[place] for place in named_launches], autojunk=False
    )
    found: list[str | None] = [None] * len(nodes)
    node = launch = 0
    for block in matcher.get_matching_blocks():
        for place in range(block.size):
            end, last = named_nodes[block.a + place], named_launches[block.b + place]
            if end - node == last - launch:
                found[node:end] = capture[launch:last]
            found[end] = capture[last]
            node, launch = end + 1, last + 1
    if len(nodes) - node == len(capture) - launch:
        found[node:] = capture[launch:]
    return found
