"""What is benchmarked: functions of the same inputs, and how the inputs are made.

A case can also say whether PyTorch may compute products of float32 numbers at a lower precision.
"""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from msgspec import Struct, field

from opscope.base.errors import UsageError

# ---------------------------------------------------------------- inputs that are timed


_PLACES: Final = 64  # elements of an input that change from call to call
_SCALES: Final = (0.75, 1.25)
_STEP: Final = 17 / 16  # times its value: so near that an input remains of the kind that it was


class _Input(Struct):
    tensor: torch.Tensor
    given: torch.Tensor  # its values, which no candidate gets
    places: list[torch.Tensor]
    values: list[tuple[torch.Tensor, torch.Tensor]]
    half: torch.Tensor | None = None  # the elements that were changed last; the other ones are next


class TimedInputs:
    """Changes floating-point and complex inputs in place, so that neither address nor version tells what they hold.

    They may be the user's own tensors: at the end of a ``with`` block they are as they were given.

    Args:
        inputs: the arguments of the timed calls themselves.
        seed: of what is drawn.
    """

    def __init__(self, inputs: tuple[object, ...], seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._inputs = [self._kept(one.detach()) for one in inputs if isinstance(one, torch.Tensor) and _changes(one)]
        self._count = 0

    def _kept(self, tensor: torch.Tensor) -> _Input:
        copied = tensor.clone()
        places, values = [], []
        for _ in range(min(_PLACES, tensor.numel())):
            index = tuple(self._draw.randrange(size) for size in tensor.shape)
            places.append(tensor[index])
            values.append((copied[index].clone(), copied[index] * _STEP))
        return _Input(tensor, copied, places, values)

    def __enter__(self) -> "TimedInputs":
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def nudge(self) -> None:
        """Change one element of one input."""
        if not self._inputs:
            return
        self._count += 1
        one = self._inputs[self._count % len(self._inputs)]
        place = self._draw.randrange(len(one.places))
        one.places[place].copy_(one.values[place][self._draw.randrange(2)])

    def renew(self) -> None:
        """Change about half of all elements, by a factor of 0.5 to 1.5: the other half every second time.

        So what recognises its inputs by a few elements sees them unchanged once, beside others that changed.
        """
        for one in self._inputs:
            factor = 0.5 + torch.rand_like(one.given, dtype=torch.float32)
            half = torch.rand_like(factor) < 0.5 if one.half is None else ~one.half
            one.half = half if one.half is None else None
            one.tensor.copy_(torch.where(half, (one.given * factor).to(one.given.dtype), one.given))

    def scale(self, times: int = 1) -> None:
        """Multiply all inputs by a number that was not used before; as often, but the last one alone is written.

        In another process, inputs with the same seed follow.
        """
        factors = [self._draw.uniform(*_SCALES) for _ in range(times)]
        for one in self._inputs:
            torch.mul(one.given, factors[-1], out=one.tensor)

    def restore(self) -> None:
        """Put back the values that were given."""
        for one in self._inputs:
            one.tensor.copy_(one.given)


def _changes(value: torch.Tensor) -> bool:
    """Tell whether a value can be changed in place, element by element."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and (value.is_floating_point() or value.is_complex())
        and value.element_size() > 1  # 8-bit types multiply nothing
        and value.numel() > 0
        and 0 not in value.stride()
        and not value.is_inference()
    )


# ---------------------------------------------------------------- cases


Function = Callable[..., object]


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in a ``with`` block: Tensor Cores then read float32 numbers with ten bits of mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Case(Struct, frozen=True):
    """Functions that compute the same thing; the first one is the baseline.

    Attributes:
        name: of the case.
        variants: the functions, by name. They take what ``inputs`` returns.
        inputs: makes the arguments: a tuple, or a single value. It gets the parameters that it has, by name:
            ``device``, ``dtype`` and any other, such as ``size``. None if the variants take no arguments.
        reference: computes the right result for inputs of any data type, such as float64; None takes the baseline.
        parameters: default values of the parameters of ``inputs``.
        about: what the case shows, in a sentence.
        refused: variants beside these that are not run, by name, and why.
    """

    name: str
    variants: Mapping[str, Function]
    inputs: Callable[..., object] | None = None
    reference: Function | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    about: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        return next(iter(self.variants))

    def accepts(self, parameter: str) -> bool:
        """Tell whether the inputs depend on a parameter."""
        if self.inputs is None:
            return False
        parameters = inspect.signature(self.inputs).parameters
        return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def make_inputs(self, device: torch.device, parameters: Mapping[str, object]) -> tuple[object, ...]:
        """Make the arguments of the variants, on a device.

        Args:
            device: where tensors are moved, if ``inputs`` did not make them there.
            parameters: values that replace those of the case.

        Raises:
            UsageError: ``inputs`` takes no such parameter, or fails.
        """
        if self.inputs is None:
            if parameters:
                raise UsageError(f"{self.name} makes no inputs that could depend on {', '.join(parameters)}")
            return ()
        unknown = [name for name in parameters if not self.accepts(name)]
        if unknown:
            raise UsageError(f"the inputs of {self.name} take no parameter {unknown[0]!r}")
        arguments = {**self.parameters, **parameters}
        if self.accepts("device"):
            arguments["device"] = device
        arguments = {name: value for name, value in arguments.items() if self.accepts(name)}
        try:
            made = self.inputs(**arguments)
        except torch.OutOfMemoryError:  # the machine's limit, and not the user's mistake
            raise
        except Exception as error:
            raise UsageError(f"the inputs of {self.name} cannot be made: {type(error).__name__}: {error}") from error
        values = made if isinstance(made, tuple) else (made,)
        return tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in values)

    def refuse_unfit(self, inputs: tuple[object, ...]) -> None:
        """Check that every variant takes the inputs.

        Raises:
            UsageError: a variant takes a different number of arguments.
        """
        for name, function in self.variants.items():
            try:
                signature = inspect.signature(function)
            except (TypeError, ValueError):  # some built-in functions have no signature
                continue
            try:
                signature.bind(*inputs)
            except TypeError as error:
                made = (
                    "there are no inputs (a function called inputs makes them)"
                    if self.inputs is None
                    else (f"inputs makes {len(inputs)} (a tuple: one per argument)")
                )
                raise UsageError(f"{name} cannot be called: {error}; {made}") from error
