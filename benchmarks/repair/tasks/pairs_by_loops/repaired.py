"""The mean similarity of every pair of groups."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(40, 32, 64, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        del device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        means = x.mean(1)
        return means @ means.t()
