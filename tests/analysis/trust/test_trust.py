"""Every trust check finds what it is there for, and is quiet otherwise."""

from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.trust.checks import check_cpu_contention, check_overhead
from opscope.documents.verdict import BoundKind, Check, Verdict
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]


def check(analysis: Analysis, name: str) -> Check:
    return next(check for check in analysis.trust.checks if check.name == name)


def healthy() -> KinetoTrace:
    trace = KinetoTrace()
    trace.step(1, 0, 1_000_000)
    trace.operator("aten::mm", 0, 900_000)
    for number in range(100):
        trace.launched_kernel("k", (9_000 * number, 1_000), (9_000 * number + 2_001, 5_000))
    return trace


def test_a_healthy_trace_passes_every_check(analyzed: Analyze) -> None:
    analysis = analyzed(healthy())
    assert {check.verdict for check in analysis.trust.checks} == {Verdict.PASS}
    assert analysis.trust.verdict is Verdict.PASS
    assert len(analysis.trust.checks) == 20


def rounded(kernels: int, duration: int) -> KinetoTrace:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 9_000_000)
    for number in range(kernels):
        trace.launched_kernel("k", (30_000 * number, 1_000), (30_000 * number + 2_000, duration))
    return trace


@pytest.mark.parametrize(("duration", "share", "verdict"), [(4_500_000, "0.0 %", "pass"), (2_000, "20.0 %", "warn")])
def test_durations_cut_to_microseconds_make_the_sum_too_small(
    analyzed: Analyze, duration: int, share: str, verdict: str
) -> None:
    found = check(analyzed(rounded(60, duration)), "time_resolution")
    assert (found.verdict, found.count, found.time_ns) == (verdict, 60, 30_000)
    assert f"the sum of all 60 is too small by about 30.00 us ({share})" in found.sentence


@pytest.mark.parametrize(("duration", "verdict"), [(5_000, "warn"), (20_000, "pass")])
def test_cpu_times_in_microseconds_matter_where_operators_are_short(
    analyzed: Analyze, duration: int, verdict: str
) -> None:
    trace = KinetoTrace()
    for number in range(60):
        trace.operator("aten::add", 30_000 * number, duration)
    found = check(analyzed(trace), "time_resolution")
    assert found.verdict == verdict
    assert f"{60 if duration < 10_000 else 0} of 60 operator calls take less than 10 us" in found.sentence


def test_few_records_or_one_finer_time_do_not_look_rounded(analyzed: Analyze) -> None:
    finer = rounded(60, 2_000)
    finer.operator("aten::add", 9_100_000, 1_001)
    for trace in (rounded(48, 2_000), finer):
        found = check(analyzed(trace), "time_resolution")
        assert (found.verdict, found.count) == (Verdict.PASS, 0)


def test_no_activity_of_a_gpu_workload_is_a_failure_and_not_zero(load: Callable[[KinetoTrace], Trace]) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    analysis = analyze(load(trace), expect_device_work=True)
    assert check(analysis, "device_work_recorded").verdict is Verdict.FAIL
    assert analysis.bound_with(steps=1, wall_ns=10_000, ran_on_gpu=True).kind is BoundKind.UNKNOWN


