"""A filter over signals."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(32, 2000, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        self.taps = torch.linspace(-1, 1, 33, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(1, 33, 1) @ self.taps
