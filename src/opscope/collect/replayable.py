"""Which recorded calls may be made again: a trace names the operator and its arguments, and a trace may be anyone's.

What PyTorch itself says of an operator decides, by a list of what is allowed: operators of ATen with kernels for the
device (or made of such), whose arguments are tensors and plain values. The tensors are built here, of bounded size. So
no call reaches a file, a storage, a stream, a generator or another process.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import torch

from opscope.errors import UsageError
from opscope.knowledge.dtypes import recorded_dtype

_PLAIN: Final = re.compile(
    r"(Tensor|number|Scalar|int|SymInt|float|bool|str|ScalarType|MemoryFormat|Layout|Device|Optional|List|\[|\]|\s)*"
)
# Options of operators (``mean``, ``floor``, ``bijection,->``), and no path: there is neither a slash nor a backslash.
_OPTION: Final = re.compile(r"[\w ,.>-]{0,64}")
# Operators whose work is on what lies behind a tensor, whatever their arguments are.
_BEHIND: Final = re.compile(
    r"storage|file|share|ipc|pin_memory|record_stream|resize|^_?set_|_assert|debug|dlpack|save|load"
)
_MOST_BYTES: Final = 32 << 30
_MOST_ELEMENTS: Final = 1 << 33  # that numbers in arguments may ask for


def refuse_unsafe(
    operator: str, function: Any, inputs: Sequence[tuple[Any, Any, str]], values: Sequence[Any], device_key: str
) -> None:
    """Check a call before anything of it is built.

    Args:
        operator: its name.
        function: the overload, of ``torch.ops``.
        inputs: of every argument the recorded shape, strides (None where they were not recorded) and type.
        values: the values of the arguments that are no tensors.
        device_key: the dispatch key of the device, ``CUDA`` or ``CPU``.

    Raises:
        UsageError: it is not one that may be made again; says why.
    """
    base = operator.removeprefix("aten::")
    if base == operator or "::" in base:
        raise UsageError(f"{operator} is not an operator of PyTorch itself")
    name = function._schema.name + (f".{function._overloadname}" if function._overloadname != "default" else "")
    keys = (device_key, "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys):
        raise UsageError(f"{operator} has no kernel for the device")
    if _BEHIND.search(base):
        raise UsageError(f"{operator} works on what lies behind a tensor, and is not made again")
    for argument in function._schema.arguments:
        if not _PLAIN.fullmatch(str(argument.type)):
            raise UsageError(f"{operator} takes a {argument.type}, which is neither a tensor nor a plain value")
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
    if isinstance(value, str) and not _OPTION.fullmatch(value):
        raise UsageError(f"an argument of {operator} is a text that is no option: {value[:40]!r}")
    integers = [abs(number) for number in numbers if isinstance(number, int)]
    if math.prod(number for number in integers if number) > _MOST_ELEMENTS:
        raise UsageError(f"an argument of {operator} asks for too much: {str(value)[:40]}")
