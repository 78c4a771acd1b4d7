"""Records once what a call runs: its operators and its kernels."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.links import link
from opscope.base.files import scratch
from opscope.knowledge.kernels.kinds import short_name
from opscope.readers import read
from opscope.torch_support.device import synchronize

_RANGE = "opscope.bench.ran"
_DEEPEST = 4  # levels of operators within operators; deeper ones do not help to compare


def what_ran(call: Callable[[], object], device: torch.device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the operators of a call, and its kernels, copies and fills; equal ones are counted: ``3 x aten::add``.

    Operators that an operator calls follow it in brackets: ``aten::square (aten::pow)``.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    call()  # timed calls come after others as well, so a call that keeps its result is seen to run nothing
    synchronize(device)
    with profile(activities=activities) as profiler:
        with record_function(_RANGE):
            result = call()
        synchronize(device)
    del result
    with scratch() as folder:
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        return _read(path)


def _read(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    trace = read(path)
    links = link(trace)
    rows = [at for at, name in enumerate(trace.annotations["name"].cast(str)) if name == _RANGE]
    if not rows:
        return (), ()
    begin, end = int(trace.annotations["start_ns"][rows[0]]), int(end_of(trace.annotations)[rows[0]])
    starts = column(trace.operators, "start_ns")
    parent = nesting_of(trace.operators).parent
    inside = np.flatnonzero((starts >= begin) & (starts < end))
    inside = inside[np.argsort(starts[inside], kind="stable")]
    # Rows of the operators' table, by the row of the operator that calls them; -1 stands for none.
    children: dict[int, list[int]] = {}
    for row in inside.tolist():
        children.setdefault(int(parent[row]), []).append(row)
    outermost = [row for row in inside.tolist() if parent[row] < 0]
    launched = np.flatnonzero(links.activity_launch >= 0)
    when = column(trace.launches, "start_ns")[links.activity_launch[launched]]
    own = launched[(when >= begin) & (when < end)]
    own = own[np.argsort(column(trace.activities, "start_ns")[own], kind="stable")]
    names = trace.operators["name"].cast(str).to_list()
    kernels = (short_name(str(trace.activities["name"][int(row)])) for row in own)
    return _counted(_with_inner(row, names, children) for row in outermost), _counted(kernels)


def _with_inner(row: int, names: Sequence[str], children: Mapping[int, Sequence[int]], depth: int = 0) -> str:
    """Return an operator's name, with those of the operators that it calls in brackets."""
    called = children.get(row, ()) if depth < _DEEPEST else ()
    inner = ", ".join(_counted(_with_inner(one, names, children, depth + 1) for one in called))
    return f"{names[row]} ({inner})" if inner else names[row]


def _counted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())