def test_launch_calls_alone_say_that_device_work_was_to_be_expected(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    trace.launch(2_000, 1_000)
    assert analyzed(trace).trust.verdict is Verdict.FAIL


def test_a_cpu_workload_is_fine_without_activities(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    analysis = analyzed(trace)
    assert analysis.trust.verdict is Verdict.PASS
    assert analysis.bound_with(steps=0, wall_ns=None, ran_on_gpu=None).kind is BoundKind.HOST_ONLY


@pytest.mark.parametrize(
    ("waited", "verdict"), [(0, "pass"), (50, "pass"), (51, "warn"), (250, "warn"), (251, "fail"), (3_000, "fail")]
)
def test_waiting_for_a_cpu_core_is_weighed_by_the_duration_of_the_steps(waited: int, verdict: str) -> None:
    check = check_cpu_contention(waited, 1_000)
    assert (check.verdict, check.time_ns, check.time_of) == (verdict, waited, "host")


@pytest.mark.parametrize(("duration", "verdict"), [(50_000, "pass"), (40_000, "warn")])
def test_host_time_that_no_operator_covers_is_said(analyzed: Analyze, duration: int, verdict: str) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 100_000)
    trace.operator("aten::mm", 10_000, duration)
    (check,) = (c for c in analyzed(trace).trust.checks if c.name == "host_time_covered")
    assert check.verdict == verdict
    assert check.time_ns == (duration if verdict == "pass" else 100_000 - duration)


@pytest.mark.parametrize(("duration", "verdict"), [(5_000, Verdict.WARN), (50_000, Verdict.FAIL)])
def test_activities_without_launch_are_weighed_by_their_time(
    analyzed: Analyze, duration: int, verdict: Verdict
) -> None:
    trace = healthy()
    trace.kernel("lost", 920_000, duration, 9_999)
    found = check(analyzed(trace), "launch_recorded")
    assert (found.verdict, found.count, found.time_ns) == (verdict, 1, duration)
    assert (found.time_of, found.share_of) == ("device", "device sum")
    assert found.share == pytest.approx(duration / (500_000 + duration))


@pytest.mark.parametrize(("lost", "verdict"), [(3, Verdict.WARN), (30, Verdict.FAIL)])
def test_launches_without_activity_are_counted(analyzed: Analyze, lost: int, verdict: Verdict) -> None:
    trace = healthy()
    for number in range(lost):
        trace.launch(910_000 + 1_000 * number, 500)
    found = check(analyzed(trace), "launches_without_activity")
    assert (found.verdict, found.count) == (verdict, lost)


def test_fills_of_no_bytes_launch_nothing(analyzed: Analyze) -> None:
    """cuBLAS clears workspaces of no bytes before some kernels: on an H200, the unrecorded ones were just those."""
    trace = healthy()
    for number in range(400):
        trace.launch(910_000 + 10 * number, 5, name="cudaMemsetAsync")
    # That fills are recorded at all must be seen.
    assert check(analyzed(trace), "launches_without_activity").verdict is Verdict.WARN
    trace.kernel(
        "Memset (Device)", 921_000, 500, trace.launch(920_000, 500, name="cudaMemsetAsync"), category="gpu_memset"
    )
    found = check(analyzed(trace), "launches_without_activity")
    assert (found.verdict, found.count) == (Verdict.PASS, 400)
    # Where a kernel is missing too, records were lost.
    trace.launch(940_000, 500)
    assert check(analyzed(trace), "launches_without_activity").verdict is not Verdict.PASS


def test_missing_launches_are_judged_by_the_time_that_they_can_hide(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 2_000_000)
    for number in range(10):
        trace.launched_kernel("gemm", (number * 10_000, 1_000), (number * 100_000 + 5_000, 100_000))
    # The device is busy from 5 us to 1,005 us; a thousand lost launches in that time can hide nothing.
    for number in range(1_000):
        trace.launch(90_000 + 1_500 + number, 1)
    trace.launched_kernel("last", (800_000, 1_000), (1_005_000, 1_000))
    found = check(analyzed(trace), "launches_without_activity")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.WARN, 1_000, 0)
    # One that nothing follows on its thread can hide all that is left: up to the last record's end.
    trace.launch(1_100_000, 900_000)
    found = check(analyzed(trace), "launches_without_activity")
    assert (found.verdict, found.time_ns) == (Verdict.FAIL, 900_000)


def test_missing_launches_hide_on_any_stream_that_their_thread_uses(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 2_000_000)
    trace.launched_kernel("one", (0, 1_000), (10_000, 10_000), stream=7)
    trace.launched_kernel("other", (2_000, 1_000), (20_000, 10_000), stream=9)
    trace.launch(40_000, 1_000)  # whatever it launched is missing
    trace.launched_kernel("one", (50_000, 1_000), (60_000, 10_000), stream=7)
    trace.launched_kernel("other", (52_000, 1_000), (160_000, 10_000), stream=9)
    # On stream 9 it may have run until 160 us; stream 7 kept the device busy for 10 us of that.
    assert check(analyzed(trace), "launches_without_activity").time_ns == 110_000
    # Another device that is busy meanwhile hides nothing of this one.
    trace.launched_kernel("far", (3_000, 1_000), (40_000, 120_000), device=1, tid=200)
    assert check(analyzed(trace), "launches_without_activity").time_ns == 110_000


