"""The gallery's kernels in CUDA C++ (``elementwise.cu``) as functions of tensors, and the calling of C functions."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from opscope.base.errors import OpscopeError
from opscope.workbench.toolchain.nvcc import build

# The numbers by which the functions of elementwise.cu know data types.
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_ALIGNED = 16  # bytes of the widest load
_C_TYPES: dict[type, type] = {int: ctypes.c_int64, float: ctypes.c_float}


@cache
def _library(source: str, capability: tuple[int, int]) -> ctypes.CDLL:
    return build(Path(__file__).with_name(source), capability)


@cache
def _function(source: str, name: str, types: tuple[type, ...], capability: tuple[int, int]) -> Callable[..., int]:
    function = getattr(_library(source, capability), name)
    function.argtypes = [*types, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def launch(source: str, name: str, device: torch.device, *arguments: object) -> None:
    """Call a C function that launches kernels on the current stream; build its source if necessary.

    Args:
        source: the ``.cu`` file of this folder that defines the function.
        name: the function's name.
        device: where the tensors are.
        arguments: all but the last argument, the stream: numbers, values of ctypes, and tensors for their addresses.

    Raises:
        EnvironmentLacksError: nvcc is missing.
        OpscopeError: the source cannot be built, or CUDA refuses the launch.
    """
    values = [ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else v for v in arguments]
    types = tuple(_C_TYPES.get(type(value), type(value)) for value in values)
    function = _function(source, name, types, torch.cuda.get_device_capability(device))
    if error := function(*values, torch.cuda.current_stream(device).cuda_stream):
        raise OpscopeError(f"the kernel {name} cannot be launched: CUDA error {error}")


def dense(value: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor at an address aligned to 16 bytes, as vector loads need it; copy if necessary."""
    result = value.contiguous()
    return result if result.data_ptr() % _ALIGNED == 0 else result.clone()


def _call(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    first = inputs[0]
    inputs = tuple(map(dense, inputs))
    result = torch.empty_like(inputs[0])
    dtype = ctypes.c_int(_TYPES[first.dtype])
    launch("elementwise.cu", name, first.device, dtype, *inputs, result, first.numel())
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
