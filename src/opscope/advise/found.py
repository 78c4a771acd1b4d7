"""What a step works with: the modules, optimizers and Python objects that it reaches, and what it calls."""

import functools
import itertools
import operator
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct, field
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from opscope.advise.deferring import Later, is_waiting
from opscope.advise.routine import Ran, Routine
from opscope.advise.source import Call, Stack, here
from opscope.base.files import is_users
from opscope.torch_support.tensors import parts_of, tensors_of

_EAGER: Final = "force_eager"  # the stance in which nothing is compiled
_MOST_OBJECTS: Final = 20_000
_DEEPEST: Final = 12
_ITERATORS: Final = (itertools.count, itertools.repeat)
_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None), types.ModuleType, type, torch.Tensor)


class Reached(Struct):
    """What is reached from a step through closures, globals that it names, bound objects and containers.

    Attributes:
        modules: modules, those inside others too.
        optimizers: optimizers.
        objects: everything else that may hold state, in the order in which it was found.
    """

    modules: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    objects: list[object] = field(default_factory=list)

    @property
    def tops(self) -> list[torch.nn.Module]:
        """The modules that are not inside another one."""
        inner = {id(child) for module in self.modules for child in module.modules() if child is not module}
        return [module for module in self.modules if id(module) not in inner]


def reached_from(step: object) -> Reached:
    """Walk through what a step refers to."""
    result = Reached()
    for _, one in _walked(step):
        if isinstance(one, torch.nn.Module):
            result.modules.append(one)
        elif isinstance(one, torch.optim.Optimizer):
            result.optimizers.append(one)
        elif not isinstance(one, _PLAIN):
            result.objects.append(one)
    return result


def python_state(step: object) -> dict[str, object]:
    """Return the values that a step may change without a tensor noticing, by the way to them.

    These are numbers, words and flags that it reaches, the lengths of containers, how far iterators and generators have
    come, and the settings of optimizers, such as the learning rate.
    """
    return {way: state for way, one in _walked(step) if (state := _state_of(one)) is not None}


def tensors_held(step: object) -> dict[str, torch.Tensor]:
    """Return the tensors, arrays and numbers that a step reaches by the way to them; without those of modules."""
    results: dict[str, torch.Tensor] = {}
    for way, one in _walked(step, within_modules=False):
        if isinstance(one, bool | int | float | complex | torch.Tensor | np.ndarray | Later):
            results |= parts_of(one, f"the step's {way}").tensors
        if isinstance(one, torch.Tensor) and one.is_leaf and one.grad is not None:
            results |= parts_of(one.grad, f"the step's {way}.grad").tensors
    return results


def changed_state(before: dict[str, object], after: dict[str, object]) -> tuple[str, ...]:
    """Return the ways to what differs between two states."""
    return tuple(way for way in (*before, *(one for one in after if one not in before)) if _differs(way, before, after))


def _differs(way: str, before: dict[str, object], after: dict[str, object]) -> bool:
    here, there = before.get(way), after.get(way)
    return type(here) is not type(there) or here != there


def _state_of(one: object) -> object:
    if isinstance(one, bool | int | float | complex | str | bytes):
        return one
    if isinstance(one, types.GeneratorType):
        return None if one.gi_frame is None else one.gi_frame.f_lasti
    if isinstance(one, _ITERATORS):
        return repr(one)  # how it goes on: count(3)
    if isinstance(one, Iterator):
        return operator.length_hint(one, -1)
    return len(one) if isinstance(one, list | dict | set | deque) else None


def _walked(step: object, *, within_modules: bool = True) -> Iterator[tuple[str, object]]:
    """Yield each object that a step refers to, once, with the way to it; scalars and tensors at every place."""
    seen, waiting = set[int](), [("", step, 0)]
    while waiting and len(seen) < _MOST_OBJECTS:
        way, one, depth = waiting.pop()
        if isinstance(one, _PLAIN):
            yield way, one
            continue
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        yield way, one
        if isinstance(one, torch.nn.Module) and not within_modules:
            continue
        waiting += [(f"{way}.{name}" if way else name, other, depth + 1) for name, other in _referred(one)]


def _referred(one: object) -> Iterator[tuple[str, object]]:
    """Yield what an object refers to, as far as a step may use it, with its name there."""
    if isinstance(one, types.MethodType):
        yield "self", one.__self__
        yield "", one.__func__
    elif isinstance(one, types.FunctionType):
        yield from _of_function(one)
    elif isinstance(one, functools.partial):
        yield "", one.func
        yield from _numbered(one.args)
        yield from one.keywords.items()
    elif isinstance(one, types.GeneratorType):
        if one.gi_frame is not None:
            yield from one.gi_frame.f_locals.items()
    elif isinstance(one, torch.optim.Optimizer):
        for place, group in enumerate(one.param_groups):
            yield from ((f"{place}.{key}", value) for key, value in group.items() if key != "params")
    elif isinstance(one, Mapping):
        yield from ((str(key), value) for key, value in list(one.items()))
    elif isinstance(one, list | tuple | set | frozenset | deque):
        yield from _numbered(list(one))
    elif isinstance(getattr(one, "__dict__", None), dict):
        yield from list(vars(one).items())


