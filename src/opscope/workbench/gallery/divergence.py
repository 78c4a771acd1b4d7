"""Divergence: two computations, chosen by a flag per element, with mixed flags in each warp and with equal ones.

The threads of a warp share their instructions: if some take one branch and some the other, the warp runs both. Both
variants use the same kernel and have the same result; only the order in which threads take elements differs.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_STEPS: Final = 32


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, alternating flags, the order in memory, and the order by flags."""
    mixed = torch.arange(size, device=device, dtype=torch.int32)
    flags = mixed % 2
    return torch.randn(size, device=device), flags, mixed, torch.argsort(flags, stable=True).int()


def in_mixed_order(x: torch.Tensor, flags: torch.Tensor, mixed: torch.Tensor, _by_flag: torch.Tensor) -> torch.Tensor:
    """Take elements in the order of memory: in each warp, every second flag is set."""
    return kernels.choose(x, flags, mixed, _STEPS)


def in_sorted_order(x: torch.Tensor, flags: torch.Tensor, _mixed: torch.Tensor, by_flag: torch.Tensor) -> torch.Tensor:
    """Take elements in the order of their flags: in all warps, except one at most, the flags are equal."""
    return kernels.choose(x, flags, by_flag, _STEPS)


def reference(x: torch.Tensor, flags: torch.Tensor, _mixed: torch.Tensor, _by_flag: torch.Tensor) -> torch.Tensor:
    """Compute both branches for all elements, and choose by the flags."""
    squared = 1.0 + x.abs()
    root, solution = squared, x
    for _ in range(_STEPS):
        root, solution = 0.5 * (root + squared / root), x + 0.5 * torch.sin(solution)
    return torch.where(flags != 0, solution, root)


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"mixed warps": in_mixed_order, "warps that agree": in_sorted_order}
    return Case("divergence", variants, inputs, reference, {"size": 1 << 22})
