"""Devices, and the tensors that calls take and return. Needs PyTorch."""

import contextlib
import functools
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct, field
from torch.utils import _pytree

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.record.configuration import DEVICE_NAME

# ---------------------------------------------------------------- devices


def resolve_device(name: str) -> torch.device:
    """Return the device that a name (``auto``, ``cpu``, ``cuda:1``) means here.

    Raises:
        UsageError: it is not such a name.
        EnvironmentLacksError: a GPU is asked for that PyTorch does not see.
    """
    if not re.fullmatch(DEVICE_NAME, name):
        raise UsageError(f"a device is auto, cpu, cuda or cuda:N, not {name!r}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        build = "this PyTorch is built without CUDA" if torch.version.cuda is None else f"PyTorch sees {count} GPUs"
        raise EnvironmentLacksError(f"device {name} is not there: {build}. Use --device cpu, or --device auto.")
    return torch.device("cuda", index)


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one, so that code which says just "cuda" means it; for a CPU, do nothing."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.init()  # memory statistics need a device that is set up
    with torch.cuda.device(device):
        yield


# ---------------------------------------------------------------- tensors


_MOST_PARTS: Final = 20_000  # of one result
_DEEPEST: Final = 200
_WORD: Final = 8  # bytes
_NUMBERS: Final = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_CONSTANTS: Final = (str, bytes, bytearray, Enum, PurePath, Decimal, date, time, timedelta, range, slice)
_OF_PRECISION: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)  # what a change may change
_NUMERIC: Final = (bool, int, float, complex)
_LEAVES: Final = (torch.Tensor, *_NUMERIC, *_CONSTANTS, *_OF_PRECISION, type, ModuleType, BuiltinFunctionType)
_TEXTS: Final = "USMm"  # kinds of arrays: texts, times and durations
_ARRAYS: Final = "biufc" + _TEXTS


def tensors_of(result: object) -> list[torch.Tensor]:
    """Return the tensors in what a call returned, in order, those of a mapping by its keys; a number is one, too."""
    if isinstance(result, torch.Tensor):
        return [result.detach() if result.layout is torch.strided else result.detach().to_dense()]
    if isinstance(result, Mapping):
        # Two implementations of one function may fill theirs in another order.
        return [tensor for key in sorted(result, key=str) for tensor in tensors_of(result[key])]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in tensors_of(part)]
    return [torch.tensor(result)] if isinstance(result, (float, int, complex)) else []


class Parts(Struct):
    """What an object holds that can be compared, however deep.

    Attributes:
        tensors: by the way to it, each tensor, array or number. They share memory with the object, as
            far as an array's memory can be PyTorch's.
        constants: by the way to it, what is not a number: texts, None, names of functions.
        unknown: ways to what no one can look into, such as generators, with its type.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def parts_of(value: object, way: str = "") -> Parts:
    """Return the parts of what a call takes or returns: containers, dataclasses, objects and arrays are walked.

    Args:
        value: any object.
        way: how its parts' names begin.
    """
    result = Parts()
    for name, one in _leaves(value, way, result.unknown):
        _take(result, name, one)
    return result


def own_tensors(value: object, way: str = "") -> dict[str, torch.Tensor]:
    """Return the very tensors that an object holds, however deep, by the way to each; not those of other layouts."""
    tensors = {name: one for name, one in _leaves(value, way, []) if isinstance(one, torch.Tensor)}
    return {
        name: one
        for name, one in tensors.items()
        if one.layout is torch.strided and not (one.is_meta or one.is_quantized or one.is_nested)
    }


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors have the same elements; NaN is the same as NaN."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124 (NaN is not itself)


def _itself(one: object) -> object:
    return one


def _leaves(value: object, way: str, unknown: list[str]) -> Iterator[tuple[str, object]]:
    """Yield what holds no other objects, with the way to it; note what cannot be looked into.

    A class whose objects stand for a tensor says so by a method ``stands_for``.
    """
    seen = set[int]()
    waiting: list[tuple[str, object, int]] = [(way, value, 0)]
    while waiting:
        name, one, depth = waiting.pop()
        if len(seen) > _MOST_PARTS or depth > _DEEPEST:
            unknown.append(f"{name or 'it'}: more parts than are looked at")
            return
        one = getattr(type(one), "stands_for", _itself)(one)
        if _is_leaf(one):
            yield name, one
            continue
        if id(one) in seen:
            continue
        seen.add(id(one))
        inner = _inside(one)
        if inner is None:
            unknown.append(f"{name or 'it'}: {type(one).__module__}.{type(one).__qualname__}")
        else:
            waiting += [(f"{name}{step}", other, depth + 1) for step, other in inner][::-1]


def _is_leaf(one: object) -> bool:
    if isinstance(one, np.ndarray | np.generic):
        return np.asarray(one).dtype.kind in _ARRAYS
    return one is None or isinstance(one, _LEAVES) or _is_plain_function(one)


def _take(result: Parts, name: str, one: object) -> None:
    """Add what holds no other objects."""
    if isinstance(one, torch.Tensor):
        result.tensors |= _of_tensor(name, one)
    elif isinstance(one, np.ndarray | np.generic):
        array = np.asarray(one)
        if array.dtype.kind in _TEXTS:
            result.constants[name] = repr(array.tolist())
        else:
            result.tensors[name] = _of_array(array)
    elif isinstance(one, bool | int | float | complex) and not isinstance(one, Enum):
        if isinstance(one, int) and not -(2**63) <= one < 2**63:
            one = float(one)  # rounded
        result.tensors[name] = torch.tensor(one, dtype=_number_type(one))
    elif not isinstance(one, _OF_PRECISION):
        named = isinstance(one, type | ModuleType | BuiltinFunctionType | FunctionType)
        result.constants[name] = str(getattr(one, "__qualname__", one)) if named else repr(one)


def _number_type(one: object) -> torch.dtype:
    return next(dtype for kind, dtype in _NUMBERS.items() if isinstance(one, kind))


def _of_tensor(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a tensor as strided ones: a sparse one by its indices and values."""
    tensor = tensor.detach()
    if tensor.is_meta:
        return {}
    if tensor.is_quantized:
        return {name: tensor.dequantize()}
    if tensor.is_nested:
        return {f"{name}[{place}]": one for place, one in enumerate(tensor.unbind())}
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return {f"{name} (indices)": whole.indices(), name: whole.values()}
    return {name: tensor if tensor.layout is torch.strided else tensor.to_dense()}


