"""A step of momentum over many small parameters."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(600, 64, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        self.p = [torch.zeros(64, device=device) for _ in range(600)]
        self.m = [torch.zeros(64, device=device) for _ in range(600)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for p, m, g in zip(self.p, self.m, x, strict=True):
            m.mul_(0.9).add_(g)
            p.sub_(0.01 * m).mul_(0.999)
        return torch.stack(self.p)
