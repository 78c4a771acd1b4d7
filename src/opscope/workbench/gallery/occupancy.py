"""Occupancy: loads that wait for each other, with one small block on a multiprocessor, and with as many as fit.

While a warp waits for memory, a multiprocessor runs another one, if it has one. The kernel and its work are the same;
one launch asks for so much shared memory, which it does not use, that there is room for one block of two warps.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_STEPS: Final = 8


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers, and for each of them which one follows: a random permutation."""
    return torch.randn(size, device=device), torch.randperm(size, device=device).int()


def one_block(x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Leave no room for a second block."""
    return kernels.follow_alone(x, following, _STEPS)


def many_blocks(x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Fill the multiprocessors."""
    return kernels.follow_together(x, following, _STEPS)


def reference(x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Follow all links at once, step by step."""
    at, total = following.long(), torch.zeros_like(x)
    for _ in range(_STEPS):
        total, at = total + x[at], following[at].long()
    return total


def case(device: torch.device) -> Case:
    """Return both launches; a GPU is needed."""
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"one block": one_block, "many blocks": many_blocks}
    return Case("occupancy", variants, inputs, reference, {"size": 1 << 20})
