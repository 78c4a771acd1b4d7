"""Whether a variant computes what the step as written does: by its error against float64, beside what explains it.

Each tensor is judged by itself, as the error of a small one is lost in the norm of all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from opscope.advise.messages import BLOCKS, ComputedStep, LongRun, Values, VariantRecording
from opscope.documents.advise import UNDECIDED

# An error may be so many times that of the step as written, or that of simulated arithmetic, whichever is larger. In a
# probe on one H200 planted mistakes were above that, and right variants below.
_TIMES: Final = 3.0
# The same for tensors of so few elements that rounding may cancel in them: the error of one number is, once in ten
# thousand times, ten times the largest of four such errors (normally distributed), and three times once in a hundred.
_FEW, _TIMES_OF_FEW = 32, 10.0
_LEAST: Final = 1e-6  # rounding of float32 alone, of parameters and buffers
# The same of results and gradients: sums in another order, and their way through normalisation. Convolutions with
# BatchNorm in training, channels last, were 3.1e-5 off on a CPU.
_LEAST_OF_RESULTS: Final = 2e-5
# Results whose own error is so large show nothing.
_NOT_DECIDABLE: Final = 0.3
_STATE: Final = "state after the steps"
_PARAMETERS: Final = "parameters"  # all that an optimizer updates, together
_UPDATE: Final = "update of "
# Of the norm of how far steps moved a parameter, in all: single elements with gradients near their rounding go another
# way, which is a few percent of it; a missing update is all of it.
_LEAST_OF_UPDATES: Final = 0.08
_NONE: Final = np.zeros(0)
_SMALL: Final = 1e-3  # of the largest gradient: smaller ones are rounding, and measured by the largest
_SPREAD: Final = 0.02  # of the loss: how far losses of the same step differ by rounding after many steps, at most


class Judgement(Struct, frozen=True):
    """What comparison says.

    Attributes:
        right: whether it computes the same; None where that cannot be decided.
        reason: why, in one sentence.
        error: the largest relative error of a tensor that was compared.
        own_error: that of the same tensor of the step as written.
        tensors: how many tensors were compared.
        elements: how many elements these have.
        is_float64: whether errors are beside float64; otherwise beside the step as written in another process.
    """

    right: bool | None
    reason: str
    error: float
    own_error: float
    tensors: int = 0
    elements: int = 0
    is_float64: bool = True


class _Key(Struct, frozen=True, order=True):
    """What was compared.

    Attributes:
        when: in which step, for which other inputs, or after the steps.
        name: of the tensor.
        is_result: whether a step computed it: what comes of other inputs proves nothing alone.
    """

    when: str
    name: str
    is_result: bool = False


class Difference(Struct, frozen=True):
    """How far a tensor is from the right one.

    Attributes:
        error: the norm of the difference over that of the right one; infinite where one of them is missing, has another
            shape, or is not finite at the same places.
        elements: how many finite elements were compared.
    """

    error: float
    elements: int = 0


Differences = dict[_Key, Difference]


def judged(
    result: VariantRecording,
    as_written: VariantRecording,
    reference: VariantRecording,
    simulated: Sequence[VariantRecording],
    names: str,
    *,
    is_float64: bool = True,
) -> Judgement:
    """Compare what a variant computed with a reference.

    Args:
        result: what it computed.
        as_written: what the step as written did.
        reference: the same in float64.
        simulated: the same with arithmetic of the variant's precision.
        names: what the variant is, in words.
        is_float64: whether the reference is in float64; otherwise it is the step as written in another process.
    """
    beside = "float64" if is_float64 else "the step as written, which does not run in float64"
    wrong = _plainly_wrong(result, as_written)
    if wrong is not None:
        return Judgement(False, wrong, float("inf"), 0.0)
    ours, own = tensor_differences(result, reference), tensor_differences(as_written, reference)
    limits = _limits(
        ours, [own, *(tensor_differences(one, reference) for one in simulated)], _typical(simulated, reference)
    )
    compared = {key: one for key, one in ours.items() if limits[key] <= _NOT_DECIDABLE}
    for key, one in compared.items():
        if not one.error <= limits[key]:
            text = f"error {one.error:.1e} against {beside}, where {limits[key] / _times(key, one):.1e} is explained"
            return Judgement(False, f"{_shown(key, reference)}: {text}", one.error, _error_in(own, key))
    compared = {key: one for key, one in compared.items() if one.elements}
    explained = {key.name: limits[key] / _times(key, ours[key]) for key in sorted(limits, key=lambda one: -limits[one])}
    left = _not_compared(result, as_written, reference, compared, explained, is_float64=is_float64)
    if left is not None:
        error, own_error = (max((one.error for one in some.values()), default=0.0) for some in (ours, own))
        return Judgement(None, f"{UNDECIDED}: {left}", error, own_error)
    # Errors of updates are beside how far these went, and not beside what they were added to.
    shown = [key for key in compared if not key.name.startswith(_UPDATE)]
    worst = max(shown, key=lambda key: compared[key].error)
    tensors, elements = len(compared), sum(one.elements for one in compared.values())
    error = compared[worst].error
    where = _shown(worst, reference)
    text = f"{names}: error {error:.1e} at most against {beside} ({where}), of {tensors:,} tensors compared"
    return Judgement(True, text, error, _error_in(own, worst), tensors, elements)


def _shown(key: _Key, reference: VariantRecording) -> str:
    return f"{key.when}, {_named(key.name, reference)}"


def _named(name: str, reference: VariantRecording) -> str:
    """Return the name of a tensor for people: a gradient has that of its parameter."""
    parameters = {f"gradient {number}": name for name, number in reference.updated.items()}
    # A parameter's begins with the number of the module that is called.
    return f"gradient of {parameters[name].partition('.')[2]}" if name in parameters else name


def _plainly_wrong(result: VariantRecording, as_written: VariantRecording) -> str | None:
    """Return what is wrong whatever the numbers are; None if nothing is."""
    if result.updates != as_written.updates:
        return "the optimizer takes another number of steps"
    # PyTorch itself may hold outputs, as captured graphs do: only those matter that the program as written holds.
    overwritten = len((result.overwritten & as_written.held) - as_written.overwritten)
    if overwritten:
        return f"{overwritten} outputs that the program still holds are overwritten by the next step"
    return None


def _not_compared(
    result: VariantRecording,
    as_written: VariantRecording,
    reference: VariantRecording,
    compared: Mapping[_Key, Difference],
    explained: Mapping[str, float],
    *,
    is_float64: bool,
) -> str | None:
    """Return which part of the results was not compared, and why; None if all were.

    Args:
        result: what the variant computed.
        as_written: what the step as written did.
        reference: the right results.
        compared: what was compared, where that decides.
        explained: by name of a tensor, the error that is explained where it is least.
        is_float64: whether the reference is in float64; otherwise it is the step as written in another process.
    """
    filled, finite = set[str](), set[str]()
    for step in reference.steps:
        for name, values in _results(step).items():
            filled |= {name} if values.size else set()
            finite |= {name} if np.isfinite(values).any() else set()
    far = finite - {key.name for key in compared if key.is_result}
    # A number that a step keeps, such as a duration, may be another one each time.
    far |= {name for name, one in reference.state.items() if one.size > 1 and not name.endswith(BLOCKS)} - {
        *(key.name for key in compared if key.when == _STATE),
        *reference.updated,
    }
    if (reason := _no_numbers(result, as_written)) is not None:
        return reason
    if not filled:
        return "a step computes nothing that can be seen"
    if filled - finite:
        return f"{min(filled - finite)} is not finite in any step"
    if not far:
        return None
    name = _named(min(far), reference)
    error = f"an error of {explained.get(min(far), float('inf')):.1e}"
    if is_float64:
        return f"rounding alone explains {error} in {name}: a mistake would not show"
    return f"{name}: two processes of the step as written, which does not run in float64, show {error}"


def _no_numbers(result: VariantRecording, as_written: VariantRecording) -> str | None:
    """Return which result cannot be looked into, or is another text or object; None if there is none."""
    for ours, own in zip(result.steps, as_written.steps, strict=True):
        unknown = (*ours.unknown, *own.unknown)
        if unknown:
            return f"a step returns what cannot be looked into ({unknown[0]})"
        others = [name for name in {**ours.constants, **own.constants} if _differ(name, ours.constants, own.constants)]
        if others:
            return f"{others[0]} is {ours.constants.get(others[0])}, as written {own.constants.get(others[0])}"
    return None


def _differ(name: str, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return one.get(name) != other.get(name)


def _times(key: _Key, difference: Difference) -> float:
    return _TIMES_OF_FEW if difference.elements < _FEW and not key.name.startswith(_UPDATE) else _TIMES


def _error_in(some: Differences, key: _Key) -> float:
    """Return the error of a tensor; 0.0 where it was not compared."""
    return some[key].error if key in some else 0.0


def _limits(own: Differences, explaining: Sequence[Differences], typical: Mapping[str, float]) -> dict[_Key, float]:
    """Return the largest error of each tensor that is explained.

    Args:
        own: the tensors.
        explaining: errors of the step as written, and of simulated arithmetic. Each explains that of the same tensor,
            in whatever step: small tensors may be right by chance in one.
        typical: what arithmetic of that precision costs all tensors together.
    """
    in_steps: dict[str, float] = {}
    for some in explaining:
        for key, one in some.items():
            if key.is_result and np.isfinite(one.error):
                in_steps[key.name] = max(in_steps.get(key.name, 0.0), one.error)
    limits = {}
    for key, one in own.items():
        least = _LEAST if key.name == _PARAMETERS else _LEAST_OF_RESULTS
        if key.name.startswith(_UPDATE):
            least = _LEAST_OF_UPDATES
        same = (_error_in(some, key) for some in explaining)
        limit = _times(key, one) * max(least, *same, typical.get(key.when, 0.0))
        # Weights train apart: a step in which nothing can be decided explains nothing of the others.
        in_others = _times(key, one) * in_steps.get(key.name, 0.0) if key.is_result else 0.0
        limits[key] = max(limit, in_others if in_others <= _NOT_DECIDABLE else 0.0)
    return limits


def _typical(simulated: Sequence[VariantRecording], reference: VariantRecording) -> dict[str, float]:
    """Return the error of all results together by when they were computed, as far as simulated arithmetic is finite."""
    results: dict[str, float] = {}
    for one in simulated:
        for when, own, right, _ in _pairs(one, reference):
            for some, others in ((own.outputs, right.outputs), (own.gradients, right.gradients)):
                error = _together(some, others)
                if np.isfinite(error):
                    results[when] = max(results.get(when, 0.0), error)
    return results


def _together(results: Mapping[str, Values], right: Mapping[str, Values]) -> float:
    """Return the norm of the difference over that of what is right, of all tensors; infinite if they are others."""
    names = [name for name in right if not name.endswith(BLOCKS)]
    if any(name not in results or results[name].shape != right[name].shape for name in names):
        return float("inf")
    wanted = np.concatenate([*(right[name] for name in names), np.zeros(0)])
    own = np.concatenate([*(results[name] for name in names), np.zeros(0)])
    finite = np.isfinite(wanted) & np.isfinite(own)
    norm = float(np.linalg.norm(wanted[finite]))
    return float(np.linalg.norm((own - wanted)[finite])) / norm if norm else 0.0


# ---------------------------------------------------------------- how far tensors are from the right ones


def tensor_differences(result: VariantRecording, reference: VariantRecording) -> Differences:
    """Return how far each tensor is from that of a reference."""
    all_of_them: Differences = {}
    for when, own, right, is_result in _pairs(result, reference):
        for name, one in _of_computed(own, right).items():
            all_of_them[_Key(when, name, is_result)] = one
    for name, one in _of_state(result, reference).items():
        all_of_them[_Key(_STATE, name)] = one
    return all_of_them


def _pairs(
    result: VariantRecording, reference: VariantRecording
) -> Iterator[tuple[str, ComputedStep, ComputedStep, bool]]:
    """Yield what both computed, with when that was and whether it was in a step."""
    for number, (own, right) in enumerate(zip(result.steps, reference.steps, strict=True), start=1):
        yield f"step {number}", own, right, True
    for kind in reference.others:
        if kind in result.others:
            yield kind, result.others[kind], reference.others[kind], False


def _results(computed: ComputedStep) -> dict[str, Values]:
    """Return all that was computed, by the names that reasons give."""
    gradients = {f"gradient {name}": values for name, values in computed.gradients.items()}
    results = {**computed.outputs, **computed.arguments, **gradients}
    return {name: values for name, values in results.items() if not name.endswith(BLOCKS)}


def _of_computed(result: ComputedStep, right: ComputedStep) -> dict[str, Difference]:
    outputs = _each(result.outputs, right.outputs, _norm)
    arguments = _each(result.arguments, right.arguments, _norm)
    norms = [_norm(values) for name, values in right.gradients.items() if not name.endswith(BLOCKS)]
    largest = max(norms, default=0.0)
    gradients = _each(result.gradients, right.gradients, lambda values: _scale(_norm(values), largest))
    return {**outputs, **arguments, **{f"gradient {name}": one for name, one in gradients.items()}}


def _scale(own: float, largest: float) -> float:
    return largest if own < _SMALL * largest else own


def _norm(values: Values) -> float:
    return float(np.linalg.norm(values[np.isfinite(values)]))


def _each(
    results: Mapping[str, Values], right: Mapping[str, Values], scale: Callable[[Values], float]
) -> dict[str, Difference]:
    """Return how far each tensor is from the right one, in its elements or the norms of its blocks."""
    names = dict.fromkeys(name.removesuffix(BLOCKS) for name in (*right, *results))
    return {name: _one(name, results, right, scale) for name in names}


def _one(
    name: str, results: Mapping[str, Values], right: Mapping[str, Values], scale: Callable[[Values], float]
) -> Difference:
    errors = []
    for part in (name, name + BLOCKS):
        own, wanted = results.get(part), right.get(part)
        if own is None and wanted is None:
            continue
        if own is None or wanted is None or own.shape != wanted.shape:
            return Difference(float("inf"))
        errors.append(_of_blocks(own, wanted) if part.endswith(BLOCKS) else _relative(own, wanted, scale(wanted)))
    return Difference(max(errors), int(np.isfinite(right[name]).sum()))


def _of_blocks(result: Values, right: Values) -> float:
    """Return the largest difference of a block's norm, each by its own size: one row of a tensor is little of it."""
    finite = np.isfinite(right)
    if not np.array_equal(result[~finite], right[~finite], equal_nan=True) or not np.isfinite(result[finite]).all():
        return float("inf")
    own, wanted = result[finite], right[finite]
    typical = float(np.mean(wanted)) if wanted.size else 0.0
    return float((np.abs(own - wanted) / (wanted + typical)).max()) if typical else _relative(own, wanted, 0.0)


