"""Whether a function computes what it should: beside a float64 reference, with several kinds of inputs.

Checked as well: that the inputs stay as they are, that the result follows from the values of the inputs and not from
which tensors they are, and that all of the result is written.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from opscope.benchmarking.case import Case, Function
from opscope.documents.bench import Correct, Correctness, RegimeError

# Largest relative error (norm of the difference over that of the reference) by the type of the result: several times
# what rounding alone gives in sums of a few thousand products.
TOLERANCE: Final = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}
_LOWER: Final = {torch.float32: (1e-3, "TF32-like"), torch.float16: (1e-2, "bfloat16-like")}
_OF_BASELINE: Final = 3.0  # times the baseline's own error is right as well
_LARGE: Final = {torch.float16: 30.0, torch.bfloat16: 1e3}
_AS_GIVEN: Final = "as given"
_SPECIAL: Final = "special values"

Inputs = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Regime:
    name: str
    change: Callable[[torch.Tensor], torch.Tensor]


def _strided(value: torch.Tensor) -> torch.Tensor:
    """Return the same values with every second element of memory left out."""
    if not value.dim():
        return value
    wide = torch.empty((*value.shape[:-1], 2 * value.shape[-1]), dtype=value.dtype, device=value.device)
    view = wide[..., ::2]
    view.copy_(value)
    return view


def _special(value: torch.Tensor) -> torch.Tensor:
    flat = value.clone().reshape(-1)
    for place, special in enumerate((float("inf"), float("-inf"), float("nan"), -0.0)):
        if place < flat.numel():
            flat[place] = special
    return flat.reshape(value.shape)


_REGIMES: Final = (
    _Regime(_AS_GIVEN, torch.clone),
    _Regime("large", lambda value: value * _LARGE.get(value.dtype, 1e4)),
    _Regime("tiny", lambda value: value * 1e-4),
    _Regime("zeros", torch.zeros_like),
    _Regime(_SPECIAL, _special),
    _Regime("strided", _strided),
)


def check(case: Case, inputs: Inputs, odd: Inputs | None) -> dict[str, Correctness]:
    """Check all variants of a case.

    Args:
        case: with the variants.
        inputs: what they are timed with.
        odd: inputs of an odd size; None where their size cannot be chosen.
    """
    found: dict[str, Correctness] = {}
    kinds = [(regime.name, _changed(inputs, regime)) for regime in _REGIMES]
    kinds += [("odd size", odd)] if odd is not None else []
    wanted = {name: _reference(case, values) for name, values in kinds}
    if all(value is None for value in wanted.values()):
        return {
            name: Correctness(
                verdict=Correct.NOT_CHECKED,
                sentence="there is no float64 reference: the baseline does not take float64",
                reference=None,
                tolerance=None,
            )
            for name in case.variants
        }
    own: dict[str, float] = {}
    first: torch.dtype | None = None
    for name, function in case.variants.items():
        errors = [_compared(function, kind, values, wanted[kind]) for kind, values in kinds]
        as_given = errors[0].error
        if as_given is not None and as_given <= TOLERANCE[torch.bfloat16]:  # else it is wrong already
            errors += _behaviour(function, inputs, case)
        dtype = _result_dtype(function, inputs)
        first = dtype if name == case.baseline else first
        found[name] = _judged(case, errors, own, _Result(dtype, first))
        if name == case.baseline:
            own = {error.regime: error.error for error in errors if error.error is not None}
    return found


def _changed(inputs: Inputs, regime: _Regime) -> Inputs:
    def change(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return regime.change(value.detach())
        return value.clone() if isinstance(value, torch.Tensor) else value

    return tuple(map(change, inputs))


def _copied(inputs: Inputs) -> Inputs:
    return tuple(_same(value) if isinstance(value, torch.Tensor) else value for value in inputs)


def _same(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides."""
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _reference(case: Case, inputs: Inputs) -> list[torch.Tensor] | None:
    """Return the results in float64; None where they cannot be computed."""
    double = tuple(
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in inputs
    )
    function = case.reference or case.variants[case.baseline]
    try:
        results = _tensors(function(*double))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError):
        return None
    return results if results and all(r.dtype == torch.float64 for r in results if r.is_floating_point()) else None


def _tensors(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result.detach()]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in _tensors(part)]
    return []


def _result_dtype(function: Function, inputs: Inputs) -> torch.dtype | None:
    try:
        found = _tensors(function(*_copied(inputs)))
    except Exception:
        return None
    return found[0].dtype if found else None


def _compared(function: Function, kind: str, inputs: Inputs, wanted: list[torch.Tensor] | None) -> RegimeError:
    """Call a function with poisoned memory around it, and compare."""
    if wanted is None:
        return RegimeError(regime=kind, error=None)
    mine = _copied(inputs)
    _poison(wanted, inputs)
    try:
        results = _tensors(function(*mine))
    except Exception as error:
        return RegimeError(regime=kind, error=None, problem=f"raises {type(error).__name__}: {_short(error)}")
    if len(results) != len(wanted):
        return RegimeError(regime=kind, error=None, problem=f"returns {len(results)} tensors, not {len(wanted)}")
    errors = []
    for result, right in zip(results, wanted, strict=True):
        if result.shape != right.shape:
            shapes = f"{tuple(result.shape)}, not {tuple(right.shape)}"
            return RegimeError(regime=kind, error=None, problem=f"returns the shape {shapes}")
        far, problem = _error(result, right)
        if problem is not None:
            return RegimeError(regime=kind, error=None, problem=problem)
        errors.append(far)
    changed = [place for place, pair in enumerate(zip(inputs, mine, strict=True)) if not _equal(*pair)]
    problem = f"changes its input number {changed[0] + 1}" if changed else None
    return RegimeError(regime=kind, error=max(errors, default=None), problem=problem)


