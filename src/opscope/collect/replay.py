"""Runs one operator with the shapes that were recorded of it: ``python -m opscope.collect.replay`` under a profiler.

Reads an `OperatorCall` as JSON from standard input. Contents of tensors are random; indices are random within the first
argument's rows. One call lies between ``cudaProfilerStart`` and ``cudaProfilerStop``, after calls that warm up.
"""

import ast
import json
import sys
from typing import Any

import msgspec
import torch

from opscope.base.errors import UsageError
from opscope.collect.replayable import overload_of, refuse_unsafe
from opscope.knowledge.dtypes import DataType, recorded_dtype
from opscope.record.counters import OperatorCall

_WARMUP = 3


def arguments_of(call: OperatorCall, device: torch.device) -> list[Any]:
    """Build the arguments of a call.

    Raises:
        UsageError: an argument was not recorded in a form that it can be built from.
    """
    dims, types, strides, values = _recorded(call)
    rows = next((shape[0] for shape in dims if shape and isinstance(shape[0], int)), 1)
    return [
        _argument(call.operator, *recorded, rows=rows, device=device)
        for recorded in zip(dims, types, strides, values, strict=True)
    ]


def _recorded(call: OperatorCall) -> tuple[list[Any], list[str], list[Any], list[str]]:
    """Return per argument shape, type, strides and value."""
    dims, types = json.loads(call.input_dims), json.loads(call.input_types)
    strides = json.loads(call.input_strides) if call.input_strides else [None] * len(dims)
    values = json.loads(call.concrete_inputs) if call.concrete_inputs else [""] * len(dims)
    if not len(dims) == len(types) == len(strides) == len(values):
        raise UsageError(f"the inputs of {call.operator} were not recorded whole")
    return dims, types, strides, values


def refuse(call: OperatorCall, function: Any, device: torch.device) -> None:
    """Check that a call may be made again; see `refuse_unsafe`.

    Args:
        call: what was recorded.
        function: the overload; see `overload_of`.
        device: what it would run on.

    Raises:
        UsageError: it may not.
    """
    dims, types, strides, values = _recorded(call)
    plain = [_value(value) for value, kind in zip(values, types, strict=True) if recorded_dtype(kind) is None]
    refuse_unsafe(call.operator, function, list(zip(dims, strides, types, strict=True)), plain, device.type.upper())


def _argument(operator: str, dims: Any, kind: str, strides: Any, value: str, *, rows: int, device: torch.device) -> Any:
    if (dtype := recorded_dtype(kind)) is not None:
        return _tensor(dims, strides, dtype, rows, device)
    if kind in ("Scalar", "ScalarList", ""):
        return _value(value)
    raise UsageError(f"an argument of {operator} is a {kind}, which cannot be built from what was recorded")


def _tensor(dims: list[int], strides: list[int] | None, dtype: DataType, rows: int, device: torch.device) -> Any:
    kind = getattr(torch, dtype.torch)
    # Random numbers are made in a type that has them; those of 8 bits have none.
    made_in = torch.bfloat16 if dtype.is_floating_point and dtype.size_bytes == 1 else kind
    made = (
        torch.empty_strided(dims, strides, dtype=made_in, device=device)
        if strides
        else torch.empty(dims, dtype=made_in, device=device)
    )
    if dtype.is_floating_point or kind.is_complex:
        return made.normal_().to(kind)
    if kind is torch.bool:
        return made.bernoulli_()
    return made.random_(0, max(rows, 1))


def _value(text: str) -> Any:
    """Read a recorded value: a number (``0.``, ``1e-05``), True, a list; nothing stands for None."""
    if not text:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def run(call: OperatorCall) -> None:
    """Make a call on the first GPU, with a profiled one after the warm-up.

    Raises:
        UsageError: the operator or its arguments cannot be built.
    """
    function = overload_of(call.operator, call.overload)
    device = torch.device("cuda", 0)
    refuse(call, function, device)
    arguments = arguments_of(call, device)
    positional, keywords = _split(function, arguments)
    if call.precision is not None:
        torch.set_float32_matmul_precision(call.precision.float32_matmul)
        if call.precision.cudnn_allow_tf32 is not None:
            torch.backends.cudnn.allow_tf32 = call.precision.cudnn_allow_tf32
    with torch.inference_mode():
        for _ in range(_WARMUP):
            function(*positional, **keywords)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        function(*positional, **keywords)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def _split(function: Any, arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Part positional from keyword-only arguments; a keyword that was recorded as nothing keeps its default."""
    schema = function._schema.arguments
    positional = [value for value, argument in zip(arguments, schema, strict=False) if not argument.kwarg_only]
    keywords = {
        argument.name: value
        for value, argument in zip(arguments, schema, strict=False)
        if argument.kwarg_only and value is not None
    }
    return positional, keywords


def main() -> None:
    """Run the call that standard input holds."""
    try:
        run(msgspec.json.decode(sys.stdin.buffer.read(), type=OperatorCall))
    except (UsageError, RuntimeError, TypeError) as error:
        sys.stderr.write(f"replay: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
