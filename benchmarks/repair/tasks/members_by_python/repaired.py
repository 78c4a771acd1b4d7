"""Which tokens are special."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randint(0, 50000, (40000,), generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        self.special = torch.zeros(50000, device=device)
        self.special[::7] = 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.special[x]
