"""A loss over a vocabulary."""

import torch
from torch.nn import functional


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return torch.randn(256, 8192, generator=made, device=device), torch.randint(
        0, 8192, (256,), generator=made, device=device
    )


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        del device

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wanted = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
        return -(wanted * torch.log(torch.softmax(logits, 1) + 1e-20)).sum(1).mean()
