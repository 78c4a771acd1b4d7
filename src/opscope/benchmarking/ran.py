"""What a call runs: its operators and its kernels, recorded once."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from opscope.analysis.columns import column, end_of, nesting_of
from opscope.analysis.links import link
from opscope.knowledge.kernels.kinds import short_name
from opscope.readers import read
from opscope.torch_device import synchronize

_RANGE = "opscope.bench.ran"


def what_ran(call: Callable[[], object], device: torch.device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the outermost operators of a call, and its kernels, copies and fills; of equal ones the number."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    call()  # as the calls that are timed come after others: what was kept from one shows
    synchronize(device)
    with profile(activities=activities) as profiler:
        with record_function(_RANGE):
            result = call()
        synchronize(device)
    del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
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
    outermost = nesting_of(trace.operators).parent < 0
    operators = np.flatnonzero(outermost & (starts >= begin) & (starts < end))
    operators = operators[np.argsort(starts[operators], kind="stable")]
    launched = np.flatnonzero(links.activity_launch >= 0)
    when = column(trace.launches, "start_ns")[links.activity_launch[launched]]
    mine = launched[(when >= begin) & (when < end)]
    mine = mine[np.argsort(column(trace.activities, "start_ns")[mine], kind="stable")]
    names = (str(trace.operators["name"][int(row)]) for row in operators)
    kernels = (short_name(str(trace.activities["name"][int(row)])) for row in mine)
    return _counted(names), _counted(kernels)


def _counted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())
