"""Tensors of what calls take and return, and how far one is from another. Needs PyTorch."""

from collections.abc import Mapping
from typing import Final

import torch

# Largest relative error (norm of the difference over that of the reference) by the type of the result: several times
# what rounding alone gives in sums of a few thousand products.
TOLERANCE: Final = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}
# How far off a single element may be, of its size and the typical one together: else a part is missing, or garbage.
_ELEMENT: Final = {torch.float64: 1e-6, torch.float32: 2e-2, torch.float16: 2e-1}
_ANY_ELEMENT: Final = 3e-1
TF32_ERROR: Final = 1e-3  # of products in float32 whose operands have ten bits behind the point


def element_tolerance(dtype: torch.dtype) -> float:
    """Return how far off a single element may be, of its size and the typical one together."""
    return _ELEMENT.get(dtype, _ANY_ELEMENT)


def tensors_of(result: object) -> list[torch.Tensor]:
    """Return the tensors in what a call returned, in order; a number is one, too."""
    if isinstance(result, torch.Tensor):
        return [result.detach() if result.layout is torch.strided else result.detach().to_dense()]
    if isinstance(result, Mapping):
        return [tensor for part in result.values() for tensor in tensors_of(part)]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in tensors_of(part)]
    return [torch.tensor(result)] if isinstance(result, (float, int, complex)) else []


def copy_of(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, as far as its elements do not share memory."""
    if value.layout is not torch.strided or 0 in value.stride():
        return value.detach().clone()
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value.detach())


def errors_of(difference: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Return the norm of a difference over that of the right values, and the largest of an element.

    Args:
        difference: of finite numbers, in float64.
        values: the right ones.
        dtype: of the result: below its smallest normal number there is no relative precision.
    """
    smallest = torch.finfo(dtype).tiny
    typical = max(float(values.square().mean().sqrt()), smallest)
    largest = float((difference.abs() / (values.abs() + typical)).max())
    norm = max(float(values.norm()), smallest * values.numel() ** 0.5)
    return float(difference.norm()) / norm, largest
