"""Divergence: two computations, chosen by a flag of each element, with flags mixed in warps and with warps that agree.

The threads of a warp share their instructions: where some take one branch and some the other, the warp runs both. The
kernel is the same for both variants, and so is the result; what differs is the order in which threads take elements.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_STEPS: Final = 32


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, flags that alternate, the order as they lie, and the order by flags."""
    mixed = torch.arange(size, device=device, dtype=torch.int32)
    flags = mixed % 2
    return torch.randn(size, device=device), flags, mixed, torch.argsort(flags, stable=True).int()


def in_mixed_order(x: torch.Tensor, flags: torch.Tensor, mixed: torch.Tensor, _by_flag: torch.Tensor) -> torch.Tensor:
    """Take elements as they lie: in each warp every second flag is set."""
    return kernels.choose(x, flags, mixed, _STEPS)


def in_sorted_order(x: torch.Tensor, flags: torch.Tensor, _mixed: torch.Tensor, by_flag: torch.Tensor) -> torch.Tensor:
    """Take elements by flags: in all warps but one at most they are equal."""
    return kernels.choose(x, flags, by_flag, _STEPS)


def reference(x: torch.Tensor, flags: torch.Tensor, _mixed: torch.Tensor, _by_flag: torch.Tensor) -> torch.Tensor:
    """Compute both for all, and choose."""
    squared = 1.0 + x.abs()
    root, solution = squared, x
    for _ in range(_STEPS):
        root, solution = 0.5 * (root + squared / root), x + 0.5 * torch.sin(solution)
    return torch.where(flags != 0, solution, root)


def case(device: torch.device) -> Case:
    """Return the kernel in both orders; a GPU is needed."""
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"mixed warps": in_mixed_order, "warps that agree": in_sorted_order}
    return Case("divergence", variants, inputs, reference, {"size": 1 << 22})