def test_launches_are_not_missed_where_activities_carry_no_ids_of_them(analyzed: Analyze) -> None:
    # At first, Kineto wrote no arguments of ROCm's activities (device, stream, correlation), only the operator's id.
    trace = KinetoTrace(deviceProperties=[{"id": 2, "name": "AMD Instinct MI250X", "computeMajor": 9}])
    trace.operator("aten::mm", 0, 10_000, **{"External id": 5})
    trace.launch(1_000, 2_000, name="hipLaunchKernel", **{"External id": 5})
    trace.slice("kernel", "Cijk", 4_000, 3_000, pid=2, tid=0, **{"External id": 5})
    analysis = analyzed(trace)
    assert analysis.operators["self_device_ns"].to_list() == [3_000]
    assert analysis.launches.without_activity is None
    assert check(analysis, "launches_without_activity").verdict is Verdict.WARN
    assert analysis.devices[0].device == 2


def test_calls_that_launch_nothing_are_not_missed(analyzed: Analyze) -> None:
    trace = healthy()
    for name in ("cudaDeviceSynchronize", "cudaStreamIsCapturing", "cudaMalloc", "cudaEventRecord"):
        trace.launch(910_000, 500, name=name)
    assert check(analyzed(trace), "launches_without_activity").count == 0


@pytest.mark.parametrize("duration", [-5_000, -10_000_000, 10_000_000])
def test_impossible_durations_fail_and_are_left_out_of_every_figure(analyzed: Analyze, duration: int) -> None:
    trace = healthy()
    trace.operator("aten::late", 950_000, 1_000)
    trace.launched_kernel("bad", (950_000, 500), (960_000, duration))
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 960_000, 30_000)  # the host waited until 990 us
    analysis = analyzed(trace)
    found = check(analysis, "impossible_durations")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.FAIL, 1, duration)
    assert analysis.accounting.activities_ns == analysis.kernels["total_ns"].sum() == 500_000
    assert analysis.accounting.holds
    assert "bad" not in analysis.kernels["name"].to_list()
    assert analysis.bound_with(steps=1, wall_ns=1_000_000, ran_on_gpu=True).kind is BoundKind.UNKNOWN


def test_negative_durations_of_host_records_are_left_out_too(analyzed: Analyze) -> None:
    trace = healthy()
    trace.operator("aten::mm", 100_000, -2_000)
    trace.step(2, 990_000, -500_000)
    analysis = analyzed(trace)
    assert check(analysis, "impossible_durations").count == 2
    assert analysis.operators["total_cpu_ns"].item() == 900_000
    assert analysis.step_count == 1


def test_overlapping_operators_of_a_thread_have_no_self_time(analyzed: Analyze) -> None:
    """Two children of 14 us each that overlap within a parent of 20 us: what is the parent's own cannot be told."""
    trace = KinetoTrace()
    trace.operator("aten::parent", 0, 20_000)
    trace.operator("aten::first", 0, 14_000)
    trace.operator("aten::second", 6_000, 14_000)
    analysis = analyzed(trace)
    assert check(analysis, "operators_nest").count == 2  # the parent, and the second child that crosses the first
    by_name = dict(analysis.operators.select("name", "self_cpu_ns").rows())
    assert by_name == {"aten::parent": 0, "aten::first": 14_000, "aten::second": 14_000}


