"""Recordings of which only a part is steps, or that are of several; times in nanoseconds."""

from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.documents.findings import Rule
from opscope.documents.verdict import BoundKind, CheckName, Verdict
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
Analyze = Callable[[KinetoTrace], Analysis]


def kernels(trace: KinetoTrace, begin: int, count: int = 3, every: int = MS) -> int:
    """Kernels of 1 ms one after the other, launched before they begin; return when the last one ends."""
    for number in range(count):
        at = begin + number * 20 * US
        trace.operator("aten::mm", at, 15 * US)
        trace.launched_kernel("gemm", (at + 2 * US, 5 * US), (begin + 10 * US + number * every, every - 13))
    return begin + 10 * US + count * every


@pytest.mark.parametrize("first", ["host", "device"])
@pytest.mark.parametrize(("host", "kind"), [(20 * MS, BoundKind.UNKNOWN), (2 * MS, BoundKind.DEVICE)])
def test_work_of_the_host_before_or_after_all_kernels(
    first: str, host: int, kind: BoundKind, analyzed: Analyze
) -> None:
    trace = KinetoTrace()
    if first == "host":
        trace.operator("aten::sort", 0, host)
        kernels(trace, host)
    else:
        trace.operator("aten::sort", kernels(trace, 0), host)
    bound = analyzed(trace).bound
    assert bound.kind is kind
    assert ("mark steps" in bound.sentence) is (kind is BoundKind.UNKNOWN)


def test_a_wait_after_all_kernels_is_no_work_of_the_host(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    end = kernels(trace, 0)
    trace.operator("aten::item", 100 * US, 20 * MS)
    trace.launch(110 * US, 20 * MS - 20 * US, name="cudaStreamSynchronize")
    assert end < 20 * MS
    assert analyzed(trace).bound.kind is BoundKind.DEVICE


def test_steps_of_two_recordings_do_not_wait_for_each_other(analyzed: Analyze) -> None:
    """Two steps of 100 us on the host and 3 ms on the device, and two more two seconds later."""
    trace = KinetoTrace()
    for recording in (0, 2_000 * MS):
        for number in range(2):
            trace.step(number + recording // MS, recording + number * 100 * US, 100 * US)
            at = recording + number * 100 * US
            for kernel in range(3):
                trace.operator("aten::mm", at + kernel * 30 * US, 15 * US)
                run = recording + 20 * US + (3 * number + kernel) * MS
                trace.launched_kernel("gemm", (at + kernel * 30 * US + 2 * US, 5 * US), (run, MS - 13))
    analysis = analyzed(trace)
    assert analysis.bound.kind is BoundKind.DEVICE
    assert analysis.devices[0].window.duration_ns == pytest.approx(12 * MS, rel=0.01)


def loading(steps: int) -> KinetoTrace:
    """Steps of 10 ms of loading and 5 ms of work that they do not wait for."""
    trace = KinetoTrace()
    at = 0
    for number in range(steps):
        trace.step(number, at, 10_100 * US)
        kernels(trace, at + 10 * US, 5)
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 120 * US, 9_900 * US)
        at += 10_100 * US
    return trace


def test_the_true_time_of_steps_that_do_not_wait_counts(analyzed: Analyze) -> None:
    """Of two steps one pause is recorded between their work: 15.1 ms; the other follows the last kernel."""
    measured = Measured(analyzed(loading(2)), step_time_ns=10.1 * MS)
    assert measured.bound.kind is BoundKind.INPUT
    assert "unprofiled step" in measured.bound.sentence


@pytest.mark.parametrize(("zero", "verdict"), [(0, Verdict.PASS), (3, Verdict.FAIL)])
def test_no_kernel_takes_no_time(zero: int, verdict: Verdict, analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 4 * MS)
    kernels(trace, 10 * US)
    for event in [event for event in trace.events if event["cat"] == "kernel"][:zero]:
        event["dur"] = 0.0
        event["ts"] += 0.007
    analysis = analyzed(trace)
    check = next(one for one in analysis.trust.checks if one.name == CheckName.IMPOSSIBLE_DURATIONS)
    assert check.verdict is verdict
    if zero:
        assert analysis.bound.kind is BoundKind.UNKNOWN
        assert "No device activity has a duration" in analysis.bound.sentence
        assert Measured(analysis).findings == ()


def test_what_the_host_does_after_the_last_kernel_of_a_step(analyzed: Analyze) -> None:
    """Loading after the kernels of a step that waits for them, and a call in which the host sits."""
    trace = KinetoTrace()
    trace.step(1, 0, 20 * MS)
    end = kernels(trace, 10 * US)
    trace.launch(200 * US, end - 190 * US, name="cudaDeviceSynchronize")
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", end + 50 * US, 16 * MS)
    assert analyzed(trace).bound.kind is BoundKind.INPUT
    trace = KinetoTrace()
    trace.step(1, 0, 20 * MS)
    end = kernels(trace, 10 * US)
    trace.launch(200 * US, 19 * MS, name="cudaDeviceSynchronize")
    measured = Measured(analyzed(trace))
    assert measured.bound.kind is BoundKind.BLOCKING
    assert Rule.BLOCKING_CALL in [finding.rule for finding in measured.findings]
