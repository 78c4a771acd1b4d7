"""Causal attention."""

import torch
from torch.nn import functional


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(1, 4, 512, 64, generator=made, device=device) for _ in range(3))


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        del device

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