def test_annotations_that_cross_operators_are_noticed(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::outer", 0, 100)
    trace.annotation("asynchronous", 50, 100)
    trace.operator("aten::inner", 60, 30)
    found = check(analyzed(trace), "operators_nest")
    assert (found.verdict, found.count) == (Verdict.WARN, 1)
    assert "0 operator calls and 1 annotations overlap others" in found.sentence


def test_crossing_operators_are_noticed(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::p", 0, 10_000)
    trace.operator("aten::c", 5_000, 5_250)
    assert check(analyzed(trace), "operators_nest").count == 1


@pytest.mark.parametrize("duration", [3_600_000_000_001, 4_000_000_000_000_000_000])
def test_durations_beyond_all_bounds_are_left_out(analyzed: Analyze, duration: int) -> None:
    trace = healthy()
    for number in range(3):
        trace.kernel("corrupt", number, duration, correlation=9_000 + number)
    analysis = analyzed(trace)
    assert check(analysis, "impossible_durations").count == 3
    assert analysis.accounting.activities_ns == 100 * 5_000


def test_several_processes_in_one_file_fail_and_ids_of_two_link_nothing(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for process in (1, 2):
        trace.slice("cpu_op", f"aten::of{process}", 0, 20_000, pid=process, tid=process, **{"External id": 1})
        trace.slice("cuda_runtime", "cudaLaunchKernel", 5_000, 1_000, pid=process, tid=process, correlation=1)
        trace.kernel("k", 10_000, 20_000, 1, device=process, **{"External id": 1})
    analysis = analyzed(trace)
    assert check(analysis, "one_process").verdict == "fail"
    assert analysis.operators["self_device_ns"].sum() == 0
    assert analysis.accounting.unlinked_ns == 40_000


def test_replays_without_numbers_cannot_be_checked(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for replay, nodes in enumerate((4, 3, 4)):
        correlation = trace.launch(replay * 100_000, 1_000, name="cudaGraphLaunch")
        for node in range(nodes):
            trace.kernel("k", replay * 100_000 + 10_000 * (node + 1), 1_000, correlation)
    found = check(analyzed(trace), "graph_replays_complete")
    assert (found.verdict, found.count) == ("warn", 3)


def test_a_long_last_kernel_without_a_recorded_synchronise_is_possible(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 1_000_000)
    trace.operator("aten::mm", 0, 10_000)
    trace.launched_kernel("short", (1_000, 1_000), (3_000, 1_000))
    trace.launched_kernel("long", (5_000, 1_000), (8_000, 990_000))
    assert check(analyzed(trace), "impossible_durations").verdict is Verdict.PASS
    kernels_only = KinetoTrace()
    kernels_only.kernel("short", 0, 1_000)
    kernels_only.kernel("long", 2_000, 900_000)
    assert check(analyzed(kernels_only), "impossible_durations").verdict is Verdict.PASS


def test_work_captured_into_a_graph_is_not_missed(analyzed: Analyze) -> None:
    trace = healthy()
    trace.launch(910_000, 1_000, name="cudaStreamBeginCapture")
    trace.launch(912_000, 1_000)
    trace.launch(914_000, 1_000, name="cudaStreamEndCapture")
    trace.launch(916_000, 1_000)
    assert check(analyzed(trace), "launches_without_activity").count == 1


def test_a_long_kernel_at_the_end_of_the_recording_is_possible(analyzed: Analyze) -> None:
    """A kernel may take most of a recording, if the host waited for it."""
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    trace.launched_kernel("long", (2_000, 1_000), (5_000, 900_000))
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 10_000, 900_000)
    trace.operator("aten::add", 920_000, 5_000)
    trace.launched_kernel("next", (921_000, 1_000), (923_000, 1_000))
    assert check(analyzed(trace), "impossible_durations").verdict is Verdict.PASS


@pytest.mark.parametrize(("overlap", "verdict"), [(1_000, "pass"), (20_000, "warn"), (200_000, "fail")])
def test_overlap_on_one_stream_is_weighed(analyzed: Analyze, overlap: int, verdict: str) -> None:
    trace = KinetoTrace()
    trace.kernel("a", 0, 500_000)
    trace.kernel("b", 500_000 - overlap, 500_000)
    trace.kernel("elsewhere", 0, 500_000, stream=20)  # another stream may overlap
    found = check(analyzed(trace), "overlap_on_one_stream")
    assert (found.verdict, found.count, found.time_ns) == (verdict, 1, overlap)


def test_repeated_correlations_are_flagged_outside_graphs_only(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    correlation = trace.launch(2_000, 1_000)
    trace.kernel("a", 5_000, 1_000, correlation)
    trace.kernel("b", 7_000, 1_000, correlation)
    graph = trace.launch(20_000, 1_000, name="cudaGraphLaunch")
    for node in range(3):
        trace.kernel(f"node{node}", 25_000 + 2_000 * node, 1_000, graph)
    found = check(analyzed(trace), "repeated_correlations")
    assert (found.count, found.time_ns) == (2, 2_000)


def graph_replays(nodes_per_replay: list[int]) -> KinetoTrace:
    trace = KinetoTrace()
    for number, nodes in enumerate(nodes_per_replay):
        start = 100_000 * number
        correlation = trace.launch(start, 1_000, name="cudaGraphLaunch")
        for node in range(nodes):
            ids = {"graph id": 3, "graph node id": 10 + node}
            trace.kernel(f"n{node}", start + 5_000 + 2_000 * node, 1_000, correlation, **ids)
    return trace


def test_launches_and_activities_that_share_an_id_belong_together_in_order(analyzed: Analyze) -> None:
    """As early ROCm writes them: no correlation, but the operator's id on both; of two launches the first is first."""
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 100_000, **{"External id": 7})
    for start in (10_000, 20_000):
        trace.slice("cuda_runtime", "hipLaunchKernel", start, 5_000, **{"External id": 7})
    for start in (30_000, 40_000):
        trace.slice("kernel", "gemm", start, 5_000, device=0, stream=7, **{"External id": 7})
    analysis = analyzed(trace)
    launched = analysis.links.activity_launch
    assert (analysis.trace.launches["start_ns"].to_numpy()[launched] == [10_000, 20_000]).all()
    found = check(analysis, "links_recorded")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.WARN, 2, 10_000)
    # A third launch of that id, and no one knows which of them launched nothing.
    trace.slice("cuda_runtime", "hipLaunchKernel", 25_000, 1_000, **{"External id": 7})
    assert (analyzed(trace).links.activity_launch < 0).all()


def test_launches_on_threads_without_operators_belong_to_the_one_around_them_in_time(analyzed: Analyze) -> None:
    """A tool gave all calls another thread; where any call has an operator on its own, none is given away so."""
    trace = KinetoTrace()
    for number, name in enumerate(("aten::mm", "aten::add")):
        trace.operator(name, 100_000 * number, 50_000, tid=100)
        trace.launched_kernel("k", (100_000 * number + 10_000, 5_000), (100_000 * number + 20_000, 10_000), tid=200)
    trace.launched_kernel("k", (180_000, 5_000), (190_000, 10_000), tid=200)
    analysis = analyzed(trace)
    names = analysis.trace.operators["name"].to_list()
    found = [None if row < 0 else names[row] for row in analysis.links.activity_operator]
    assert found == ["aten::mm", "aten::add", None]
    assert (check(analysis, "links_recorded").count, analysis.accounting.unlinked_ns) == (2, 10_000)
    trace.launched_kernel("k", (30_000, 5_000), (240_000, 10_000), tid=100)
    assert (analyzed(trace).links.activity_operator >= 0).sum() == 1


def test_replays_with_fewer_nodes_than_others_fail(analyzed: Analyze) -> None:
    found = check(analyzed(graph_replays([4, 2, 4])), "graph_replays_complete")
    assert (found.verdict, found.count) == (Verdict.FAIL, 2)
    assert check(analyzed(graph_replays([4, 4, 4])), "graph_replays_complete").verdict is Verdict.PASS


def test_pauses_within_a_replay_are_lost_records(analyzed: Analyze) -> None:
    """Nodes of a graph follow each other in microseconds: 40 ms in one replay, with nothing else running, are none."""
    trace = KinetoTrace()
    correlation = trace.launch(0, 1_000, name="cudaGraphLaunch")
    for node, start in enumerate((5_000, 1_000_000, 41_000_000)):
        ids = {"graph id": 3, "graph node id": 10 + node}
        trace.kernel(f"n{node}", start, 900_000, correlation, **ids)
    analysis = analyzed(trace)
    found = check(analysis, "graph_replays_complete")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.FAIL, 1, 39_100_000)
    bound = analysis.bound
    assert bound.kind is BoundKind.UNKNOWN
    assert "records of them were lost" in bound.evidence
    assert "record fewer steps" in bound.sentence
    # What runs meanwhile on another stream is not a pause.
    trace.launched_kernel("other", (2_000, 1_000), (6_000, 41_500_000), stream=9)
    assert check(analyzed(trace), "graph_replays_complete").verdict is Verdict.PASS


def test_graph_replays_are_launched_but_belong_to_no_operator(analyzed: Analyze) -> None:
    analysis = analyzed(graph_replays([4, 4]))
    assert check(analysis, "launch_recorded").verdict is Verdict.PASS
    assert check(analysis, "operator_recorded").verdict is Verdict.WARN
    assert analysis.accounting.unlinked_activities == 8


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("overhead", "Runtime Triggered Module Loading"),
        ("overhead", "Lazy Function Loading"),
        ("cuda_driver", "cuModuleLoadData"),
        ("cuda_driver", "cuLibraryLoadData"),
        ("cuda_runtime", "cudaLibraryLoadData"),
    ],
)
def test_cold_launches_are_named_and_their_step_is_cold(analyzed: Analyze, category: str, name: str) -> None:
    trace = healthy()
    trace.slice(category, name, 5_000, 200_000)
    analysis = analyzed(trace)
    found = check(analysis, "cold_launches")
    assert (found.verdict, found.count, found.time_ns, found.time_of) == (Verdict.WARN, 1, 200_000, "host")
    assert "200.0 us" in found.sentence
    assert [step.cold for step in analysis.steps] == [True]


