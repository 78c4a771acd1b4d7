"""Sequences of very different lengths."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    count = 16 if device == "cpu" else 512
    return torch.randn(count, 512, 128, generator=made, device=device), torch.randint(
        4, 48, (count,), generator=made, device=device
    )


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.w1 = torch.randn(128, 512, device=device) / 11
        self.w2 = torch.randn(512, 128, device=device) / 22

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ self.w1) @ self.w2
        mask = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
        return (y * mask[..., None]).sum(1) / lengths[:, None]
