"""What runs inside what, as a table: ranges, operators, API calls and kernels."""

from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.pictures.flame import flames
from opscope.analysis.structure.annotations import RANGE_SEPARATOR
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.call_tree import CallTree
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Floats, Ints
from opscope.analysis.structure.origins import Origins
from opscope.trace.model import Trace

_MOST_NODES: Final = 6_000  # of a tree
_LEAST_NODE: Final = 0.002  # of the device sum, or of the host's time: smaller nodes are left out


def tree_table(trace: Trace, links: Links, origins: Origins, backward: BackwardPass) -> pl.DataFrame:
    """Return what runs inside what: ranges, operators, calls and kernels as a tree, the most expensive branch first.

    Returns:
        ``path`` (names from the outermost inwards, joined as those of ranges), ``calls``, ``total_device_ns`` (with
        what is inside), ``self_device_ns``, ``total_cpu_ns``, ``self_cpu_ns``. Nodes below a five-hundredth of both
        sums are left out.
    """
    flame = next(flames(trace, links, CallTree.of(trace), origins, backward, _MOST_NODES))
    device, cpu = flame.totals(flame.device_ns), flame.totals(flame.cpu_ns)
    of_device, of_cpu = device / max(int(flame.device_ns.sum()), 1), cpu / max(int(flame.cpu_ns.sum()), 1)
    shown = np.maximum(of_device, of_cpu) >= _LEAST_NODE
    order = _depth_first(flame.parent, of_device + of_cpu)
    paths: list[str] = []
    by_node: dict[int, str] = {}
    for node in order:
        above = int(flame.parent[node])
        name = flame.names[flame.name[node]]
        by_node[node] = name if above < 0 else f"{by_node[above]}{RANGE_SEPARATOR}{name}"
        paths.append(by_node[node])
    kept = np.array(order, np.int64)
    columns = {
        "path": pl.Series(paths, dtype=pl.String), "calls": flame.calls[kept], "total_device_ns": device[kept],
        "self_device_ns": flame.device_ns[kept], "total_cpu_ns": cpu[kept], "self_cpu_ns": flame.cpu_ns[kept],
    }  # fmt: skip
    return pl.DataFrame(columns).filter(pl.Series(shown[kept]))


def _depth_first(parent: Ints, weight: Floats) -> list[int]:
    """Return the nodes of a tree, each before those below it, the heaviest of siblings first."""
    below: dict[int, list[int]] = {}
    for node in np.argsort(weight, kind="stable").tolist():  # the lightest first: the stack turns that round
        below.setdefault(int(parent[node]), []).append(node)
    result, stack = [], list(below.get(-1, ()))
    while stack:
        node = stack.pop()
        result.append(node)
        stack += below.get(node, ())
    return result
