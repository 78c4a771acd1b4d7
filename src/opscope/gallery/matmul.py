"""A product at several precisions: what a lower one is worth, and what it costs."""

from collections.abc import Callable

import torch

from opscope.benchmarking.case import Case


def inputs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two square matrices, scaled so that their product has entries of about one."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return a, b / size**0.5


def _at(precision: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            return a @ b
        finally:
            torch.set_float32_matmul_precision(before)

    return product


def bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Convert, and multiply in 16 bits: the conversions count."""
    return a.bfloat16() @ b.bfloat16()


def case(device: torch.device) -> Case:
    """Return the variants that a device can run."""
    variants = {"float32": _at("highest")}
    if device.type == "cuda":
        variants["tf32"] = _at("high")
    variants["bfloat16"] = bfloat16
    return Case("matmul", variants, inputs, torch.matmul, {"size": 2048 if device.type == "cuda" else 256})
