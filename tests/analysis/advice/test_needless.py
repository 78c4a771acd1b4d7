"""Work that is not needed, and programs at their limit: recorded on an H200, and made by hand."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from opscope.analysis.advice.advised import is_promise, ranked
from opscope.analysis.advice.context import Draft, Range
from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.documents.findings import Finding, Rule, Where
from opscope.readers.reading import read
from tests.conftest import ROOT
from tests.kineto import KinetoTrace

DATA: Final = ROOT / "tests" / "data" / "findings" / "needless"
PROGRAMS: Final = json.loads((DATA / "programs.json").read_text())
US, MS = 1_000, 1_000_000
# Where nothing is said of the cause: no trace tells the sizes of a Triton kernel's arguments that no operator launched,
# nor which rows are padding or masked.
UNKNOWN: Final = {"wrong_tile", "strided_lanes", "padded_encoder", "masked_words"}
# What a kernel of one's own computes, no trace tells: that it moves too much stands behind what it takes.
MAY_COMPUTE: Final = {"by_columns"}
# Savings outside of their range by less than 2 % of the step more than the tolerance (benchmarks/results/).
OUTSIDE: Final = {"greedy_on_host"}
HEALTHY: Final = [name for name, one in PROGRAMS.items() if one["fixed_ns"] is None]
TOLERANCE: Final = 0.02  # of the step


@cache
def findings(name: str) -> tuple[Finding, ...]:
    return Measured(analyze(read(DATA / f"{name}.json.xz")), None, PROGRAMS[name]["wall_ns"]).findings


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in UNKNOWN | MAY_COMPUTE])
def test_the_first_finding_is_the_cause_that_was_built_in(name: str) -> None:
    program, found = PROGRAMS[name], findings(name)
    assert found[0].rule in {program["expected"], *program["alternatives"], "near_limit", "dearest_work"} - (
        {"near_limit", "dearest_work"} if program["fixed_ns"] is not None else set()
    )


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_promised_of_a_program_at_its_limit(name: str) -> None:
    found = findings(name)
    assert found[0].saving_ns.high == 0
    assert all(one.saving_ns.low == 0 for one in found)


@pytest.mark.parametrize(
    "name", [name for name, one in PROGRAMS.items() if one["fixed_ns"] is not None and name not in UNKNOWN | OUTSIDE]
)
def test_the_saving_that_was_measured_lies_in_the_range(name: str) -> None:
    program = PROGRAMS[name]
    own = next(one for one in findings(name) if one.rule == program["expected"])
    saved, room = program["wall_ns"] - program["fixed_ns"], TOLERANCE * program["wall_ns"]
    assert own.saving_ns.low - room <= saved <= own.saving_ns.high + room


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_only_may_be_stands_behind_what_is_promised(name: str) -> None:
    promises = [one.saving_ns.high == 0 or one.saving_ns.low > 0 for one in findings(name)]
    assert promises == sorted(promises, reverse=True)


@pytest.mark.parametrize(
    ("name", "says", "does"),
    [
        ("grouped_heads_decode", "4 times as large", "enable_gqa=True"),
        ("expanded_weights", "256 times as large", "broadcast"),
        ("table_sgd", "6,000,000 x 128", "sparse=True"),
        ("shifted_loss", "128,256 classes", "shift the labels"),
        ("sorted_scores", "1,000,000 entries are sorted, and slices take the first 1,024", "x.topk(1024)"),
        ("one_hot_lookup", "50,304", "table[tokens]"),
        ("logits_of_all_positions", "8,192 rows of which 8 are read", "head(hidden[:, -1])"),
        ("masked_after", "32,768 rows of which 4,874 are read", "head(hidden[mask])"),
        ("kept_rows", "32,768 rows of which 2,048 are read", "head(hidden[mask])"),
        ("ends_of_prompts", "8,192 rows of which 16 are read", "head(hidden[mask])"),
        ("scores_of_all", "4,096 rows of which 8 are read", "head(hidden[:, -1])"),
        ("selected_rows", "5,000,000 x 96", "sparse=True"),
        ("word_pairs", "2,000,000 x 128, and of 1 more,", "sparse=True"),
        ("last_of_sorted", "250,000 entries are sorted, and slices take the last 64", "x.topk(64)"),
        ("threshold_by_order", "300,000 entries are sorted, and slices take the first 500", "x.topk(500)"),
        ("decoder_in_fp32", "Convolutions run on the FP32 cores", "allow_tf32"),
        ("greedy_on_host", "Copies of pageable memory", "compute on the device what operators compute on the host"),
    ],
)
def test_findings_say_how_much_and_what_to_write(name: str, says: str, does: str) -> None:
    first = findings(name)[0]
    assert says in first.title
    assert does in first.action
    assert "_programs.py(" in str(first.where.python)


def test_a_read_that_an_operator_needs_promises_nothing() -> None:
    """torch.bincount looks at the least and the largest value to choose its kernel: no argument says them."""
    (read_of_values,) = (one for one in findings("histogram") if one.rule == "blocking_read")
    assert read_of_values.saving_ns.low == 0
    assert "scatter_add_" in read_of_values.action


def test_a_launch_of_triton_is_held_against_the_bytes_of_its_arguments() -> None:
    """Programs along columns: 1 GiB of arguments in 5.4 ms."""
    own = next(one for one in findings("by_columns") if one.rule == "excess_traffic")
    assert own.title.startswith("triton::scale_columns takes 5.")
    assert "for 1.000 GiB of arguments: 4 % of the memory's bandwidth" in own.title
    assert own.saving_ns.low == 0


# ---------------------------------------------------------------- made by hand


def made(folder: Path, *operators: tuple[str, int, dict[str, Any]]) -> tuple[Finding, ...]:
    """Return what is found in a trace whose operators each launch one kernel.

    Args:
        folder: where it is written.
        operators: name, the kernel's microseconds (0: none), and what was recorded of the inputs; with ``around``, how
            many of those that follow lie inside of it.
    """
    trace = KinetoTrace(
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}]
    )
    for step in range(3):
        begin = host = step * 20 * MS
        device = begin + 100 * US
        trace.step(step + 1, begin, 20 * MS - 1)
        for place, (name, took, args) in enumerate(operators):
            number = 1_000 * step + place + 1
            recorded = {key: value for key, value in args.items() if key != "around"}
            trace.operator(name, host, (8 + 10 * args.get("around", 0)) * US, **{"External id": number, **recorded})
            if took:
                launch = trace.launch(host + US, 4 * US, **{"External id": number})
                trace.kernel(f"{name}_kernel", device, took * US, launch, **{"External id": number})
                device += took * US
            host += 10 * US
        trace.launch(host, device - host + 50 * US, name="cudaDeviceSynchronize")
    return analyze(read(trace.write(folder / "trace.json"))).findings


def copy(shape: list[int], strides: list[int], to: list[int]) -> dict[str, Any]:
    return {
        "Input Dims": [shape, shape, []],
        "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],
        "Input Strides": [to, strides, []],
    }


def rules(found: tuple[Finding, ...]) -> set[str]:
    return {one.rule for one in found}


SHAPE: Final = [64, 8, 4, 4096, 128]
WHOLE: Final = [16777216, 2097152, 524288, 128, 1]


def test_a_copy_of_an_expanded_tensor_is_needless_and_one_of_a_whole_tensor_is_not(tmp_path: Path) -> None:
    expanded = [4194304, 524288, 0, 128, 1]
    assert "expanded_copy" in rules(made(tmp_path, ("aten::copy_", 9_000, copy(SHAPE, expanded, WHOLE))))
    moved = [2097152, 16777216, 524288, 128, 1]
    assert "expanded_copy" not in rules(made(tmp_path, ("aten::copy_", 9_000, copy(SHAPE, moved, WHOLE))))
    # What stays expanded is not repeated in memory.
    assert "expanded_copy" not in rules(made(tmp_path, ("aten::copy_", 9_000, copy(SHAPE, expanded, expanded))))


def table(rows: int, looked_up: int) -> list[tuple[str, int, dict[str, Any]]]:
    filled = {"Input Dims": [[rows, 128], []], "Input type": ["float", "Scalar"]}
    backward = {
        "Input Dims": [[looked_up, 128], [looked_up], [], [], []],
        "Input type": ["float", "long int", "Scalar", "Scalar", "Scalar"],
    }
    update = {"Input Dims": [[[rows, 128]], [[rows, 128]], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
    return [
        ("autograd::engine::evaluate_function: EmbeddingBackward0", 0, {}), ("aten::fill_", 2_000, filled),
        ("aten::embedding_dense_backward", 100, backward),
        ("aten::_foreach_add_", 6_000, update),
    ]  # fmt: skip


def test_a_dense_gradient_is_needless_where_few_rows_are_looked_up(tmp_path: Path) -> None:
    found = next(one for one in made(tmp_path, *table(4_000_000, 4_096)) if one.rule == "dense_gradient")
    assert "4,000,000 x 128" in found.title
    assert "8.100 ms" in found.title  # 2 to fill, 0.1 to scatter, 6 to update
    assert "dense_gradient" not in rules(made(tmp_path, *table(4_000_000, 1_000_000)))
    assert "dense_gradient" not in rules(made(tmp_path, *table(40_000, 64)))  # 20 MB are not worth a sparse gradient


def test_a_table_that_a_head_shares_or_that_decays_is_promised_nothing(tmp_path: Path) -> None:
    tied = {
        "Input Dims": [[4096, 128], [128, 4_000_000]],
        "Input type": ["float", "float"],
        "Input Strides": [[128, 1], [1, 128]],
    }
    assert "dense_gradient" not in rules(made(tmp_path, *table(4_000_000, 4_096), ("aten::mm", 4_000, tied)))
    decay = {"Input Dims": [[[4_000_000, 128]], []], "Input type": ["TensorList", "Scalar"]}
    found = made(tmp_path, *table(4_000_000, 4_096), ("aten::_foreach_mul_", 3_000, decay))
    assert next(one for one in found if one.rule == "dense_gradient").saving_ns.low == 0


def sort(size: int) -> tuple[str, int, dict[str, Any]]:
    return "aten::sort", 8_000, {
        "Input Dims": [[64, size], [], [], []], "Input type": ["float", "Scalar", "Scalar", "Scalar"],
    }  # fmt: skip


def part(size: int, end: str) -> tuple[str, int, dict[str, Any]]:
    return "aten::slice", 0, {
        "Input Dims": [[64, size], [], [], [], []], "Input type": ["float", *["Scalar"] * 4],
        "Concrete Inputs": ["", "1", "0", end, "1"],
    }  # fmt: skip


def test_a_sort_is_too_much_only_where_slices_take_a_small_part(tmp_path: Path) -> None:
    size = 1_000_000
    found = next(one for one in made(tmp_path, sort(size), part(size, "100")) if one.rule == "full_sort")
    assert "1,000,000 entries are sorted, and slices take the first 100" in found.title
    assert "full_sort" not in rules(made(tmp_path, sort(size)))
    # Another operator takes tensors of that shape: the rest of what was sorted may be read.
    scan = ("aten::cumsum", 0, {"Input Dims": [[64, size], [], []], "Input type": ["float", "Scalar", "Scalar"]})
    found = next(one for one in made(tmp_path, sort(size), part(size, "100"), scan) if one.rule == "full_sort")
    assert found.saving_ns.low == 0
    chunks = [("aten::slice", 0, {**part(size, "1")[2], "Concrete Inputs": ["", "1", str(at), str(at + 50_000), "1"]})
              for at in range(0, size, 50_000)]  # fmt: skip
    assert "full_sort" not in rules(made(tmp_path, sort(size), *chunks))
    assert "full_sort" not in rules(made(tmp_path, sort(size), part(size, "500000")))
    assert "full_sort" not in rules(made(tmp_path, sort(size), part(size, "100"), part(size, "9223372036854775807")))


def product() -> tuple[str, int, dict[str, Any]]:
    return "aten::mm", 8_000, {
        "Input Dims": [[8192, 4096], [4096, 128256]], "Input type": ["c10::BFloat16", "c10::BFloat16"],
        "Input Strides": [[4096, 1], [1, 4096]],
    }  # fmt: skip


def select(name: str = "aten::select", **values: list[str]) -> tuple[str, int, dict[str, Any]]:
    return name, 0, {
        "Input Dims": [[8, 1024, 128256], [], []], "Input type": ["c10::BFloat16", "Scalar", "Scalar"],
        "Concrete Inputs": values.get("values", ["", "1", "-1"]),
    }  # fmt: skip


def test_a_product_of_which_the_last_row_is_read_is_sliced_too_late(tmp_path: Path) -> None:
    found = next(one for one in made(tmp_path, product(), select()) if one.rule == "sliced_product")
    assert "8,192 rows of which 8 are read" in found.title
    # Whatever else takes it reads it; a column is no row; all rows may be read one after the other.
    each = [select(values=["", "0", str(at)]) for at in range(8)]
    assert "sliced_product" not in rules(made(tmp_path, product(), *each))
    assert "sliced_product" not in rules(made(tmp_path, product(), select(), select("aten::argmax")))
    assert "sliced_product" not in rules(made(tmp_path, product(), select(values=["", "2", "0"])))
    assert "sliced_product" not in rules(made(tmp_path, product()))


def test_a_product_of_a_training_step_is_sliced_too_late_only_where_gradients_alone_take_it(tmp_path: Path) -> None:
    """Its result and its gradient have one shape: a second linear reads all rows, the gradients' products do not."""
    taken = {"Input Dims": [[8192, 128256], [], []], "Input type": ["c10::BFloat16", "Scalar", "Scalar"]}
    step = [
        ("aten::linear", 0, {"Input Dims": [[8192, 4096], [128256, 4096]], "Input type": ["c10::BFloat16"] * 2}),
        product(), select(),
        ("autograd::engine::evaluate_function: MmBackward0", 0, {"around": 2}),
        ("aten::fill_", 1_000, {**taken, "Input Dims": [[8192, 128256], []]}),
        ("aten::mm", 2_000, {"Input Dims": [[8192, 128256], [128256, 4096]], "Input type": ["c10::BFloat16"] * 2}),
    ]  # fmt: skip
    found = next(one for one in made(tmp_path, *step) if one.rule == "sliced_product")
    assert "10.99 ms" in found.title  # all but an eighth of a thousandth of 8, 1 and 2 ms
    linear = {"Input Dims": [[8, 1024, 128256], [512, 128256]], "Input type": ["c10::BFloat16"] * 2}
    # Whatever reads it in the forward pass: a layer, a function of autograd, a product by torch.mm.
    for name in ("aten::linear", "LigerCrossEntropyFunction", "aten::mm"):
        assert "sliced_product" not in rules(made(tmp_path, *step, (name, 0, linear)))