def _relative(result: Values, right: Values, scale: float) -> float:
    """Return the norm of the difference over a scale; infinite if what is not finite is elsewhere, or another kind."""
    finite = np.isfinite(right)
    if not np.array_equal(result[~finite], right[~finite], equal_nan=True) or not np.isfinite(result[finite]).all():
        return float("inf")
    difference = float(np.linalg.norm(result[finite] - right[finite]))
    return difference / scale if scale else (0.0 if not difference else float("inf"))


def _besides(recording: VariantRecording, reference: VariantRecording) -> dict[str, Values]:
    """Return the state without parameters that are updated."""
    return {name: one for name, one in recording.state.items() if name.removesuffix(BLOCKS) not in reference.updated}


def _of_state(result: VariantRecording, reference: VariantRecording) -> dict[str, Difference]:
    """Return how far the state is from the right one: parameters together, and what moved them and the rest each.

    Elements of parameters that rounding alone decides are left out of that. An optimizer such as Adam moves an element
    as far for a gradient of 1e-9 as for one of 1: where the true gradient is zero (the bias of the keys of an
    attention, say), any two right programs move it differently. Such elements must not be farther off than the steps
    move elements.
    """
    undecided = _undecided(reference)
    farthest = max((reference.moved.get(name, 0.0) for name in undecided), default=0.0)
    ours, right = [_NONE], [_NONE]
    found_of_each = _each(_besides(result, reference), _besides(reference, reference), _norm)
    for name in reference.updated:
        if name not in result.state:
            return {name: Difference(float("inf"))}
        own, wanted = result.state[name], reference.state[name]
        kept = ~undecided.get(name, np.zeros(wanted.shape, bool))
        if own.shape != wanted.shape or not (np.abs(own - wanted)[~kept] <= 2 * farthest).all():
            return {name: Difference(float("inf"))}
        ours.append(own[kept])
        right.append(wanted[kept])
        if travelled := reference.travelled.get(name):
            found_of_each[f"{_UPDATE}{name}"] = Difference(
                _relative(own[kept], wanted[kept], travelled), int(kept.sum())
            )
    together = np.concatenate(right)
    if together.size:
        error = _relative(np.concatenate(ours), together, _norm(together))
        found_of_each[_PARAMETERS] = Difference(error, together.size)
    return found_of_each


