"""The same square written in several ways: is one faster?"""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery.available import has_cuda, has_triton


def inputs(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return one tensor of random numbers."""
    return torch.randn(size, device=device, dtype=torch.float32).to(dtype)


def multiplied(x: torch.Tensor) -> torch.Tensor:
    """Multiply each element by itself."""
    return x * x


def power(x: torch.Tensor) -> torch.Tensor:
    """Raise each element to the power of two."""
    return x**2


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    variants: dict[str, Function] = {"torch.square": torch.square, "x * x": multiplied, "x ** 2": power}
    if has_cuda(device):
        from opscope.workbench.gallery import cuda_kernels

        variants["cuda"] = cuda_kernels.square
    if has_triton(device):
        from opscope.workbench.gallery import triton_kernels

        variants["triton"] = triton_kernels.square
    return Case("square", variants, inputs, torch.square, {"size": 1 << 24, "dtype": torch.float32})
