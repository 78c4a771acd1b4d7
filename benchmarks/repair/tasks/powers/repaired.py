"""A polynomial of the activations."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(128, 2048, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        self.c = [0.5, -1.0, 0.25, 2.0, -0.125, 0.0625]
        del device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        total = torch.full_like(y, self.c[-1])
        for factor in reversed(self.c[:-1]):
            total = total.mul_(y).add_(factor)
        return total