@pytest.mark.parametrize(("to", "is_found"), [("[16, 1]", True), ("[1, 16]", False), (None, False)])
def test_an_index_takes_rows_only_where_it_is_one_of_the_first_axes(
    tmp_path: Path, to: str | None, is_found: bool
) -> None:
    """PyTorch reshapes an index of rows to [n, 1], one of columns to [1, n]."""
    index = {"Input Dims": [[8192, 128256], []], "Input type": ["c10::BFloat16", ""], "around": 1}
    inner = {"Input Dims": [[16], []], "Input type": ["long int", "ScalarList"]}
    if to is not None:
        inner["Concrete Inputs"] = ["", to]
    found = made(tmp_path, product(), ("aten::index", 100, index), ("aten::reshape", 0, inner))
    assert ("sliced_product" in rules(found)) is is_found


@pytest.mark.parametrize(
    ("name", "values", "types", "is_found"),
    [
        ("aten::_softmax", ["", "2", "False"], ["c10::BFloat16", "Scalar", "Scalar"], True),
        ("aten::_softmax", ["", "1", "False"], ["c10::BFloat16", "Scalar", "Scalar"], False),  # along the positions
        ("aten::copy_", ["", "", "False"], ["float", "c10::BFloat16", "Scalar"], True),  # float()
        ("aten::copy_", ["", "", "False"], ["c10::BFloat16", "c10::BFloat16", "Scalar"], False),  # into a buffer
    ],
)
def test_what_works_on_each_row_for_itself_may_stand_between(
    tmp_path: Path, name: str, values: list[str], types: list[str], is_found: bool
) -> None:
    dims = [[8, 1024, 128256], [8, 1024, 128256] if name == "aten::copy_" else [], []]
    between = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
    assert ("sliced_product" in rules(made(tmp_path, product(), (name, 900, between), select()))) is is_found


