"""Fusion: scale, add a bias and set negative numbers to zero, in three kernels and in one.

Each of the three kernels reads all numbers from memory and writes them back. Fused, numbers are read and written once,
and stay in registers in between.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_FACTOR: Final = 0.5


def inputs(rows: int, columns: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix of random numbers, and one number for each column."""
    return torch.randn(rows, columns, device=device), torch.randn(columns, device=device)


def three_kernels(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Make three passes over memory."""
    return kernels.relu(kernels.add_bias(kernels.scale_by_float(x, _FACTOR), bias))


def one_kernel(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Make one pass over memory."""
    return kernels.scale_bias_relu(x, bias, _FACTOR)


def pytorch(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Use PyTorch's three operators."""
    return torch.relu(x * _FACTOR + bias)


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"three kernels": three_kernels, "one kernel": one_kernel, "pytorch": pytorch}
    return Case("fusion", variants, inputs, pytorch, {"rows": 8192, "columns": 4096})