def _of_array(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return an array's numbers; those of types that PyTorch lacks, in the next wider one."""
    kind, flags = array.dtype.kind, array.flags
    wider = {"u": np.int64, "f": np.float64, "c": np.complex128}.get(kind)
    known = array.dtype.newbyteorder("=").str[1:] in ("b1", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8", "c8", "c16")
    if known and array.dtype.isnative and flags.c_contiguous and flags.writeable:
        return torch.from_numpy(array)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=") if known else wider))


def _is_plain_function(one: object) -> bool:
    """Tell whether an object is a function that carries no values along."""
    return isinstance(one, FunctionType) and not one.__closure__ and not one.__defaults__ and not vars(one)


def _inside(one: object) -> list[tuple[str, object]] | None:
    """Return what an object holds, with the steps to it; None where it cannot be looked into."""
    for kinds, parts in _INSIDE:
        if isinstance(one, kinds):
            return parts(one)
    if type(one) in _pytree.SUPPORTED_NODES:
        return _numbered(_pytree.tree_leaves(one, is_leaf=lambda part: part is not one))
    return _attributes(one)


def _of_module(module: torch.nn.Module) -> list[tuple[str, object]]:  # its hooks and settings are not results
    return [(f".{name}", value) for name, value in (*module.named_parameters(), *module.named_buffers())]


def _of_mapping(mapping: Mapping[object, object]) -> list[tuple[str, object]]:
    return _and_own(mapping, [(f"[{key!r}]", value) for key, value in mapping.items()])


def _of_sequence(sequence: Sequence[object]) -> list[tuple[str, object]]:
    if isinstance(sequence, tuple) and hasattr(sequence, "_fields"):
        return _and_own(sequence, [(f".{name}", getattr(sequence, name)) for name in sequence._fields])
    return _and_own(sequence, _numbered(sequence))


def _of_set(values: Set[object]) -> list[tuple[str, object]] | None:
    plain = all(isinstance(part, int | float | str) for part in values)
    return _and_own(values, _numbered(sorted(values, key=repr))) if plain else None


def _of_objects(array: np.ndarray[Any, Any]) -> list[tuple[str, object]] | None:
    if array.dtype.names:
        return [(f"[{name!r}]", array[name]) for name in array.dtype.names]
    return _numbered(array.ravel().tolist()) if array.dtype.kind == "O" else None


def _of_partial(partial: functools.partial[Any]) -> list[tuple[str, object]]:
    return [(".func", partial.func), (".args", partial.args), (".keywords", partial.keywords)]


def _and_own(one: object, held: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """Add what a container of a class of its own has as attributes, without what it holds anyway."""
    known = {id(value) for _, value in held}
    return held + [
        (f".{name}", value) for name, value in getattr(one, "__dict__", {}).items() if id(value) not in known
    ]


def _numbered(values: Iterable[object]) -> list[tuple[str, object]]:
    return [(f"[{place}]", value) for place, value in enumerate(values)]


def _attributes(one: object) -> list[tuple[str, object]] | None:
    """Return an object's attributes, without calling any code of its own; None where it may hold what none shows."""
    kind = type(one)
    members = {
        name: member
        for part in reversed(kind.__mro__)
        for name, member in vars(part).items()
        if isinstance(member, MemberDescriptorType)
    }
    # An object of Python's has a word for each slot, for its __dict__ and for references to it. One that is larger has
    # fields of C, and is no matter of attributes.
    shown = object.__basicsize__ + _WORD * (len(members) + 2)
    if kind.__basicsize__ > shown or kind.__itemsize__:
        return None
    results = []
    for name, member in members.items():
        with contextlib.suppress(AttributeError):  # not set
            results.append((f".{name}", member.__get__(one, kind)))
    return results + [(f".{name}", value) for name, value in getattr(one, "__dict__", {}).items()]


# What holds other objects, and how it is looked into; tried in this order, before attributes.
_INSIDE: Final[tuple[tuple[Any, Callable[[Any], list[tuple[str, object]] | None]], ...]] = (
    (torch.nn.Module, _of_module),
    (Mapping, _of_mapping),
    (list | tuple | deque, _of_sequence),
    (set | frozenset, _of_set),
    (np.ndarray, _of_objects),
    (MethodType, lambda method: [(".__self__", method.__self__)]),
    (functools.partial, _of_partial),
    (Iterator | FunctionType | weakref.ReferenceType, lambda _: None),
)


def copy_of(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, as far as its elements do not share memory."""
    if value.layout is not torch.strided or 0 in value.stride():
        return value.detach().clone()
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value.detach())