def test_rows_that_are_added_to_are_a_table_only_where_an_optimizer_updates_it(tmp_path: Path) -> None:
    """Experts add their results to the tokens of their own: no gradient of a table."""
    size = [1_000_000, 128]
    filled = {"Input Dims": [size, []], "Input type": ["float", "Scalar"]}
    added = {
        "Input Dims": [size, [], [4096], [4096, 128], []],
        "Input type": ["float", "Scalar", "long int", "float", "Scalar"],
    }
    looked_up = {"Input Dims": [size, [], [4096]], "Input type": ["float", "Scalar", "long int"]}
    update = {"Input Dims": [[size], [size], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
    step = [
        ("autograd::engine::evaluate_function: X0", 0, {}), ("aten::index_select", 10, looked_up),
        ("aten::fill_", 2_000, filled), ("aten::index_add_", 100, added),
    ]  # fmt: skip
    assert "dense_gradient" not in rules(made(tmp_path, *step))
    assert "dense_gradient" in rules(made(tmp_path, *step, ("aten::_foreach_add_", 6_000, update)))


def test_a_table_of_which_many_lookups_take_much_is_left_alone(tmp_path: Path) -> None:
    fill, backward, update = table(4_000_000, 300_000)[1:]
    node = ("autograd::engine::evaluate_function: EmbeddingBackward0", 0, {})
    assert "dense_gradient" in rules(made(tmp_path, node, fill, backward, update))
    assert "dense_gradient" not in rules(made(tmp_path, node, fill, *[backward] * 4, update))


def test_sums_of_a_gradient_go_only_where_attention_shares_heads(tmp_path: Path) -> None:
    """What is broadcast sums its gradient up as what is expanded does."""
    expanded = ("aten::copy_", 1_000, copy(SHAPE, [4194304, 524288, 0, 128, 1], WHOLE))
    node = ("autograd::engine::evaluate_function: ExpandBackward0", 0, {"around": 1})
    total = ("aten::sum", 8_000, {"Input Dims": [SHAPE, []], "Input type": ["c10::BFloat16", "ScalarList"]})
    found = next(one for one in made(tmp_path, expanded, node, total) if one.rule == "expanded_copy")
    assert "(1.000 ms per step)" in found.title


def test_a_select_takes_the_entries_before_it_of_a_sort(tmp_path: Path) -> None:
    chosen = {
        "Input Dims": [[64, 1_000_000], [], []], "Input type": ["float", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "1", "-2000"],
    }  # fmt: skip
    found = next(one for one in made(tmp_path, sort(1_000_000), ("aten::select", 0, chosen)) if one.rule == "full_sort")
    assert "slices take the last 2,000" in found.title
    chosen["Concrete Inputs"] = ["", "1", "500000"]  # the median
    assert "full_sort" not in rules(made(tmp_path, sort(1_000_000), ("aten::select", 0, chosen)))


@pytest.mark.parametrize(("room", "low"), [(140, True), (12, False), (None, True)])
def test_recomputation_is_promised_where_its_results_may_fit(tmp_path: Path, room: int | None, low: bool) -> None:
    """8 GB are allocated at the peak, and what is computed again allocates 4."""
    trace = KinetoTrace(
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", **({"totalGlobalMem": room * 10**9} if room else {})}]
    )
    trace.step(1, 0, 20 * MS)
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    trace.operator(node, US, 100 * US, **{"Sequence number": 7, "Fwd thread id": 1})
    trace.operator("aten::relu", 10 * US, 20 * US)
    trace.launched_kernel("relu", (12 * US, 4 * US), (30 * US, 8 * MS))
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 7, "Total Reserved": 10**10}
    for moment, size, total in ((2, 4 * 10**9, 4 * 10**9), (15, 4 * 10**9, 8 * 10**9)):
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100}
        trace.events.append({**event, "ts": moment, "args": {**memory, "Bytes": size, "Total Allocated": total}})
    found = {one.rule: one for one in analyze(read(trace.write(tmp_path / "trace.json"))).findings}
    assert (found[Rule.RECOMPUTATION].saving_ns.low > 0) is low
    says = " ".join(str(fact.text) for fact in found[Rule.RECOMPUTATION].evidence)
    assert ("what is computed again allocates" in says) is bool(room)
    assert ("not all of it fits" in says) is (room == 12)


