"""A layer on standardised features."""

import numpy as np
import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(128, 1024, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.w = torch.randn(1024, 1024, device=device) / 32
        self.mean = torch.tensor(np.linspace(-1, 1, 1024), device=device)
        self.scale = torch.tensor(np.linspace(1, 2, 1024), device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = (x - self.mean) / self.scale
        for _ in range(3):
            y = torch.tanh(y @ self.w.to(y.dtype))
        return y.float()
