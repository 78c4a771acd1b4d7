"""Tries PyTorch: a product on every GPU, a sum over all of them, and a short profile."""

import ctypes
import sys
import warnings
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from opscope.record.codec import encode
from opscope.record.machine import Computed, TorchProbe

_SIZE: Final = 256
_ALLOWED: Final = 1e-4  # relative error of a float32 product
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)


def main() -> None:
    """Try PyTorch and print the result."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    counts = torch.cuda.device_count() if available else 0
    # CUPTI is looked for after the profile, which loads it.
    kernels, profile_error = _profiled() if available else (None, None)
    place, version, held = _cupti() if available else (None, None, None)
    result = TorchProbe(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        architectures=tuple(torch.cuda.get_arch_list()) if torch.version.cuda else (),
        available=available,
        warning=" ".join(str(warned[0].message).split()) if warned else None,
        computed=tuple(_computed(at) for at in range(counts)),
        nccl=_nccl(),
        reduced=_reduced(counts) if counts > 1 else None,
        runtime=_runtime(),
        cupti=place,
        cupti_version=version,
        cupti_held=held,
        profiled=kernels,
        profile_error=profile_error,
    )
    sys.stdout.buffer.write(encode(result))


def _computed(device: int) -> Computed:
    try:
        a, b = (torch.randn(_SIZE, _SIZE, dtype=torch.float64) for _ in range(2))
        product = (a.to(f"cuda:{device}", torch.float32) @ b.to(f"cuda:{device}", torch.float32)).cpu().double()
    except RuntimeError as error:
        return Computed(device=device, error=_short(error))
    right = a @ b
    far = float((product - right).norm() / right.norm())
    return Computed(device=device, error=None if far <= _ALLOWED else f"a product is wrong by {far:.1e}")


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _profiled() -> tuple[int | None, str | None]:
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.ones(1024, device="cuda").square_()
            torch.cuda.synchronize()
        events = profiler.events() or ()
        return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in events), None
    except RuntimeError as error:
        return None, _short(error)


def _cupti() -> tuple[str | None, int | None, str | None]:
    """Return the CUPTI that the profiler loaded, its version, and the error of subscribing to it."""
    place = _loaded("libcupti.so")
    if place is None:
        return None, None, None
    library, version = ctypes.CDLL(place), ctypes.c_uint32()
    if library.cuptiGetVersion(ctypes.byref(version)):
        return place, None, None
    handle, callback = ctypes.c_void_p(), _CALLBACK(lambda *_: None)
    code = library.cuptiSubscribe(ctypes.byref(handle), callback, None)  # fails while another tool holds CUPTI
    if code == 0:
        library.cuptiUnsubscribe(handle)
        return place, version.value, None
    text = ctypes.c_char_p()
    library.cuptiGetResultString(code, ctypes.byref(text))
    return place, version.value, text.value.decode() if text.value else f"CUPTI error {code}"


def _runtime() -> str | None:
    """Return the version of the CUDA runtime that PyTorch loaded."""
    place = _loaded("libcudart")
    version = ctypes.c_int()
    if place is None or ctypes.CDLL(place).cudaRuntimeGetVersion(ctypes.byref(version)):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _loaded(name: str) -> str | None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split()[-1] for line in maps if f"/{name}" in line), None)


def _nccl() -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError, TypeError):
        return None


def _reduced(count: int) -> Computed:
    try:
        parts = [torch.full((1024,), float(at + 1), device=f"cuda:{at}") for at in range(count)]
        torch.cuda.nccl.all_reduce(parts)
        right = count * (count + 1) / 2  # GPU number n has n + 1 in every element
        wrong = [at for at, part in enumerate(parts) if bool((part != right).any())]
    except RuntimeError as error:
        return Computed(device=0, error=_short(error))
    return Computed(device=0, error=f"sums on {len(wrong)} GPUs are wrong" if wrong else None)


if __name__ == "__main__":
    main()