def test_a_driver_call_within_named_loading_is_counted_once(analyzed: Analyze) -> None:
    trace = healthy()
    trace.slice("overhead", "Runtime Triggered Module Loading", 5_000, 200_000)
    trace.slice("cuda_driver", "cuModuleLoadData", 6_000, 150_000)
    assert check(analyzed(trace), "cold_launches").count == 1


def test_the_profilers_own_interruptions_are_told_apart_from_cold_launches(analyzed: Analyze) -> None:
    trace = healthy()
    trace.slice("overhead", "Activity Buffer Request", 5_000, 200_000, pid=-1, tid=0)
    analysis = analyzed(trace)
    found = check(analysis, "profiler_interruptions")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.WARN, 1, 200_000)
    assert check(analysis, "cold_launches").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("percent", "has_device", "verdict"),
    [
        (5.0, True, Verdict.PASS),
        (60.0, True, Verdict.PASS),
        (150.0, True, Verdict.WARN),
        (5.0, False, Verdict.PASS),
        (60.0, False, Verdict.WARN),
        (150.0, False, Verdict.FAIL),
    ],
)
def test_profiler_overhead_weighs_more_where_only_host_times_were_measured(
    percent: float, has_device: bool, verdict: Verdict
) -> None:
    assert check_overhead(percent, has_device=has_device).verdict is verdict


