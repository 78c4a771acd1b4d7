"""What is benchmarked: functions of the same inputs, and how these are made."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from opscope.base.errors import UsageError

Function = Callable[..., object]


@dataclass(frozen=True)
class Case:
    """Functions that compute the same; the first one is the baseline.

    Attributes:
        name: what it is called.
        variants: the functions, by name. They take what ``inputs`` returns.
        inputs: makes the arguments: a tuple, or one value. It gets what its parameters ask for by name: ``device``,
            ``dtype`` and any other, such as ``size``.
        reference: computes the right result of inputs of any data type, such as float64; None takes the baseline.
        parameters: values that ``inputs`` gets unless others are asked for.
        about: what it shows, in a sentence.
    """

    name: str
    variants: Mapping[str, Function]
    inputs: Callable[..., object] | None = None
    reference: Function | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    about: str = ""

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
        """Make the arguments of the variants.

        Raises:
            UsageError: a parameter is set that the inputs do not take, or they cannot be made.
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
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise UsageError(f"the inputs of {self.name} cannot be made: {type(error).__name__}: {error}") from error
        values = made if isinstance(made, tuple) else (made,)
        return tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in values)

    def refuse_unfit(self, inputs: tuple[object, ...]) -> None:
        """Refuse inputs that the variants do not take.

        Raises:
            UsageError: a variant takes another number of them.
        """
        for name, function in self.variants.items():
            try:
                signature = inspect.signature(function)
            except (TypeError, ValueError):  # it has none, as some built-in ones
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
