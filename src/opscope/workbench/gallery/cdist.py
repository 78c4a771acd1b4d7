"""Distances between all pairs of points: by one matrix product, or by differences."""

import torch

from opscope.workbench.benchmarking.case import Case


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two sets of points in 64 dimensions."""
    a, b = (torch.randn(size, 64, device=device) for _ in range(2))
    return a, b


def as_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute squared distances as a sum of squares minus a product, which loses digits where points are near."""
    squares = a.square().sum(1, keepdim=True) + b.square().sum(1)
    return (squares - 2 * a @ b.T).clamp_min(0).sqrt()


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Have torch.cdist take differences."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def case(device: torch.device) -> Case:
    """Return the case, smaller on a CPU."""
    variants = {"torch.cdist": torch.cdist, "differences": exact, "product": as_product}
    return Case("cdist", variants, inputs, exact, {"size": 2048 if device.type == "cuda" else 256})
