"""Costs by the rules against PyTorch itself: recorded calls are made again with tensors that hold nothing (meta)."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.launch_shapes import LaunchShape, rows_of
from opscope.analysis.limits import recorded_call
from opscope.knowledge.categories import Classifier
from opscope.knowledge.costs import cost_of
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers import read

torch = pytest.importorskip("torch")
TRACES = Path(__file__).parent / "data" / "traces"
FUNCTIONS = NativeFunctions.shipped()
CLASSIFIER = Classifier(FUNCTIONS)
DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "long int": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
    "unsigned char": torch.uint8,
}
# They read or write less than their arguments hold, or their results are not what they write.
SPARSE = {"gather", "embedding", "nll_loss_forward", "nll_loss_backward", "embedding_dense_backward", "index_select"}


def argument(declared: str, dims: Any, dtype: str, stride: Any, value: str) -> Any:
    """Make one argument of a recorded call; raises where it cannot be made."""
    if dtype in DTYPES and "Tensor" in declared:
        return torch.empty_strided(tuple(dims), tuple(stride), dtype=DTYPES[dtype], device="meta")
    if not value:
        return None
    return ast.literal_eval(value if not value.endswith(".") else f"{value}0")


def made_again(row: LaunchShape) -> tuple[int, int] | None:
    """Return FLOPs and bytes of all tensors that a call takes and returns; None where it cannot be made again."""
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    namespace, _, name = (row.operator or "").partition("::")
    if namespace != "aten" or not row.input_strides:
        return None
    packet = getattr(torch.ops.aten, name, None)
    dims, types, strides, values = (
        json.loads(text or "[]") for text in (row.input_dims, row.input_types, row.input_strides, row.concrete_inputs)
    )
    for overload in packet.overloads() if packet is not None else ():
        function = getattr(packet, overload)
        declared = function._schema.arguments
        if len(declared) != len(types):
            continue
        try:
            made = [
                argument(str(a.type), *rest) for a, *rest in zip(declared, dims, types, strides, values, strict=True)
            ]
            given = [value for a, value in zip(declared, made, strict=True) if not a.kwarg_only]
            named = {
                a.name: value for a, value in zip(declared, made, strict=True) if a.kwarg_only and value is not None
            }
            with FlopCounterMode(display=False) as counter:
                result = function(*given, **named)
        except Exception:
            continue
        tensors = [value for value in made if isinstance(value, torch.Tensor)]
        writes = [a.alias_info is not None and a.alias_info.is_write for a in declared]
        rewritten = [v for v, w in zip(made, writes, strict=True) if w and isinstance(v, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in outputs if not any(leaf is value for value in tensors)]
        moved = sum(value.numel() * value.element_size() for value in (*tensors, *outputs, *rewritten))
        return counter.get_total_flops(), moved
    return None


@pytest.mark.parametrize(
    "name", ["bert_fp32_eager_bs8_seq128", "gpt2_train_amp_stacks", "resnet50_train_fp32", "cdist"]
)
def test_the_rules_agree_with_pytorch_on_recorded_calls(name: str) -> None:
    rows = list(rows_of(analyze(read(TRACES / f"{name}.json.gz")).launch_shapes))
    compared = time = 0
    for row in rows:
        call = recorded_call(row, FUNCTIONS)
        if call is None or row.operator is None:
            continue
        cost = cost_of(row.operator, CLASSIFIER.classify(row.operator).category, call)
        again = made_again(row)
        if cost is None or cost.least_bytes is None or again is None:
            continue
        flop, moved = again
        what = f"{row.operator} {row.input_dims}"
        if flop:
            assert cost.flop == flop, what
        assert cost.least_bytes <= moved, what
        if row.operator.removeprefix("aten::") not in SPARSE and moved > 1_000_000:
            assert cost.least_bytes >= 0.45 * moved, what
        compared += 1
        time += row.total_ns
    assert compared >= 5
    assert time >= 0.5 * sum(row.total_ns for row in rows)
