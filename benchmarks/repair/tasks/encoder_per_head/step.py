"""Eight heads on one encoder."""

import torch


def inputs(seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return what one call of the step gets."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(128, 512, generator=made, device=device),)


class Step:
    """What is called again and again."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.encoder = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to(device)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(512, 16) for _ in range(8)).to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([head(torch.relu(self.encoder(x))) for head in self.heads], 1)
