"""The rows of an analysis as tables with fixed columns and types: steps, the longest gaps, iterations."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.pictures.flame import flames
from opscope.analysis.structure.annotations import SEPARATOR
from opscope.analysis.structure.call_tree import CallTree
from opscope.analysis.structure.nesting import Floats, Ints
from opscope.documents.trace import GapRow, IterationRow, Step

_STEPS: Final[Mapping[str, Any]] = {"cold": pl.Boolean}
_GAPS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("device", "start_ns", "duration_ns", "step", "stream"), pl.Int64),
}
_ITERATIONS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("kind", "detail", "bound"), pl.String),
    **dict.fromkeys(("median_ns", "host_ns"), pl.Float64),
}


_MOST_NODES: Final = 6_000  # of a tree
_LEAST_NODE: Final = 0.002  # of the device sum, or of the host's time: smaller nodes are left out


def steps_table(analysis: Analysis) -> pl.DataFrame:
    """Return the recorded steps in order, one row per step and device."""
    names = [name for name in Step.__struct_fields__ if name != "launch_bound_share"]
    return _frame(analysis.steps, names, _STEPS, pl.Int64)


def gaps_table(analysis: Analysis) -> pl.DataFrame:
    """Return the longest gaps, the longest first, with where the host was in one column (``where``)."""
    names = [name for name in GapRow.__struct_fields__ if name != "causes"]
    places = pl.coalesce("python", "operator", "module", "annotation")
    of_cause = pl.Series([gap.causes[gap.cause] for gap in analysis.gaps], dtype=pl.Int64)
    return _frame(analysis.gaps, names, _GAPS, pl.String).with_columns(where=places, cause_ns=of_cause)


def iterations_table(analysis: Analysis) -> pl.DataFrame:
    """Return the iterations of a server, one row per kind and size."""
    return _frame(analysis.iterations, list(IterationRow.__struct_fields__), _ITERATIONS, pl.Int64)


def tree_table(analysis: Analysis) -> pl.DataFrame:
    """Return what runs inside what: ranges, operators, calls and kernels as a tree, the dearest branch first.

    Returns:
        ``path`` (names from the outermost inwards, joined as those of ranges), ``calls``, ``total_device_ns`` (with
        what is inside), ``self_device_ns``, ``total_cpu_ns``, ``self_cpu_ns``. Nodes below a five-hundredth of both
        sums are left out.
    """
    trace, links = analysis.trace, analysis.links
    flame = next(flames(trace, links, CallTree.of(trace), analysis.origins, analysis.backward_pass, _MOST_NODES))
    device, cpu = flame.totals(flame.device_ns), flame.totals(flame.cpu_ns)
    of_device, of_cpu = device / max(int(flame.device_ns.sum()), 1), cpu / max(int(flame.cpu_ns.sum()), 1)
    shown = np.maximum(of_device, of_cpu) >= _LEAST_NODE
    order = _depth_first(flame.parent, of_device + of_cpu)
    paths: list[str] = []
    by_node: dict[int, str] = {}
    for node in order:
        above = int(flame.parent[node])
        name = flame.names[flame.name[node]]
        by_node[node] = name if above < 0 else f"{by_node[above]}{SEPARATOR}{name}"
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
    found, stack = [], list(below.get(-1, ()))
    while stack:
        node = stack.pop()
        found.append(node)
        stack += below.get(node, ())
    return found


def _frame(rows: Sequence[object], names: Sequence[str], types: Mapping[str, Any], other: Any) -> pl.DataFrame:
    """Return attributes of rows as columns.

    Args:
        rows: the rows.
        names: the attributes, which name the columns.
        types: the types of some columns.
        other: the type of all other columns.
    """
    values = {name: [getattr(row, name) for row in rows] for name in names}
    return pl.DataFrame(values, schema={name: types.get(name, other) for name in names})
