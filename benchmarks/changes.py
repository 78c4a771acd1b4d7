"""A small transformer whose step changes in one known way: what ``opscope diff`` is tried on.

    opscope profile benchmarks/changes.py:encoder --batch-sizes 8 --output-dir before
    opscope profile benchmarks/changes.py:encoder --batch-sizes 8 --set tf32=true --output-dir after
    opscope diff before after

``tests/data/changes/`` holds such pairs, recorded on a GPU.
"""

from collections.abc import Callable

import torch
from torch import nn

LENGTH, WIDTH, HEADS, LAYERS = 128, 512, 8, 2


class Block(nn.Module):
    """Attention and a multilayer perceptron, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


def encoder(
    batch_size: int = 8, device: str = "cuda", tf32: bool = False, extra: int = 0, compiled: bool = False
) -> Callable[[], torch.Tensor]:
    """Return an inference step.

    Args:
        batch_size: sequences.
        device: where it runs.
        tf32: whether float32 products may use TF32.
        extra: additions of the result to itself that nobody needs.
        compiled: run it through ``torch.compile``.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    model: Callable[[torch.Tensor], torch.Tensor] = nn.Sequential(*(Block() for _ in range(LAYERS))).to(device).eval()
    x = torch.randn(batch_size, LENGTH, WIDTH, device=device)
    if compiled:
        model = torch.compile(model)

    @torch.no_grad()
    def step() -> torch.Tensor:
        result = model(x)
        for _ in range(extra):
            result = result + result
        return result

    return step
