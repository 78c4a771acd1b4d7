"""What the backward pass of each forward operator costs."""

from collections.abc import Callable

from opscope.analysis.analyzed import Analysis
from tests import tiny
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]
ENGINE = "autograd::engine::evaluate_function: "


def numbered(number: int) -> dict[str, object]:
    return {"Sequence number": number}


def test_backward_nodes_find_their_forward_operators(analyzed: Analyze) -> None:
    """Two multiplications, the first with a linear around it; one node each, and an accumulation without a number."""
    trace = KinetoTrace()
    trace.operator("aten::linear", 0, 10_000, **numbered(1))
    trace.operator("aten::mm", 1_000, 8_000, **numbered(1))
    trace.launched_kernel("mm", (2_000, 1_000), (5_000, 100))
    trace.operator("aten::mm", 20_000, 8_000, **numbered(2))
    trace.launched_kernel("mm", (22_000, 1_000), (25_000, 200))
    for number, start, lasted in ((2, 40_000, 400), (1, 50_000, 3_000)):
        trace.operator(f"{ENGINE}MmBackward0", start, 9_000, tid=200, **numbered(number))
        trace.operator("MmBackward0", start + 1_000, 7_000, tid=200, **numbered(number))
        trace.launched_kernel("mm", (start + 2_000, 1_000), (start + 5_000, lasted), tid=200)
    trace.operator(f"{ENGINE}torch::autograd::AccumulateGrad", 60_000, 5_000, tid=200)
    trace.launched_kernel("add", (61_000, 1_000), (63_000, 50), tid=200)
    assert analyzed(trace).backward.rows() == [
        ("aten::mm", "MmBackward0", 2, 300, 3_400),
        (None, "torch::autograd::AccumulateGrad", 1, 0, 50),
    ]


def test_a_node_inside_another_counts_once(analyzed: Analyze) -> None:
    """Checkpointing runs a backward pass inside a node; its work is the inner node's."""
    trace = KinetoTrace()
    trace.operator("aten::relu", 0, 5_000, **numbered(7))
    trace.operator(f"{ENGINE}CheckpointFunctionBackward", 10_000, 50_000, tid=200)
    trace.launched_kernel("recomputed", (11_000, 1_000), (12_000, 10))
    trace.launched_kernel("recomputed", (12_000, 1_000), (14_000, 10), tid=200)
    trace.operator(f"{ENGINE}ReluBackward0", 20_000, 9_000, tid=200, **numbered(7))
    trace.launched_kernel("relu", (21_000, 1_000), (23_000, 700), tid=200)
    assert analyzed(trace).backward.rows() == [
        ("aten::relu", "ReluBackward0", 1, 0, 700),
        (None, "CheckpointFunctionBackward", 1, 0, 10),
    ]


def test_there_are_no_rows_without_a_backward_pass(analyzed: Analyze) -> None:
    assert analyzed(tiny.inference()).backward.height == 0
