"""Device times that cannot be on the host's clock: shifted where an offset explains them, else left out or doubted."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.analysis.part import Part, read_part
from opscope.base.units import NS_PER_US
from opscope.documents.verdict import BoundKind, Verdict
from tests.analysis.trust.test_trust import Analyze, check
from tests.kineto import KinetoTrace

MS = 1_000_000
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}


def launch_bound(late: Callable[[int], int] = lambda _: 0, *, steps: int = 4, synchronizes: bool = True) -> KinetoTrace:
    """20 kernels of 2 us a step, each launched 20 us after the one before, and a wait of the host after each step.

    Each begins 4 us after its launch does; the last one of a step ends 396 us into it, and the wait returns at 400 us.

    Args:
        late: by how much a device record is late, by its number.
        steps: how many.
        synchronizes: whether the host waits after each step.
    """
    trace = KinetoTrace(deviceProperties=[H100])
    for step in range(steps):
        begin = step * 500_000
        trace.step(step + 1, begin, 480_000)
        for number in range(20):
            launched = begin + 10_000 + 20_000 * number
            shift = late(step * 20 + number)
            trace.operator("aten::add", launched - 5_000, 12_000)
            trace.launched_kernel("k", (launched, 3_000), (launched + 4_000 + shift, 2_000))
        if synchronizes:
            trace.slice("cuda_runtime", "cudaDeviceSynchronize", begin + 395_000, 5_000)
    return trace


def test_what_is_possible_stays_as_it_is(analyzed: Analyze) -> None:
    for late in (0, -6_000, -13_000, 3_000, 13_000):  # a few microseconds are the conversion of the clock
        analysis = analyzed(launch_bound(lambda _, late=late: late))  # type: ignore[misc]
        assert check(analysis, "clocks_agree").verdict is Verdict.PASS
        assert analysis.trace.activities["start_ns"][0] == 14_000 + late


@pytest.mark.parametrize(
    ("late", "shifted", "says"),
    [
        # The last kernel of a step ends 4 us before the wait returns, and begins 4 us after its launch does.
        (5 * MS, 5 * MS - 4_000, "Times of device 0 are 4.996 ms too late: 80 of 80 activities end after"),
        (200_000, 196_000, "Times of device 0 are 196.0 us too late"),
        (-5 * MS, -5 * MS + 4_000, "Times of device 0 are 4.996 ms too early: 80 of 80 activities begin before"),
    ],
)
def test_a_constant_offset_is_corrected_and_said(analyzed: Analyze, late: int, shifted: int, says: str) -> None:
    analysis, right = analyzed(launch_bound(lambda _: late)), analyzed(launch_bound())
    found = check(analysis, "clocks_agree")
    assert found.verdict is Verdict.FAIL
    assert says in found.sentence
    assert analysis.trace.activities["start_ns"][0] == 14_000 + late - shifted
    assert analysis.bound.kind is right.bound.kind is BoundKind.DISPATCH
    assert analysis.devices[0].busy_ns == right.devices[0].busy_ns == 160_000


def test_a_corrected_trace_says_so_after_it_was_written(analyzed: Analyze) -> None:
    """What is exported has shifted times, which no longer show it."""
    analysis = analyzed(launch_bound(lambda _: 5 * MS))
    again = analyze(analysis.trace)
    assert check(again, "clocks_agree").sentence == check(analysis, "clocks_agree").sentence
    assert again.trace.activities["start_ns"].equals(analysis.trace.activities["start_ns"])


def test_single_records_that_no_offset_explains_are_left_out(analyzed: Analyze) -> None:
    analysis = analyzed(launch_bound(lambda number: -(10**14) if number < 5 else 0))
    found = check(analysis, "impossible_durations")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.FAIL, 5, 10_000)
    assert check(analysis, "clocks_agree").verdict is Verdict.PASS
    assert check(analysis, "launches_without_activity").verdict is Verdict.PASS
    assert analysis.trace.activities.height == 75
    assert analysis.bound.kind is BoundKind.DISPATCH


def test_an_offset_is_found_beside_single_impossible_records(analyzed: Analyze) -> None:
    analysis = analyzed(launch_bound(lambda number: -(10**14) if number < 5 else 5 * MS))
    assert check(analysis, "impossible_durations").count == 5
    assert check(analysis, "clocks_agree").verdict is Verdict.FAIL
    assert analysis.trace.activities["start_ns"][0] == 10_000 + 5 * 20_000 + 8_000


def test_where_no_offset_explains_most_no_cause_of_waiting_is_said(analyzed: Analyze) -> None:
    """A clock that drifts by 100 us from kernel to kernel."""
    analysis = analyzed(launch_bound(lambda number: 100_000 * number))
    assert check(analysis, "idle_causes_known").verdict is Verdict.FAIL
    assert analysis.bound.kind is BoundKind.UNKNOWN
    assert "clocks of the host and of the device disagree" in analysis.bound.sentence
    causes = {cause for device in analysis.devices for cause, time in device.idle.by_cause().items() if time}
    assert causes == {"clocks disagree"}


def test_without_waits_a_late_device_is_not_told_from_a_busy_one(analyzed: Analyze) -> None:
    analysis = analyzed(launch_bound(lambda _: 5 * MS, synchronizes=False))
    assert check(analysis, "clocks_agree").verdict is Verdict.PASS


def test_a_wait_that_failed_waited_for_nothing(analyzed: Analyze) -> None:
    trace = launch_bound(synchronizes=False)
    trace.launch(495_000, 5_000, name="cudaDeviceSynchronize", status=700)
    trace.launched_kernel("k", (480_000, 3_000), (484_000, 900_000))
    assert check(analyzed(trace), "clocks_agree").verdict is Verdict.PASS


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(late=st.integers(-10 * MS, 10 * MS))
def test_an_offset_of_any_size_changes_no_busy_time_and_no_verdict(late: int, analyzed: Analyze) -> None:
    analysis = analyzed(launch_bound(lambda _: late))
    assert analysis.devices[0].busy_ns == 160_000
    assert analysis.trace.activities.height == 80
    first = analysis.trace.activities["start_ns"][0]
    assert 14_000 - 14 * NS_PER_US <= first <= 14_000 + 14 * NS_PER_US
    assert analysis.bound.kind is BoundKind.DISPATCH


# ---------------------------------------------------------------- one record among its likes


def of_one_stream(longest: int, *, at: int = 50, kernels: int = 100) -> KinetoTrace:
    """Kernels of 10 us, 60 us apart, one of which takes longer."""
    trace = KinetoTrace()
    for number in range(kernels):
        launched, duration = 60_000 * number, longest if number == at else 10_000
        trace.operator("aten::add", launched, 9_000)
        trace.launched_kernel("k", (launched + 1_000, 3_000), (launched + 10_000, duration))
    return trace


def test_a_record_that_overruns_its_successors_is_left_out(analyzed: Analyze) -> None:
    analysis = analyzed(of_one_stream(2 * MS))  # 33 kernels of its stream begin and end meanwhile
    found = check(analysis, "impossible_durations")
    assert (found.verdict, found.count, found.time_ns) == (Verdict.FAIL, 1, 2 * MS)
    assert analysis.devices[0].busy_ns == 99 * 10_000
    assert check(analysis, "overlap_on_one_stream").verdict is Verdict.PASS


def test_a_record_that_is_most_of_all_is_doubted(analyzed: Analyze) -> None:
    found = check(analyzed(of_one_stream(2_000 * MS, at=99)), "impossible_durations")
    assert (found.verdict, found.count) == (Verdict.WARN, 1)
    assert "One activity of 2.000 s is 100.0 % of the device sum; the median of 100" in found.sentence
    assert check(analyzed(of_one_stream(MS, at=99)), "impossible_durations").verdict is Verdict.PASS


# ---------------------------------------------------------------- overlaps that are healthy


def test_kernels_that_are_launched_early_on_purpose_are_no_failure(analyzed: Analyze) -> None:
    """Each begins 2 us before the one before it ends. With an ordinary call that cannot be."""
    for name, verdict in (("cudaLaunchKernelExC", Verdict.WARN), ("cudaLaunchKernel", Verdict.FAIL)):
        trace = KinetoTrace()
        for number in range(50):
            correlation = trace.launch(2_000 * number, 1_000, name=name)
            trace.kernel("k", 200_000 + 10_000 * number, 12_000, correlation)
        found = check(analyzed(trace), "overlap_on_one_stream")
        assert (found.verdict, found.count, found.time_ns) == (verdict, 49, 49 * 2_000)


def test_streams_of_two_contexts_are_two_though_they_have_one_number(analyzed: Analyze) -> None:
    for contexts, verdict in ((2, Verdict.PASS), (1, Verdict.FAIL)):
        trace = KinetoTrace()
        for number in range(50):
            correlation = trace.launch(2_000 * number, 1_000)
            context = 1 + number % contexts
            trace.kernel("k", 200_000 + 10_000 * number, 15_000, correlation, context=context)
        assert check(analyzed(trace), "overlap_on_one_stream").verdict is verdict


def test_branches_of_one_replay_may_overlap(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for replay in range(3):
        graph = trace.launch(100_000 * replay, 5_000, name="cudaGraphLaunch")
        for node in range(4):
            args = {"graph id": 1, "graph node id": node + 1}
            trace.kernel(f"n{node}", 100_000 * replay + 10_000 + 5_000 * node, 20_000, graph, **args)
    assert check(analyzed(trace), "overlap_on_one_stream").verdict is Verdict.PASS


def test_the_stream_of_a_graphs_kernel_stands_beside_its_lane(analyzed: Analyze) -> None:
    """PyTorch 2.14 shows them on lanes of their own."""
    trace = KinetoTrace()
    graph = trace.launch(0, 5_000, name="cudaGraphLaunch")
    for stream in (20, 21):
        args = {"graph id": 1, "graph node id": stream, "original_stream": stream}
        trace.kernel("k", 10_000, 20_000, graph, **args)
    analysis = analyzed(trace)
    assert sorted(analysis.trace.activities["stream"]) == [20, 21]
    assert check(analysis, "overlap_on_one_stream").verdict is Verdict.PASS


# ---------------------------------------------------------------- what says nothing of this device's clock

TWO: dict[str, object] = {"deviceProperties": [H100, {**H100, "id": 1}]}


def queued(trace: KinetoTrace, steps: int, *, wait_ns: int = 2_000) -> KinetoTrace:
    """20 kernels of 100 us a step, launched in 0.2 ms; the host then makes a call that returns at once, and goes on."""
    for step in range(steps):
        begin = step * 3 * MS
        for number in range(20):
            trace.launched_kernel("k", (begin + 10_000 * number, 3_000), (begin + 10_000 + 100_000 * number, 100_000))
        trace.slice("cuda_runtime", "cudaDeviceSynchronize", begin + 250_000, wait_ns)
        trace.operator("aten::add", begin + 2_500_000, 10_000)
    return trace


@pytest.mark.parametrize("steps", [1, 4])
def test_a_wait_for_another_device_says_nothing(analyzed: Analyze, steps: int) -> None:
    """As of a loop over all devices of a machine, of which one has work."""
    analysis = analyzed(queued(KinetoTrace(**TWO), steps))
    assert analysis.trace.activities.height == 20 * steps
    assert check(analysis, "clocks_agree").verdict is Verdict.PASS
    assert check(analysis, "impossible_durations").verdict is Verdict.PASS


def test_waits_of_a_machine_with_several_devices_show_an_offset(analyzed: Analyze) -> None:
    trace = launch_bound(lambda _: 5 * MS)
    several = KinetoTrace(**TWO)
    several.events = trace.events
    found = check(analyzed(several), "clocks_agree")
    assert found.verdict is Verdict.FAIL
    assert "4.996 ms too late" in found.sentence


def test_waits_of_one_context_say_nothing_of_two(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(40):
        correlation = trace.launch(10_000 * number, 3_000)
        trace.kernel("k", 5_000 + 100_000 * number, 90_000, correlation, context=1 + number % 2)
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 450_000, 5_000)
    analysis = analyzed(trace)
    assert analysis.trace.activities.height == 40
    assert check(analysis, "clocks_agree").verdict is Verdict.PASS


def test_an_early_device_without_waits_has_no_upper_end(analyzed: Analyze) -> None:
    sentence = check(analyzed(launch_bound(lambda _: -5 * MS, synchronizes=False)), "clocks_agree").sentence
    assert "4.996 ms too early" in sentence
    assert sentence.endswith("the least that makes them possible.")


def test_records_that_no_offset_fits_are_left_out_each(analyzed: Analyze) -> None:
    """Three kernels that begin before their launch and end after a wait, among forty that do neither."""
    trace = launch_bound(steps=2)
    for number in range(3):
        launched = 2 * MS + 100_000 * number
        trace.launched_kernel("wrong", (launched, 3_000), (launched - MS, 4 * MS))
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 2_400_000, 5_000)
    trace.operator("aten::add", 9 * MS, 10_000)
    analysis = analyzed(trace)
    assert analysis.trace.activities["name"].unique().to_list() == ["k"]
    assert check(analysis, "impossible_durations").count == 3


def test_where_clocks_disagree_nothing_says_that_they_agree(analyzed: Analyze) -> None:
    analysis = analyzed(launch_bound(lambda number: 100_000 * number))
    assert "clocks_agree" not in [one.name for one in analysis.trust.checks]
    assert analysis.trace.activities.height == 80


def test_collectives_move_with_their_kernels(analyzed: Analyze) -> None:
    trace = launch_bound(lambda _: 5 * MS)
    correlation = trace.launch(1_900_000, 3_000)
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2}
    trace.kernel("ncclDevKernel_AllReduce", 1_904_000 + 5 * MS, 2_000, correlation, **args)
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 1_950_000, 5_000)
    result = analyzed(trace).trace
    kernels = result.activities.select("correlation", "start_ns")
    told = result.communications.filter(result.communications["correlation"].is_not_null())
    assert told.join(kernels, on=["correlation", "start_ns"]).height == told.height == 1


def test_a_part_has_the_offset_of_the_whole(tmp_path: Path) -> None:
    """One wait at the end shows it; the second of four steps holds none."""
    trace = launch_bound(lambda _: 5 * MS, synchronizes=False)
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 1_895_000, 5_000)
    trace.operator("aten::add", 1_990_000, 1_000)
    part = analyze(read_part(trace.write(tmp_path / "trace.json"), Part(steps=(2, 2))))
    assert check(part, "clocks_agree").verdict is Verdict.FAIL
    assert part.trace.activities["start_ns"].min() == 514_000 + 4_000
    assert check(part, "work_outside_window").verdict is Verdict.PASS


def test_a_part_of_what_contradicts_itself_is_not_judged_anew(tmp_path: Path) -> None:
    """By 100 us more from kernel to kernel; within one step that looks like an offset for most."""
    trace = launch_bound(lambda number: 100_000 * number)
    part = analyze(read_part(trace.write(tmp_path / "trace.json"), Part(steps=(2, 2))))
    assert check(part, "idle_causes_known").verdict is Verdict.FAIL
    assert "clocks_agree" not in [one.name for one in part.trust.checks]
    assert part.trace.activities["start_ns"].min() == 514_000 + 2 * MS
    assert part.trace.activities.height == 20


# ---------------------------------------------------------------- copies, zeros, lost launches


def test_copies_of_one_name_differ_by_their_sizes(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(59):
        correlation = trace.launch(10_000 * number, 3_000, name="cudaMemcpyAsync")
        trace.kernel("Memcpy HtoD", 5_000 + 10_000 * number, 1_000, correlation, category="gpu_memcpy", bytes=4)
    correlation = trace.launch(600_000, 3_000, name="cudaMemcpyAsync")
    trace.kernel("Memcpy HtoD", 605_000, 50 * MS, correlation, category="gpu_memcpy", bytes=1 << 30)
    for number in range(3):  # beside it, as engines do of which one number stands for all
        small = trace.launch(700_000 + 10_000 * number, 3_000, name="cudaMemcpyAsync")
        trace.kernel("Memcpy HtoD", 800_000 + 10_000 * number, 1_000, small, category="gpu_memcpy", bytes=4)
    analysis = analyzed(trace)
    assert analysis.trace.activities.height == 63
    assert check(analysis, "impossible_durations").verdict is Verdict.PASS


def test_a_number_of_zero_is_no_node_of_a_graph(analyzed: Analyze) -> None:
    """Some versions of Kineto write both numbers for every activity."""
    trace = KinetoTrace()
    none = {"graph id": 0, "graph node id": 0}
    for number in range(50):
        correlation = trace.launch(2_000 * number, 1_000, name="cudaLaunchKernelExC")
        trace.kernel("k", 200_000 + 10_000 * number, 12_000, correlation, **none)
    for number in range(2):
        trace.kernel("Memcpy DtoD", 800_000 + 10_000 * number, 5_000, None, category="gpu_memcpy", bytes=8, **none)
    analysis = analyzed(trace)
    assert check(analysis, "overlap_on_one_stream").verdict is Verdict.WARN
    assert analysis.trace.activities["bytes"].sum() == 16


def test_one_ordinary_overlap_among_early_launches_is_weighed_by_its_time(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(200):
        name = "cudaLaunchKernel" if number == 100 else "cudaLaunchKernelExC"
        correlation = trace.launch(2_000 * number, 1_000, name=name)
        trace.kernel("k", 500_000 + 10_000 * number, 12_000, correlation)
    assert check(analyzed(trace), "overlap_on_one_stream").verdict is Verdict.WARN


def test_records_left_out_explain_their_own_launches_alone(analyzed: Analyze) -> None:
    trace = launch_bound(lambda number: -(10**14) if number < 5 else 0)
    for number in range(40):
        trace.launch(2 * MS + 10_000 * number, 3_000)
    found = check(analyzed(trace), "launches_without_activity")
    assert found.count == 45
    assert found.sentence.startswith("45 of 120")
