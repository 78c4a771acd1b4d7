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
        total = torch.zeros_like(x)
        for power, factor in enumerate(self.c):
            total = total + factor * torch.pow(x.tanh(), float(power))
        return total
