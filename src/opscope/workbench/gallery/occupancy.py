"""Occupancy: loads that wait for each other, with one small block on a multiprocessor, and with as many as fit.

While a warp waits for memory, a multiprocessor runs another warp if it has one. The kernel and its work are the same.
One launch asks for so much shared memory, without using it, that only one block of two warps fits.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_STEPS: Final = 8


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers, and the index of the number that follows each: a random permutation."""
    return torch.randn(size, device=device), torch.randperm(size, device=device).int()


def one_block(x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Leave no room for a second block on a multiprocessor."""
    return kernels.follow_alone(x, following, _STEPS)


def many_blocks(x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Fill the multiprocessors with blocks."""
    return kernels.follow_together(x, following, _STEPS)


def reference(x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Follow all links at once, step by step."""
    at, total = following.long(), torch.zeros_like(x)
    for _ in range(_STEPS):
        total, at = total + x[at], following[at].long()
    return total


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"one block": one_block, "many blocks": many_blocks}
    return Case("occupancy", variants, inputs, reference, {"size": 1 << 20})