def _numbered(values: Iterable[object]) -> Iterator[tuple[str, object]]:
    return ((str(place), value) for place, value in enumerate(values))


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from _numbered(function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    if wrapped := getattr(function, "__wrapped__", None):
        yield "", wrapped
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


class RootCall(Struct):
    """A call of a module that no other module makes.

    Attributes:
        module: the module.
        args, kwargs: of its first call.
        stack: where that is.
        autocast: the kinds of devices for which the user's code computes it in another type, and that type.
        with_gradients: whether gradients are computed of what it returns.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stack: Stack = ()
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    with_gradients: bool = False

    @property
    def place(self) -> Call:
        """Where the call is, and what it gets."""
        inputs: dict[int | str, Any] = dict(enumerate(self.args))
        inputs.update(self.kwargs)
        floats = tuple(name for name, value in inputs.items() if _is_float(value))
        images = tuple(name for name in floats if inputs[name].dim() == 4)
        inner = [value for name, value in inputs.items() if not isinstance(value, torch.Tensor)]
        return Call(
            self.stack,
            own_class=not type(self.module).__module__.startswith("torch."),
            floats=floats,
            images=images,
            nested=any(_is_float(one) for one in tensors_of(inner)),
        )


class Observed(Struct):
    """What a step called.

    Attributes:
        roots: modules that were called from outside of any module, each once, with its first inputs.
        optimizers: optimizers that took a step.
        backward: how many times a backward pass was started.
        kept_gradients: how often gradients were set to zero instead of None.
        detects_anomalies: whether each operation of a backward pass was checked for NaN.
        waits: where the user's code fetches a number from a GPU by ``item()``, as file and line.
        backward_stacks, kept_stacks: where.
    """

    roots: list[RootCall] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    backward: int = 0
    kept_gradients: int = 0
    detects_anomalies: bool = False
    waits: list[str] = field(default_factory=list)
    backward_stacks: list[Stack] = field(default_factory=list)
    kept_stacks: list[Stack] = field(default_factory=list)


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run what the user compiles as it is written; a step that is compiled as a whole stays compiled.

    Its boundaries lie within compiled code, where PyTorch refuses to change the stance. A stance that the user's code
    takes inside is left as it is.
    """
    try:
        stance = torch.compiler.set_stance(_EAGER)
    except RuntimeError:
        yield
        return
    try:
        yield
    finally:
        # Where the user's code has taken another one meanwhile, and puts this one back later, it is the usual one then.
        object.__setattr__(stance.stance, "stance", "default")
        if torch._dynamo.eval_frame._stance is stance.stance:
            torch._dynamo.disable(lambda: stance.__exit__(None, None, None))()


def _autocasts() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the kinds of devices for which autocast is on, and its type."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind))


@contextmanager
def observing() -> Iterator[Observed]:
    """Observe a step that runs inside; it runs as it would, but for hooks around calls of modules.

    What the user compiles runs uncompiled meanwhile: hooks would be traced, and all be compiled again without them.
    """
    observed, depth = Observed(), [0]
    known: set[int] = set()

    def entering(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if depth[0] == 0 and id(module) not in known:
            known.add(id(module))
            root = RootCall(module, inputs, {}, here(module), _autocasts(), torch.is_grad_enabled())
            observed.roots.append(root)
        depth[0] += 1

    def leaving(*_: object) -> None:
        depth[0] -= 1

    def stepping(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not any(optimizer is one for one in observed.optimizers):
            observed.optimizers.append(optimizer)

    backward, zero_grad = torch.autograd.backward, torch.optim.Optimizer.zero_grad
    item = torch.Tensor.item

    @functools.wraps(backward)
    def counted(*args: Any, **kwargs: Any) -> None:
        observed.backward += 1
        observed.detects_anomalies |= torch.is_anomaly_enabled()
        observed.backward_stacks.append(here())
        backward(*args, **kwargs)

    @functools.wraps(zero_grad)
    def watched(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        if not set_to_none:
            observed.kept_gradients += 1
            observed.kept_stacks.append(here(self))
        zero_grad(self, set_to_none)

    @functools.wraps(item)
    def fetched(self: torch.Tensor) -> Any:
        frame = sys._getframe(1)
        if is_waiting(self, "cuda") and is_users(frame.f_code.co_filename):
            observed.waits.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return item(self)

    handles = [
        register_module_forward_pre_hook(entering),
        register_module_forward_hook(leaving, always_call=True),
        register_optimizer_step_pre_hook(stepping),
    ]
    torch.autograd.backward, torch.optim.Optimizer.zero_grad = counted, watched
    torch.Tensor.item = fetched
    try:
        with uncompiled():
            yield observed
    finally:
        torch.autograd.backward, torch.optim.Optimizer.zero_grad = backward, zero_grad
        torch.Tensor.item = item
        for handle in handles:
            handle.remove()


def observed_step() -> Routine[Observed | None]:
    """Observe a step twice: what it calls, then with which keyword inputs.

    Returns:
        What was observed; None where one of the two was not a whole step.
    """
    with observing() as first:
        if (yield) is Ran.INTERRUPTED:
            return None
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def hearing(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(id(module), (args, kwargs))

    handles = [root.module.register_forward_pre_hook(hearing, with_kwargs=True) for root in first.roots]
    try:
        with uncompiled():
            if (yield) is Ran.INTERRUPTED:
                return None
    finally:
        for handle in handles:
            handle.remove()
    for root in first.roots:
        root.args, root.kwargs = calls.get(id(root.module), (root.args, root.kwargs))
    return first
