"""Numbers of tensors that are fetched when they are looked at, so that no one waits for them who does not look.

``total += loss.item()`` makes the host wait for the device in each step, though no one looks at the total before the
end of the epoch.
"""

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from msgspec import Struct
from torch.utils._pytree import tree_map

from opscope.base.files import is_users

_FETCH: Final = torch.Tensor.item


class Counted(Struct):
    """How many numbers were put off, and how many of them were looked at after all."""

    made: int = 0
    fetched: int = 0


class Later:
    """The number in a tensor of one element, fetched from the device when it is looked at.

    Sums, differences, products and quotients with numbers, and with others of its kind, are computed on the device,
    with 64 bits as Python does. Whatever else is done with it fetches it first. It stays as it was when it was made,
    whatever happens to the tensor.

    Args:
        tensor: a floating-point tensor of one element, not used by anybody else.
        counted: counts what is fetched.
    """

    __slots__ = ("_counted", "_tensor", "_value")

    def __init__(self, tensor: torch.Tensor, counted: Counted) -> None:
        self._tensor, self._counted = tensor, counted
        self._value: float | None = None

    @property
    def value(self) -> float:
        """The number."""
        if self._value is None:
            self._counted.fetched += 1
            self._value = float(_FETCH(self._tensor))
        return self._value

    def stands_for(self) -> torch.Tensor:
        """Return the tensor that holds the number; nothing is fetched."""
        return self._tensor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copies ask for before there is a value
            raise AttributeError(name)
        return getattr(self.value, name)


def as_tensors(value: Any) -> Any:
    """Return a value with each `Later` in it replaced by the tensor that holds its number."""
    return tree_map(lambda one: one._tensor if isinstance(one, Later) else one, value)


def _on_device(compute: Callable[[Any, Any], Any]) -> Callable[[Later, Any], Any]:
    """Return a method that computes with a number, or another `Later`, without fetching anything."""

    def method(own: Later, other: Any) -> Any:
        if isinstance(other, Later):
            other = other._tensor
        elif isinstance(other, bool) or not isinstance(other, int | float):
            return compute(own.value, other)
        elif compute is operator.truediv and other == 0:
            return compute(own.value, other)  # which raises, where a tensor would be infinite
        return Later(compute(own._tensor, other), own._counted)

    return method


def _looking(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that fetches the number first."""

    def method(own: Later, *others: Any) -> Any:
        return compute(own.value, *(other.value if isinstance(other, Later) else other for other in others))

    return method


def _reflected(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda own, other: compute(other, own)


for _name, _compute in {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "radd": _reflected(operator.add),
    "rsub": _reflected(operator.sub),
    "rmul": _reflected(operator.mul),
}.items():
    setattr(Later, f"__{_name}__", _on_device(_compute))
for _name, _compute in {
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne", "pow", "mod", "floordiv")},
    **{name: getattr(operator, name) for name in ("neg", "pos", "abs")},
    **{f"r{name}": _reflected(getattr(operator, name)) for name in ("truediv", "pow", "mod", "floordiv")},
    **{one.__name__: one for one in (float, int, bool, str, repr, format, hash, round, complex, divmod)},
    **{one.__name__: one for one in (math.trunc, math.floor, math.ceil)},
}.items():
    setattr(Later, f"__{_name}__", _looking(_compute))


def is_waiting(tensor: torch.Tensor, device: str) -> bool:
    """Tell whether fetching a tensor's number makes the host wait, and could be put off."""
    return bool(tensor.device.type == device and tensor.numel() == 1 and tensor.is_floating_point())


def defer(device: str) -> Counted:
    """Put ``item()`` of a device's tensors off, where the user's own code calls it; for the rest of the process."""
    counted = Counted()

    @functools.wraps(_FETCH)
    def item(tensor: torch.Tensor) -> Any:
        if not is_waiting(tensor, device) or not is_users(sys._getframe(1).f_code.co_filename):
            return _FETCH(tensor)
        counted.made += 1
        return Later(tensor.detach().reshape(()).to(torch.float64, copy=True), counted)

    torch.Tensor.item = item
    return counted
