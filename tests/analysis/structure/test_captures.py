"""What was captured into graphs: described by operator, and found again in the nodes of replays."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis
from opscope.analysis.costs.graph_nodes import (
    AMBIGUOUS,
    BY_NAMES,
    IN_ORDER,
    NO_CAPTURE,
    OTHER_COUNT,
    operators_of_nodes,
)
from tests.budget import examples
from tests.command import opscope
from tests.kineto import KinetoTrace

US = 1_000
CAPTURE = ["triton_a", "aten::mm", "triton_b", "aten::mm", "aten::add", "triton_c", "aten::mm"]
KERNELS = ["triton_a", "gemm1", "triton_b", "gemm1", "add_kernel", "triton_c", "gemm2"]


def test_as_many_nodes_as_launches_are_taken_in_order() -> None:
    assert operators_of_nodes(KERNELS, [CAPTURE]) == (CAPTURE, [IN_ORDER] * 7)
    # A capture of as many launches that has another kernel at a place is another one.
    other = ["aten::mm", "triton_a", "triton_b", "aten::mm", "aten::add", "triton_c", "aten::mm"]
    assert operators_of_nodes(KERNELS, [other, CAPTURE])[0] == CAPTURE
    assert operators_of_nodes(["k", "l"], [["aten::mm", "aten::add"], ["aten::add", "aten::mm"]]) == (
        [None, None],
        [AMBIGUOUS] * 2,
    )


def test_a_launch_more_leaves_only_what_lies_beside_it_unknown() -> None:
    operators, how = operators_of_nodes(KERNELS[:3] + KERNELS[4:], [CAPTURE])
    assert operators == ["triton_a", "aten::mm", "triton_b", None, "triton_c", "aten::mm"]
    assert how == [BY_NAMES, BY_NAMES, BY_NAMES, OTHER_COUNT, BY_NAMES, BY_NAMES]
    assert operators_of_nodes(KERNELS[:-1], [CAPTURE])[0] == CAPTURE[:-1]


def test_without_names_in_common_another_number_of_launches_tells_nothing() -> None:
    assert operators_of_nodes(["k", "l"], [CAPTURE]) == ([None, None], [NO_CAPTURE] * 2)
    assert operators_of_nodes(["k"] * 6, [["aten::mm"] * 7]) == ([None] * 6, [NO_CAPTURE] * 6)
    assert operators_of_nodes(["triton_c", "k", "l"], [CAPTURE])[1] == [NO_CAPTURE] * 3


@settings(max_examples=examples(200))
@given(
    st.lists(st.sampled_from(["triton_a", "triton_b", "aten::mm", "aten::add"]), min_size=1, max_size=40),
    st.integers(0, 39),
)
def test_what_is_named_is_right_whatever_node_is_missing(capture: list[str], missing: int) -> None:
    """Each operator launched one kernel, of its own name or another; one of them is not among the nodes."""
    missing %= len(capture)
    kept = [name for place, name in enumerate(capture) if place != missing]
    nodes = [name if name.startswith("triton") else f"kernel of {name}" for name in kept]
    operators, _ = operators_of_nodes(nodes, [capture])
    for operator, node in zip(operators, nodes, strict=True):
        assert operator is None or node in (operator, f"kernel of {operator}")


def test_captured_launches_are_listed_by_operator_and_shape(
    analyzed: Callable[[KinetoTrace], Analysis], tmp_path: pytest.TempPathFactory
) -> None:
    trace = KinetoTrace()
    trace.launch(0, US, name="cudaStreamBeginCapture")
    for number, name in enumerate(["aten::mm", "aten::mm", "aten::add"]):
        start = (number + 1) * 100 * US
        trace.operator(name, start, 20 * US, **{"Input Dims": [[4, 4]], "Input type": ["float"]})
        trace.launch(start + 5 * US, 5 * US)
    trace.launch(400 * US, 5 * US)
    trace.launch(500 * US, US, name="cudaStreamEndCapture")
    trace.launched_kernel("k", (600 * US, 5 * US), (700 * US, 10 * US))
    assert analyzed(trace).captured.rows() == [
        ("aten::mm", "[[4, 4]]", '["float"]', 2),
        (None, None, None, 1),
        ("aten::add", "[[4, 4]]", '["float"]', 1),
    ]
    path = trace.write(tmp_path / "t.json")  # type: ignore[operator]
    shown = opscope("analyze", str(path)).stdout
    assert "[capture]" in shown
    assert "aten::mm" in shown.partition("Launches")[2]
    assert "Where" not in shown
