"""Checks whether a function computes what it should, against a float64 reference and with several kinds of inputs.

It checks as well that the inputs do not change, that the result depends on the values of the inputs and not on their
identity, and that all of the result is written.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from msgspec import Struct
from torch.utils._python_dispatch import TorchDispatchMode

from opscope.base.errors import OpscopeError
from opscope.documents.bench import Correct, Correctness, RegimeError
from opscope.knowledge.categories import Category, classifier_of
from opscope.knowledge.native_functions import NativeFunctions
from opscope.measuring.judge import (
    TF32_ERROR,
    TOLERANCE,
    Right,
    changed,
    compared,
    in_double,
    is_inexact,
    name_of,
    right_of,
)
from opscope.torch_support.tensors import copy_of, tensors_of
from opscope.workbench.benchmarking.case import Case, Function, TimedInputs
from opscope.workbench.benchmarking.instruments import Instruments

# By the result's type: the largest error that a lower precision explains, and what it is then like.
_LOWER: Final = {torch.float32: (TF32_ERROR, "TF32-like"), torch.float16: (1e-2, "bfloat16-like")}
# What a lower precision can explain: only products of matrices use TF32, and sums of many 16-bit numbers may be added
# up in less than their type.
_PRODUCTS: Final = frozenset(
    {
        *(Category.MATRIX, Category.CONVOLUTION, Category.ATTENTION, Category.RECURRENT, Category.DISTANCE),
        Category.LINEAR_ALGEBRA,
    }
)
_SUMS: Final = frozenset(
    {
        *(Category.REDUCTION, Category.NORMALIZATION, Category.ACTIVATION, Category.LOSS, Category.SCAN),
        *(Category.POOLING, Category.INTERPOLATION, Category.FFT),
    }
)
_EXPLAINED: Final = {torch.float32: _PRODUCTS, torch.float16: _PRODUCTS | _SUMS}
_NO_WORK: Final = frozenset({Category.MEMORY, Category.HOST, Category.FRAMEWORK, Category.OTHER})  # computes nothing
_MOST_OF_BASELINE: Final = 10.0  # times the tolerance: a larger error of the baseline's is not rounding
_OF_BASELINE: Final = 3.0  # an error of up to this many times the baseline's own is right as well
# Factors of the regimes "tiny" and "large", by type; others take 1e-4 and 1e4.
_TINY: Final = {torch.float16: 1e-2}  # smaller numbers would not be normal ones
_LARGE: Final = {torch.float16: 30.0, torch.bfloat16: 1e3}
_AS_GIVEN: Final = "as given"
_SPECIAL: Final = "special values"
_READS: Final = ("__iter__", "__getitem__", "__len__", "values")  # by which the parts of a container are read
_TIES: Final = ("zeros", "large", _SPECIAL)  # regimes in which results that are whole numbers are not compared

_NOTHING_COMPARED: Final = "nothing was compared: its results hold no finite numbers, or the reference gives none"

Inputs = tuple[object, ...]


class VariantError(OpscopeError):
    """A variant failed in a process of its own; the text is the predicate of a sentence."""


class _Regime(Struct, frozen=True):
    name: str
    change: Callable[[torch.Tensor], torch.Tensor]


def _strided(value: torch.Tensor) -> torch.Tensor:
    """Return the same values in a tensor that leaves out every second element of memory."""
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
    _Regime("tiny", lambda value: value * _TINY.get(value.dtype, 1e-4)),
    _Regime("zeros", torch.zeros_like),
    _Regime(_SPECIAL, _special),
    _Regime("strided", _strided),
)


def check_variants(
    case: Case,
    inputs: Inputs,
    odd: Inputs | None,
    only: Collection[str] | None = None,
    instruments: Instruments | None = None,
) -> dict[str, Correctness]:
    """Check the variants of a case.

    Args:
        case: the case with the variants.
        inputs: the inputs that the variants are timed with.
        odd: inputs of an odd size; None if their size cannot be chosen.
        only: the names of the variants to check; None for all.
        instruments: put right after each variant that replaced some of them, which makes it wrong; None makes them.

    Returns:
        Whether each checked variant is right, by name.
    """
    instruments = instruments or Instruments()
    instruments.note(case.baseline)
    if (reason := _no_reference(case, inputs)) is not None:
        unknown = Correctness(verdict=Correct.NOT_CHECKED, sentence=reason, reference=None, tolerance=None)
        return {name: unknown for name in case.variants if only is None or name in only}
    kinds = [(regime.name, _in_regime(inputs, regime)) for regime in _REGIMES]
    kinds += [("odd size", odd)] if odd is not None else []
    wanted = {name: _reference(case, values) for name, values in kinds}
    work = _work_of(case, inputs)
    plain = _classes_of(_raw(case.variants[case.baseline], inputs)) | set(map(type, inputs))
    results: dict[str, Correctness] = {}
    own: dict[str, float] = {}
    first: torch.dtype | None = None
    for name, function in case.variants.items():
        # The baseline is judged in any case: its own error is the measure for the others.
        if only is not None and name not in only and name != case.baseline:
            continue
        instruments.note(name)
        errors = [_compared(function, kind, values, wanted[kind], plain) for kind, values in kinds]
        as_given = errors[0].error
        if as_given is not None and as_given <= TOLERANCE[torch.bfloat16]:  # else it is wrong already
            errors[1:1] = _behaviour(function, inputs, case)  # after the first, to be reported before the others
        dtype = _result_dtype(function, inputs)
        first = dtype if name == case.baseline else first
        exact = all(value is None or value.exact for value in wanted.values())
        judged = _judged(case, errors, own, _Result(dtype, first, exact, work))
        if (replaced := instruments.mended()) is not None:
            judged = tampered(replaced)
        instruments.settle()
        if only is None or name in only:
            results[name] = judged
        if name == case.baseline and judged.verdict is not Correct.WRONG:
            most = _MOST_OF_BASELINE * (judged.tolerance or 0.0)
            own = {error.regime: min(error.error, most) for error in errors if error.error is not None}
    return results


def tampered(replaced: str) -> Correctness:
    """Return what is said of a variant that replaced what it is judged by.

    Args:
        replaced: the names of what it replaced.
    """
    return refused(f"it replaces {replaced}, by which it is judged")


def refused(why: str) -> Correctness:
    """Return what is said of a variant whose results do not count, with the reason as the predicate of a sentence."""
    return Correctness(verdict=Correct.WRONG, sentence=why, reference=None, tolerance=None)


def check_timed(
    case: Case,
    inputs: Inputs,
    calls: Mapping[str, Callable[[], object]],
    changes: TimedInputs,
    note: Callable[[str], None],
) -> dict[str, Correctness]:
    """Check the very calls that are timed, with other values in their own inputs.

    A result that depends on the address of the inputs, on how often it was asked for, or that an earlier call wrote,
    is right in `check_variants` and wrong here.

    Args:
        case: the case with the variants.
        inputs: the arguments of the calls.
        calls: variants with these arguments, by name.
        changes: changes the inputs.
        note: called with the name of each before it is called.

    Returns:
        What is wrong, by name; empty if nothing is.
    """
    changes.renew()
    return check_as_timed(case, inputs, calls, note)


def check_as_timed(
    case: Case, inputs: Inputs, calls: Mapping[str, Callable[[], object]], note: Callable[[str], None] = lambda _: None
) -> dict[str, Correctness]:
    """Check calls with their inputs as they are now; see `check_timed`."""
    ours, result = _copied(inputs), dict[str, Correctness]()
    note(case.baseline)
    right, own = _reference(case, ours), _called(case.variants[case.baseline], ours)
    far = None if right is None or own is None else _farthest(own, right.results)
    if right is None or far is None:
        return result  # of such inputs the baseline is not right itself
    for name, call in calls.items():
        note(name)
        problem = _timed_problem(call, inputs, ours, right.results, _OF_BASELINE * far)
        if problem is not None:
            result[name] = refused(f"{problem} in the calls that are timed, where its inputs change from call to call")
    return result


def _farthest(results: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float | None:
    """Return the largest error of results; None if one is wrong altogether.

    Whole numbers are left out: small differences decide between them, and the other checks compare them.
    """
    if [one.shape for one in results] != [one.shape for one in wanted]:
        return None
    pairs = zip(results, wanted, strict=True)
    errors = [compared(one, right) for one, right in pairs if is_inexact(right)]
    far = max((one.relative_error or 0.0 for one in errors), default=0.0)
    return None if any(one.problem is not None for one in errors) else far


def _timed_problem(
    call: Callable[[], object], inputs: Inputs, before: Inputs, wanted: Sequence[torch.Tensor], allowed: float
) -> str | None:
    """Return what is wrong with a call's results, or with what it does to its inputs; None if nothing is."""
    try:
        results = tensors_of(call())
        # At once: what a thread or another stream writes after the call has returned is not a result of the call.
        results = [result.clone() for result in results]
    except Exception as error:
        return f"it {error}" if isinstance(error, VariantError) else f"it raises {type(error).__name__}"
    # Precision was judged before: here as much is allowed as any lower one explains.
    lower = [max(_MOST_OF_BASELINE * TOLERANCE.get(r.dtype, 0.0), _LOWER.get(r.dtype, (0.0,))[0]) for r in results]
    far = _farthest(results, wanted)
    if far is None or far > max(allowed, *(_OF_BASELINE * one for one in lower), 0.0):
        return "it returns something else than what follows from its inputs"
    changed = [pair for pair in zip(inputs, before, strict=True) if not _equal(*pair)]
    for own, values in changed:  # the next call is to get them as they were
        if isinstance(own, torch.Tensor) and isinstance(values, torch.Tensor):
            own.detach().copy_(values)
    return "it changes its inputs" if changed else None


