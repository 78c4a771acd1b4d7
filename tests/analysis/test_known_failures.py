"""Thirteen small traces on which other tools were found to give wrong answers. Every figure is worked out by hand."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]


def kernels(analysis: Analysis, *columns: str) -> list[tuple[object, ...]]:
    table = analysis.kernels.with_columns(pl.col("name").cast(pl.String))
    return sorted(table.select("name", *columns).rows())


def test_a_two_devices_of_one_process_are_never_merged(analyzed: Analyze) -> None:
    """Devices 0 and 1 take turns of 10 us: each is busy half of the time, not the whole of it."""
    trace = KinetoTrace()
    trace.step(1, 0, 80_000)
    for turn in range(8):
        trace.kernel(f"k{turn}", turn * 10_000, 10_000, device=turn % 2)
    analysis = analyzed(trace)
    assert [(d.device, d.busy_ns, d.idle_ns, d.window.duration_ns) for d in analysis.devices] == [
        (0, 40_000, 40_000, 80_000),
        (1, 40_000, 40_000, 80_000),
    ]


def test_b_kernels_shorter_than_a_microsecond_keep_their_nanoseconds(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number, (start, duration) in enumerate([(1_001, 431), (2_002, 999), (3_503, 1), (4_004, 1_565)]):
        trace.kernel("k", start, duration, correlation=100 + number)
    analysis = analyzed(trace)
    assert kernels(analysis, "calls", "total_ns", "min_ns", "max_ns") == [("k", 4, 2_996, 1, 1_565)]
    assert analysis.devices[0].busy_ns == 2_996


def test_c_activities_without_a_launch_are_busy_and_listed_as_unlinked(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 20_000)
    trace.launched_kernel("linked", (5_000, 2_000), (10_000, 30_000))
    trace.kernel("lost", 50_000, 7_000, correlation=999)
    analysis = analyzed(trace)
    assert analysis.devices[0].busy_ns == 37_000
    assert (analysis.accounting.unlinked_activities, analysis.accounting.unlinked_ns) == (1, 7_000)
    assert analysis.operators.select("name", "self_device_ns").rows() == [("aten::mm", 30_000)]


@pytest.mark.parametrize("numbered", [True, False])
def test_d_three_replays_of_a_graph_are_one_row_per_node(analyzed: Analyze, numbered: bool) -> None:
    """The same kernel stands twice in the graph: two nodes, not one, whether the driver numbered them or not."""
    trace = KinetoTrace()
    for replay in range(3):
        base = replay * 100_000
        correlation = trace.launch(base, 5_000, name="cudaGraphLaunch")
        for node, (name, duration) in enumerate([("a", 10_000 + replay), ("b", 20_000), ("a", 30_000)]):
            ids = {"graph id": 4, "graph node id": 70 + node} if numbered else {}
            trace.kernel(name, base + 10_000 + node * 30_000, duration, correlation, **ids)
    analysis = analyzed(trace)
    rows = analysis.graph_nodes.select("graph", "node", "name", "replays", "total_ns", "min_ns", "max_ns").rows()
    graph, first = (4, 70) if numbered else (1, 0)
    assert rows == [
        (graph, first, "a", 3, 30_003, 10_000, 10_002),
        (graph, first + 1, "b", 3, 60_000, 20_000, 20_000),
        (graph, first + 2, "a", 3, 90_000, 30_000, 30_000),
    ]
    assert analysis.accounting.unlinked_ns == 180_003
    assert analysis.launches.without_activity == 0


def capturing() -> KinetoTrace:
    """The capture of a graph: launches inside operators, without activities."""
    trace = KinetoTrace()
    trace.launch(0, 1_000, name="cudaStreamBeginCapture_v10000")
    for number, name in enumerate(["aten::mm", "aten::add", "aten::mm"]):
        trace.operator(name, 10_000 + number * 10_000, 5_000)
        trace.launch(11_000 + number * 10_000, 1_000)
    trace.launch(50_000, 1_000, name="cudaStreamEndCapture")
    return trace


def replayed(trace: KinetoTrace) -> KinetoTrace:
    correlation = trace.launch(100_000, 5_000, name="cudaGraphLaunch")
    for node in range(3):
        trace.kernel(f"k{node}", 110_000 + node * 10_000, 5_000, correlation)
    return trace


def test_d_nodes_name_the_operators_that_were_captured(
    analyzed: Analyze, load: Callable[[KinetoTrace], Trace], tmp_path: Path
) -> None:
    """Three launches were captured and three nodes replayed: in order. A capture of another size tells nothing."""
    trace = load(replayed(KinetoTrace()))
    assert analyze(trace).graph_nodes["captured_operator"].to_list() == [None] * 3
    capture = read(capturing().write(tmp_path / "capture.json"))
    nodes = analyze(trace, graph_capture=capture).graph_nodes
    assert nodes["captured_operator"].to_list() == ["aten::mm", "aten::add", "aten::mm"]
    assert set(nodes["captured_how"].str.slice(0, 6)) == {"likely"}
    both = replayed(capturing())
    assert analyzed(both).graph_nodes["captured_operator"].to_list() == ["aten::mm", "aten::add", "aten::mm"]


def test_e_stream_synchronisations_are_never_busy(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.kernel("k", 0, 50_000)
    trace.kernel("k", 150_000, 50_000)
    trace.slice("cuda_sync", "Stream Sync", 50_000, 90_000, pid=0, tid=7, stream=7, device=0)
    trace.slice("gpu_user_annotation", "range", 0, 200_000, pid=0, tid=7, stream=7, device=0)
    trace.slice("overhead", "Buffer Flush", 60_000, 20_000)
    (device,) = analyzed(trace).devices
    assert (device.busy_ns, device.idle_ns, device.sum_ns) == (100_000, 100_000, 100_000)


def test_f_both_steps_are_kept_and_own_what_they_launched(analyzed: Analyze) -> None:
    """The last kernel of step 1 runs in step 2; the last one of step 2 after it."""
    trace = KinetoTrace()
    trace.step(1, 0, 100_000)
    trace.step(2, 100_000, 100_000)
    trace.launched_kernel("k", (10_000, 1_000), (20_000, 10_000))
    trace.launched_kernel("late", (90_000, 1_000), (110_000, 30_000))
    trace.launched_kernel("last", (190_000, 1_000), (195_000, 15_000))
    analysis = analyzed(trace)
    assert [(s.number, s.activities, s.device_sum_ns) for s in analysis.steps] == [(1, 2, 40_000), (2, 1, 15_000)]
    assert [(s.span_ns, s.busy_ns) for s in analysis.steps] == [(175_000, 40_000), (15_000, 15_000)]
    assert analysis.devices[0].outside_window_ns == 0


def test_g_more_than_ten_kernels_have_their_own_extremes(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(12):
        trace.kernel(f"k{number:02}", number * 1_000_000, 1_000 + number, correlation=number + 1)
        trace.kernel(f"k{number:02}", number * 1_000_000 + 500_000, 3_000 + number, correlation=number + 50)
    assert kernels(analyzed(trace), "calls", "total_ns", "min_ns", "max_ns", "std_ns") == [
        (f"k{n:02}", 2, 4_000 + 2 * n, 1_000 + n, 3_000 + n, 1_000.0) for n in range(12)
    ]


def test_h_a_launch_that_outlives_its_operator_stays_with_it(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::linear", 0, 30_000)
    trace.operator("aten::addmm", 2_000, 10_000)
    trace.launched_kernel("gemm", (11_000, 9_000), (25_000, 40_000))
    operators = {row["name"]: row for row in analyzed(trace).operators.iter_rows(named=True)}
    assert operators["aten::addmm"]["self_device_ns"] == operators["aten::linear"]["total_device_ns"] == 40_000
    assert operators["aten::linear"]["self_device_ns"] == 0


def test_i_streams_that_overlap_make_the_sum_larger_than_the_union(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.kernel("a", 0, 60_000, stream=7)
    trace.kernel("b", 40_000, 60_000, stream=20)
    analysis = analyzed(trace)
    (device,) = analysis.devices
    assert (device.sum_ns, device.busy_ns, device.idle_ns) == (120_000, 100_000, 0)
    assert analysis.streams.select("stream", "sum_ns", "busy_ns").rows() == [(7, 60_000, 60_000), (20, 60_000, 60_000)]


def test_j_waiting_behind_earlier_work_of_the_stream_is_no_launch_overhead(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("first", (0, 5_000), (8_000, 100_000))
    trace.launched_kernel("second", (10_000, 5_000), (108_000, 10_000))
    launches = analyzed(trace).launches
    assert launches.latency is not None
    assert launches.backlog is not None
    assert (launches.latency.count, launches.latency.total_ns) == (1, 3_000)
    assert (launches.backlog.count, launches.backlog.total_ns) == (1, 93_000)


def test_k_backward_runs_on_a_thread_of_its_own_and_joins_its_forward(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.slice("python_function", "nn.Module: Linear_0", 0, 50_000)
    trace.operator("aten::linear", 5_000, 20_000, **{"Sequence number": 41, "Fwd thread id": 0})
    trace.launched_kernel("forward", (8_000, 2_000), (12_000, 10_000))
    evaluate = "autograd::engine::evaluate_function: AddmmBackward0"
    trace.operator(evaluate, 60_000, 30_000, tid=900, **{"Sequence number": 41, "Fwd thread id": 1})
    trace.operator("aten::mm", 65_000, 20_000, tid=900)
    trace.launched_kernel("backward", (70_000, 2_000), (75_000, 25_000), tid=900)
    analysis = analyzed(trace)
    totals = dict(analysis.operators.select("name", "total_device_ns").iter_rows())
    assert totals == {evaluate: 25_000, "aten::mm": 25_000, "aten::linear": 10_000}
    assert analysis.modules is not None
    assert analysis.modules.select("module", "self_device_ns", "total_device_ns").rows() == [
        ("Linear_0", 35_000, 35_000)
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: text.rindex('{"ph"')],
        lambda text: text.replace('"dur": 5.0', '"dur": NaN', 1),
    ],
    ids=["truncated", "not a number"],
)
def test_l_broken_json_loses_what_is_broken_and_says_so(damage: Callable[[str], str], tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.kernel("k", 0, 50_000)
    trace.kernel("lost", 60_000, 5_000)
    path = tmp_path / "t.json"
    path.write_text(damage(trace.text()))
    analysis = analyze(read(path))
    (check,) = (check for check in analysis.trust.checks if check.name == "file_is_valid")
    names = [name for (name,) in kernels(analysis)]
    assert check.verdict != "pass"
    assert names == ["k"]


def test_l_a_name_with_bare_quotes_loses_nothing(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.kernel("k", 0, 50_000)
    trace.kernel("quoted", 60_000, 5_000)
    path = tmp_path / "t.json"
    path.write_text(trace.text().replace('"name": "quoted"', '"name": "quo"ted"'))
    assert kernels(analyze(read(path)), "total_ns") == [("k", 50_000), ('quo"ted', 5_000)]


def test_m_an_impossible_duration_is_left_out_and_fails(analyzed: Analyze) -> None:
    """A host that waited 40 us for the device in all cannot have seen a kernel of 10 s."""
    trace = KinetoTrace()
    trace.step(1, 0, 100_000)
    trace.launched_kernel("k", (5_000, 2_000), (10_000, 20_000))
    trace.launched_kernel("corrupt", (30_000, 2_000), (35_000, 10_000_000_000))
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 50_000, 40_000)
    analysis = analyzed(trace)
    assert kernels(analysis, "total_ns") == [("k", 20_000)]
    (check,) = (check for check in analysis.trust.checks if check.name == "impossible_durations")
    assert (check.verdict, check.count) == ("fail", 1)
