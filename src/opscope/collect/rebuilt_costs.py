"""Costs of calls that no rule knows: each is made again with tensors that hold nothing (meta), and PyTorch counts.

The operators are those of the PyTorch that is installed. Nothing is computed, and no memory is taken.
"""

import ast
import json
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from opscope.analysis.launch_shapes import LaunchShape
from opscope.knowledge.categories import Category
from opscope.knowledge.costs import Cost
from opscope.knowledge.dtypes import recorded_dtype

# Kinds of work that read every element of what they are given; of others only what is written is certain.
_READ_WHOLE: Final = frozenset(
    {
        *(Category.MATRIX, Category.CONVOLUTION, Category.NORMALIZATION, Category.ACTIVATION, Category.LOSS),
        *(Category.ELEMENTWISE, Category.REDUCTION, Category.DISTANCE, Category.FFT),
    }
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a call that was made again takes and gives.

    Attributes:
        flop: as ``torch.utils.flop_counter`` counts.
        read_bytes: of all tensors among its arguments.
        new_bytes: of the tensors that it returns and was not given.
        rewritten_bytes: of those among its arguments that it writes.
    """

    flop: int
    read_bytes: int
    new_bytes: int
    rewritten_bytes: int


def rebuilt_cost(row: LaunchShape, category: Category) -> Cost | None:
    """Return what a call must do at least, as far as that is certain; None where it cannot be made again.

    Args:
        row: the call, as it was recorded.
        category: what kind of work it is.
    """
    found = made_again(row)
    if found is None:
        return None
    # In place an indexed write may touch one element, and a read may be of a part.
    read = found.read_bytes if category in _READ_WHOLE else 0
    written = found.new_bytes + (found.rewritten_bytes if category in _READ_WHOLE else 0)
    if not read + written:
        return None
    dtype = next((d for d in map(recorded_dtype, json.loads(row.input_types or "[]")) if d is not None), None)
    return Cost(read + written, found.flop, found.flop, dtype=dtype)


def made_again(row: LaunchShape) -> Rebuilt | None:
    """Make a recorded call again, with the first overload that takes its arguments."""
    namespace, _, name = (row.operator or "").partition("::")
    if namespace != "aten" or not row.input_strides:
        return None
    packet = getattr(torch.ops.aten, name, None)
    texts = (row.input_dims, row.input_types, row.input_strides, row.concrete_inputs)
    dims, types, strides, values = (json.loads(text or "[]") for text in texts)
    for overload in packet.overloads() if packet is not None else ():
        function = getattr(packet, overload)
        if len(function._schema.arguments) != len(types):
            continue
        try:
            return _called(function, [dims, types, strides, values])
        except Exception:  # another overload may take them
            continue
    return None


def _called(function: Any, recorded: list[list[Any]]) -> Rebuilt:
    """Raise where the arguments cannot be made, or are not taken."""
    declared = function._schema.arguments
    made = [_argument(str(a.type), *rest) for a, *rest in zip(declared, *recorded, strict=True)]
    given = [value for a, value in zip(declared, made, strict=True) if not a.kwarg_only]
    named = {a.name: value for a, value in zip(declared, made, strict=True) if a.kwarg_only and value is not None}
    with FlopCounterMode(display=False) as counter:
        result = function(*given, **named)
    tensors = [value for value in made if isinstance(value, torch.Tensor)]
    writes = [a.alias_info is not None and a.alias_info.is_write for a in declared]
    rewritten = [v for v, w in zip(made, writes, strict=True) if w and isinstance(v, torch.Tensor)]
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    new = [leaf for leaf in outputs if not any(leaf is value for value in tensors)]
    return Rebuilt(int(counter.get_total_flops()), *map(_bytes, (tensors, new, rewritten)))


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)


def _argument(declared: str, dims: Any, dtype: str, stride: Any, value: str) -> Any:
    """Make one argument of a recorded call."""
    known = recorded_dtype(dtype)
    if known is not None and "Tensor" in declared:
        return torch.empty_strided(tuple(dims), tuple(stride), dtype=getattr(torch, known.torch), device="meta")
    if not value:
        return None
    return ast.literal_eval(f"{value}0" if value.endswith(".") else value)