def _raw(function: Function, inputs: Inputs) -> object:
    try:
        return function(*_copied(inputs))
    except Exception:
        return None


def _classes_of(result: object) -> set[type]:
    """Return the classes of a result and of what it holds, as far as results are compared."""
    results = {type(result)}
    if isinstance(result, Mapping):
        return results.union(*map(_classes_of, result.values()))
    return results.union(*map(_classes_of, result)) if isinstance(result, (tuple, list)) else results


def _deferring(result: object, plain: Collection[type]) -> str | None:
    """Return the name of a class in a result that may do its work only when it is looked into; None if there is none.

    Args:
        result: what a variant returned.
        plain: classes that the baseline returns as well.
    """
    kind = type(result)
    if isinstance(result, torch.Tensor):
        return None if kind in (torch.Tensor, torch.nn.Parameter) or kind in plain else kind.__qualname__
    if not isinstance(result, (Mapping, tuple, list)):
        return kind.__qualname__ if isinstance(result, (float, int, complex)) and not _is_number(kind, plain) else None
    if kind not in plain and not any(_reads_as(kind, one) for one in (tuple, list, dict, OrderedDict)):
        return kind.__qualname__
    parts = result.values() if isinstance(result, Mapping) else result
    return next((name for part in parts if (name := _deferring(part, plain)) is not None), None)