def test_an_operator_of_ones_own_far_from_the_bytes_of_its_arguments_may_move_too_many(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[8192, 8192], [8192, 8192]], "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }  # fmt: skip
    found = next(one for one in made(tmp_path, ("mine::add", 8_000, args)) if one.rule == "excess_traffic")
    assert found.saving_ns.low == 0
    assert "256.0 MiB of arguments: 1 % of" in found.title
    assert "excess_traffic" not in rules(made(tmp_path, ("mine::add", 100, args)))


# ---------------------------------------------------------------- the order


def draft(rule: Rule, low: float, likely: float, high: float) -> Draft:
    return Draft(
        rule=rule, title="", where=Where(), saving=Range(low, high, likely), derivation="", evidence=(), todo="",
        action="", wrong_if="",
    )  # fmt: skip


def test_promises_come_first_and_causes_in_the_source_before_general_ones() -> None:
    may = draft(Rule.FAR_FROM_LIMIT, 0, 60, 90)
    graph, recomputed = draft(Rule.DISPATCH_BOUND, 20, 50, 60), draft(Rule.RECOMPUTATION, 10, 20, 30)
    small_read, chain = draft(Rule.BLOCKING_READ, 1, 10, 20), draft(Rule.FUSIBLE_CHAIN, 5, 15, 25)
    assert ranked([may, graph, recomputed, small_read, chain]) == [recomputed, graph, small_read, chain, may]
    assert [is_promise(one) for one in (may, graph)] == [False, True]
