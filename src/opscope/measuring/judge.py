"""The one judge of results: how far a tensor is from what is right, in float64, and how far its data type lets it be.

`opscope bench` and `opscope triton-check` say with it whether a result is right. `opscope advise` judges steps, whose
errors add up over many operators: there the limit is what simulated arithmetic explains (`opscope.advise.proof`).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from msgspec import Struct

from opscope.torch_support.tensors import copy_of, tensors_of

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
TF32_ERROR: Final = 1e-3  # of products in float32 whose operands have ten bits behind the point
# How far off a single element may be, of its size and the typical one together: else a part is missing, or garbage.
_ELEMENT: Final = {torch.float64: 1e-6, torch.float32: 2e-2, torch.float16: 2e-1}
_ANY_ELEMENT: Final = 3e-1
_NEAR: Final = 0.99  # of the largest number of a type: so near to it, rounding decides whether a result is infinite


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a data type, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with every tensor in it (in dictionaries, tuples, lists) replaced by what ``change`` returns."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (dict, OrderedDict):  # a mapping of another class may be more than what it holds
        return type(value)((key, changed(part, change)) for key, part in value.items())
    if type(value) in (tuple, list):
        return type(value)(changed(part, change) for part in value)
    return value


def in_double(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 or complex128; whole numbers and truth values unchanged."""
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def is_inexact(value: torch.Tensor) -> bool:
    """Tell whether the elements of a tensor are rounded, real or complex."""
    return bool(value.is_floating_point() or value.is_complex())


# ---------------------------------------------------------------- what is right


class Right(Struct, frozen=True):
    """The right results.

    Attributes:
        results: in float64; whole numbers and truth values as they follow from the inputs at their own precision.
        exact: whether they were computed in float64, and not at the inputs' own precision.
    """

    results: tuple[torch.Tensor, ...]
    exact: bool


def right_of(reference: Callable[..., object], inputs: Sequence[object]) -> Right:
    """Call the reference with inputs in float64, or unchanged where it does not take float64.

    Args:
        reference: called with copies, twice.
        inputs: its arguments; tensors may lie in dictionaries, tuples and lists.

    Raises:
        Exception: whatever the reference raises with unchanged inputs, if it does not take float64 either.
    """
    double = _in_float64(reference, inputs)
    if double is None:
        return Right(tuple(map(in_double, _called(reference, inputs))), exact=False)
    try:
        plain = _called(reference, inputs)
    except Exception:  # some operators take 16-bit numbers on a GPU alone
        return Right(tuple(double), exact=True)
    if len(plain) != len(double):
        return Right(tuple(double), exact=True)
    return Right(tuple(d if is_inexact(d) else p for d, p in zip(double, plain, strict=True)), exact=True)


def _in_float64(reference: Callable[..., object], inputs: Sequence[object]) -> list[torch.Tensor] | None:
    """Return what the reference makes of inputs in float64; None if it does not take them, or returns another type."""
    try:
        results = _called(reference, changed(tuple(inputs), in_double))
    except Exception:  # many references name a data type, and then do not take float64
        return None
    exact = all(one.dtype in (torch.float64, torch.complex128) for one in results if is_inexact(one))
    return results if results and exact else None


def _called(function: Callable[..., object], inputs: Sequence[object]) -> list[torch.Tensor]:
    return tensors_of(function(*changed(tuple(inputs), copy_of)))


# ---------------------------------------------------------------- how far a result is from it


class Compared(Struct, frozen=True):
    """How a result compares with the right one.

    Attributes:
        relative_error: the norm of the difference over that of the right values, of elements that are finite in both;
            0.0 if all elements are equal whole numbers; None if there are none, or the two cannot be compared.
        element_error: the largest error of an element, over its size and the typical one; None for whole numbers.
        problem: what is wrong beside the errors, as the predicate of a sentence; None if nothing is.
        is_empty: whether there were no numbers to compare.
    """

    relative_error: float | None = None
    element_error: float | None = None
    problem: str | None = None
    is_empty: bool = False


def compared(result: torch.Tensor, right: torch.Tensor) -> Compared:
    """Compare a result with the right one.

    Args:
        result: on the same device as the right one.
        right: what it should be; numbers that are rounded, in float64 or complex128.
    """
    if result.shape != right.shape:
        return Compared(problem=f"returns the shape {tuple(result.shape)}, not {tuple(right.shape)}")
    if result.is_complex() and right.is_complex():
        return compared(*(torch.view_as_real(one.resolve_conj()) for one in (result, right)))
    if _kind(result) != (wanted := _kind(right)):
        return Compared(problem=f"returns {name_of(result.dtype)}, where {wanted} are right")
    if not right.is_floating_point():
        return _of_whole(result, right)
    return _of_floating(result, right.double())


def _kind(value: torch.Tensor) -> str:
    """Return what a tensor holds, in words."""
    if value.is_floating_point():
        return "floating-point numbers"
    if value.is_complex():
        return "complex numbers"
    return "booleans" if value.dtype is torch.bool else "integers"


def _of_whole(result: torch.Tensor, right: torch.Tensor) -> Compared:
    differing = int((result.long() != right.long()).sum())
    if not differing:
        return Compared(relative_error=0.0)
    return Compared(problem=f"returns another number in {differing:,} of {right.numel():,} elements")


def _of_floating(result: torch.Tensor, right: torch.Tensor) -> Compared:
    got, most = result.double(), torch.finfo(result.dtype).max
    near = (right.abs() > _NEAR * most) & (right.abs() < most / _NEAR)
    # A number that the result's type cannot hold is right as infinity.
    right = torch.where(right.abs() > most, torch.copysign(torch.full_like(right, float("inf")), right), right)
    if differing := int((got.isnan() != right.isnan()).sum()):
        return Compared(
            problem=f"is NaN where the reference is a number, or the other way round, "
            f"in {differing:,} of {right.numel():,} elements"
        )
    infinite = (right.isinf() | got.isinf()) & ~near
    if differing := int((got[infinite] != right[infinite]).sum()):
        return Compared(
            problem=f"is infinite where the reference is not, or the other way round, "
            f"in {differing:,} of {right.numel():,} elements"
        )
    finite = right.isfinite() & got.isfinite()
    return _of_finite((got - right)[finite], right[finite], result.dtype)


def _of_finite(difference: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> Compared:
    if not values.numel():
        return Compared(is_empty=True)
    smallest = torch.finfo(dtype).tiny  # below it there is no relative precision
    typical = max(float(values.square().mean().sqrt()), smallest)
    element = float((difference.abs() / (values.abs() + typical)).max())
    norm = max(float(values.norm()), smallest * values.numel() ** 0.5)
    far = float(difference.norm()) / norm
    if element > _ELEMENT.get(dtype, _ANY_ELEMENT):
        problem = f"is off in one or more elements, by up to {element:.1e} of their size"
        return Compared(relative_error=far, element_error=element, problem=problem)
    return Compared(relative_error=far, element_error=element)
