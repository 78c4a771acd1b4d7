"""What some steps of a variant compute, for a comparison with what they should."""

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct, field
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from opscope.advise.deferring import as_tensors
from opscope.advise.loaders import Loaders
from opscope.advise.messages import BLOCKS, ComputedStep, LongRun, Values, VariantRecording
from opscope.advise.routine import Ran, Routine, seed, whole_step
from opscope.advise.variant import Variant
from opscope.measuring.clock import synchronize
from opscope.torch_support.tensors import own_tensors, parts_of, same_elements, tensors_of

_STEPS: Final = 4
_MOST_ELEMENTS: Final = 65_536  # of a tensor, spread over it
_BLOCKS: Final = 1_024  # of a larger tensor: the norm of each is compared
_UNORDERED: Final = (torch.uint16, torch.uint32, torch.uint64)  # PyTorch has no minimum of them
# What every module has, beside its own attributes.
_OF_MODULES: Final = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl", "forward"}
_FIRST_SEED: Final = 100
_MOST_BYTES: Final = 2 << 30  # of weights and optimizers' state that are written to a file
_ZEROS: Final = "zeros"
_OTHER_VALUES: Final = ("other values", "other values again", _ZEROS)


def record(variant: Variant, steps: int = _STEPS) -> Routine[VariantRecording]:
    """Record some steps, each from a known seed, then the modules alone on other inputs."""
    results: list[ComputedStep] = []
    counted = [0 for _ in variant.optimizers]
    held, in_graph, calls = _Held(), _InGraph(), dict[int, int]()
    before, others_before = _kept(dict(_named(variant))), _kept(_others_of_state(variant))
    with _listening(variant, results, counted, held, in_graph, calls):
        variant.capture_again()
        for number in range(steps):
            results.append(ComputedStep())
            seed(_FIRST_SEED + number)
            while (returned := (yield)) is Ran.INTERRUPTED:
                results[-1] = ComputedStep()
                calls.clear()
                seed(_FIRST_SEED + number)
            synchronize(variant.device)
            in_graph.read_into(results[-1])
            _keep_results(results[-1], "returned", as_tensors(returned))
            for place in in_graph.stepped:
                counted[place] += 1
            if not results[-1].gradients:  # no optimizer has stepped, which would have shown them
                results[-1].gradients.update(_kept(_left_gradients(variant)))
            held.step_ended()
    others_now = _kept(_others_of_state(variant))
    changed = {name: one for name, one in others_now.items() if not _equal(one, others_before.get(name))}
    state = _kept(dict(_named(variant))) | changed
    # Without a spread, normalising by the batch divides rounding by almost nothing.
    by_batch = any(part.training for top in variant.tops for part in top.modules() if isinstance(part, _BatchNorm))
    kinds = [kind for kind in _OTHER_VALUES if not (by_batch and kind == _ZEROS)]
    computed_of_others = {kind: _of_others(variant, kind) for kind in kinds}
    updated = _updated(variant)
    return VariantRecording(
        steps=results,
        others=computed_of_others,
        state=state,
        updates=counted,
        updated=updated,
        moved={name: _farthest(before[name], state[name]) for name in updated if name in before},
        travelled={name: float(np.linalg.norm(state[name] - before[name])) for name in updated if name in before},
        held=frozenset(held.held),
        overwritten=frozenset(held.overwritten),
        may_round=variant.device.type == "cuda" and torch.backends.cudnn.allow_tf32 and variant.facts.convolutions > 0,
    )


def keep_weights(variant: Variant, path: Path) -> None:
    """Write weights, buffers and the optimizers' state to a file, for `take_weights` of others, unless it is there.

    Of more than 2 GiB, nothing is written: each process then begins with its own.
    """
    if path.exists():
        return
    kept = {name: value.detach() for name, value in _training_state(variant) if type(value.data) is torch.Tensor}
    is_small = sum(value.nbytes for value in kept.values()) <= _MOST_BYTES
    written = path.with_suffix(f".{os.getpid()}")
    try:
        # Cloned, as the whole storage of a part would be written.
        torch.save({name: value.cpu().clone() for name, value in kept.items()} if is_small else {}, written)
    except OSError:
        torch.save({}, written)
    written.replace(path)  # whole, for whoever waits for it


def take_weights(variant: Variant, path: Path) -> None:
    """Have weights, buffers and the optimizers' state be those that another process kept, as far as it has the same.

    Processes of one script train apart before they are compared: by rounding, and by the order in which a GPU adds. Of
    two networks that train against each other that was 7 % after twenty steps, and would be taken for a mistake.
    """
    kept = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, value in _training_state(variant):
            other = kept.get(name)
            if other is None or type(value.data) is not torch.Tensor or other.shape != value.shape:
                continue
            if not torch.equal(value.data.cpu(), other):  # what never changes may be memory that cannot be written
                value.data.copy_(other)