def _poison(wanted: Sequence[torch.Tensor], inputs: Inputs) -> None:
    """Leave memory of the results' size that holds no numbers: what is not written then shows, as it is used again."""
    dtype = next((v.dtype for v in inputs if isinstance(v, torch.Tensor) and v.is_floating_point()), torch.float32)
    held = [torch.full(one.shape, float("nan"), dtype=dtype, device=one.device) for one in wanted for _ in range(2)]
    del held


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120]


def _equal(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    return bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)) and torch.equal(one.isnan(), other.isnan()))


def _error(result: torch.Tensor, right: torch.Tensor) -> tuple[float, str | None]:
    """Return the norm of the difference over that of the reference, of what is finite; and what is wrong besides."""
    if not right.is_floating_point():
        same = bool(torch.equal(result.to(right.dtype), right))
        return (0.0, None) if same else (1.0, "returns other whole numbers")
    if not result.is_floating_point():
        return 0.0, f"returns {result.dtype}, not a floating-point type"
    got = result.double()
    limit = torch.finfo(result.dtype).max
    right = torch.where(right.abs() > limit, torch.copysign(torch.full_like(right, float("inf")), right), right)
    if not torch.equal(got.isnan(), right.isnan()):
        return 0.0, "is not a number where the reference is one, or the other way round"
    infinite = right.isinf() | got.isinf()
    near = right.abs() > 0.99 * limit  # rounding decides whether it is infinite
    if not torch.equal(got[infinite & ~near], right[infinite & ~near]):
        return 0.0, "is infinite where the reference is not, or the other way round"
    finite = right.isfinite() & got.isfinite()
    difference, norm = (got - right)[finite].norm().item(), right[finite].norm().item()
    if not norm:
        return (0.0, None) if difference <= torch.finfo(result.dtype).tiny ** 0.5 else (difference, None)
    return difference / norm, None


def _behaviour(function: Function, inputs: Inputs, case: Case) -> Iterator[RegimeError]:
    """Call again with other values in the same tensors: what was kept from before shows."""
    kind = "new values in the same tensors"
    mine = _copied(inputs)
    floating = [value for value in mine if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not floating:
        return
    try:
        first = [result.clone() for result in _tensors(function(*mine))]
        for value in floating:
            value.copy_(torch.randn_like(value) * 0.5 + 0.25)
        wanted = _reference(case, mine)
        second = _tensors(function(*mine))
    except Exception:
        return  # said already
    if wanted is None or len(wanted) != len(second):
        return
    errors = [_error(one, right) for one, right in zip(second, wanted, strict=True) if one.shape == right.shape]
    same = bool(first) and all(torch.equal(one, other) for one, other in zip(first, second, strict=False))
    differs = any(not torch.equal(one.double(), other) for one, other in zip(first, wanted, strict=False))
    if same and differs and max((error for error, _ in errors), default=0.0) > TOLERANCE[torch.bfloat16]:
        yield RegimeError(regime=kind, error=None, problem="returns the same result for other values (a kept result?)")
        return
    problem = next((problem for _, problem in errors if problem is not None), None)
    yield RegimeError(regime=kind, error=max((error for error, _ in errors), default=None), problem=problem)


@dataclass(frozen=True, slots=True)
class _Result:
    """The data type of a variant's result, and that of the baseline's."""

    dtype: torch.dtype | None
    of_baseline: torch.dtype | None


def _judged(case: Case, errors: Sequence[RegimeError], own: dict[str, float], result: _Result) -> Correctness:
    reference = "the case's reference in float64" if case.reference else f"{case.baseline} in float64"
    dtype = result.dtype
    tolerance = TOLERANCE.get(dtype, 0.0) if dtype is not None else None

    def said(verdict: Correct, sentence: str, precision: str | None = None) -> Correctness:
        return Correctness(
            verdict=verdict,
            sentence=sentence,
            reference=reference,
            tolerance=tolerance,
            errors=tuple(errors),
            precision=precision or (None if dtype is None else _name(dtype)),
        )

    # Around infinities implementations differ, and none is wrong.
    special = next((error for error in errors if error.problem is not None and error.regime == _SPECIAL), None)
    problem = next((error for error in errors if error.problem is not None and error is not special), None)
    if problem is not None:
        return said(Correct.WRONG, f"it {problem.problem} (inputs: {problem.regime})")
    if tolerance is None or dtype is None:
        return said(Correct.WRONG, "it returns no tensor")
    far = [
        error
        for error in errors
        if error.error is not None and error.error > max(tolerance, _OF_BASELINE * own.get(error.regime, 0.0))
    ]
    if not far:
        largest = max((error.error for error in errors if error.error is not None), default=0.0)
        also = "" if special is None else f"; of infinities and NaN it {special.problem}"
        found = f"relative error {largest:.1e} at most, {tolerance:.0e} allowed for {_name(dtype)}{also}"
        if result.of_baseline is None or tolerance <= TOLERANCE.get(result.of_baseline, 0.0):
            return said(Correct.RIGHT, found)
        return said(
            Correct.LOWER_PRECISION, f"it returns {_name(dtype)}, the baseline {_name(result.of_baseline)}: {found}"
        )
    worst = max(far, key=lambda error: error.error or 0.0)
    found = f"relative error {worst.error:.1e} (inputs: {worst.regime}), {tolerance:.0e} allowed for {_name(dtype)}"
    most, like = _LOWER.get(dtype, (0.0, ""))
    if (worst.error or 0.0) <= most:
        lower = like.removesuffix("-like").lower()
        return said(Correct.LOWER_PRECISION, f"{like} error in a {_name(dtype)} variant: {found}", lower)
    return said(Correct.WRONG, found)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