def _is_number(kind: type, plain: Collection[type]) -> bool:
    return kind in plain or kind in (bool, int, float, complex) or kind.__module__ == "numpy"


def _reads_as(kind: type, parent: type) -> bool:
    """Tell whether what a container holds is read by the code of a class of Python's own."""
    return issubclass(kind, parent) and all(
        getattr(kind, name) is getattr(parent, name) for name in _READS if hasattr(parent, name)
    )


def _work_of(case: Case, inputs: Inputs) -> frozenset[Category]:
    """Return the kinds of work that the baseline and the reference do, by the operators that they call."""
    called: set[str] = set()

    class Listening(TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # Where nothing was compiled there is nothing to skip, and importing Dynamo takes a second or more.
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func._schema.name)
            return func(*args, **(kwargs or {}))

    for function in filter(None, (case.variants[case.baseline], case.reference)):
        try:
            with Listening():
                function(*_copied(inputs))
        except Exception:  # compiled functions may not be listened to
            continue
    classifier = classifier_of(NativeFunctions.shipped())
    return frozenset(classifier.classify(name).category for name in called) - _NO_WORK


def _no_reference(case: Case, inputs: Inputs) -> str | None:
    """Return why results cannot be compared with the baseline's; None if they can."""
    baseline = case.variants[case.baseline]
    try:
        one, other = tensors_of(baseline(*_copied(inputs))), tensors_of(baseline(*_copied(inputs)))
    except Exception:
        return None  # the baseline's own check will say so
    if not one:
        return f"{case.baseline} returns no tensors to compare with"
    for before, after in zip(one, other, strict=False):
        if before.shape != after.shape or not _alike(before, after):
            return f"{case.baseline} returns something else each time: it is random"
    return None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not is_inexact(one):
        return bool(torch.equal(one, other))
    result = compared(other, in_double(one))
    return result.problem is None and (result.relative_error or 0.0) <= TOLERANCE[torch.bfloat16]


