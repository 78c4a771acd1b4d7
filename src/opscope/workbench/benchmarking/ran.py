"""Records once what a call runs, its operators and its kernels, and compares it with what the device allows.

The limit is that of the operations and the least bytes of the baseline.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.links import link
from opscope.base.files import scratch
from opscope.base.units import NS_PER_S
from opscope.documents.bench import LimitShare
from opscope.knowledge.devices import datasheet_peaks, device_called, peaks_called
from opscope.knowledge.kernels.kinds import short_name
from opscope.measuring.clock import synchronize
from opscope.readers.reading import read
from opscope.workbench.benchmarking.case import Function

_RANGE = "opscope.bench.ran"
_DEEPEST = 4  # levels of operators within operators; deeper ones do not help to compare
_PRECISION: Final = {"float32": "fp32", "tf32": "tf32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}


def least_work(function: Function, inputs: Sequence[object]) -> tuple[int, int]:
    """Return the floating-point operations of products, and the bytes of inputs and results, each counted once.

    A tensor that is passed twice counts once, and so does each element that an expanded tensor repeats.
    """
    with FlopCounterMode(display=False) as counter:
        result = function(*inputs)
    tensors = [value for value in (*inputs, *_results(result)) if isinstance(value, torch.Tensor)]
    storages = {(t.untyped_storage().data_ptr(), t.storage_offset()): _bytes(t) for t in tensors}
    return int(counter.get_total_flops()), sum(storages.values())


def _results(result: object) -> list[object]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _bytes(tensor: torch.Tensor) -> int:
    count: int = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 else size  # along an expanded dimension there is one element in memory
    return count * int(tensor.element_size())


def limit_share(
    flop: int, least_bytes: int, kernel_ns: float, device: torch.device, precision: str | None
) -> LimitShare:
    """Compare a kernel time with the peaks of a device.

    Args:
        flop: the floating-point operations of a call; 0 if it is limited by memory only.
        least_bytes: the bytes that it must read and write.
        kernel_ns: how long its kernels take, in nanoseconds.
        device: a GPU.
        precision: that of the products, ``float32`` or ``tf32`` for example; None for float32.
    """
    name = torch.cuda.get_device_name(device)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    peaks, known = peaks_called(name, multiprocessors), device_called(name, multiprocessors)
    sheet = None if known is None else datasheet_peaks(known)
    unit = _PRECISION.get(precision or "float32", "")
    seconds = kernel_ns / NS_PER_S
    flops, moved = flop / seconds, least_bytes / seconds
    peak = None if peaks is None else peaks.rates.get(unit)
    memory = None if peaks is None else peaks.memory_bytes_per_s
    # No ideal time without a peak for the call's precision: memory alone would make it too short.
    ideal = None
    if memory and (peak or not flop):
        ideal = NS_PER_S * max(least_bytes / memory, flop / peak if flop and peak else 0.0)
    return LimitShare(
        flop=flop,
        least_bytes=least_bytes,
        ideal_ns=ideal,
        share=None if ideal is None else ideal / kernel_ns,
        flop_per_s=flops if flop else None,
        bytes_per_s=moved,
        peaks=None if peaks is None else peaks.origin,
        of_peak_flops=flops / peak if flop and peak else None,
        of_peak_bandwidth=moved / memory if memory else None,
        of_datasheet_flops=_over(flops, sheet.rates.get(unit) if sheet else None) if flop else None,
        of_datasheet_bandwidth=_over(moved, sheet.memory_bytes_per_s if sheet else None),
    )


def _over(value: float, whole: float | None) -> float | None:
    return value / whole if whole else None


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
