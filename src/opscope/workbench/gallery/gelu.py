"""GELU by hand, by PyTorch, in CUDA, in Triton and compiled: what fusing its kernels into one is worth."""

import math

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery.available import has_cuda, has_triton
from opscope.workbench.gallery.square import inputs


def by_hand(x: torch.Tensor) -> torch.Tensor:
    """Write the formula out: each operation is a kernel, and a pass over memory."""
    return 0.5 * x * (1.0 + torch.erf(x * (1.0 / math.sqrt(2.0))))


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    gelu = torch.nn.functional.gelu
    variants: dict[str, Function] = {"by hand": by_hand, "pytorch": gelu}
    if has_cuda(device):
        from opscope.workbench.gallery import cuda_kernels

        variants["cuda"] = cuda_kernels.gelu
    if has_triton(device):
        from opscope.workbench.gallery import triton_kernels

        variants["triton"] = triton_kernels.gelu
        variants["torch.compile"] = torch.compile(by_hand)
    return Case("gelu", variants, inputs, gelu, {"size": 1 << 24, "dtype": torch.float32})
