"""Runs one operator with its recorded shapes: ``python -m opscope.collect.replay``, under a profiler.

Reads an `OperatorCall` as JSON from standard input. Tensors hold random values; indices are random within the rows of
the first argument. After the warm-up, one call runs between ``cudaProfilerStart`` and ``cudaProfilerStop``.
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

    Args:
        call: the recorded call.
        device: where the tensors are made.

    Raises:
        UsageError: the inputs were not recorded whole, or an argument cannot be built from what was recorded.
    """
    dims, types, strides, values = _recorded(call)
    # Whole-number tensors may be indices: an index below the first argument's rows is valid for that argument.
    rows = next((shape[0] for shape in dims if shape and isinstance(shape[0], int)), 1)
    return [
        _argument(call.operator, *recorded, rows=rows, device=device)
        for recorded in zip(dims, types, strides, values, strict=True)
    ]


def _recorded(call: OperatorCall) -> tuple[list[Any], list[str], list[Any], list[str]]:
    """Return the shapes, types, strides and values of the arguments, one element per argument."""
    dims, types = json.loads(call.input_dims), json.loads(call.input_types)
    # A recording may lack strides and values: None then stands for contiguous, an empty text for no value.
    strides = json.loads(call.input_strides) if call.input_strides else [None] * len(dims)
    values = json.loads(call.concrete_inputs) if call.concrete_inputs else [""] * len(dims)
    if not len(dims) == len(types) == len(strides) == len(values):
        raise UsageError(f"the inputs of {call.operator} were not recorded whole")
    return dims, types, strides, values


def refuse(call: OperatorCall, function: Any, device: torch.device) -> None:
    """Check that a call may be replayed; see `refuse_unsafe`.

    Args:
        call: the recorded call.
        function: the overload; see `overload_of`.
        device: where it would run.

    Raises:
        UsageError: the call may not be replayed.
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
    # PyTorch makes no random numbers in 8-bit floating-point types: they are made in bfloat16 and converted.
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
    """Parse a recorded value: a number (``0.``, ``1e-05``), a truth value or a list; an empty text means None."""
    if not text:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def run(call: OperatorCall) -> None:
    """Replay a call on the first GPU; only the call after the warm-up is profiled.

    Raises:
        UsageError: the operator is unknown or may not be replayed, or its arguments cannot be built.
    """
    function = overload_of(call.operator, call.overload)
    device = torch.device("cuda", 0)
    refuse(call, function, device)  # before anything of a recording that may be anyone's is built
    arguments = arguments_of(call, device)
    positional, keywords = _split(function, arguments)
    if call.precision is not None:  # the settings of the recorded program decide which kernels run
        torch.set_float32_matmul_precision(call.precision.float32_matmul)
        if call.precision.cudnn_allow_tf32 is not None:
            torch.backends.cudnn.allow_tf32 = call.precision.cudnn_allow_tf32
    with torch.inference_mode():
        for _ in range(_WARMUP):
            function(*positional, **keywords)
        torch.cuda.synchronize()
        # ncu runs with --profile-from-start off: it measures nothing before this.
        torch.cuda.profiler.start()
        function(*positional, **keywords)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def _split(function: Any, arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Split arguments into positional and keyword-only ones; a keyword recorded as None keeps its default."""
    schema = function._schema.arguments
    positional = [value for value, argument in zip(arguments, schema, strict=False) if not argument.kwarg_only]
    keywords = {
        argument.name: value
        for value, argument in zip(arguments, schema, strict=False)
        if argument.kwarg_only and value is not None
    }
    return positional, keywords


def main() -> None:
    """Replay the call that standard input holds; exit with code 2 and a line that says why it failed."""
    try:
        run(msgspec.json.decode(sys.stdin.buffer.read(), type=OperatorCall))
    except (UsageError, RuntimeError, TypeError) as error:
        sys.stderr.write(f"replay: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
