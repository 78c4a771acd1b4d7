"""The process that makes recorded calls again on meta tensors, which hold no data.

It reads one `MetaCall` per line from standard input and answers each with a `MetaAnswer`. Nothing is computed, and
tensors take no memory. It calls operators of the installed PyTorch, and only those that `replayable` allows.
Before that it confines itself: to little memory and time, and to no files but those that it reads.
"""

import ast
import contextlib
import ctypes
import json
import os
import resource
import sys
from typing import Any, Final

import msgspec
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from opscope.collect.replayable import overloads_of, refuse_unsafe
from opscope.knowledge.dtypes import recorded_dtype
from opscope.record.meta import MetaAnswer, MetaCall, Rebuilt

_MEMORY: Final = 1 << 30  # bytes beyond what PyTorch has taken when the process is confined
_CPU_SECONDS: Final = 120  # for all calls together
_LONGEST_VALUE: Final = 1000  # characters of a recorded argument
_PR_SET_NO_NEW_PRIVS: Final = 38
# The numbers of Landlock's calls are the same on every architecture.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
# LANDLOCK_ACCESS_FS_*: executing, writing, removing and making files of any kind. Reading (bits 2 and 3) stays allowed,
# so that PyTorch can still import what it imports late.
_ACCESS: Final = 0b1_1111_1111_0011


def confine(*, memory_bytes: int, cpu_seconds: int) -> None:
    """Limit what this process may do from now on, for good.

    Args:
        memory_bytes: how much address space it may add to what it has.
        cpu_seconds: how much processor time it may add to what it has used.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu_seconds
    limits = {
        resource.RLIMIT_AS: _address_space() + memory_bytes,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,  # where there is no Landlock, files can still be made, but stay empty
        resource.RLIMIT_CORE: 0,
    }
    for which, wanted in limits.items():
        _, most = resource.getrlimit(which)
        # The hard limit is set as well, so that the process cannot raise its limit again.
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(which, (limit, limit))
    _without_files()


def _address_space() -> int:
    """Return the bytes of address space that this process has; 32 GiB if ``/proc`` is missing."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 32 << 30  # no /proc: more than PyTorch with CUDA maps


def _without_files() -> None:
    """Forbid making, writing, removing and executing files, where the kernel can."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None, use_errno=True)
        handled = ctypes.c_uint64(_ACCESS)
        ruleset = library.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
        if ruleset < 0:
            return
        # No rule is added to the ruleset, so every access that it handles is forbidden everywhere.
        if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            library.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def made_again(call: MetaCall) -> Rebuilt | None:
    """Make a recorded call again, with the first overload that takes its arguments and may be called.

    Returns:
        What the call takes and gives; None if no overload takes the arguments.
    """
    recorded = [
        json.loads(text) for text in (call.input_dims, call.input_types, call.input_strides, call.concrete_inputs)
    ]
    if not all(isinstance(values, list) for values in recorded):
        return None
    for function in overloads_of(call.operator):
        if len(function._schema.arguments) != len(recorded[1]):
            continue
        try:
            return _called(call.operator, function, recorded)
        except Exception:  # another overload may take the arguments
            continue
    return None


def _called(operator: str, function: Any, recorded: list[list[Any]]) -> Rebuilt:
    """Call one overload; raise if the call is refused, or its arguments cannot be made or are not taken."""
    declared = function._schema.arguments
    dims, types, strides, _ = recorded
    values = [_value(str(a.type), *rest) for a, *rest in zip(declared, *recorded, strict=True)]
    refuse_unsafe(operator, function, list(zip(dims, strides, types, strict=True)), values, "Meta")
    made = [
        _tensor(*rest) if _is_tensor(str(a.type), rest[1]) else value
        for a, value, *rest in zip(declared, values, dims, types, strides, strict=True)
    ]
    options = [value for a, value in zip(declared, made, strict=True) if not a.kwarg_only]
    named = {a.name: value for a, value in zip(declared, made, strict=True) if a.kwarg_only and value is not None}
    with FlopCounterMode(display=False) as counter:
        result = function(*options, **named)
    tensors = [value for value in made if isinstance(value, torch.Tensor)]
    writes = [a.alias_info is not None and a.alias_info.is_write for a in declared]
    rewritten = [v for v, w in zip(made, writes, strict=True) if w and isinstance(v, torch.Tensor)]
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    # A call in place returns its argument itself: that is not a new tensor.
    new = [leaf for leaf in outputs if not any(leaf is value for value in tensors)]
    return Rebuilt(int(counter.get_total_flops()), *map(_bytes, (tensors, new, rewritten)))


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)


def _is_tensor(declared: str, dtype: str) -> bool:
    return recorded_dtype(dtype) is not None and "Tensor" in declared


def _value(declared: str, _dims: Any, dtype: str, _stride: Any, value: str) -> Any:
    """Parse the value of an argument; return None for a tensor, and for an empty text."""
    if _is_tensor(declared, dtype) or not value:
        return None
    if len(value) > _LONGEST_VALUE:
        raise ValueError("too long for an argument of an operator")
    return ast.literal_eval(f"{value}0" if value.endswith(".") else value)


def _tensor(dims: Any, dtype: str, stride: Any) -> torch.Tensor:
    known = recorded_dtype(dtype)
    assert known is not None
    return torch.empty_strided(tuple(dims), tuple(stride), dtype=getattr(torch, known.torch), device="meta")


def main() -> None:
    """Answer calls until standard input ends."""
    # One product first: what PyTorch imports at its first call takes memory and time before the limits are set.
    made_again(MetaCall("aten::mm", "[[2,2],[2,2]]", '["float","float"]', "[[2,1],[2,1]]", '["",""]'))
    confine(memory_bytes=_MEMORY, cpu_seconds=_CPU_SECONDS)
    answers = os.dup(1)
    os.dup2(2, 1)  # so that what an operator prints is not taken for an answer
    _answer(answers, None)  # the first line says that the process is ready
    for line in sys.stdin.buffer:
        try:
            _answer(answers, made_again(msgspec.json.decode(line, type=MetaCall)))
        except (ValueError, TypeError, RecursionError, MemoryError):
            _answer(answers, None)


def _answer(descriptor: int, rebuilt: Rebuilt | None) -> None:
    os.write(descriptor, msgspec.json.encode(MetaAnswer(rebuilt)) + b"\n")


if __name__ == "__main__":
    main()
