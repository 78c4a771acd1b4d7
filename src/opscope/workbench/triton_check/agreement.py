"""Checks whether the results of a case are right, against its reference in float64 or the interpreter's results.

The tolerances are those of ``opscope bench``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from msgspec import Struct

from opscope.documents.triton_check import Agreement
from opscope.torch_support.tensors import TF32_ERROR, TOLERANCE, copy_of, element_tolerance, errors_of, tensors_of

_ANY_TOLERANCE: Final = 1e-1  # 8-bit types have two or three bits of mantissa


class _Found(Struct, frozen=True):
    """How one result compares.

    Attributes:
        sentence: what was found, for the reader.
        right: whether the result is right.
        relative_error: the norm of the difference over that of the right values; None if they cannot be compared.
        element_error: the largest error of an element, over its size; None for whole numbers.
    """

    sentence: str
    right: bool = False
    relative_error: float | None = None
    element_error: float | None = None


class Right(Struct, frozen=True):
    """The right results, and where they come from, as words for a sentence."""

    results: tuple[torch.Tensor, ...]
    origin: str


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with every tensor in it (in mappings, tuples and lists) replaced by what ``change`` returns."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(part, change) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(changed(part, change) for part in value)
    return value


def right_of(reference: Callable[..., object], inputs: tuple[Any, ...]) -> Right:
    """Call the reference with float64 inputs, or with the inputs as they are if it does not take float64.

    Results that are whole numbers or truth values always come from the inputs as they are.
    """
    plain = tensors_of(reference(*changed(inputs, copy_of)))
    try:
        double = tensors_of(reference(*changed(inputs, _double)))
    except Exception:  # many references name a data type, and then do not take float64
        double = []
    floating = [place for place, one in enumerate(plain) if one.is_floating_point()]
    exact = len(double) == len(plain) and all(double[place].dtype is torch.float64 for place in floating)
    if not exact or not floating:
        return Right(tuple(map(copy_of, plain)), "its reference")
    results = [one if own.is_floating_point() else own for one, own in zip(double, plain, strict=True)]
    return Right(tuple(map(copy_of, results)), "its reference in float64")


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.detach().double() if value.is_floating_point() and value.dtype is not torch.float64 else copy_of(value)


def agreement_of(results: Sequence[torch.Tensor], right: Right, *, tf32: bool = False) -> Agreement:
    """Compare the results of a case with the right ones; the answer is that of the worst result.

    Args:
        results: of the case.
        right: what they should be.
        tf32: whether float32 results may be as far off as products in TF32, the default of ``tl.dot`` on GPUs.
    """
    if len(results) != len(right.results):
        sentence = f"it returns {len(results)} tensors, not {len(right.results)}"
        return Agreement(right=False, compared_with=right.origin, sentence=sentence)
    pairs = zip(results, right.results, strict=True)
    result = [_compared(one.cpu(), wanted.cpu(), tf32=tf32) for one, wanted in pairs]
    worst = max(range(len(result)), key=lambda place: _badness(result[place], results[place].dtype))
    one, dtype = result[worst], results[worst].dtype
    return Agreement(
        right=one.right,
        compared_with=right.origin,
        sentence=one.sentence + (f" (result {worst + 1})" if len(result) > 1 else ""),
        dtype=_name(dtype),
        relative_error=one.relative_error,
        element_error=one.element_error,
        tolerance=_tolerance(dtype),
    )


# Wrong results are worse than right ones; among these, the error counts in units of what its type allows.
def _badness(result: _Found, dtype: torch.dtype) -> tuple[bool, float]:
    return not result.right, (result.relative_error or 0.0) / (_tolerance(dtype) or 1.0)


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, _ANY_TOLERANCE) if dtype.is_floating_point or dtype.is_complex else 0.0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _compared(result: torch.Tensor, wanted: torch.Tensor, *, tf32: bool) -> _Found:
    if result.shape != wanted.shape:
        return _Found(f"it returns the shape {tuple(result.shape)}, not {tuple(wanted.shape)}")
    if result.is_complex() and wanted.is_complex():
        one, other = (torch.view_as_real(value.resolve_conj()) for value in (result, wanted))
        return _compared(one, other, tf32=tf32)
    if result.is_floating_point() != wanted.is_floating_point():
        return _Found(f"it returns {_name(result.dtype)}, where {_name(wanted.dtype)} is right")
    if not wanted.is_floating_point():
        return _of_whole(result, wanted)
    return _of_floating(result, wanted.double(), tf32=tf32)


def _of_whole(result: torch.Tensor, wanted: torch.Tensor) -> _Found:
    if (result.dtype is torch.bool) != (wanted.dtype is torch.bool):
        return _Found(f"it returns {_name(result.dtype)}, where {_name(wanted.dtype)} is right")
    differing = int((result.long() != wanted.long()).sum())
    if not differing:
        return _Found("all elements are equal", right=True, relative_error=0.0)
    return _Found(f"{differing:,} of {wanted.numel():,} elements differ")


def _of_floating(result: torch.Tensor, wanted: torch.Tensor, *, tf32: bool) -> _Found:
    got, limits = result.double(), torch.finfo(result.dtype)
    # A number that the result's type cannot hold is right as infinity.
    beyond = wanted.abs() > limits.max
    wanted = torch.where(beyond, torch.copysign(torch.full_like(wanted, float("inf")), wanted), wanted)
    if differing := int((got.isnan() != wanted.isnan()).sum()):
        return _Found(f"{differing:,} of {wanted.numel():,} elements are NaN and should not be, or the other way round")
    near = wanted.abs().isfinite() & (wanted.abs() > 0.99 * limits.max)  # rounding decides whether it is infinite
    infinite = (wanted.isinf() | got.isinf()) & ~near
    if differing := int((got[infinite] != wanted[infinite]).sum()):
        return _Found(f"{differing:,} of {wanted.numel():,} elements are infinite and should not be, or not and should")
    finite = wanted.isfinite() & got.isfinite()
    return _of_finite((got - wanted)[finite], wanted[finite], result.dtype, tf32=tf32)


def _of_finite(difference: torch.Tensor, values: torch.Tensor, dtype: torch.dtype, *, tf32: bool) -> _Found:
    if not values.numel():
        return _Found("there are no numbers to compare", right=True)
    far, element = errors_of(difference, values, dtype)
    allowed = _tolerance(dtype)
    sentence = f"relative error {far:.1e}, {allowed:.0e} allowed for {_name(dtype)}"
    right = far <= allowed
    if not right and tf32 and dtype is torch.float32 and far <= TF32_ERROR:
        right, sentence = True, f"{sentence}, but no more than TF32 products have, the default of tl.dot"
    if right and element > element_tolerance(dtype):
        right, sentence = False, f"{sentence}, but an element is off by {element:.1e} of its size"
    return _Found(sentence, right=right, relative_error=far, element_error=element)
