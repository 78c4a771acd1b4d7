"""A training step of a small network."""

import torch
from torch.utils.checkpoint import checkpoint


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(256, 512, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(8)).to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = x.requires_grad_()
        for layer in self.layers:
            y = checkpoint(lambda z, layer=layer: torch.tanh(torch.tanh(layer(z)) + z), y, use_reentrant=False)
        self.layers.zero_grad()
        y.square().mean().backward()
        return torch.stack([layer.weight.grad.norm() for layer in self.layers])
