"""Which recorded calls may be made again: a trace names the operator and its arguments, and a trace may be anyone's.

What PyTorch itself says of an operator decides, by a list of what is allowed: operators of ATen with kernels for the
device (or made of such), which take a tensor and plain values, and return a tensor that they did not merely rename. The
tensors are built here, of bounded size. So no call reaches a file, a storage, a stream, a generator or another process.
Every replay passes this module, and no other one looks up a recorded operator in ``torch.ops``.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from opscope.base.errors import UsageError
from opscope.knowledge.dtypes import recorded_dtype

_PLAIN: Final = re.compile(
    r"(Tensor|number|Scalar|int|SymInt|float|bool|str|ScalarType|MemoryFormat|Layout|Device|Optional|List|\[|\]|\s)*"
)
# Options of operators (``mean``, ``floor``, ``bijection,->``), and no path: there is neither a slash nor a backslash.
_OPTION: Final = re.compile(r"[\w ,.>-]{0,64}")
# Arguments that hold the name of an option; a text of any other argument may be a path or a message.
_NAMED_OPTIONS: Final = frozenset(
    {
        *("approximate", "rounding_mode", "indexing", "padding_mode", "interpolation", "ord", "mode", "norm"),
        *("driver", "reduce", "side", "equation", "UPLO", "input_layout"),
    }
)
_RETURNED: Final = re.compile(r"Tensor|List\[Tensor\]|Optional\[Tensor\]")
_ANY_DEVICE: Final = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
# Operators whose work is on what lies behind a tensor, whatever their arguments are.
_BEHIND: Final = re.compile(
    r"storage|file|share|ipc|pin_memory|record_stream|resize|^_?set_|_assert|debug|dlpack|save|load"
)
_MOST_BYTES: Final = 32 << 30
_MOST_ELEMENTS: Final = 1 << 33  # that numbers in arguments may ask for


def overload_of(operator: str, overload: str | None) -> Any:
    """Return an overload of a recorded operator, as ``torch.ops`` has it.

    Raises:
        UsageError: it is no operator of PyTorch itself, or this PyTorch has none of that name.
    """
    packet = _packet(operator)
    function = getattr(packet, overload or "default", None)
    if function is None or (overload or "default") not in packet.overloads():
        raise UsageError(f"this PyTorch has no operator {operator}.{overload or 'default'}")
    return function


def overloads_of(operator: str) -> Iterator[Any]:
    """Yield the overloads of a recorded operator, none where PyTorch has no operator of that name."""
    try:
        packet = _packet(operator)
    except UsageError:
        return
    yield from (getattr(packet, overload) for overload in packet.overloads())


def _packet(operator: str) -> Any:
    namespace, _, base = operator.partition("::")
    if namespace != "aten" or not base.isidentifier() or base.startswith("__"):
        raise UsageError(f"{operator} is not an operator of PyTorch itself")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None or not hasattr(packet, "overloads"):
        raise UsageError(f"this PyTorch has no operator {operator}")
    return packet


def refuse_unsafe(
    operator: str, function: Any, inputs: Sequence[tuple[Any, Any, str]], values: Sequence[Any], device_key: str
) -> None:
    """Check a call before anything of it is built.

    Args:
        operator: its name.
        function: the overload, of ``torch.ops``.
        inputs: of every argument the recorded shape, strides (None where they were not recorded) and type.
        values: the values of the arguments that are no tensors.
        device_key: the dispatch key of the device: ``CUDA``, ``CPU``, ``Meta``.

    Raises:
        UsageError: it is not one that may be made again; says why.
    """
    base = operator.removeprefix("aten::")
    if base == operator or "::" in base:
        raise UsageError(f"{operator} is not an operator of PyTorch itself")
    schema = function._schema
    name = schema.name + (f".{function._overloadname}" if function._overloadname != "default" else "")
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in (device_key, *_ANY_DEVICE)):
        raise UsageError(f"{operator} has no kernel for the device")
    if _BEHIND.search(base) or torch.Tag.inplace_view in function.tags:
        raise UsageError(f"{operator} works on what lies behind a tensor, and is not made again")
    if not any(_RETURNED.fullmatch(str(returned.type)) for returned in schema.returns):
        raise UsageError(f"{operator} returns no tensor: what it does is something else than computing one")
    for argument in schema.arguments:
        if not _PLAIN.fullmatch(str(argument.type)):
            raise UsageError(f"{operator} takes a {argument.type}, which is neither a tensor nor a plain value")
        if "str" in str(argument.type) and argument.name not in _NAMED_OPTIONS:
            raise UsageError(f"{operator} takes a text, {argument.name}, that is no name of an option")
    _refuse_large(operator, inputs)
    for value in values:
        _refuse_value(operator, value)


def _refuse_large(operator: str, inputs: Sequence[tuple[Any, Any, str]]) -> None:
    total, tensors = 0, 0
    for shape, recorded_strides, kind in inputs:
        dtype = recorded_dtype(kind)
        if dtype is None:
            continue
        strides = recorded_strides or []
        if not _are_sizes(shape) or not _are_sizes(strides) or len(strides) not in (0, len(shape)):
            raise UsageError(f"the shapes of {operator} were not recorded whole")
        # With strides, up to the last element; the values are made for all elements.
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False) if size)
        total += max(math.prod(shape), reach) * dtype.size_bytes
        tensors += 1
    if not tensors and not any(kind == "TensorList" for _, _, kind in inputs):  # which nothing builds yet, and says so
        raise UsageError(f"{operator} takes no tensor: what it would do is not in its arguments")
    if total > _MOST_BYTES:
        raise UsageError(f"the inputs of {operator} take {total:,} bytes, more than are built for a replay")


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) and value >= 0 for value in values)


def _refuse_value(operator: str, value: Any) -> None:
    numbers = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(number, list | tuple | dict | set | bytes) for number in numbers):
        raise UsageError(f"an argument of {operator} is no plain value: {str(value)[:40]}")
    if isinstance(value, str) and not _OPTION.fullmatch(value):
        raise UsageError(f"an argument of {operator} is a text that is no option: {value[:40]!r}")
    integers = [abs(number) for number in numbers if isinstance(number, int)]
    if math.prod(number for number in integers if number) > _MOST_ELEMENTS:
        raise UsageError(f"an argument of {operator} asks for too much: {str(value)[:40]}")
