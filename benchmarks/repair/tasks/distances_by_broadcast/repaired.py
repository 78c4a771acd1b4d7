"""All distances between two sets of points."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    count = 256 if device == "cpu" else 2048
    return torch.randn(count, 128, generator=made, device=device), torch.randn(
        count, 128, generator=made, device=device
    )


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        del device

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cdist(a, b)
