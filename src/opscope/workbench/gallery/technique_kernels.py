"""The kernels of the optimisation guide (``techniques.cu``), as functions of tensors."""

import ctypes
from functools import cache
from typing import Final

import torch

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.workbench.gallery.cuda_kernels import dense, launch
from opscope.workbench.toolchain.nvcc import compiler

_SOURCE: Final = "techniques.cu"


def refuse_without_cuda(device: torch.device) -> None:
    """Check that a device can run the kernels, and that this machine can build them.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        raise EnvironmentLacksError(
            f"this benchmark compares kernels in CUDA C++ and needs an NVIDIA GPU: the device is {device}"
        )
    compiler()


def _ready(value: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor as the kernels take it: contiguous, and at an address that vector loads can use.

    Raises:
        UsageError: the tensor is of another data type, or not on a GPU.
    """
    if value.dtype != dtype:
        wanted, actual = (str(name).removeprefix("torch.") for name in (dtype, value.dtype))
        raise UsageError(f"the kernels of {_SOURCE} take {wanted} here, not {actual}")
    if not value.is_cuda:
        raise UsageError(f"the kernels of {_SOURCE} take tensors on a GPU, not on {value.device}")
    return dense(value)


def _run(name: str, result: torch.Tensor, *arguments: object) -> torch.Tensor:
    """Call a C function that writes a result, unless there is nothing to write."""
    if result.numel():
        launch(_SOURCE, name, result.device, *arguments)
    return result


def _copy(name: str, x: torch.Tensor) -> torch.Tensor:
    x = _ready(x)
    result = torch.empty_like(x)
    return _run(name, result, x, result, *x.shape)


def copy_along_columns(x: torch.Tensor) -> torch.Tensor:
    """Copy a matrix; each warp copies a piece of a column."""
    return _copy("copy_along_columns", x)


def copy_along_rows(x: torch.Tensor) -> torch.Tensor:
    """Copy a matrix; each warp copies a piece of a row."""
    return _copy("copy_along_rows", x)


def _transpose(name: str, x: torch.Tensor) -> torch.Tensor:
    x = _ready(x)
    rows, columns = x.shape
    result = x.new_empty(columns, rows)
    return _run(name, result, x, result, rows, columns)


def transpose_naive(x: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix by writing along columns."""
    return _transpose("transpose_naive", x)


def transpose_tile_32(x: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix by tiles in shared memory whose columns lie in one bank."""
    return _transpose("transpose_tile_32", x)


def transpose_tile_33(x: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix by tiles in shared memory whose columns lie in all banks."""
    return _transpose("transpose_tile_33", x)


def choose(x: torch.Tensor, flags: torch.Tensor, order: torch.Tensor, steps: int) -> torch.Tensor:
    """Solve Kepler's equation for elements whose flag is set, and take a square root of the others.

    Args:
        x: the numbers, float32.
        flags: int32, of the same size; 0 takes the square root.
        order: int32, a permutation: the index of the element that each thread takes.
        steps: how many iterations each computation makes.
    """
    x, flags, order = _ready(x), _ready(flags, torch.int32), _ready(order, torch.int32)
    result = torch.empty_like(x)
    return _run("choose", result, x, flags, order, result, x.numel(), steps)


def _follow(name: str, x: torch.Tensor, following: torch.Tensor, steps: int) -> torch.Tensor:
    x, following = _ready(x), _ready(following, torch.int32)
    result = torch.empty_like(x)
    return _run(name, result, x, following, result, x.numel(), steps)


def follow_alone(x: torch.Tensor, following: torch.Tensor, steps: int) -> torch.Tensor:
    """Follow links and add up their values, with one small block on a multiprocessor.

    Args:
        x: the values, float32.
        following: int32, of the same size: the index that follows each one.
        steps: how many links to follow from each element.
    """
    return _follow("follow_alone", x, following, steps)


def follow_together(x: torch.Tensor, following: torch.Tensor, steps: int) -> torch.Tensor:
    """Follow links and add up their values as `follow_alone`, with as many blocks on a multiprocessor as fit."""
    return _follow("follow_together", x, following, steps)


def _scale(name: str, x: torch.Tensor, factor: float) -> torch.Tensor:
    x = _ready(x)
    result = torch.empty_like(x)
    return _run(name, result, x, result, x.numel(), factor)


def scale_by_float(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply by a number, with four bytes per thread."""
    return _scale("scale_by_float", x, factor)


def scale_by_float4(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply by a number, with sixteen bytes per thread."""
    return _scale("scale_by_float4", x, factor)


def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Add a number to each column of a matrix."""
    x, bias = _ready(x), _ready(bias)
    result = torch.empty_like(x)
    return _run("add_bias", result, x, bias, result, *x.shape)


def relu(x: torch.Tensor) -> torch.Tensor:
    """Replace negative numbers by zero."""
    x = _ready(x)
    result = torch.empty_like(x)
    return _run("relu", result, x, result, x.numel())


def scale_bias_relu(x: torch.Tensor, bias: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply a matrix by a number, add a bias to each column, and replace negative numbers by zero."""
    x, bias = _ready(x), _ready(bias)
    result = torch.empty_like(x)
    return _run("scale_bias_relu", result, x, bias, result, *x.shape, factor)


def sine(x: torch.Tensor) -> torch.Tensor:
    """Return the sine of each element."""
    x = _ready(x)
    result = torch.empty_like(x)
    return _run("sine", result, x, result, x.numel())


@cache
def _recorded(size: int, kernels: int, device: torch.device) -> tuple[ctypes.c_void_p, torch.Tensor]:
    """Return a graph of sines, and the memory that its kernels share, which must live as long as the graph."""
    between, graph = torch.empty(size, device=device), ctypes.c_void_p()
    launch(_SOURCE, "record_sines", device, between, size, kernels, ctypes.c_void_p(ctypes.addressof(graph)))
    return graph, between


def replay_sines(x: torch.Tensor, kernels: int) -> torch.Tensor:
    """Take sines of sines by one launch of a graph.

    The graph is made once for each size and number of kernels, and gets the tensors of each call.

    Args:
        x: the numbers, float32.
        kernels: how many sines to take one after the other.
    """
    x = _ready(x)
    result = torch.empty_like(x)
    if not result.numel():
        return result
    graph, _ = _recorded(x.numel(), kernels, x.device)
    return _run("replay_sines", result, graph, x, result)
