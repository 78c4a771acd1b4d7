"""Who is charged with which time: links, redispatch, shapes, kernels. Figures worked out by hand."""

import json
from collections.abc import Callable

import polars as pl
import pytest

from opscope.analysis.analyzed import Analysis
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]


def times(analysis: Analysis, name: str) -> dict[str, int]:
    return analysis.operators.row(by_predicate=pl.col("name") == name, named=True)


def test_a_launch_that_outlives_its_operator_still_belongs_to_it(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::outer", 0, 20_000)
    trace.operator("aten::inner", 1_000, 5_000)
    # The call begins inside inner and ends 4 us after it, inside outer.
    trace.launched_kernel("k", (5_000, 5_000), (12_000, 3_000))
    analysis = analyzed(trace)
    assert times(analysis, "aten::inner")["self_device_ns"] == 3_000
    assert times(analysis, "aten::outer")["self_device_ns"] == 0
    # Inner's own time ends where it ends: 5 us minus the 1 us of the call that lies in it.
    assert times(analysis, "aten::inner")["self_cpu_ns"] == 4_000
    assert times(analysis, "aten::outer")["self_cpu_ns"] == 15_000


def test_a_launch_on_another_thread_belongs_to_that_thread(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::main", 0, 20_000, tid=1)
    trace.operator("aten::worker", 0, 20_000, tid=2)
    trace.launched_kernel("k", (5_000, 1_000), (8_000, 3_000), tid=2)
    assert times(analyzed(trace), "aten::worker")["self_device_ns"] == 3_000


def test_external_id_is_the_fallback_where_no_operator_encloses_the_launch(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000, **{"External id": 42})
    trace.kernel("k", 20_000, 3_000, 77, **{"External id": 42})  # its launch was lost
    analysis = analyzed(trace)
    assert times(analysis, "aten::mm")["self_device_ns"] == 3_000
    assert analysis.accounting.unlinked_activities == 0


def test_enclosing_operator_wins_over_external_id(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::right", 0, 10_000, **{"External id": 1})
    trace.operator("aten::wrong", 20_000, 10_000, **{"External id": 2})
    trace.kernel("k", 40_000, 3_000, trace.launch(5_000, 1_000), **{"External id": 2})
    assert times(analyzed(trace), "aten::right")["self_device_ns"] == 3_000


def test_external_id_zero_means_none(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000, **{"External id": 0})
    trace.kernel("k", 20_000, 3_000, 77, **{"External id": 0})
    assert analyzed(trace).accounting.unlinked_activities == 1


def test_unlinked_activities_are_listed_and_charged_to_nobody(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    trace.launched_kernel("k", (1_000, 1_000), (3_000, 5_000))
    trace.kernel("lost", 9_000, 7_000, 99)
    analysis = analyzed(trace)
    assert (analysis.accounting.operators_ns, analysis.accounting.unlinked_ns) == (5_000, 7_000)
    assert analysis.accounting.holds
    assert analysis.categories.filter(analysis.categories["category"] == "Unlinked")["self_device_ns"].item() == 7_000


def test_an_operator_nested_in_itself_is_one_call_and_counted_once(analyzed: Analyze) -> None:
    """Autocast and scalar arguments redispatch: aten::mul inside aten::mul, as PyTorch's own table merges them."""
    trace = KinetoTrace()
    outer = {"Input Dims": [[8], []], "Input type": ["float", "Scalar"]}
    inner = {"Input Dims": [[8], [1]], "Input type": ["float", "float"]}
    trace.operator("aten::mul", 0, 20_000, **outer)
    trace.operator("aten::mul", 2_000, 10_000, **inner)
    trace.launched_kernel("k", (5_000, 1_000), (8_000, 3_000))
    analysis = analyzed(trace)
    row = times(analysis, "aten::mul")
    assert (row["calls"], row["self_device_ns"], row["total_device_ns"]) == (1, 3_000, 3_000)
    assert (row["self_cpu_ns"], row["total_cpu_ns"]) == (19_000, 20_000)
    # The time of the redispatched call is listed with the shapes that were asked for.
    (shape,) = analysis.shapes.rows(named=True)
    assert json.loads(shape["input_types"]) == ["float", "Scalar"]
    assert (shape["calls"], shape["self_device_ns"]) == (1, 3_000)


def test_the_same_operator_further_down_is_another_call(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::to", 0, 20_000)
    trace.operator("aten::copy_", 1_000, 15_000)
    trace.operator("aten::to", 2_000, 10_000)
    trace.launched_kernel("k", (5_000, 1_000), (8_000, 3_000))
    row = times(analyzed(trace), "aten::to")
    assert (row["calls"], row["self_device_ns"], row["total_device_ns"], row["total_cpu_ns"]) == (
        2,
        3_000,
        3_000,
        20_000,
    )


def test_driver_call_inside_runtime_call_is_subtracted_once(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 20_000)
    trace.launch(5_000, 6_000)
    trace.slice("cuda_driver", "cuLaunchKernelEx", 6_000, 4_000)
    assert times(analyzed(trace), "aten::mm")["self_cpu_ns"] == 14_000


def test_a_range_inside_an_operator_is_not_its_own_time(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::custom", 0, 20_000)
    trace.annotation("my range", 5_000, 8_000)
    trace.launch(6_000, 2_000)
    assert times(analyzed(trace), "aten::custom")["self_cpu_ns"] == 12_000


def test_kernels_are_kept_apart_by_device_and_geometry(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 50_000)
    for number, (device, grid, duration) in enumerate([(0, 8, 1_000), (0, 8, 3_000), (0, 16, 5_000), (1, 8, 7_000)]):
        start = 1_000 + 10_000 * number
        correlation = trace.launch(start, 1_000)
        trace.kernel("gemm", start + 2_000, duration, correlation, device=device, grid=[grid, 1, 1], block=[128, 1, 1])
    analysis = analyzed(trace)
    by_device = analysis.kernels.select("device", "calls", "total_ns", "mean_ns", "min_ns", "max_ns", "std_ns").rows()
    # Mean of 1, 3, 5 us is 3; the squared deviations are 4, 0, 4, so the population deviation is sqrt(8 / 3).
    assert by_device[0] == (0, 3, 9_000, 3_000, 1_000, 5_000, pytest.approx(1_632.993, abs=0.001))
    assert by_device[1] == (1, 1, 7_000, 7_000, 7_000, 7_000, 0)
    geometry = analysis.kernels_of.select("grid", "calls", "total_ns").sort("grid").rows()
    assert geometry == [("16,1,1", 1, 5_000), ("8,1,1", 3, 11_000)]


def test_two_devices_of_one_process_are_not_merged(analyzed: Analyze) -> None:
    """Alternating halves: each device is busy half of the window, and not both all of it."""
    trace = KinetoTrace()
    trace.step(1, 0, 40_000)
    for number in range(4):
        trace.kernel("gemm", 10_000 * number, 10_000, device=number % 2)
    first, second = analyzed(trace).devices
    assert (first.device, first.busy_ns, first.idle_ns) == (0, 20_000, 20_000)
    assert (second.device, second.busy_ns, second.idle_ns) == (1, 20_000, 20_000)


def test_overlapping_streams_make_the_sum_larger_than_busy(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.kernel("a", 0, 10_000, stream=7)
    trace.kernel("b", 5_000, 10_000, stream=20)
    (device,) = analyzed(trace).devices
    assert (device.sum_ns, device.busy_ns, device.window.duration_ns, device.idle_ns) == (20_000, 15_000, 15_000, 0)


def test_sub_microsecond_kernels_are_summed_exactly(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(7):
        trace.kernel("tiny", 1_000 * number, 743)
    assert analyzed(trace).accounting.activities_ns == 7 * 743


def test_synchronisation_records_are_never_work(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.kernel("k", 0, 10_000)
    trace.slice("cuda_sync", "Stream Sync", 0, 90_000, pid=0, tid=7, device=0, stream=7)
    trace.slice("gpu_user_annotation", "range", 0, 90_000, pid=0, tid=7, device=0, stream=7)
    (device,) = analyzed(trace).devices
    assert (device.activities, device.busy_ns) == (1, 10_000)


def test_a_trace_without_operators_still_has_its_kernels(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.kernel("k", 0, 10_000)
    analysis = analyzed(trace)
    assert analysis.operators.height == 0
    assert analysis.accounting.unlinked_ns == 10_000


def test_an_empty_trace_has_nothing_and_says_so(load: Callable[[KinetoTrace], Trace], analyzed: Analyze) -> None:
    analysis = analyzed(KinetoTrace())
    assert not analysis.has_device_times
    check = analysis.trust.checks[0]
    assert (check.verdict, check.name) == ("fail", "device_work_recorded")


def test_totals_hold_what_is_below_and_self_times_of_overlapping_operators_are_in_one(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::e", 0, 100)
    trace.operator("aten::x", 50, 100)  # overlaps the first one, and is around the next
    trace.operator("aten::e", 60, 30)
    trace.launched_kernel("k", (65, 5), (200, 20))
    rows = {row["name"]: row for row in analyzed(trace).operators.iter_rows(named=True)}
    assert (rows["aten::e"]["self_device_ns"], rows["aten::e"]["total_device_ns"]) == (20, 20)
    assert rows["aten::x"]["total_device_ns"] == 20


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_operators_with_the_same_times_the_numbers_tell_the_inner_one(analyzed: Analyze, turned: bool) -> None:
    trace = KinetoTrace()
    trace.operator("aten::outer", 10_000, 5_000, **{"External id": 1})
    trace.operator("aten::inner", 10_000, 5_000, **{"External id": 2})
    if turned:
        trace.events.reverse()
    trace.launched_kernel("k", (11_000, 3_000), (20_000, 7_000))
    rows = analyzed(trace).operators.select("name", "self_device_ns", "total_device_ns", "self_cpu_ns").rows()
    assert sorted(rows) == [("aten::inner", 7_000, 7_000, 2_000), ("aten::outer", 0, 7_000, 0)]


def test_an_annotation_with_the_times_of_an_operator_is_around_it(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.annotation("my_range", 10_000, 20_000)
    trace.operator("aten::add", 10_000, 20_000)
    assert analyzed(trace).operators["self_cpu_ns"].to_list() == [20_000]
