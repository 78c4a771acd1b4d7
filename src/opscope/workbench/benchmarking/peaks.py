"""Measures the peaks of a device: dense products by precision, and memory.

Each peak is the best of many short bursts over a few sizes, with pauses between them: a peak is what a device does at
its best, and after some milliseconds of dense products its clock falls. Bursts are timed by events, behind a filled
queue, so that the host cannot delay the device.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

import torch

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.units import NS_PER_S, utc_timestamp
from opscope.measuring.clock import passed_ns
from opscope.record.machine import MeasuredPeaks, PeakSample
from opscope.torch_support.tensors import current, resolve_device
from opscope.workbench.benchmarking.case import tf32

_SIZES: Final = (4096, 8192)
_BURSTS: Final = 15
_BURST_S: Final = 0.003
_PAUSE_S: Final = 0.05
_MEMORY_BYTES: Final = 1 << 30  # far more than any cache holds


def measure_devices(chosen: str) -> tuple[MeasuredPeaks, ...]:
    """Measure one device, or one device of each name.

    Args:
        chosen: a device such as ``cuda:0``, or ``all``.

    Raises:
        EnvironmentLacksError: PyTorch sees no GPU, or a GPU has not enough free memory.
        UsageError: the device is not a GPU.
    """
    if not torch.cuda.is_available():
        raise EnvironmentLacksError("PyTorch sees no GPU here, so there are no peaks to measure")
    count = torch.cuda.device_count()
    devices = [torch.device("cuda", at) for at in range(count)] if chosen == "all" else [resolve_device(chosen)]
    if devices[0].type != "cuda":
        raise UsageError(f"peaks are those of a GPU (--device cuda:0, or all), not of {chosen}")
    # Reversed, so that the first device of each name is the one that stays.
    by_name = {torch.cuda.get_device_name(device): device for device in reversed(devices)}
    results = []
    for device in by_name.values():
        with current(device):  # events, and what fills the queue, go to the current device
            results.append(measure_peaks(device))
    return tuple(results)


def measure_peaks(device: torch.device) -> MeasuredPeaks:
    """Measure the current CUDA or HIP device, in less than half a minute.

    Raises:
        EnvironmentLacksError: there is not enough memory on the device.
    """
    begun = time.monotonic()
    samples: list[PeakSample] = []
    tried = [*_products(device), *_memory(device)]
    try:
        for name, detail, amount, work in tried:
            if (sample := _sample(name, detail, amount, work)) is not None:
                samples.append(sample)
    except torch.OutOfMemoryError as error:
        raise EnvironmentLacksError(f"not enough memory is free on {device} to measure its peaks: {error}") from error
    patterns = ("copy", "read", "write")
    best: dict[str, float] = {}
    for sample in samples:
        best[sample.name] = max(best.get(sample.name, 0.0), sample.best)
    properties = torch.cuda.get_device_properties(device)
    return MeasuredPeaks(
        device=torch.cuda.get_device_name(device),
        multiprocessors=properties.multi_processor_count,
        l2_bytes=getattr(properties, "L2_cache_size", None) or None,
        torch=str(torch.__version__),
        created=utc_timestamp(),
        flop_per_s={name: rate for name, rate in best.items() if name not in patterns},
        memory_bytes_per_s=max(best[name] for name in patterns),
        seconds=time.monotonic() - begun,
        samples=tuple(samples),
    )


# The name of a peak, what is done, how many operations or bytes that is, and a function that does it.
_Tried = tuple[str, str, float, Callable[[], object]]


def _products(device: torch.device) -> Iterator[_Tried]:
    for name, dtype, as_tf32 in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, False),
    ):
        for size in _SIZES if dtype is not torch.float32 or as_tf32 else _SIZES[:1]:
            yield (
                name,
                f"{size} x {size} by {size} x {size}",
                2.0 * size**3,
                _product(device, dtype, size, as_tf32=as_tf32),
            )


def _product(device: torch.device, dtype: torch.dtype, size: int, *, as_tf32: bool) -> Callable[[], object]:
    operands: list[torch.Tensor] = []

    def work() -> object:
        # Made at the first call, which is not timed. Random, because zeros draw less power.
        if not operands:
            operands.extend(torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        with tf32(as_tf32):
            return torch.mm(operands[0], operands[1])

    return work


def _memory(device: torch.device) -> Iterator[_Tried]:
    tensors: list[torch.Tensor] = []

    def two() -> list[torch.Tensor]:
        if not tensors:
            tensors.extend(torch.ones(_MEMORY_BYTES // 4, device=device) for _ in range(2))
        return tensors

    detail = f"{_MEMORY_BYTES >> 20} MiB of float32"
    yield "copy", detail, 2.0 * _MEMORY_BYTES, lambda: two()[0].copy_(two()[1])
    yield "read", detail, 1.0 * _MEMORY_BYTES, lambda: torch.sum(two()[0])
    yield "write", detail, 1.0 * _MEMORY_BYTES, lambda: two()[0].fill_(1.0)


def _sample(name: str, detail: str, amount: float, work: Callable[[], object]) -> PeakSample | None:
    """Time some work in bursts and return the rates; None if this device cannot do it."""
    try:
        work()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    times = max(1, round(_BURST_S / max(_seconds(work, 1), 1e-6)))
    rates = []
    for _ in range(_BURSTS):
        time.sleep(_PAUSE_S)
        rates.append(amount * times / _seconds(work, times))
    return PeakSample(name=name, detail=detail, rates=tuple(rates), best=max(rates))


def _seconds(work: Callable[[], object], times: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2_000_000)  # about a millisecond: the host fills the queue meanwhile
    start.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return passed_ns(start, end) / NS_PER_S