def _undecided(reference: VariantRecording) -> dict[str, NDArray[np.bool_]]:
    """Return by parameter the elements whose gradient is less than its error may be, in each step that has one.

    A gradient of exactly zero, as of a row of an embedding that no token names, moves nothing.
    """
    tiny: dict[str, NDArray[np.bool_]] = {}
    known: dict[str, NDArray[np.bool_]] = {}
    for step in reference.steps:
        elements = np.concatenate([*step.gradients.values(), np.zeros(0)])
        least = _TIMES * _LEAST_OF_RESULTS * float(np.sqrt(np.mean(np.square(elements)))) if elements.size else 0.0
        for name, gradient in reference.updated.items():
            values = step.gradients.get(gradient)
            if values is not None and values.shape == reference.state[name].shape:
                none = np.zeros(values.shape, bool)
                tiny[name] = tiny.get(name, none) | ((values != 0) & (np.abs(values) < least))
                known[name] = known.get(name, none) | (np.abs(values) >= least)
    return {name: mask & ~known[name] for name, mask in tiny.items()}


def runs_agree(result: LongRun, as_written: Sequence[LongRun]) -> str | None:
    """Return why a longer run is another one; None where its losses lie where those of the step as written do.

    Args:
        result: the run.
        as_written: the step as written, once from the same seed, then from others.
    """
    if as_written[0].draws and not result.draws:
        return "no random numbers are drawn, where the step as written draws some: is its dropout gone?"
    return losses_agree(result.losses, [one.losses for one in as_written])


def losses_agree(results: Sequence[float], as_written: Sequence[Sequence[float]]) -> str | None:
    """Return why losses are those of another run; None where they lie where those of the step as written do.

    That is within the spread of all runs as written of the one from the same seed, or between them all, give or take
    rounding.

    Args:
        results: the loss of each step.
        as_written: the same of the step as written, once from the same seed, then from others.
    """
    last = max(1, len(results) // 3)
    mean = float(np.mean(results[-last:]))
    means = [float(np.mean(one[-last:])) for one in as_written]
    if all(np.isnan(means)):
        return None  # the step has no loss
    spread = max(means) - min(means)
    rounding = _SPREAD * max(abs(as_written[0][0]), abs(means[0]))
    if abs(mean - means[0]) <= max(spread, rounding):
        return None
    # Two networks that train against each other end elsewhere from the same seed, by rounding alone.
    if min(means) - rounding <= mean <= max(means) + rounding:
        return None
    return f"the loss after {len(results)} steps is {mean:.4g}, as written {min(means):.4g} to {max(means):.4g}"
