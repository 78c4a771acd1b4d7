"""An addition, whose time is that of moving memory."""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery.available import has_cuda, has_triton


def inputs(size: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors of random numbers."""
    x, y = (torch.randn(size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    return x, y


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    variants: dict[str, Function] = {"pytorch": torch.add}
    if has_cuda(device):
        from opscope.workbench.gallery import cuda_kernels

        variants["cuda"] = cuda_kernels.add
    if has_triton(device):
        from opscope.workbench.gallery import triton_kernels

        variants["triton"] = triton_kernels.add
    return Case("add", variants, inputs, torch.add, {"size": 1 << 24, "dtype": torch.float32})
