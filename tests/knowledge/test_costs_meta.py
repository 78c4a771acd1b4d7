"""Costs by the rules against PyTorch itself: recorded calls are made again with tensors that hold nothing (meta)."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import opscope as opscope_package
from opscope.analysis.analyzed import analyze
from opscope.analysis.costs.limits import recorded_call
from opscope.analysis.costs.sums import LaunchShape, launch_shape_rows
from opscope.knowledge.categories import Classifier
from opscope.knowledge.costs import cost_of
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.reading import read
from tests.command import WITHOUT_TORCH, opscope

pytest.importorskip("torch")

from opscope.collect import meta_worker
from opscope.collect.rebuilt_costs import costs_by_pytorch
from opscope.collect.rebuilt_costs import least_cost as rebuilt_cost
from opscope.record.meta import MetaCall, Rebuilt
from tests.conftest import ROOT

pytestmark = pytest.mark.torch
TRACES = ROOT / "tests" / "data" / "traces"
FUNCTIONS = NativeFunctions.shipped()
CLASSIFIER = Classifier(FUNCTIONS)
# They read or write less than their arguments hold, or their results are not what they write.
SPARSE = {"gather", "embedding", "nll_loss_forward", "nll_loss_backward", "embedding_dense_backward", "index_select"}


def _made_again(row: LaunchShape) -> Rebuilt | None:
    """Make a call in this process, as the confined one does."""
    if row.operator is None or not row.input_strides:
        return None
    texts = (row.input_dims, row.input_types, row.input_strides, row.concrete_inputs)
    return meta_worker.made_again(MetaCall(row.operator, *(text or "[]" for text in texts)))


@pytest.mark.parametrize(
    "name", ["bert_fp32_eager_bs8_seq128", "gpt2_train_amp_stacks", "resnet50_train_fp32", "cdist"]
)
def test_the_rules_agree_with_pytorch_on_recorded_calls(name: str) -> None:
    rows = list(launch_shape_rows(analyze(read(TRACES / f"{name}.json.gz")).launch_shapes))
    compared = time = 0
    for row in rows:
        call = recorded_call(row, FUNCTIONS)
        if call is None or row.operator is None:
            continue
        cost = cost_of(row.operator, CLASSIFIER.classify(row.operator).category, call)
        again = _made_again(row)
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
    empty = dict.fromkeys(LaunchShape.__struct_fields__)
    row = LaunchShape(**{**empty, **texts, "operator": operator})  # type: ignore[arg-type]
    found = rebuilt_cost(row, CLASSIFIER.classify(operator).category, _made_again)
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


# ---------------------------------------------------------------- calls that a trace made up


def _row(operator: str, dims: object, types: object, values: object) -> LaunchShape:
    strides = [[1] * len(shape) if isinstance(shape, list) else [] for shape in dims]  # type: ignore[attr-defined]
    texts = {
        "operator": operator,
        "input_dims": json.dumps(dims),
        "input_types": json.dumps(types),
        "input_strides": json.dumps(strides),
        "concrete_inputs": json.dumps(values),
    }
    return LaunchShape(**{**dict.fromkeys(LaunchShape.__struct_fields__), **texts})  # type: ignore[arg-type]


# What each of them does where it is simply called: makes a file, takes gigabytes, prints, ends the process.
HARMFUL = {
    "file": lambda path: _row(
        "aten::from_file", [[], [], [], [], [], [], []], [""] * 7, [f"'{path}'", "True", "100", "6", "", "", ""]
    ),
    "file, out": lambda path: _row(
        "aten::from_file", [[], [], [], [4]], ["", "", "", "float"], [f"'{path}'", "True", "100", ""]
    ),
    "memory": lambda path: _row(
        "aten::ones", [[], [], [], [], []], ["ScalarList", "", "", "", ""], ["[700000000]", "", "", "", ""]
    ),
    "print": lambda path: _row("aten::_print", [[]], [""], ["'\\x1b]0;owned\\x07'"]),
    "crash": lambda path: _row("aten::__round_to_zero_floordiv", [[], []], ["Scalar", "Scalar"], [str(2**63 - 1), "0"]),
    "storage": lambda path: _row("aten::set_", [[8], [8]], ["float", "float"], ["", ""]),
    "attribute": lambda path: _row("aten::__class__", [[8]], ["float"], [""]),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_call_that_a_trace_made_up_is_not_made(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "made"
    assert _made_again(HARMFUL[name](target)) is None
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_the_process_that_makes_calls_answers_after_calls_that_end_it_and_can_write_nothing(tmp_path: Path) -> None:
    relu = _row("aten::glu", [[8], []], ["float", "Scalar"], ["", "0"])
    with costs_by_pytorch() as rebuild:
        category = CLASSIFIER.classify("aten::glu").category
        assert rebuild(HARMFUL["file"](tmp_path / "made"), category) is None
        assert rebuild(HARMFUL["crash"](tmp_path), category) is None
        found = rebuild(relu, category)
    assert found is not None
    assert found.least_bytes == (8 + 4) * 4
    assert not list(tmp_path.iterdir())


def test_a_confined_process_writes_no_file_starts_no_program_and_takes_little_memory(tmp_path: Path) -> None:
    tries = """
import os, sys, subprocess
from opscope.collect.meta_worker import confine
confine(memory_bytes=1 << 28, cpu_seconds=10)
def tried(what):
    try:
        what()
    except (OSError, MemoryError, subprocess.SubprocessError) as error:
        return type(error).__name__
    return "done"
def write():
    with open(sys.argv[1], "wb") as file:
        file.write(b"x")
print(tried(lambda: bytearray(1 << 29)), tried(write))
"""
    done = subprocess.run(
        [sys.executable, "-c", tries, str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    memory, written = done.stdout.split()
    assert memory == "MemoryError"
    assert written in ("PermissionError", "OSError")
    assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())


def test_only_one_module_looks_up_the_operators_that_a_file_names() -> None:
    source = Path(opscope_package.__file__).parent
    users = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.ops")
    }
    assert users == {"collect/replayable.py"}
