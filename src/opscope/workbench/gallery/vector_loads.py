"""Vector loads: numbers scaled with four bytes per thread, and with sixteen.

A load of a ``float4`` is one instruction instead of four, and has four times the bytes in flight, so a quarter of the
warps keeps the memory busy. The address must be a multiple of sixteen bytes.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_FACTOR: Final = 1.5


def inputs(size: int, device: torch.device) -> torch.Tensor:
    """Return random numbers."""
    return torch.randn(size, device=device)


def by_float(x: torch.Tensor) -> torch.Tensor:
    """Move one number per thread."""
    return kernels.scale_by_float(x, _FACTOR)


def by_float4(x: torch.Tensor) -> torch.Tensor:
    """Move four numbers per thread."""
    return kernels.scale_by_float4(x, _FACTOR)


def pytorch(x: torch.Tensor) -> torch.Tensor:
    """Multiply with PyTorch."""
    return x * _FACTOR


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"float": by_float, "float4": by_float4, "pytorch": pytorch}
    return Case("vector-loads", variants, inputs, pytorch, {"size": 1 << 24})
