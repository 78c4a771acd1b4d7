"""Steps without dropout: it is known by what is called, and never by what a probability is called."""

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812 (its name in the field)

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
