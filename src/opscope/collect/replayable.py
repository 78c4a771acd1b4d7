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
    operator: str, function: Any, dims: Sequence[Any], kinds: Sequence[str], values: Sequence[Any], device_key: str
) -> None:
    """Check a call before anything of it is built.

    Args:
        operator: its name.
        function: the overload, of ``torch.ops``.
        dims: the recorded shapes, per argument.
        kinds: the recorded types.
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
    _refuse_large(operator, dims, kinds)
    for value in values:
        _refuse_value(operator, value)


def _refuse_large(operator: str, dims: Sequence[Any], kinds: Sequence[str]) -> None:
    total, tensors = 0, 0
    for shape, kind in zip(dims, kinds, strict=True):
        dtype = recorded_dtype(kind)
        if dtype is None:
            continue
        if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise UsageError(f"the shapes of {operator} were not recorded whole")
        total += math.prod(shape) * dtype.size_bytes
        tensors += 1
    if not tensors and "TensorList" not in kinds:  # which nothing builds yet, and says so
        raise UsageError(f"{operator} takes no tensor: what it would do is not in its arguments")
    if total > _MOST_BYTES:
        raise UsageError(f"the inputs of {operator} take {total:,} bytes, more than are built for a replay")


def _refuse_value(operator: str, value: Any) -> None:
    numbers = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str) and not _OPTION.fullmatch(value):
        raise UsageError(f"an argument of {operator} is a text that is no option: {value[:40]!r}")
    integers = [abs(number) for number in numbers if isinstance(number, int)]
    if math.prod(number for number in integers if number) > _MOST_ELEMENTS:
        raise UsageError(f"an argument of {operator} asks for too much: {str(value)[:40]}")