def _training_state(variant: Variant) -> Iterator[tuple[str, torch.Tensor]]:
    yield from _named(variant)
    for place, optimizer in enumerate(variant.optimizers):
        for name, parameter in _parameters(optimizer, place):
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield f"{name} {key}", value


def _equal(one: Values, other: Values | None) -> bool:
    return other is not None and np.array_equal(one, other, equal_nan=True)


def _kept(tensors: Mapping[str, torch.Tensor]) -> dict[str, Values]:
    """Return the values of tensors by name, and of large ones the norms of their blocks."""
    kept = {}
    for name, tensor in tensors.items():
        kept[name] = _values(tensor)
        if tensor.numel() > _MOST_ELEMENTS:
            kept[name + BLOCKS] = _norms(tensor)
    return kept


def _norms(tensor: torch.Tensor) -> Values:
    """Return the norms of so many blocks of a large tensor's elements, in their order."""
    flat = _plain(tensor).reshape(-1)
    flat = flat if flat.is_floating_point() or flat.is_complex() else flat.to(torch.float32)
    whole = flat.numel() // _BLOCKS * _BLOCKS
    wide = torch.complex128 if flat.is_complex() else torch.float64
    norms = torch.linalg.vector_norm(flat[:whole].view(_BLOCKS, -1), dim=1, dtype=wide)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=wide).reshape(1)
    result: Values = torch.cat([norms, rest]).cpu().numpy()
    return result


def _keep_results(kept: ComputedStep, name: str, value: object) -> None:
    """Add what was returned, under a name."""
    parts = parts_of(value, name)
    kept.outputs.update(_kept(parts.tensors))
    kept.constants.update(parts.constants)
    kept.unknown += tuple(parts.unknown)


def _others_of_state(variant: Variant) -> dict[str, torch.Tensor]:
    """Return tensors that are neither parameters nor buffers: of modules, and those that the step itself holds."""
    known = {id(value) for _, value in _named(variant)}
    result = variant.held_tensors()
    for place, top in enumerate((*variant.tops, *variant.not_called)):
        for name, part in top.named_modules():
            if hasattr(part, "_orig_mod"):  # that of torch.compile: its attributes are those of the module inside
                continue
            own = {key: value for key, value in vars(part).items() if key not in _OF_MODULES}
            result |= parts_of(own, f"{place}.{name.replace('_orig_mod.', '')}").tensors
    return {name: value for name, value in result.items() if id(value) not in known}


def _named(variant: Variant) -> Iterator[tuple[str, torch.Tensor]]:
    known = set[int]()
    for place, top in enumerate((*variant.tops, *variant.not_called)):
        for name, value in (*top.named_parameters(), *top.named_buffers()):
            if not is_lazy(value) and not value.is_meta:
                known.add(id(value))
                yield f"{place}.{name.replace('_orig_mod.', '')}", value  # the prefix of compiled modules
    for place, optimizer in enumerate(variant.optimizers):
        for name, value in _parameters(optimizer, place):
            if id(value) not in known:
                yield f"optimizer {name}", value


def _updated(variant: Variant) -> dict[str, str]:
    """Return the parameters that optimizers update: by their name among the state, that among the gradients."""
    names = {
        id(parameter): name
        for place, optimizer in enumerate(variant.optimizers)
        for name, parameter in _parameters(optimizer, place)
    }
    return {name: names[id(value)] for name, value in _named(variant) if id(value) in names}


def _farthest(before: Values, after: Values) -> float:
    """Return how far an element moved at most."""
    return float(np.abs(after - before).max(initial=0.0))


