"""Layer norm of rows: by hand, by PyTorch, in Triton and compiled."""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery.available import has_triton


def inputs(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix, weights and biases."""
    x = torch.randn(rows, columns, device=device, dtype=torch.float32).to(dtype)
    weight, bias = (torch.randn(columns, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    return x, weight, bias


def by_hand(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Write the formula out; each operation is a kernel."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * weight + bias


def pytorch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Use PyTorch's layer norm."""
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias)


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    variants: dict[str, Function] = {"by hand": by_hand, "pytorch": pytorch}
    if has_triton(device):
        from opscope.workbench.gallery import triton_kernels

        variants["triton"] = triton_kernels.layer_norm
        variants["torch.compile"] = torch.compile(by_hand)
    rows = 16384 if device.type == "cuda" else 256
    return Case("layer_norm", variants, inputs, pytorch, {"rows": rows, "columns": 1024, "dtype": torch.float32})
