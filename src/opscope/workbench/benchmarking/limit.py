"""Compares a call with what the device allows, by the operations and the least bytes of the baseline."""

from collections.abc import Sequence
from typing import Final

import torch
from torch.utils.flop_counter import FlopCounterMode

from opscope.base.units import NS_PER_S
from opscope.documents.bench import LimitShare
from opscope.knowledge.devices import datasheet_peaks, device_called
from opscope.knowledge.measured_peaks import peaks_called
from opscope.workbench.benchmarking.case import Function

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
