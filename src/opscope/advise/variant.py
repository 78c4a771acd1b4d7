"""One way to run a step: as written, or with changes. It lives in a process of its own, and nothing is undone."""

import copy
import dataclasses
import functools
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812 (its name in the field)
from msgspec import Struct
from torch.nn.parameter import is_lazy

from opscope.advise.attention import written_out
from opscope.advise.deferring import Counted
from opscope.advise.found import Observed, Reached, RootCall, changed_state, observed_step
from opscope.advise.loaders import Loaders, Made
from opscope.advise.messages import least_steps
from opscope.advise.padding import odd_products
from opscope.advise.routine import Routine, T
from opscope.advise.source import ScriptPlaces, Stack
from opscope.base.files import is_users
from opscope.documents.advise import Facts
from opscope.measuring.clock import synchronize
from opscope.torch_support.tensors import own_tensors, same_elements

# ---------------------------------------------------------------- dropout


_IN_PYTHON: Final = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
_COMPILED: Final = ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_")
_ATTENTION: Final = F.scaled_dot_product_attention
_BEFORE_DROPOUT: Final = 4  # positional arguments of attention


def _nothing_dropped(
    input: torch.Tensor,  # noqa: A002 (as PyTorch calls it)
    p: float = 0.5,  # noqa: ARG001 (arguments and defaults are those of the functions that get its code)
    training: bool = True,  # noqa: ARG001
    inplace: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    return input


@functools.wraps(_ATTENTION)
def _attention(*args: Any, **kwargs: Any) -> Any:
    kwargs.pop("dropout_p", None)
    rest = (0.0, *args[_BEFORE_DROPOUT + 1 :]) if len(args) > _BEFORE_DROPOUT else ()
    return _ATTENTION(*args[:_BEFORE_DROPOUT], *rest, **kwargs)


class WithoutDropout:
    """Makes contexts in which PyTorch's functions that drop elements return what they are given.

    Functions in Python get other code, so that it does not matter under which name they were imported; compiled ones
    are replaced in all modules that have been imported when this is made.
    """

    def __init__(self) -> None:
        replaced = {id(getattr(torch, name)): _nothing_dropped for name in _COMPILED if hasattr(torch, name)}
        replaced[id(_ATTENTION)] = _attention
        self._places = [
            (module, name, replaced[id(value)])
            for module in list(sys.modules.values())
            for name, value in list(getattr(module, "__dict__", {}).items())
            if id(value) in replaced and module.__name__ != __name__
        ]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Have what runs inside run without dropout."""
        with ExitStack() as stack:
            for name in _IN_PYTHON:
                function = getattr(F, name)
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = _nothing_dropped.__code__
            for module, name, other in self._places:
                stack.enter_context(patch.object(module, name, other))
            yield


def turn_off(module: torch.nn.Module) -> None:
    """Turn the dropout of PyTorch's own layers in a module off, for good."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        if isinstance(part, torch.nn.RNNBase):  # between its layers, in code of its own
            part.dropout = 0.0


# ---------------------------------------------------------------- variants


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
_NAMED: Final = 5  # ways to what a step changes


class Variant(ABC):
    """A step with what it calls, to which changes are applied before it runs again.

    Attributes:
        device: where its modules are.
        roots: the modules that it calls, with their inputs; empty before it was observed.
        tops: the modules that these are part of, or themselves.
        not_called: other modules that are reached, such as a moving average of the weights.
        optimizers: those that step, or that the step reaches.
        training: whether it runs a backward pass.
        contexts: each makes a context in which steps run.
        before_step: called before each step.
        notes: what changes remember, by name.
        deferred: counts numbers that are fetched later than as written; None where none are.
        interrupted: whether what runs now is not part of a step.
        preparing: whether steps run now that come before a capture, and are undone.
        warming_up: whether the first steps with all changes run now, in which what is compiled is compiled.
        capturing: whether a step runs now to be captured as a CUDA graph: its work is not done yet.
        loaders: the data loaders of the process.
        places: where in the source all of that is.
    """

    def __init__(self, device: torch.device, loaders: Loaders) -> None:
        self.device, self.loaders = device, loaders
        self.roots: list[RootCall] = []
        self.tops: list[torch.nn.Module] = []
        self.not_called: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.training = self._draws = False
        self._kept_gradients, self._anomalies = 0, False
        self._waits: tuple[str, ...] = ()
        self.contexts: list[Callable[[], AbstractContextManager[Any]]] = []
        self.before_step: list[Callable[[], object]] = []
        self.notes: dict[str, int] = {}
        self.deferred: Counted | None = None
        self.interrupted = self.preparing = self.warming_up = self.capturing = False
        self.places = ScriptPlaces()
        self._changes: tuple[str, ...] | None = None
        self._attention: dict[str, tuple[str, int]] = {}  # where it is written out: for people, and file and line
        self._read: list[Made] = []  # the loaders that a step takes batches from

    @abstractmethod
    def drive(self, routine: Routine[T]) -> T:
        """Run steps, each with all changes, as often as a routine waits for one; return what it returns."""

    @abstractmethod
    def reached(self) -> Reached:
        """Return the objects that the step may use, called or not."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which no one asks for steps."""
        return nullcontext()

    def python_state(self) -> dict[str, object] | None:
        """Return the values other than tensors that the step may change, by the way to them; None where unknown."""
        return None

    def held_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the step itself holds, by the way to them; none of a script, whose loop is hidden."""
        return {}

    def capture(self) -> None:
        """Have the step replayed as one CUDA graph from now on.

        Raises:
            NotImplementedError: it cannot be called.
        """
        raise NotImplementedError

    def capture_again(self) -> None:  # noqa: B027 (most have nothing to do)
        """Capture a step that is one graph anew, with what listens to it by now; nothing to do for others."""

    def made_at(self, optimizer: torch.optim.Optimizer) -> Stack:  # noqa: ARG002 (scripts know it)
        """Return where an optimizer was made; empty where that was not observed."""
        return ()

    def observe(self) -> Routine[None]:
        """Find out, over two whole steps, what the step calls."""
        seen: Observed | None = None
        while seen is None:  # a step that is interrupted is observed anew
            state, reads, python = torch.get_rng_state(), self.loaders.reads(), self.python_state()
            seen = yield from observed_step()
            synchronize(self.device)
            self._draws = not torch.equal(state, torch.get_rng_state())
            self._read = self.loaders.read_since(reads)
            after = self.python_state()
            self._changes = None if python is None or after is None else changed_state(python, after)
        self._take(seen, self.reached())

    def _take(self, observed: Observed, reached: Reached) -> None:
        self.roots = observed.roots
        inside = {id(child): top for top in reached.tops for child in top.modules()}
        tops = [inside.get(id(root.module), root.module) for root in observed.roots]
        self.tops = list({id(top): top for top in tops}.values())
        self.not_called = [top for top in reached.tops if not any(top is one for one in self.tops)]
        self._attention = {one.place: one.at for one in written_out(self.tops)}
        optimizers = [*observed.optimizers, *reached.optimizers]
        self.optimizers = list({id(one): one for one in optimizers}.values())
        self.places = ScriptPlaces(
            [root.place for root in observed.roots],
            observed.backward_stacks,
            observed.kept_stacks,
            [(type(one).__name__, self.made_at(one)) for one in self.optimizers],
            [one.stack for one in self._read],
            [(str(Path(file).absolute()), line) for file, line in self._attention.values() if is_users(file)],
        )
        self.training = observed.backward > 0
        self._kept_gradients, self._anomalies = observed.kept_gradients, observed.detects_anomalies
        self._waits = tuple(dict.fromkeys(observed.waits))
        self.device = next((parameter.device for parameter in self.parameters), self.device)

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Have what runs inside run with all changes."""
        for prepare_step in self.before_step:
            prepare_step()
        with ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            yield

    def within(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Have steps run inside a context."""
        self.contexts.append(context)

    def around_calls(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Have the calls of root modules run inside a context, and nothing else."""

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def inside(*args: Any, **kwargs: Any) -> Any:
                with context():
                    return call(*args, **kwargs)

            return inside

        self.wrap(around)

    def wrap(self, around: Wrap) -> None:
        """Put something around each call of a root module. ``torch.compile`` sees the module's own code inside.

        Args:
            around: gets a callable that does the call, and returns what is called instead.
        """
        for root in self.roots:
            module = root.module
            # As Module.compile does, which compiles nothing of a class of torch.nn: that wraps no frame of the user's.
            call = module._compiled_call_impl or module._call_impl
            module._compiled_call_impl = around(call)

    @property
    def prefetched(self) -> int:
        """How many batches workers of loaders hold ready, at most."""
        return sum(one.prefetched for one in self._read)

    @property
    def least_steps(self) -> int:
        """How many steps tell what one takes: several for each worker of a loader, as their batches come in bursts."""
        return least_steps(sum(one.workers_now for one in self._read))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of all modules that the step calls."""
        return [parameter for top in self.tops for parameter in top.parameters()]

    @property
    def facts(self) -> Facts:
        """What changes are refused by; known once the step was observed."""
        parts = [part for top in self.tops for part in top.modules()]
        types = (str(one.dtype).removeprefix("torch.") for one in self.parameters if one.is_floating_point())
        return Facts(
            device=self.device.type,
            training=self.training,
            draws_random_numbers=self._draws,
            modules=len(self.roots),
            parameter_types=tuple(dict.fromkeys(types)),
            convolutions=sum(isinstance(part, torch.nn.modules.conv._ConvNd) for part in parts),
            benchmarks_convolutions=torch.backends.cudnn.benchmark,
            attention_choices=sum(_has_attention_written_out(top) for top in self.tops),
            written_attention=tuple(self._attention),
            odd_products=len(odd_products(self.tops)),
            waits=self._waits,
            quantisable=sum(isinstance(part, torch.nn.Linear) for part in parts) if _has_torchao() else 0,
            compiled=any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in parts),
            optimizers=tuple(type(one).__name__ for one in self.optimizers),
            unfused_optimizers=sum(_could_be_fused(one) for one in self.optimizers),
            looping_optimizers=sum(_loops(one) for one in self.optimizers),
            detects_anomalies=self._anomalies,
            kept_gradients=self._kept_gradients,
            changes_state=None if self._changes is None else self._changes[:_NAMED],
            threads=torch.get_num_threads(),
            loaders=len(self._read),
            loader_workers=min((one.workers for one in self._read), default=0),
            iterable_loaders=sum(one.iterable for one in self._read),
            restarted_loaders=sum(one.restarts for one in self._read),
            prefetched=self.prefetched,
        )


def _has_attention_written_out(top: torch.nn.Module) -> bool:
    """Tell whether a model of transformers computes its attention step by step, and offers others."""
    chosen = getattr(getattr(top, "config", None), "_attn_implementation", None)
    return hasattr(top, "set_attn_implementation") and chosen in (None, "eager")


def _has_torchao() -> bool:
    return importlib.util.find_spec("torchao") is not None


def _could_be_fused(optimizer: torch.optim.Optimizer) -> bool:
    return any("fused" in group and not group["fused"] for group in optimizer.param_groups)


def _loops(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer goes through its parameters one by one, and need not."""
    groups = [group for group in optimizer.param_groups if "foreach" in group and not group.get("fused")]
    chosen = [group for group in groups if group["foreach"] is not None]
    # Where nothing is said, PyTorch does so on a CPU.
    left = [group for group in groups if group["foreach"] is None and not any(one.is_cuda for one in group["params"])]
    return bool(left) or any(not group["foreach"] for group in chosen)


def prepare(variant: Variant) -> None:
    """Turn dropout off in steps, and move parameters off the values that they were initialised to.

    Then results of different precision can be compared, and mistakes are not hidden by what is initialised to zero.
    """
    generator = torch.Generator().manual_seed(1)
    variant.within(WithoutDropout())
    for top in variant.tops:
        turn_off(top)
        for parameter in top.parameters():
            movable = parameter.is_floating_point() and parameter.itemsize > 1  # nothing is added to numbers of 8 bits
            if not is_lazy(parameter) and (movable or parameter.is_complex()):
                drawn = torch.float32 if parameter.is_floating_point() else torch.complex64
                moved = torch.randn(parameter.shape, generator=generator, dtype=drawn) * 0.02
                parameter.data.add_(moved.to(parameter))


def cast_floats(value: Any, dtype: torch.dtype, known: dict[int, Any] | None = None) -> Any:
    """Return inputs with every floating-point tensor in them cast; complex ones where float64 is asked for.

    Args:
        value: the inputs.
        dtype: the type.
        known: what was cast already, by identity: what is passed twice is the same object twice.
    """
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = value  # where it holds itself
        known[id(value)] = _cast(value, dtype, known)
    return known[id(value)]


def _cast(value: Any, dtype: torch.dtype, known: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        complex_type = torch.complex128 if dtype is torch.float64 else value.dtype
        wanted = complex_type if value.is_complex() else dtype if value.is_floating_point() else value.dtype
        return value.to(wanted)
    if isinstance(value, dict):
        other = copy.copy(value)
        for key, one in value.items():
            other[key] = cast_floats(one, dtype, known)
        return other
    if isinstance(value, Mapping):
        return type(value)({key: cast_floats(one, dtype, known) for key, one in value.items()})  # type: ignore[call-arg]
    if isinstance(value, list | tuple):
        cast = [cast_floats(one, dtype, known) for one in value]
        return type(value)(*cast) if hasattr(value, "_fields") else type(value)(cast)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held: Any = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(held, field.name, cast_floats(getattr(value, field.name), dtype, known))
        return held
    return value


class Casting(Struct, frozen=True):
    """Calls with their floating-point inputs cast.

    Attributes:
        dtype: the type.
        writes_back: whether what a call changes in place of its inputs is changed in those that it was given, too, as
            it is without casting.
    """

    dtype: torch.dtype
    writes_back: bool = False

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with inputs cast."""

        def casting(*args: Any, **kwargs: Any) -> Any:
            known: dict[int, Any] = {}
            cast = cast_floats((args, kwargs), self.dtype, known)
            before = _Written((args, kwargs), known) if self.writes_back else None
            returned = call(*cast[0], **cast[1])
            if before is not None:
                before.write_back()
            return returned

        return casting


class _Written:
    """What calls write into copies of what they were given.

    Args:
        inputs: what they were given.
        cast: by identity of the objects in it, what they were cast to.
    """

    def __init__(self, inputs: object, cast: dict[int, Any]) -> None:
        tensors = [(one, cast.get(id(one), one)) for one in own_tensors(inputs).values()]
        self._tensors = [(one, other, other.detach().clone()) for one, other in tensors if one is not other]
        self._containers: list[tuple[Any, Any, list[Any]]] = []
        waiting, seen = [inputs], set[int]()
        while waiting:
            one = waiting.pop()
            if not isinstance(one, dict | list | tuple) or id(one) in seen:
                continue
            seen.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one
            other = cast.get(id(one), one)
            if other is not one and isinstance(one, dict | list):
                self._containers.append((one, other, _items(other)))

    def write_back(self) -> None:
        """Write what has changed into what was given, as calls that get no copies do."""
        with torch.no_grad():
            for values, inside, was in self._tensors:
                if not same_elements(inside, was) and 0 not in values.stride():
                    values.copy_(inside)
        for one, other, was in self._containers:
            now = _items(other)
            if len(now) == len(was) and all(own is before for own, before in zip(now, was, strict=True)):
                continue
            if isinstance(one, list):
                one[:] = other
            else:
                one.clear()
                one.update(other)


def _items(container: dict[Any, Any] | list[Any]) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)
