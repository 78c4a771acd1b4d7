"""What is benchmarked: functions of the same inputs, and how the inputs are made.

A case can also say whether PyTorch may compute products of float32 numbers at a lower precision.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from msgspec import Struct, field

from opscope.base.errors import UsageError

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