class _InGraph(Struct):
    """What is to be read after each replay of a step that is one graph: copies that are made within the graph.

    Attributes:
        outputs: of the modules that the step calls, by name.
        arguments: what these were given, before and after the call, by name.
        gradients: as the optimizers find them.
        constants: what was returned and is not a number.
        unknown: what was returned and cannot be looked into.
        stepped: the optimizers that step, by place.
        losses: what backward passes begin with.
        calls: how many calls of modules were heard.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    arguments: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    stepped: list[int] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    calls: int = 0

    def output(self, name: str, value: object) -> None:
        """Note what a module returns."""
        parts = parts_of(value, name)
        self.outputs |= {way: one.clone() for way, one in parts.tensors.items()}
        self.constants |= parts.constants
        self.unknown += parts.unknown

    def read_into(self, kept: ComputedStep) -> None:
        """Add what a replay has left."""
        changed = {name: after for name, (before, after) in self.arguments.items() if not same_elements(before, after)}
        kept.outputs.update(_kept(self.outputs))
        kept.arguments.update(_kept(changed))
        kept.gradients.update(_kept(self.gradients))
        kept.constants.update(self.constants)
        kept.unknown += tuple(self.unknown)


class _Held:
    """Outputs of modules that somebody still holds when the next step has ended: they must not have changed.

    A captured graph returns the same memory each time, which a program that keeps its outputs would not notice.

    Attributes:
        held: which outputs of a step are, by their place among all.
        overwritten: which of them have changed.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.overwritten: set[int] = set()
        self._before: list[tuple[weakref.ref[torch.Tensor], Values]] = []
        self._now: list[tuple[weakref.ref[torch.Tensor], Values]] = []

    def output(self, value: object) -> None:
        """Note what a module returned."""
        self._now += [(weakref.ref(one), _values(one)) for one in own_tensors(value).values()]

    def step_ended(self) -> None:
        """Compare the outputs of the step before with what they were."""
        for place, (reference, values) in enumerate(self._before):
            tensor = reference()
            if tensor is not None:
                self.held.add(place)
                if not _equal(_values(tensor), values):
                    self.overwritten.add(place)
        self._before, self._now = self._now, []


@contextmanager
def _listening(
    variant: Variant,
    results: list[ComputedStep],
    counted: list[int],
    held: _Held,
    in_graph: _InGraph,
    calls: dict[int, int],  # of modules, by step
) -> Iterator[None]:
    listens = [True]

    def heard(call: Callable[..., Any]) -> Callable[..., Any]:
        def hearing(*args: Any, **kwargs: Any) -> Any:
            inside = any(map(torch._C._functorch.is_functorch_wrapped_tensor, own_tensors((args, kwargs)).values()))
            if not listens or variant.interrupted or variant.preparing or inside:
                return call(*args, **kwargs)  # within torch.func tensors have no elements yet
            number = in_graph.calls if variant.capturing else calls.get(len(results), 0)
            name = f"call {number + 1}"
            values = parts_of((*args, kwargs), f"argument of {name} ").tensors
            before = {way: one.clone() for way, one in values.items()}
            output = call(*args, **kwargs)
            if variant.capturing:
                in_graph.calls += 1
                in_graph.output(name, output)
                in_graph.arguments |= {way: (before[way], one.clone()) for way, one in values.items()}
            else:
                calls[len(results)] = number + 1
                _keep_results(results[-1], name, output)
                _keep_changed(results[-1], before, values)
                held.output(output)
            return output

        return hearing

    # Around the call, as hooks would become a part of what is compiled.
    variant.wrap(heard)
    handles = []
    for place, optimizer in enumerate(variant.optimizers):

        def stepping(stepped: torch.optim.Optimizer, *_: object, place: int = place) -> None:
            if variant.interrupted or variant.preparing:
                return
            gradients = _gradients(stepped, place)
            if variant.capturing:
                in_graph.stepped.append(place)
                in_graph.gradients.update({name: one.clone() for name, one in gradients.items()})
            else:
                counted[place] += 1
                results[-1].gradients.update(_kept(gradients))

        handles.append(optimizer.register_step_pre_hook(stepping))
    try:
        yield
    finally:
        listens.clear()
        for handle in handles:
            handle.remove()


