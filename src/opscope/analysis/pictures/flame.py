"""Time by where it was caused, as trees of names: by operator nesting, by module, by Python frame.

Threads that only wait are left out: their frames say nothing of where time goes.

The same as a table has ranges, operators, API calls and kernels: what runs inside what.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.costs.sums import NO_OPERATOR
from opscope.analysis.structure.annotations import RANGE_SEPARATOR
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, nesting_of, ranked
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.call_tree import CallTree, numbered, self_time
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.modules import MODULE_FRAME, NO_MODULE, Origins
from opscope.analysis.structure.nesting import Bools, Floats, Ints, Nesting
from opscope.base.text import lazy_pattern
from opscope.trace.model import Trace

_ROOT: Final = -1
NO_FRAME: Final = "(outside recorded frames)"
# Calls in which a thread waits for others, as the profiler names frames of CPython 3.10 to 3.13: built-in functions by
# repr(), those of the standard library by file (without the folder, or below lib/python3.N), line and name.
_WAITS: Final = lazy_pattern(
    r"^<built-in (?:method|function) (?:acquire|acquire_lock|sleep|select|poll|epoll|wait|recv|recv_into|accept)\b"
    r"|^<method '(?:acquire|poll|select|wait|recv|recv_into|accept)' of "
    r"|(?:^|[/\\]python3\.\d+t?[/\\])"
    r"(?:threading|queue|selectors|socket|subprocess|(?:multiprocessing|concurrent[/\\]futures|asyncio)[/\\]\w+)"
    r"\.py\(\d+\): (?:wait|get|join|select|poll|_poll|acquire|_acquire_restore|_wait_for_tstate_lock|accept|recv|_recv|"
    r"recv_bytes|_recv_bytes|recv_into|result|_run_once)$"
)
_MOSTLY: Final = 0.95  # of the time of its frames
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


class FlameBy(StrEnum):
    """What the inner nodes of a tree stand for."""

    OPERATOR = "operator"
    MODULE = "module"
    PYTHON = "python"


class Flame(Struct, frozen=True):
    """A tree of names; nodes come after their parents. Times are a node's own, without its children, in nanoseconds.

    Attributes:
        by: what its inner nodes stand for.
        parent: per node the node above it; -1 at the top.
        name: per node the position of its name in ``names``.
        names: the distinct names.
        device_ns: per node durations of device activities; they add up to the device sum.
        cpu_ns: per node time on the host.
        calls: per node how many slices or activities it stands for.
        merged: per node how many small ones it was made of; 0 for a node that was not merged.
        sleeping_threads: how many threads that only wait are left out.
        sleeping_ns: the time of their frames.
    """

    by: FlameBy
    parent: Ints
    name: Ints
    names: tuple[str, ...]
    device_ns: Ints
    cpu_ns: Ints
    calls: Ints
    merged: Ints
    sleeping_threads: int = 0
    sleeping_ns: int = 0

    def totals(self, own: Ints) -> Ints:
        """Return per node its own value plus those of all nodes below it."""
        total = own.copy()
        for node in range(len(self.parent) - 1, -1, -1):
            if self.parent[node] >= 0:
                total[self.parent[node]] += total[node]
        return total


def flames(
    trace: Trace, links: Links, tree: CallTree, origins: Origins, backward: BackwardPass, most_nodes: int
) -> Iterator[Flame]:
    """Yield the trees that the recording allows: by operator always, by module and frame where stacks were recorded.

    Args:
        trace: the trace.
        links: its links.
        tree: its calls.
        origins: where its operators come from.
        backward: its backward pass.
        most_nodes: how many nodes a tree may have; the smallest are merged, so that sums stay the same.
    """
    yield _pruned(_by_operator(trace, links, tree), most_nodes)
    if not trace.frames.height:
        return
    if (origins.module >= 0).any():
        modules = np.flatnonzero(names_that(trace.frames, lambda name: name.startswith(MODULE_FRAME)))
        nesting = nesting_of(trace.frames[modules])
        yield _pruned(_by_frames(trace, links, tree, origins.module, modules, nesting, FlameBy.MODULE), most_nodes)
    frames = nesting_of(trace.frames)
    around, asleep = _frame_around(trace, frames, origins, backward), sleeping_threads(trace, frames)
    awake = np.flatnonzero(~np.isin(frames.thread, asleep))
    nesting = frames if len(awake) == trace.frames.height else nesting_of(trace.frames[awake])
    flame = _pruned(_by_frames(trace, links, tree, around, awake, nesting, FlameBy.PYTHON), most_nodes)
    outermost = np.isin(frames.thread, asleep) & (frames.parent < 0)
    slept = int((frames.end - frames.start)[outermost].sum())
    yield replace(flame, sleeping_threads=len(asleep), sleeping_ns=slept)


def _frame_around(trace: Trace, frames: Nesting, origins: Origins, backward: BackwardPass) -> Ints:
    """Return per operator the innermost frame around it, or the user's frame of its forward operator; or -1."""
    own = frames.innermost_at(trace.operators["thread"].to_numpy(), trace.operators["start_ns"].to_numpy())
    return np.where((own >= 0) & ~backward.inside, own, np.where(origins.frame >= 0, origins.frame, own))


