"""Joins the compiled graphs of a trace with the lines that their kernels compute."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, nesting_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.base.text import lazy_pattern
from opscope.trace.compile_log import CompiledKernel
from opscope.trace.model import Trace

# What Inductor records around a call of a graph (``torch/_inductor/output_code.py``).
_CALL: Final = lazy_pattern(r"^## Call CompiledFxGraph (\w+) ##$")
# What Dynamo records around a compiled function (``torch/_dynamo/eval_frame.py``).
REGION: Final = lazy_pattern(r"^Torch-Compiled Region: ((?:!\d+/)?\d+/\d+)$")
_EXTERN: Final = "extern_kernels."


class GraphCalls(Struct, frozen=True):
    """The calls of compiled graphs in a trace.

    Attributes:
        row: per call its row among the trace's annotations, by start.
        key: per call the key of its graph.
        region: per call the innermost compiled function around it; None outside of all, as in a backward pass.
        of_activity: per activity the place of the call that launched it, or -1.
    """

    row: Ints
    key: tuple[str, ...]
    region: tuple[str | None, ...]
    of_activity: Ints


def graph_calls(trace: Trace, links: Links) -> GraphCalls:
    """Find the calls of graphs, and what they launched."""
    named = trace.annotations["name"].cast(pl.String)
    keys = named.str.extract(_CALL.pattern)
    rows = np.flatnonzero(keys.is_not_null().to_numpy())
    rows = rows[np.argsort(column(trace.annotations, "start_ns")[rows], kind="stable")]
    of_activity = np.full(trace.activities.height, -1, np.int64)
    if len(rows):
        launched = np.flatnonzero(links.activity_launch >= 0)
        call = links.activity_launch[launched]
        thread, time = (column(trace.launches, name)[call] for name in ("thread", "start_ns"))
        of_activity[launched] = nesting_of(trace.annotations[rows]).innermost_at(thread, time)
    return GraphCalls(rows, tuple(keys[rows].to_list()), tuple(_regions_around(trace, rows)), of_activity)


def _regions_around(trace: Trace, annotations: Ints) -> list[str | None]:
    numbers = trace.operators["name"].cast(pl.String).str.extract(REGION.pattern)
    rows = np.flatnonzero(numbers.is_not_null().to_numpy())
    thread, start = (column(trace.annotations, name)[annotations] for name in ("thread", "start_ns"))
    around = nesting_of(trace.operators[rows]).innermost_at(thread, start)
    names = numbers[rows].to_list()
    return [names[row] if row >= 0 else None for row in around.tolist()]


def compilation_of(region: str | None, compilations: Collection[str]) -> str | None:
    """Return whose graph a call is: of several compilations that share it, that of the function around the call.

    Args:
        region: the compiled function around the call.
        compilations: those that have the graph, by the log.
    """
    if len(compilations) == 1:
        return next(iter(compilations))
    return region if region in compilations else None


def kernels_of_activities(
    trace: Trace, links: Links, calls: GraphCalls, kernels: Iterable[CompiledKernel], activities: Ints
) -> dict[int, CompiledKernel]:
    """Tell which call of a kernel in the generated code each activity is.

    Generated code calls its kernels in a fixed order. So of each name the n-th operator in a call of a graph is the
    n-th call of that name in the code. A replayed CUDA graph has no operators: its Triton kernels are known by their
    names, and what lies between two of them belongs to a library's call if the code has exactly one there.

    Args:
        trace: the trace.
        links: its links.
        calls: its calls of graphs.
        kernels: all calls of kernels that the log has.
        activities: the rows of the activities that are asked for.

    Returns:
        Per activity that is known its kernel.
    """
    of_graph: dict[str, dict[str, list[CompiledKernel]]] = defaultdict(lambda: defaultdict(list))
    for kernel in kernels:
        if kernel.graph is not None:
            of_graph[kernel.graph][kernel.id].append(kernel)
    start = column(trace.activities, "start_ns")
    inside = activities[calls.of_activity[activities] >= 0]
    inside = inside[np.lexsort((start[inside], calls.of_activity[inside]))]
    pairs = zip(calls.of_activity[inside].tolist(), inside.tolist(), strict=True)
    names = trace.activities["name"].cast(pl.String)
    top = _outermost_operators(trace, links, calls, inside)
    operators = trace.operators["name"].cast(pl.String).to_list()
    result: dict[int, CompiledKernel] = {}
    for call, group in groupby(pairs, key=itemgetter(0)):
        sharing = of_graph.get(calls.key[call], {})
        compiled = compilation_of(calls.region[call], sharing)
        known = [] if compiled is None else sorted(sharing[compiled], key=lambda kernel: kernel.number)
        rows = [row for _, row in group]
        if not known:
            continue
        by_operator = dict(_by_operators(rows, [top[row] for row in rows], operators, known))
        result.update(by_operator)
        replayed = [row for row in rows if top[row] < 0]
        if not replayed:
            continue
        taken = {kernel.number for kernel in by_operator.values()}
        left = [kernel for kernel in known if kernel.number not in taken]
        result.update(_by_names(replayed, [str(names[row]) for row in replayed], left))
    return result


def _outermost_operators(trace: Trace, links: Links, calls: GraphCalls, activities: Ints) -> dict[int, int]:
    """Return per activity of a call the outermost operator that began within the call, or -1."""
    start, parent = column(trace.operators, "start_ns"), links.operators.parent
    began = column(trace.annotations, "start_ns")[calls.row][calls.of_activity[activities]]
    result, above = np.full(len(activities), -1, np.int64), links.activity_operator[activities].copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):  # all climb at once
        climbing = climbing[start[above[climbing]] >= began[climbing]]
        result[climbing] = above[climbing]
        above[climbing] = parent[above[climbing]]
        climbing = climbing[above[climbing] >= 0]
    return dict(zip(activities.tolist(), result.tolist(), strict=True))


def _by_operators(
    rows: Sequence[int], top: Sequence[int], names: Sequence[str], known: Sequence[CompiledKernel]
) -> Iterator[tuple[int, CompiledKernel]]:
    by_name: dict[str, list[CompiledKernel]] = defaultdict(list)
    for kernel in known:
        by_name[_plain(kernel.name)].append(kernel)
    seen = Counter[str]()
    assigned: dict[int, CompiledKernel] = {}
    for operator in sorted({one for one in top if one >= 0}):
        name = _plain(str(names[operator]))
        if seen[name] < len(by_name[name]):
            assigned[operator] = by_name[name][seen[name]]
        seen[name] += 1
    # An operator more or less than the code has shifts all behind it: then none of that name is known.
    for row, operator in zip(rows, top, strict=True):
        if (one := assigned.get(operator)) is not None and seen[_plain(one.name)] == len(by_name[_plain(one.name)]):
            yield row, one


def _by_names(
    rows: Sequence[int], names: Sequence[str], known: Sequence[CompiledKernel]
) -> Mapping[int, CompiledKernel]:
    known = [kernel for kernel in known if not kernel.name.startswith("cpp_")]  # these run on the host
    triton = [kernel for kernel in known if "." not in kernel.name]
    wanted = {kernel.name for kernel in triton}
    ran = [at for at, name in enumerate(names) if name in wanted]
    if [names[at] for at in ran] != [kernel.name for kernel in triton]:
        return {}
    result = {rows[at]: kernel for at, kernel in zip(ran, triton, strict=True)}
    place = {kernel.number: at for at, kernel in zip(ran, triton, strict=True)}
    # The library's calls between two Triton kernels, by the place of the activity before them.
    before, between = -1, defaultdict[int, list[CompiledKernel]](list)
    for kernel in known:
        if kernel.number in place:
            before = place[kernel.number]
        else:
            between[before].append(kernel)
    ends = [*ran, len(names)]
    for first, libraries in between.items():
        end = next(at for at in ends if at > first)
        run = rows[first + 1 : end]
        if len(libraries) == 1:  # of several, nothing tells how many activities each has
            result.update(dict.fromkeys(run, libraries[0]))
    return result


def _plain(name: str) -> str:
    """Return a name without what the trace or the generated code puts around it."""
    if name.startswith("aten::"):
        return name.removeprefix("aten::")
    if name.startswith(_EXTERN):
        return name.removeprefix(_EXTERN)
    if name.startswith(("torch.ops.", "aten.")):  # torch.ops.aten._scaled_dot_product_flash_attention.default
        parts = name.removeprefix("torch.ops.").split(".")
        return parts[1] if len(parts) > 1 else name
    return name