def _keep_changed(kept: ComputedStep, before: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Add what a call has changed in place of what it was given."""
    changed = {way: one for way, one in values.items() if not same_elements(before[way], one)}
    kept.arguments.update(_kept(changed))


def _gradients(optimizer: torch.optim.Optimizer, place: int) -> dict[str, torch.Tensor]:
    """Return the gradients that an optimizer finds, by the place of their parameters; sparse ones by their values."""
    results: dict[str, torch.Tensor] = {}
    for name, one in _parameters(optimizer, place):
        if one.grad is not None:
            results |= parts_of(one.grad, name).tensors
    return results


def _left_gradients(variant: Variant) -> dict[str, torch.Tensor]:
    """Return the gradients that a step leaves behind."""
    results: dict[str, torch.Tensor] = {}
    for name, one in _named(variant):
        if one.is_leaf and one.grad is not None:
            results |= parts_of(one.grad, name).tensors
    return results


def _parameters(optimizer: torch.optim.Optimizer, place: int) -> Iterator[tuple[str, torch.Tensor]]:
    for group, part in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(part["params"]):
            yield f"{place}.{group}.{number}", parameter


def _of_others(variant: Variant, kind: str) -> ComputedStep:
    """Return what the modules that a step calls return for other inputs of the same shapes."""
    result = ComputedStep()
    for place, root in enumerate(variant.roots):
        generator = torch.Generator().manual_seed(place + (1_000 if kind.endswith("again") else 0))
        args, kwargs = (_changed(value, kind, generator) for value in (root.args, root.kwargs))
        seed(0)
        with ExitStack() as stack:
            # As in the step: what is compiled would be compiled again without gradients, and another graph compared.
            stack.enter_context(torch.set_grad_enabled(root.with_gradients))
            for context in variant.contexts:
                stack.enter_context(context())
            _begin_replay()
            for device, dtype in root.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            values = parts_of((*args, kwargs), f"argument of call {place + 1} ").tensors
            before = {way: one.clone() for way, one in values.items()}
            _keep_results(result, f"call {place + 1}", root.module(*args, **kwargs))
            _keep_changed(result, before, values)
    _begin_replay()  # the next step's
    return result


def _begin_replay() -> None:
    """Let captured graphs begin anew: else they wait for the backward pass of the call before, and capture more."""
    if "torch._inductor.cudagraph_trees" in sys.modules:
        torch.compiler.cudagraph_mark_step_begin()


def _changed(value: Any, kind: str, generator: torch.Generator) -> Any:
    if isinstance(value, torch.Tensor):
        other = _other(value.detach(), kind, generator)
        # As what a model returned, which a second one was given; a copy, as leaves cannot be changed in place.
        return other.requires_grad_().clone() if value.requires_grad else other
    if isinstance(value, dict):
        return {name: _changed(one, kind, generator) for name, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_changed(one, kind, generator) for one in value)
    return value


def _other(value: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    strided = value.layout is torch.strided and not (value.is_quantized or value.is_nested)
    if not strided or not value.numel() or value.dtype is torch.bool or value.dtype in _UNORDERED:
        return value.clone()
    if value.is_floating_point():
        if kind == _ZEROS:
            return torch.zeros_like(value)
        mean, spread = value.double().mean().item(), value.double().std(correction=0).item()
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64) * spread + mean
        return drawn.to(value)
    if value.is_complex():
        return value.clone()
    # Numbers of tokens or classes: others of the same range are as valid.
    low, high = int(value.min()), int(value.max())
    if kind == "zeros" or low == high:
        return torch.full_like(value, low)
    return torch.randint(low, high + 1, value.shape, generator=generator).to(value)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if type(plain) is not torch.Tensor and type(plain).__module__.startswith("torchao."):
        plain = plain.dequantize()
    return plain


def _values(tensor: torch.Tensor) -> Values:
    flat = _plain(tensor).reshape(-1)
    if flat.numel() > _MOST_ELEMENTS:
        generator = torch.Generator().manual_seed(flat.numel())
        flat = flat[torch.randint(flat.numel(), (_MOST_ELEMENTS,), generator=generator).to(flat.device)]
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    result: Values = flat.to(torch.float64).cpu().numpy().copy()
    return result


def losses(variant: Variant, steps: int, number: int) -> Routine[LongRun]:
    """Return the loss of each of some steps from one seed: what its backward pass began with, else what it returned.

    Steps that do neither have the loss NaN.
    """
    results: list[float] = []
    in_graph = _InGraph()
    backward = torch.autograd.backward

    def heard(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if variant.capturing:
            in_graph.losses += [one.detach().clone() for one in tensors_of(tensors)]
        else:
            results.append(_mean(tensors))
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = heard
    variant.capture_again()
    results.clear()  # what ran before the capture
    seed(number)
    drawn = _Drawn(variant.loaders)
    try:
        for place in range(steps):
            returned = yield from whole_step()
            del results[place + 1 :]  # of several backward passes of a step the first one counts
            if len(results) == place:
                results.append(_mean(in_graph.losses or as_tensors(returned)))
    finally:
        torch.autograd.backward = backward
        drawn.end()
    return LongRun(results, draws=drawn.any)


class _Drawn:
    """Whether random numbers are drawn outside of loaders: workers draw theirs in other processes.

    Attributes:
        any: whether some were.
    """

    def __init__(self, loaders: Loaders) -> None:
        self.any = False
        self._loaders = loaders
        self._left()
        loaders.entering.append(self._entered)
        loaders.leaving.append(self._left)

    def end(self) -> None:
        """Look for the last time."""
        self._entered()
        self._loaders.entering.remove(self._entered)
        self._loaders.leaving.remove(self._left)

    def _entered(self) -> None:
        self.any = self.any or _generators() != self._state

    def _left(self) -> None:
        self._state = _generators()


def _generators() -> list[bytes]:
    """Return the states of PyTorch's generators, of the host and of the devices in use."""
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_devices)]


def _mean(value: object) -> float:
    tensors = tensors_of(value)
    return float(tensors[0].double().mean()) if tensors else float("nan")
