"""Which recorded calls may be replayed. A trace names the operator and its arguments, and a trace may be anyone's.

An allow-list decides, by PyTorch's own description of the operator: it must belong to ATen, have a kernel for the
device (or be composed of operators that do), take a tensor and plain values, and return a tensor. The tensors are built
here, of bounded size. So no call reaches a file, a storage, a stream, a generator or another process. Every replay
passes this module, and no other module looks up a recorded operator in ``torch.ops``.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from opscope.base.errors import UsageError
from opscope.base.text import lazy_pattern
from opscope.knowledge.dtypes import recorded_dtype

# Types of a schema that hold no handle to anything outside the call: no Storage, Stream or Generator.
_PLAIN: Final = lazy_pattern(
    r"(Tensor|number|Scalar|int|SymInt|float|bool|str|ScalarType|MemoryFormat|Layout|Device|Optional|List|\[|\]|\s)*"
)
# Options of operators (``mean``, ``floor``, ``bijection,->``). No path matches: slash and backslash are left out.
_OPTION: Final = lazy_pattern(r"[\w ,.>-]{0,64}")
# Arguments whose text names an option. The text of any other argument may be a path or a message.
_NAMED_OPTIONS: Final = frozenset(
    {
        *("approximate", "rounding_mode", "indexing", "padding_mode", "interpolation", "ord", "mode", "norm"),
        *("driver", "reduce", "side", "equation", "UPLO", "input_layout"),
    }
)
_RETURNED: Final = lazy_pattern(r"Tensor|List\[Tensor\]|Optional\[Tensor\]")
_ANY_DEVICE: Final = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
# Operators that work on what lies behind a tensor (its storage, a file), whatever their arguments are.
_BEHIND: Final = lazy_pattern(
    r"storage|file|share|ipc|pin_memory|record_stream|resize|^_?set_|_assert|debug|dlpack|save|load"
)
_MOST_BYTES: Final = 32 << 30  # of all input tensors together
_MOST_ELEMENTS: Final = 1 << 33  # that the numbers in an argument may ask for, multiplied


def overload_of(operator: str, overload: str | None) -> Any:
    """Return an overload of a recorded operator from ``torch.ops``.

    Args:
        operator: its qualified name, ``aten::add``.
        overload: its overload name; None or an empty text for the default one.

    Raises:
        UsageError: the operator is not one of ATen, or this PyTorch has none of that name.
    """
    packet = _packet(operator)
    function = getattr(packet, overload or "default", None)
    if function is None or (overload or "default") not in packet.overloads():
        raise UsageError(f"this PyTorch has no operator {operator}.{overload or 'default'}")
    return function


def overloads_of(operator: str) -> Iterator[Any]:
    """Yield the overloads of a recorded operator; nothing if PyTorch has no operator of that name."""
    try:
        packet = _packet(operator)
    except UsageError:
        return
    yield from (getattr(packet, overload) for overload in packet.overloads())


def _packet(operator: str) -> Any:
    namespace, _, base = operator.partition("::")
    # Only plain names: an attribute such as __class__ of torch.ops.aten is not an operator.
    if namespace != "aten" or not base.isidentifier() or base.startswith("__"):
        raise UsageError(f"{operator} is not an operator of PyTorch itself")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None or not hasattr(packet, "overloads"):
        raise UsageError(f"this PyTorch has no operator {operator}")
    return packet


def refuse_unsafe(
    operator: str, function: Any, inputs: Sequence[tuple[Any, Any, str]], values: Sequence[Any], device_key: str
) -> None:
    """Check a call before any of its arguments is built.

    Args:
        operator: its qualified name, ``aten::add``.
        function: the overload, from ``torch.ops``.
        inputs: the recorded shape, strides (None if not recorded) and type of every argument.
        values: the values of the arguments that are not tensors.
        device_key: the dispatch key of the device: ``CUDA``, ``CPU``, ``Meta``.

    Raises:
        UsageError: the call may not be replayed; the message says why.
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
            raise UsageError(f"{operator} takes a text, {argument.name}, that is not a name of an option")
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
        # With strides, memory reaches up to the last element. Where it is less than the elements, as in expanded
        # tensors, the elements count: a value is made for each.
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False) if size)
        total += max(math.prod(shape), reach) * dtype.size_bytes
        tensors += 1
    # A TensorList passes here: nothing builds one yet, and what fails to build it says so.
    if not tensors and not any(kind == "TensorList" for _, _, kind in inputs):
        raise UsageError(f"{operator} takes no tensor: what it would do is not in its arguments")
    if total > _MOST_BYTES:
        raise UsageError(f"the inputs of {operator} take {total:,} bytes, more than are built for a replay")


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int) and value >= 0 for value in values)


def _refuse_value(operator: str, value: Any) -> None:
    numbers = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(number, list | tuple | dict | set | bytes) for number in numbers):
        raise UsageError(f"an argument of {operator} is not a plain value: {str(value)[:40]}")
    if isinstance(value, str) and not _OPTION.fullmatch(value):
        raise UsageError(f"an argument of {operator} is a text that is not an option: {value[:40]!r}")
    # The product, because a list of numbers may be the shape of a result; a zero in it must not hide the others.
    integers = [abs(number) for number in numbers if isinstance(number, int)]
    if math.prod(number for number in integers if number) > _MOST_ELEMENTS:
        raise UsageError(f"an argument of {operator} asks for too much: {str(value)[:40]}")
