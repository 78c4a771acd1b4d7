"""Costs by the rules against PyTorch itself: recorded calls are made again with tensors that hold nothing (meta)."""

import json
from pathlib import Path

import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.launch_shapes import LaunchShape, rows_of
from opscope.analysis.limits import recorded_call
from opscope.knowledge.categories import Classifier
from opscope.knowledge.costs import cost_of
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers import read
from tests.cli import WITHOUT_TORCH, opscope

pytest.importorskip("torch")

from opscope.collect.rebuilt_costs import made_again, rebuilt_cost

pytestmark = pytest.mark.torch
TRACES = Path(__file__).parent / "data" / "traces"
FUNCTIONS = NativeFunctions.shipped()
CLASSIFIER = Classifier(FUNCTIONS)
# They read or write less than their arguments hold, or their results are not what they write.
SPARSE = {"gather", "embedding", "nll_loss_forward", "nll_loss_backward", "embedding_dense_backward", "index_select"}


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
        flop, moved = again.flop, again.read_bytes + again.new_bytes + again.rewritten_bytes
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


@pytest.mark.parametrize(
    ("operator", "dims", "types", "values", "least_bytes"),
    [
        # What is rolled is written whole; which of it is read no rule says.
        ("aten::roll", [[4, 8], [], []], ["float", "ScalarList", "ScalarList"], ["", "[1]", "[0]"], 4 * 8 * 4),
        ("aten::glu", [[4, 8], []], ["float", "Scalar"], ["", "1"], (32 + 16) * 4),  # half as much comes out
        ("aten::cholesky_inverse", [[8, 8], []], ["double", "Scalar"], ["", "False"], 64 * 8),
        ("aten::index_put_", [[8, 8], [], [], []], ["float", "", "", ""], ["", "", "", "False"], None),
        ("aten::no_such_operator", [[8]], ["float"], [""], None),
    ],
)
def test_calls_that_no_rule_knows_are_made_again(
    operator: str, dims: list[object], types: list[str], values: list[str], least_bytes: int | None
) -> None:
    strides = [[shape[1], 1] if len(shape) == 2 else [1] * len(shape) for shape in dims]  # type: ignore[arg-type,index]
    texts = dict(
        zip(
            ("input_dims", "input_types", "input_strides", "concrete_inputs"),
            map(json.dumps, (dims, types, strides, values)),
            strict=True,
        )
    )
    empty = dict.fromkeys(LaunchShape.__dataclass_fields__)
    row = LaunchShape(**{**empty, **texts, "operator": operator})  # type: ignore[arg-type]
    found = rebuilt_cost(row, CLASSIFIER.classify(operator).category)
    assert (None if found is None else found.least_bytes) == least_bytes


def test_the_command_asks_pytorch_for_what_no_rule_knows() -> None:
    trace = str(TRACES.parent / "findings" / "new_kernels.json.xz")
    with_torch = json.loads(opscope("limits", "--format", "json", trace).stdout)["limits"]
    without = json.loads(opscope("limits", "--format", "json", trace, code=WITHOUT_TORCH).stdout)["limits"]
    assert with_torch["modelled_ns"] > without["modelled_ns"]
    assert not with_torch["over_limit"]
    unknown = [
        {row["operator"] for row in found["rows"] if "no model" in (row["reason"] or "")}
        for found in (with_torch, without)
    ]
    assert unknown[0] < unknown[1]