class _Tree:
    """Collects the nodes of a tree, parents before children."""

    def __init__(self) -> None:
        self.parents: list[Ints] = []
        self.names: list[Ints] = []
        self.size = 0

    def add(self, parent: Ints, name: Ints) -> Ints:
        """Add a node per distinct pair of parent and name; return the node of each pair."""
        if not len(parent):
            return parent
        # Both numbers of a pair in one; parents count from -1.
        width = int(name.max()) + 1
        keys, node = ranked((parent + 1) * width + name)
        self.parents.append(keys // width - 1)
        self.names.append(keys % width)
        result: Ints = self.size + node
        self.size += len(keys)
        return result

    def add_nested(self, nesting: Nesting, name: Ints) -> Ints:
        """Add the paths of nested slices; return the node of each slice."""
        node = np.full(len(name), _ROOT, np.int64)
        depth = nesting.depth()
        order = np.argsort(depth, kind="stable")
        # Level by level from the top, so that what is around a slice has its node already.
        for level in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
            above = nesting.parent[level]
            node[level] = self.add(np.where(above >= 0, node[np.maximum(above, 0)], _ROOT), name[level])
        return node

    def sums(self, node: Ints, value: Ints) -> Ints:
        """Add values up by node."""
        total = np.zeros(self.size, np.int64)
        np.add.at(total, node, value)
        return total

    def flame(self, by: FlameBy, names: tuple[str, ...], device: Ints, cpu: Ints, calls: Ints) -> Flame:
        """Return what was collected."""
        none = np.zeros(0, np.int64)
        parent, name = (np.concatenate(parts) if parts else none for parts in (self.parents, self.names))
        return Flame(by, parent, name, names, device, cpu, calls, np.zeros(self.size, np.int64))


def _activity_names(trace: Trace, after: int) -> tuple[Ints, tuple[str, ...]]:
    """Return per activity the number of its name, counted from ``after`` on, and the distinct names."""
    name, names = numbered(trace.activities["name"])
    return name + after, names


def _by_operator(trace: Trace, links: Links, calls: CallTree) -> Flame:
    """Build the tree of named ranges around operators around their API calls and kernels."""
    tree = _Tree()
    node = tree.add_nested(calls.nesting, calls.name)
    # Names are numbered in this order: those of calls, NO_OPERATOR, those of kernels.
    kernel, kernels = _activity_names(trace, len(calls.names) + 1)
    unlinked = tree.add(np.array([_ROOT]), np.array([len(calls.names)]))
    leaf = tree.add(_above(links, calls, node, int(unlinked[0])), kernel)
    duration = trace.activities["duration_ns"].to_numpy()
    return tree.flame(
        FlameBy.OPERATOR,
        (*calls.names, NO_OPERATOR, *kernels),
        tree.sums(leaf, duration),
        tree.sums(node, calls.self_ns),
        tree.sums(np.concatenate([node, leaf]), np.ones(len(node) + len(leaf), np.int64)),
    )


def _above(links: Links, calls: CallTree, node: Ints, unlinked: int) -> Ints:
    """Return per activity the node of its operator, else of the range around its launch, else ``unlinked``."""
    operator, launch = links.activity_operator, links.activity_launch
    above = np.full(len(operator), unlinked, np.int64)
    known = operator >= 0
    above[known] = node[calls.first_operator + operator[known]]
    bare = np.flatnonzero(~known & (launch >= 0))
    around = calls.nesting.parent[calls.first_launch + launch[bare]]
    above[bare] = np.where(around >= 0, node[np.maximum(around, 0)], unlinked)
    return above


def _by_frames(
    trace: Trace, links: Links, calls: CallTree, frame: Ints, rows: Ints, nesting: Nesting, by: FlameBy
) -> Flame:
    """Build the tree of Python frames or modules around the operators that they call around the kernels of these.

    Args:
        trace: the trace.
        links: its links.
        calls: its calls.
        frame: per operator the row of its frame, or -1.
        rows: the rows of the frames that count.
        nesting: how these lie in each other.
        by: what these frames are.
    """
    tree = _Tree()
    # From the row of a frame to its place among those that count; -1 for all others, and for no frame.
    chosen = np.append(np.full(trace.frames.height, -1, np.int64), -1)
    chosen[rows] = np.arange(len(rows))
    name, names = numbered(trace.frames["name"][rows])
    node = tree.add_nested(nesting, name)
    nowhere = int(tree.add(np.array([_ROOT]), np.array([len(names)]))[0])
    # Names are numbered in this order: those of frames, the one for no frame, those of operators, those of kernels.
    operator, operators = numbered(trace.operators["name"])
    at = chosen[frame]
    of_operator = tree.add(np.where(at >= 0, np.append(node, -1)[at], nowhere), operator + len(names) + 1)
    kernel, kernels = _activity_names(trace, len(names) + 1 + len(operators))
    owner = links.activity_operator
    leaf = tree.add(np.where(owner >= 0, np.append(of_operator, -1)[owner], nowhere), kernel)
    own = calls.self_ns[calls.first_operator : calls.first_launch] + _api_time(links, calls)
    host = tree.sums(of_operator, own) if by is FlameBy.MODULE else tree.sums(node, self_time(nesting))
    every = np.concatenate([node, of_operator, leaf])
    return tree.flame(
        by,
        (*(text.removeprefix(MODULE_FRAME) if by is FlameBy.MODULE else text for text in names),
         NO_MODULE if by is FlameBy.MODULE else NO_FRAME, *operators, *kernels),
        tree.sums(leaf, trace.activities["duration_ns"].to_numpy()),
        host,
        tree.sums(every, np.ones(len(every), np.int64)),
    )  # fmt: skip


def _api_time(links: Links, calls: CallTree) -> Ints:
    """Return per operator the time of the API calls that it makes itself."""
    time = np.zeros(len(links.operator_self_ns), np.int64)
    inside = links.launch_operator >= 0
    np.add.at(time, links.launch_operator[inside], calls.self_ns[calls.first_launch :][inside])
    return time


def _pruned(flame: Flame, most: int) -> Flame:
    """Merge the smallest nodes with their siblings, without changing any sum."""
    if len(flame.parent) <= most:
        return flame
    device, cpu = flame.totals(flame.device_ns), flame.totals(flame.cpu_ns)
    weight = device / max(int(flame.device_ns.sum()), 1) + cpu / max(int(flame.cpu_ns.sum()), 1)
    # Half of the room is for the nodes that stand for the small children of those that stay. A parent weighs no less
    # than its children and comes before them, so the parent of a node that stays does too.
    kept = np.zeros(len(weight), np.bool_)
    kept[np.argsort(-weight, kind="stable")[: most // 2]] = True
    return _merged(flame, kept)


def _merged(flame: Flame, kept: Bools) -> Flame:
    count = int(kept.sum())
    place = np.full(len(kept), -1, np.int64)
    place[kept] = np.arange(count)
    others: dict[int, int] = {}
    for node in np.flatnonzero(~kept).tolist():
        above = int(flame.parent[node])
        # The parent was merged before: all below it goes into the same node.
        if above >= 0 and not kept[above]:
            place[node] = place[above]
        else:
            place[node] = others.setdefault(above, count + len(others))
    size = count + len(others)
    device, cpu, calls, merged = (np.zeros(size, np.int64) for _ in range(4))
    for total, own in (
        (device, flame.device_ns),
        (cpu, flame.cpu_ns),
        (calls, flame.calls),
        (merged, ~kept),
    ):
        np.add.at(total, place, own)
    around = flame.parent[kept]
    parent = np.concatenate([np.where(around >= 0, place[np.maximum(around, 0)], -1),
                             [-1 if node < 0 else place[node] for node in others]]).astype(np.int64)  # fmt: skip
    name = np.concatenate([flame.name[kept], np.full(len(others), len(flame.names))])
    return Flame(flame.by, parent, name, (*flame.names, "(smaller ones)"), device, cpu, calls, merged)


def sleeping_threads(trace: Trace, frames: Nesting) -> Ints:
    """Return the numbers of the threads that wait nearly all the time and run no operator, call or named range.

    Args:
        trace: the trace.
        frames: the nesting of its Python frames.
    """
    tables = (trace.operators, trace.launches, trace.annotations)
    busy = np.unique(np.concatenate([column(table, "thread") for table in tables]))
    thread, own = column(trace.frames, "thread"), self_time(frames)
    size = int(thread.max(initial=-1)) + 1
    whole = np.bincount(thread, weights=own, minlength=size)
    waits = names_that(trace.frames, _WAITS.search)
    waiting = np.bincount(thread[waits], weights=own[waits], minlength=size)
    result = np.flatnonzero((whole > 0) & (waiting >= _MOSTLY * whole))
    sleeping: Ints = result[~np.isin(result, busy)]
    return sleeping
