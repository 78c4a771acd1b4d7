"""All distances between two sets of points."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return torch.randn(256, 128, generator=made, device=device), torch.randn(256, 128, generator=made, device=device)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        del device

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cdist(a, b)
