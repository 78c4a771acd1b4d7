"""A matrix product at several precisions: what a lower precision gains, and what it costs."""

import torch

from opscope.workbench.benchmarking.case import Case, Function, tf32


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two square matrices, scaled so that their product has entries of about one."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return a, b / size**0.5


def as_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply in TF32: Tensor Cores read float32 numbers with ten bits of mantissa."""
    with tf32(allowed=True):
        return a @ b


def bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Convert and multiply in 16 bits; the conversions are part of the time."""
    return a.bfloat16() @ b.bfloat16()


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    variants: dict[str, Function] = {"float32": torch.matmul}
    if device.type == "cuda":
        variants["tf32"] = as_tf32
    variants["bfloat16"] = bfloat16
    return Case("matmul", variants, inputs, torch.matmul, {"size": 2048 if device.type == "cuda" else 256})