def _in_regime(inputs: Inputs, regime: _Regime) -> Inputs:
    def change(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided:
            return regime.change(value.detach())
        return value.clone() if isinstance(value, torch.Tensor) else value

    return tuple(map(change, inputs))


def _copied(inputs: Inputs) -> Inputs:
    copies: Inputs = changed(inputs, copy_of)
    return copies


def _reference(case: Case, inputs: Inputs) -> Right | None:
    """Return the right results; None if they cannot be computed."""
    try:
        right = right_of(case.reference or case.variants[case.baseline], inputs)
    except Exception:
        return None
    return right if right.results else None


def _called(function: Function, inputs: Inputs) -> list[torch.Tensor] | None:
    try:
        return tensors_of(function(*_copied(inputs))) or None
    except Exception:
        return None


def _result_dtype(function: Function, inputs: Inputs) -> torch.dtype | None:
    try:
        result = tensors_of(function(*_copied(inputs)))
    except Exception:
        return None
    return result[0].dtype if result else None


def _compared(
    function: Function, kind: str, inputs: Inputs, right_results: Right | None, plain: Collection[type]
) -> RegimeError:
    """Call a function after poisoning free memory, and compare its results.

    Args:
        function: the variant.
        kind: the name of the regime of the inputs.
        inputs: the arguments; the function gets copies.
        right_results: what is right; None if that is unknown, and nothing is compared.
        plain: classes of results that the baseline returns as well.
    """
    if right_results is None:
        return RegimeError(regime=kind, error=None)
    wanted, own = right_results.results, _copied(inputs)
    _poison(wanted, inputs)
    try:
        returned = function(*own)
        deferring = _deferring(returned, plain)
        # At once: what a thread or another stream writes after the call has returned is not a result of the call.
        results = [] if deferring else [result.clone() for result in tensors_of(returned)]
        del returned
    except Exception as error:
        raised = str(error) if isinstance(error, VariantError) else f"raises {type(error).__name__}: {_short(error)}"
        return RegimeError(regime=kind, error=None, problem=raised)
    if deferring or len(results) != len(wanted):
        number = f"returns {len(results)} tensors, not {len(wanted)}"
        late = f"returns a {deferring}, which may do its work only after the call"
        return RegimeError(regime=kind, error=None, problem=late if deferring else number)
    errors = []
    for result, right in zip(results, wanted, strict=True):
        if kind in _TIES and result.shape == right.shape and not is_inexact(right):
            continue  # of equal values any index is right, and so is any whole number that a value rounds to
        one = compared(result, right)
        if one.problem is not None:
            return RegimeError(regime=kind, error=None, problem=one.problem)
        # In units of the first result's tolerance, because errors are judged by that.
        if one.relative_error is None:
            continue  # it is empty, or NaN and infinities alone
        far = one.relative_error
        far *= TOLERANCE.get(results[0].dtype, 1.0) / TOLERANCE.get(result.dtype, TOLERANCE.get(results[0].dtype, 1.0))
        errors.append(far)
    other = [place for place, pair in enumerate(zip(inputs, own, strict=True)) if not _equal(*pair)]
    problem = f"changes its input number {other[0] + 1}" if other else None
    return RegimeError(regime=kind, error=max(errors, default=None), problem=problem)


def _poison(wanted: Sequence[torch.Tensor], inputs: Inputs) -> None:
    """Free memory of the results' size that holds NaN: it is used again, so results that are not written show."""
    dtype = next((v.dtype for v in inputs if isinstance(v, torch.Tensor) and v.is_floating_point()), torch.float32)
    held = [torch.full(one.shape, float("nan"), dtype=dtype, device=one.device) for one in wanted for _ in range(2)]
    del held


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120]


def _equal(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    return bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)) and torch.equal(one.isnan(), other.isnan()))