def test_steps_that_do_not_wait_have_a_verdict(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 20_000)
    trace.launched_kernel("k", (5_000, 1_000), (10_000, 50_000))
    bound = analyzed(trace).bound_with(steps=1, wall_ns=60_000, ran_on_gpu=True)
    assert bound.kind is BoundKind.DEVICE
    assert bound.share_low == bound.share_high == pytest.approx(50 / 60)


def test_a_step_is_the_one_around_a_launch_and_not_the_latest_begun(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(0, 0, 100_000)
    trace.slice("user_annotation", "ProfilerStep#5", 10_000, 5_000, tid=200)  # a short one of another thread
    trace.operator("aten::mm", 40_000, 10_000)
    trace.launched_kernel("gemm", (41_000, 1_000), (43_000, 7_000))
    trace.operator("aten::add", 11_000, 2_000)
    trace.launched_kernel("own thread's", (11_500, 500), (12_500, 100))
    trace.launched_kernel("other thread's", (12_000, 500), (13_500, 100), tid=300)
    analysis = analyzed(trace)
    assert check(analysis, "launched_outside_steps").verdict is Verdict.PASS
    assert {step.number: step.activities for step in analysis.steps} == {0: 2, 5: 1}


@pytest.mark.parametrize(
    ("recorded", "at", "verdict", "count"),
    [
        *((1, 10_000, "pass", 0), (1, 40_000, "warn", 1), (-1, 10_000, "warn", 1), (77, 10_000, "warn", 1)),
        (0, 10_000, "pass", 0),  # of a call before the recording
    ],
)
def test_waits_between_streams_name_what_they_are_for(
    analyzed: Analyze, recorded: int, at: int, verdict: str, count: int
) -> None:
    trace = KinetoTrace()
    trace.launch(at, 1_000, name="cudaEventRecord")
    trace.launched_kernel("first", (2_000, 1_000), (5_000, 20_000))
    trace.slice(
        "cuda_sync", "Stream Wait Event", 30_000, 5_000, pid=0, tid=13, stream=13, wait_on_stream=7,
        wait_on_cuda_event_id=3, wait_on_cuda_event_record_corr_id=recorded,
    )  # fmt: skip
    trace.launched_kernel("second", (32_000, 1_000), (36_000, 4_000), stream=13)
    found = check(analyzed(trace), "waits_recorded")
    assert (found.verdict, found.count) == (verdict, count)


def test_without_waits_between_streams_nothing_is_said_of_them(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("only", (2_000, 1_000), (5_000, 20_000))
    assert "waits_recorded" not in [one.name for one in analyzed(trace).trust.checks]
