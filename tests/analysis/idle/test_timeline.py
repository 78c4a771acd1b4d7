"""Idle time by cause, windows and steps on traces small enough to work out by hand."""

from collections.abc import Callable

from opscope.analysis.analyzed import Analysis
from opscope.analysis.structure.step_work import WindowKind
from opscope.documents.verdict import IdleCause
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]


def causes(analysis: Analysis) -> dict[IdleCause, int]:
    (device,) = analysis.devices
    found = {cause: length for cause, length in device.idle.by_cause().items() if length}
    assert sum(found.values()) == device.idle_ns
    return found


def test_work_queued_before_the_gap_waits_for_something_else(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("a", (0, 1_000), (2_000, 8_000))
    trace.launched_kernel("b", (3_000, 1_000), (15_000, 5_000))
    assert causes(analyzed(trace)) == {IdleCause.DEPENDENCY: 5_000}


def test_a_call_under_way_when_the_gap_begins_is_latency(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("a", (0, 1_000), (2_000, 8_000))
    trace.launched_kernel("b", (9_000, 3_000), (15_000, 5_000))
    assert causes(analyzed(trace)) == {IdleCause.LATENCY: 5_000}


def test_another_threads_synchronise_does_not_explain_this_threads_delay(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("a", (0, 1_000), (2_000, 8_000), tid=1)
    trace.slice("cuda_runtime", "cudaStreamSynchronize", 5_000, 10_000, tid=2)
    trace.launched_kernel("b", (12_000, 1_000), (15_000, 5_000), tid=1)
    assert causes(analyzed(trace)) == {IdleCause.DISPATCH: 2_000, IdleCause.LATENCY: 3_000}


def test_a_blocking_copy_is_a_synchronisation_and_an_asynchronous_one_is_not(analyzed: Analyze) -> None:
    for name, cause in (("cudaMemcpy", IdleCause.BLOCKING), ("cudaMemcpyAsync", IdleCause.DISPATCH)):
        trace = KinetoTrace()
        trace.launched_kernel("a", (0, 1_000), (2_000, 8_000))
        trace.slice("cuda_runtime", name, 5_000, 6_000)
        trace.launched_kernel("b", (12_000, 1_000), (15_000, 5_000))
        # The copy returns at 11, the launch begins at 12.
        found = causes(analyzed(trace))
        assert found.pop(IdleCause.LATENCY) == 3_000
        assert found == ({cause: 1_000, IdleCause.DISPATCH: 1_000} if cause is IdleCause.BLOCKING else {cause: 2_000})


def test_the_other_stream_filling_a_gap_leaves_no_gap(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("a", (0, 1_000), (2_000, 8_000))
    trace.kernel("c", 9_000, 7_000, stream=20)
    trace.launched_kernel("b", (12_000, 1_000), (16_000, 5_000))
    assert causes(analyzed(trace)) == {}


def test_window_is_the_steps_where_there_are_steps(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 20_000)
    trace.step(2, 22_000, 18_000)
    trace.launched_kernel("k", (5_000, 1_000), (10_000, 5_000))
    (device,) = analyzed(trace).devices
    assert (device.window.kind, device.window.start_ns, device.window.end_ns) == (WindowKind.STEPS, 0, 40_000)
    # The 2 us between the steps belong to the profiler, not to the window.
    assert (device.window.duration_ns, device.idle_ns) == (38_000, 33_000)


def test_steps_that_do_not_wait_are_measured_by_the_work_that_they_launched(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(3):  # the host is done long before the device
        trace.step(number, number * 20_000, 20_000)
        trace.launched_kernel("k", (number * 20_000 + 5_000, 1_000), (10_000 + number * 70_000, 50_000))
    analysis = analyzed(trace)
    (device,) = analysis.devices
    assert (device.window.kind, device.window.start_ns, device.window.end_ns) == (WindowKind.STEP_WORK, 10_000, 200_000)
    assert (device.busy_ns, device.busy_in_window_ns, device.outside_window_ns) == (150_000, 150_000, 0)
    assert [(s.span_ns, s.busy_ns, s.idle_ns) for s in analysis.steps] == [
        *([(70_000, 50_000, 20_000)] * 2),
        (50_000, 50_000, 0),
    ]
    check = next(check for check in analysis.trust.checks if check.name == "work_outside_window")
    assert check.verdict == "pass"


def test_a_single_step_that_does_not_wait_begins_on_the_host(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 20_000)
    trace.launched_kernel("k", (5_000, 1_000), (10_000, 50_000))
    (device,) = analyzed(trace).devices
    assert (device.window.start_ns, device.window.end_ns, device.idle_ns) == (0, 60_000, 10_000)


def test_work_before_the_steps_is_outside_the_window_and_said_to_be(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("early", (0, 1_000), (1_000, 40_000))
    trace.step(1, 50_000, 20_000)
    trace.launched_kernel("k", (55_000, 1_000), (60_000, 10_000))
    (device,) = (analysis := analyzed(trace)).devices
    assert (device.busy_ns, device.busy_in_window_ns, device.outside_window_ns) == (50_000, 10_000, 40_000)
    check = next(check for check in analysis.trust.checks if check.name == "work_outside_window")
    assert (check.verdict, check.time_ns, check.share) == ("fail", 40_000, 0.8)


def test_of_steps_that_do_not_wait_one_without_work_has_no_time_of_the_device(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(3):
        trace.step(number, number * 20_000, 20_000)
    trace.launched_kernel("k", (5_000, 1_000), (50_000, 50_000))
    trace.launched_kernel("k", (45_000, 1_000), (110_000, 50_000))
    analysis = analyzed(trace)
    assert [(s.span_ns, s.busy_ns, s.activities) for s in analysis.steps] == [
        (60_000, 50_000, 1),
        (0, 0, 0),
        (50_000, 50_000, 1),
    ]
    (gap,) = analysis.gaps
    assert (gap.step, gap.duration_ns) == (0, 10_000)


def test_an_activity_belongs_to_the_step_that_launched_it(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    trace.step(2, 10_000, 10_000)
    trace.launched_kernel("late", (8_000, 1_000), (12_000, 3_000))  # launched in step 1, runs in step 2
    first, second = analyzed(trace).steps
    assert (first.activities, first.device_sum_ns, first.busy_ns) == (1, 3_000, 0)
    assert (second.activities, second.device_sum_ns, second.busy_ns) == (0, 0, 3_000)


def test_steps_of_a_cpu_workload_have_no_device_figures(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    trace.operator("aten::mm", 1_000, 5_000)
    analysis = analyzed(trace)
    (step,) = analysis.steps
    assert (step.device, step.span_ns, step.busy_ns, step.device_sum_ns) == (None, 10_000, None, None)
    assert analysis.operator_time_ns == 5_000
    assert analysis.phases is None


def test_loading_code_makes_a_step_cold(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    trace.step(2, 10_000, 10_000)
    trace.slice("overhead", "Runtime Triggered Module Loading", 2_000, 4_000)
    trace.launched_kernel("k", (12_000, 1_000), (14_000, 3_000))
    first, second = analyzed(trace).steps
    assert (first.cold, second.cold) == (True, False)


def test_communication_is_known_by_its_arguments_or_by_its_name(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.kernel("user_defined_reduce", 0, 10_000, stream=20, **{"Collective name": "allreduce"})
    trace.kernel("void vllm::cross_device_reduce_1stage<float, 2>()", 10_000, 5_000, stream=20)
    trace.kernel("gemm", 12_000, 6_000)
    (device,) = analyzed(trace).devices
    # 0 .. 12 only communication ran; then the product hides the rest of it.
    assert (device.exposed_communication_ns, device.compute_ns) == (12_000, 6_000)


def test_a_synchronise_explains_only_the_time_until_it_returns(analyzed: Analyze) -> None:
    """Each step: 5 ms of the host's own work, one kernel, and the synchronise that ends every profiled step."""
    trace = KinetoTrace()
    for number in range(3):
        base = 10_000_000 * number
        trace.step(number, base, 10_000_000)
        trace.launched_kernel("k", (base + 5_000_000, 5_000), (base + 5_010_000, 100_000))
        trace.slice("cuda_runtime", "cudaDeviceSynchronize", base + 5_006_000, 110_000)
    analysis = analyzed(trace)
    (device,) = analysis.devices
    # The synchronise returns 6 us after the kernel; what follows until the next launch is the host's.
    assert device.idle.by_cause()[IdleCause.BLOCKING] == 2 * 6_000
    assert device.idle.by_cause()[IdleCause.HOST_WORK] == 5_000_000 + 2 * (4_884_000 + 5_000_000)
    assert [step.launch_bound_ns for step in analysis.steps] == [10_000] * 3


def test_time_between_steps_in_which_nothing_was_collected_is_no_idle_time(analyzed: Analyze) -> None:
    """Three steps of 100 us, 90 us of work in each, 600 us apart because collection was switched off."""
    trace = KinetoTrace()
    for number in range(3):
        base = 700_000 * number
        trace.step(number, base, 100_000)
        trace.launched_kernel("k", (base + 2_000, 3_000), (base + 10_000, 90_000))
    (device,) = analyzed(trace).devices
    assert (device.window.duration_ns, device.busy_in_window_ns, device.idle_ns) == (300_000, 270_000, 30_000)


def test_steps_with_the_same_number_are_different_steps(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    trace.step(1, 20_000, 10_000)
    analysis = analyzed(trace)
    assert analysis.step_count == 2


def test_activities_whose_device_is_unknown_still_have_a_timeline(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.slice("kernel", "k", 0, 10_000, pid="some GPU", tid="a stream")
    trace.slice("kernel", "k", 20_000, 10_000, pid="GPU 3", tid="stream 20")
    unknown, third = analyzed(trace).devices
    assert (unknown.device, unknown.busy_ns, unknown.name) == (-1, 10_000, "unknown device")
    assert (third.device, third.busy_ns) == (3, 10_000)
