"""Changes of the optimizer, and of the gradients that it uses."""

import ast
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from opscope.advise.changes.change import TRAINING, Change, Condition, SourceEdit, needs
from opscope.documents.advise import ChangeName

if TYPE_CHECKING:
    from opscope.advise.variant import Variant
    from opscope.advise.writer import Writer

_UNFUSED: Final[Condition] = (
    lambda facts: facts.unfused_optimizers > 0,
    "every optimizer is fused already, or cannot be",
)
_LOOPING: Final[Condition] = (
    lambda facts: facts.looping_optimizers > 0,
    "no optimizer goes through its parameters one by one",
)
_KEEPS_GRADIENTS: Final[Condition] = (lambda facts: facts.kept_gradients > 0, "gradients are set to None already")


def _fused(variant: "Variant") -> None:
    # Flags alone are not enough: the step counters of Adam must be on the device, which load_state_dict sees to.
    for optimizer in variant.optimizers:
        state = optimizer.state_dict()
        for group in state["param_groups"]:
            if "fused" in group:
                group["fused"] = True
                group["foreach"] = False
        optimizer.load_state_dict(state)
        optimizer._step_supports_amp_scaling = True  # as its constructor sets with fused=True: a GradScaler asks for it


FUSED_OPTIMIZER: Final = Change(
    name=ChangeName.FUSED_OPTIMIZER,
    slots=("optimizer",),
    refuses=needs(TRAINING, _UNFUSED),
    edit=SourceEdit(
        ("optimizer = OPTIMIZER(..., fused=True)",), lambda writer: writer.optimizers("fused", without=["foreach"])
    ),
    apply=_fused,
)


def _foreach(variant: "Variant") -> None:
    for optimizer in variant.optimizers:
        for group in optimizer.param_groups:
            if "foreach" in group and not group.get("fused"):
                group["foreach"] = True


FOREACH_OPTIMIZER: Final = Change(
    name=ChangeName.FOREACH_OPTIMIZER,
    slots=("optimizer",),
    refuses=needs(TRAINING, _LOOPING),
    edit=SourceEdit(("optimizer = OPTIMIZER(..., foreach=True)",), lambda writer: writer.optimizers("foreach")),
    caveat="it holds a copy of the parameters' size for a moment",
    apply=_foreach,
)


def _let_go(variant: "Variant") -> None:
    for optimizer in variant.optimizers:
        optimizer.zero_grad = partial(_without_gradients, optimizer.zero_grad)


def _without_gradients(zero_grad: Callable[..., None], *_: bool, **__: bool) -> None:
    zero_grad(set_to_none=True)


def _write_set_to_none(writer: "Writer") -> None:
    from opscope.advise.source import NotWritableError

    for stack in writer.kept_gradients():
        source, call = writer.making(stack, "the call of zero_grad")
        keywords = {one.arg: one.value for one in call.keywords}
        value = keywords.get("set_to_none", call.args[0] if len(call.args) == 1 else None)
        if not isinstance(value, ast.Constant):
            raise NotWritableError(f"set_to_none in line {call.lineno} of {source.path.name} is not a plain False")
        source.without_argument(call, "set_to_none")


SET_TO_NONE: Final = Change(
    name=ChangeName.SET_TO_NONE,
    slots=("gradients",),
    refuses=needs(TRAINING, _KEEPS_GRADIENTS),
    edit=SourceEdit(("optimizer.zero_grad(set_to_none=True)",), _write_set_to_none),
    caveat="p.grad is None, not zero, after it",
    apply=_let_go,
)
