"""Whether a variant computes what the step as written does: by its error against float64, beside what explains it."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from opscope.advise.messages import Computed, LongRun, Recording, Values
from opscope.documents.advise import UNDECIDED

# An error may be so many times that of the step as written, or that of simulated arithmetic, whichever is larger. In a
# probe on one H200 planted mistakes were above that, and right variants below.
_TIMES: Final = 3.0
_LEAST: Final = 1e-6  # rounding of float32 alone, of parameters and buffers
# The same of results and gradients: sums in another order, and their way through normalisation. Convolutions with
# BatchNorm in training, channels last, were 3.1e-5 off on a CPU.
_LEAST_OF_RESULTS: Final = 2e-5
# Results whose own error is so large show nothing.
_NOT_DECIDABLE: Final = 0.3
_STATE: Final = "state after the steps"
_SMALL: Final = 1e-3  # of the largest gradient: smaller ones are rounding, and left out
_SPREAD: Final = 0.02  # of the loss: how far losses of the same step differ by rounding after many steps, at most


class Judged(Struct, frozen=True):
    """What comparison says.

    Attributes:
        right: whether it computes the same; None where that cannot be decided.
        reason: why, in one sentence.
        error: the largest relative error that was compared.
        own_error: that of the step as written.
    """

    right: bool | None
    reason: str
    error: float
    own_error: float


def judged(
    found: Recording, as_written: Recording, reference: Recording, simulated: Sequence[Recording], names: str
) -> Judged:
    """Compare what a variant computed with a reference.

    Args:
        found: what it computed.
        as_written: what the step as written did.
        reference: the same in float64.
        simulated: the same with arithmetic of the variant's precision.
        names: what the variant is, in words.
    """
    if found.updates != as_written.updates:
        return Judged(False, "the optimizer takes another number of steps", float("inf"), 0.0)
    # PyTorch itself may hold outputs, as captured graphs do: only those matter that the program as written holds.
    overwritten = len((found.overwritten & as_written.held) - as_written.overwritten)
    if overwritten:
        said = f"{overwritten} outputs that the program still holds are overwritten by the next step"
        return Judged(False, said, float("inf"), 0.0)
    mine, own = errors_of(found, reference), errors_of(as_written, reference)
    explained = [errors_of(one, reference) for one in simulated]
    worst, decided = ("", 0.0, 0.0), False
    for what, error in mine.items():
        least = _LEAST if what == _STATE else _LEAST_OF_RESULTS
        limit = _TIMES * max(least, own.get(what, 0.0), *(one.get(what, 0.0) for one in explained))
        if not limit <= _NOT_DECIDABLE:
            continue
        decided = decided or what.startswith("step")  # results of other inputs alone, such as zeros, prove nothing
        if not error <= limit:
            said = f"{what}: error {error:.1e} against float64, where {limit / _TIMES:.1e} is explained"
            return Judged(False, said, error, own.get(what, 0.0))
        if error >= worst[1]:
            worst = what, error, own.get(what, 0.0)
    if not decided:
        return Judged(
            None, f"{UNDECIDED}: the step as written is as far from float64", max(mine.values()), max(own.values())
        )
    return Judged(True, f"{names}: error {worst[1]:.1e} at most against float64 ({worst[0]})", worst[1], worst[2])


def errors_of(found: Recording, reference: Recording) -> dict[str, float]:
    """Return the relative error by what was compared; infinite where that is not there or not finite."""
    errors = {
        f"step {number}": _error(one, right)
        for number, (one, right) in enumerate(zip(found.steps, reference.steps, strict=True), start=1)
    }
    for kind, right in reference.others.items():
        errors[kind] = _error(found.others[kind], right)
    if found.state.keys() != reference.state.keys():
        errors[_STATE] = float("inf")
    elif reference.state:
        errors[_STATE] = _of_state(found, reference)
    return errors


def _of_state(found: Recording, reference: Recording) -> float:
    """Return the relative error of the state, without elements that rounding alone decides where they move.

    An optimizer such as Adam moves an element as far for a gradient of 1e-9 as for one of 1: where the true gradient
    is zero (the bias of the keys of an attention, say), any two right programs move it differently. Such elements
    must not be farther off than the steps move elements.
    """
    decided = {name: ~mask for name, mask in _undecided(reference).items()}
    farthest = max((reference.moved.get(name, 0.0) for name in decided), default=0.0)
    mine, right = [], []
    for name, wanted in reference.state.items():
        kept, own = decided.get(name, np.ones(wanted.shape, bool)), found.state[name]
        if own.shape != wanted.shape or not (np.abs(own - wanted)[~kept] <= 2 * farthest).all():
            return float("inf")
        mine.append(own[kept])
        right.append(wanted[kept])
    return _relative(mine, right)


def _undecided(reference: Recording) -> dict[str, NDArray[np.bool_]]:
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


def _error(found: Computed, right: Computed) -> float:
    outputs = _relative(found.outputs, right.outputs)
    if found.gradients.keys() != right.gradients.keys():
        return float("inf")
    norms = {name: float(np.linalg.norm(value)) for name, value in right.gradients.items()}
    largest = max(norms.values(), default=0.0)
    kept = [name for name, norm in norms.items() if norm >= _SMALL * largest]
    gradients = _relative([found.gradients[name] for name in kept], [right.gradients[name] for name in kept])
    return max(outputs, gradients)


def _relative(found: Sequence[Values], right: Sequence[Values]) -> float:
    """Return the norm of the difference over that of what is right, of all tensors together."""
    if [one.shape for one in found] != [one.shape for one in right]:
        return float("inf")
    if not right:
        return 0.0
    mine, wanted = np.concatenate(found), np.concatenate(right)
    finite = np.isfinite(wanted)
    if not np.isfinite(mine[finite]).all():
        return float("inf")
    norm = float(np.linalg.norm(wanted[finite]))
    difference = float(np.linalg.norm(mine[finite] - wanted[finite]))
    return difference / norm if norm else (0.0 if not difference else float("inf"))


def runs_agree(found: LongRun, as_written: Sequence[LongRun]) -> str | None:
    """Return why a longer run is another one; None where its losses lie where those of the step as written do.

    Args:
        found: the run.
        as_written: the step as written, once from the same seed, then from others.
    """
    if as_written[0].draws and not found.draws:
        return "no random numbers are drawn, where the step as written draws some: is its dropout gone?"
    return losses_agree(found.losses, [one.losses for one in as_written])


def losses_agree(found: Sequence[float], as_written: Sequence[Sequence[float]]) -> str | None:
    """Return why losses are those of another run; None where they lie where those of the step as written do.

    Args:
        found: the loss of each step.
        as_written: the same of the step as written, once from the same seed, then from others.
    """
    last = max(1, len(found) // 3)
    mean = float(np.mean(found[-last:]))
    means = [float(np.mean(one[-last:])) for one in as_written]
    if all(np.isnan(means)):
        return None  # the step has no loss
    spread = max(means) - min(means)
    room = max(spread, _SPREAD * max(abs(as_written[0][0]), abs(means[0])))
    if abs(mean - means[0]) <= room:
        return None
    return f"the loss after {len(found)} steps is {mean:.4g}, as written {min(means):.4g} to {max(means):.4g}"
