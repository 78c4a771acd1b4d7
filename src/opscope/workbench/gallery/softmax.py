"""Softmax of rows: several kernels by hand, or one kernel."""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery.available import has_triton


def inputs(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a matrix of random numbers."""
    return torch.randn(rows, columns, device=device, dtype=torch.float32).to(dtype)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    """Write the formula out; each operation is a kernel."""
    above = torch.exp(x - x.amax(-1, keepdim=True))
    return above / above.sum(-1, keepdim=True)


def pytorch(x: torch.Tensor) -> torch.Tensor:
    """Use PyTorch's softmax."""
    return torch.softmax(x, -1)


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    variants: dict[str, Function] = {"by hand": by_hand, "pytorch": pytorch}
    if has_triton(device):
        from opscope.workbench.gallery import triton_kernels

        variants["triton"] = triton_kernels.softmax
        variants["torch.compile"] = torch.compile(by_hand)
    rows = 16384 if device.type == "cuda" else 256
    return Case("softmax", variants, inputs, pytorch, {"rows": rows, "columns": 1024, "dtype": torch.float32})
