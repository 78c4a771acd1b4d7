"""A step of momentum over many small parameters."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(600, 64, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        self.p, self.m = torch.zeros(600, 64, device=device), torch.zeros(600, 64, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.m.mul_(0.9).add_(x)
        self.p.sub_(0.01 * self.m).mul_(0.999)
        return self.p.clone()
