"""The gallery's kernels in CUDA C++ (``elementwise.cu``), as functions of tensors."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from opscope.errors import OpscopeError
from opscope.toolchain.nvcc import build

_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


@cache
def _library(capability: tuple[int, int]) -> ctypes.CDLL:
    return build(Path(__file__).with_name("elementwise.cu"), capability)


@cache
def _function(name: str, tensors: int, capability: tuple[int, int]) -> Callable[..., int]:
    function = getattr(_library(capability), name)
    function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * tensors, ctypes.c_int64, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def _call(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    first = inputs[0]
    inputs = tuple(value.contiguous() for value in inputs)
    result = torch.empty_like(inputs[0])
    function = _function(name, len(inputs) + 1, torch.cuda.get_device_capability(first.device))
    pointers = [value.data_ptr() for value in (*inputs, result)]
    stream = torch.cuda.current_stream(first.device).cuda_stream
    if error := function(_TYPES[first.dtype], *pointers, first.numel(), stream):
        raise OpscopeError(f"the kernel {name} cannot be launched: CUDA error {error}")
    return result


def square(x: torch.Tensor) -> torch.Tensor:
    """Square each element."""
    return _call("square", x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Apply GELU with the error function."""
    return _call("gelu", x)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add two tensors of the same shape."""
    return _call("add", x, y)
