"""Which native function is behind an operator of a trace, as documents say it."""

import json

import polars as pl

from opscope.documents.source import NativeFunctionDetail
from opscope.knowledge.native_functions import NativeFunctions, RecordedCalls, Resolution


def native_function_of(
    name: str, shapes: pl.DataFrame, functions: NativeFunctions, device_key: str, weight: str
) -> tuple[NativeFunctionDetail, str | None]:
    """Resolve an operator by the input types that were recorded of its calls.

    Args:
        name: the operator.
        shapes: its rows of `Analysis.shapes`.
        functions: the operators of a PyTorch build.
        device_key: the dispatch key of the device, ``CPU`` or ``CUDA``.
        weight: the column of ``shapes`` that says which overload matters most.

    Returns:
        The detail, and the name in ``native_functions.yaml``, or None where it has no entry there.
    """
    calls = [
        RecordedCalls(
            input_types=None if row["input_types"] is None else tuple(json.loads(row["input_types"])),
            time_ns=row[weight] or 0,
        )
        for row in shapes.iter_rows(named=True)
    ]
    return detail_of(functions.resolve(name, calls, device_key), functions)


def detail_of(resolution: Resolution, functions: NativeFunctions) -> tuple[NativeFunctionDetail, str | None]:
    """Return what documents say of a resolution, and the name in ``native_functions.yaml``; None if not listed."""
    function = resolution.function
    detail = NativeFunctionDetail(
        schema=function.schema if function else None,
        yaml_line=function.yaml_line if function else None,
        dispatch_key=resolution.dispatch_key,
        cpp_function=resolution.cpp_function,
        torch_version=functions.torch_version,
        how=resolution.how,
        other_overloads=resolution.other_overloads,
    )
    listed = function is not None and function.yaml_line is not None
    return detail, function.yaml_name if function and listed else None
