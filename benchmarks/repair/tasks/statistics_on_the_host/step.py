"""Mean and spread of each feature, for a log."""

import statistics

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(4000, 16, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        found = [(statistics.fmean(column), statistics.pstdev(column)) for column in x.t().tolist()]
        return torch.tensor(found, device=self.device)