def _behaviour(function: Function, inputs: Inputs, case: Case) -> Iterator[RegimeError]:
    """Call a function again with other values in the same tensors, which shows results that it kept."""
    kind = "new values in the same tensors"
    own = _copied(inputs)
    floating = [value for value in own if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not floating:
        return
    try:
        first = [result.clone() for result in tensors_of(function(*own))]
        for value in floating:
            value.copy_(torch.randn_like(value) * 0.5 + 0.25)
        right_results = _reference(case, own)
        second = tensors_of(function(*own))
    except Exception:
        return  # it has failed before, and that was noted
    if right_results is None or len(right_results.results) != len(second):
        return
    wanted = right_results.results
    errors = [compared(one, right) for one, right in zip(second, wanted, strict=True) if one.shape == right.shape]
    # A kept result: equal to the first one, though another was right, and far from what is right now.
    same = bool(first) and all(torch.equal(one, other) for one, other in zip(first, second, strict=False))
    differs = any(not torch.equal(in_double(one), other) for one, other in zip(first, wanted, strict=False))
    far = any(one.problem is not None or (one.relative_error or 0.0) > TOLERANCE[torch.bfloat16] for one in errors)
    if same and differs and far:
        yield RegimeError(regime=kind, error=None, problem="returns the same result for other values (a kept result?)")
        return
    problem = next((one.problem for one in errors if one.problem is not None), None)
    error = max((one.relative_error or 0.0 for one in errors), default=None)
    yield RegimeError(regime=kind, error=error, problem=problem)


class _Result(Struct, frozen=True):
    """What a variant's errors are judged by.

    Attributes:
        dtype: of the variant's result; None if it returns no tensor.
        of_baseline: the data type of the baseline's result.
        exact: whether the reference was computed in float64.
        work: the kinds of work that the baseline and the reference do; empty if PyTorch sees none of it.
    """

    dtype: torch.dtype | None
    of_baseline: torch.dtype | None
    exact: bool
    work: frozenset[Category]

    def explains(self, dtype: torch.dtype) -> bool:
        """Tell whether an error can come from a lower precision; unknown work may."""
        return not self.work or bool(self.work & _EXPLAINED.get(dtype, frozenset()))


def _judged(case: Case, errors: Sequence[RegimeError], own: dict[str, float], result: _Result) -> Correctness:
    of_what = "the case's reference" if case.reference else case.baseline
    reference = f"{of_what} in float64" if result.exact else f"{of_what} at its own precision: it does not take float64"
    dtype = result.dtype
    tolerance = TOLERANCE.get(dtype, 0.0) if dtype is not None else None
    if tolerance is not None and not result.exact and result.of_baseline is not None:
        tolerance = max(tolerance, TOLERANCE.get(result.of_baseline, 0.0))  # the reference's own error is as large

    def judged(
        verdict: Correct, sentence: str, precision: str | None = None, worst: RegimeError | None = None
    ) -> Correctness:
        return Correctness(
            verdict=verdict,
            sentence=sentence,
            reference=reference,
            tolerance=tolerance,
            errors=tuple(errors),
            precision=precision or (None if dtype is None else name_of(dtype)),
            worst=None if worst is None else worst.regime,
        )

    # Implementations differ on infinities and NaN, and none of them is wrong.
    special = next((error for error in errors if error.problem is not None and error.regime == _SPECIAL), None)
    problem = next((error for error in errors if error.problem is not None and error is not special), None)
    if problem is not None:
        return judged(Correct.WRONG, f"it {problem.problem} (inputs: {problem.regime})", worst=problem)
    if tolerance is None or dtype is None:
        return judged(Correct.WRONG, "it returns no tensor")
    far = [
        error
        for error in errors
        if error.error is not None and error.error > max(tolerance, _OF_BASELINE * own.get(error.regime, 0.0))
    ]
    if not far:
        also = "" if special is None else f"; of infinities and NaN it {special.problem}"
        return judged(*_within_tolerance(errors, result, tolerance, also))
    worst = max(far, key=lambda error: error.error or 0.0)
    outcome = f"relative error {worst.error:.1e} (inputs: {worst.regime}), {tolerance:.0e} allowed for {name_of(dtype)}"
    most, like = _LOWER.get(dtype, (0.0, ""))
    if (worst.error or 0.0) <= most and result.explains(dtype):
        lower = like.removesuffix("-like").lower()
        return judged(Correct.LOWER_PRECISION, f"{like} error in a {name_of(dtype)} variant: {outcome}", lower, worst)
    if (worst.error or 0.0) <= most:
        outcome += "; nothing that it computes is done in a lower precision"
    return judged(Correct.WRONG, outcome, worst=worst)


def _within_tolerance(
    errors: Sequence[RegimeError], result: _Result, tolerance: float, also: str
) -> tuple[Correct, str]:
    """Return what is said of a result of which no error is too large."""
    known = [error.error for error in errors if error.error is not None]
    if not known or result.dtype is None:
        return Correct.NOT_CHECKED, _NOTHING_COMPARED
    types, outcome = name_of(result.dtype), f"relative error {max(known):.1e} at most, {tolerance:.0e} allowed for "
    if result.of_baseline is None or TOLERANCE.get(result.dtype, 0.0) <= TOLERANCE.get(result.of_baseline, 0.0):
        return Correct.RIGHT, f"{outcome}{types}{also}"
    returned = f"it returns {types}, the baseline {name_of(result.of_baseline)}"
    return Correct.LOWER_PRECISION, f"{returned}: {outcome}{types}{also}"
