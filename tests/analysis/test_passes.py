"""A light pass (device activities only) joined with the pass that has the names."""

from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured, light_pass
from opscope.documents.findings import Where
from opscope.documents.verdict import BoundKind
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.reading import read
from opscope.render.markdown import render
from opscope.report.kernel_report import kernel_report
from opscope.report.trace_document import build_trace_document
from opscope.trace.model import Trace
from tests.conftest import ROOT
from tests.kineto import KinetoTrace

US = 1_000
DATA = ROOT / "tests" / "data" / "findings"
Load = Callable[[KinetoTrace], Trace]


def steps(period: int, *, names: bool, kernels: tuple[str, ...] = ("gemm", "add"), count: int = 2) -> KinetoTrace:
    """Two steps of two kernels of 20 us each; the host waits at the end of each."""
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    for number in range(count):
        begin = number * period
        if names:
            trace.step(number + 4, begin, period)
        for place, kernel in enumerate(kernels):
            start = begin + period // 4 * (place + 1)
            if names:
                trace.operator(f"aten::{kernel}", start - 10 * US, 9 * US)
            trace.launched_kernel(kernel, (start - 5 * US, 2 * US), (start, 20 * US), grid=[8, 1, 1])
        trace.launch(begin + 3 * period // 4, period // 4 - 2 * US, name="cudaDeviceSynchronize")
    return trace


def test_the_light_pass_has_the_steps_of_the_other_one(load: Load) -> None:
    full = analyze(load(steps(400 * US, names=True)))
    light = light_pass(load(steps(200 * US, names=False)), full)
    assert light.analysis is not None
    assert "4 activities" in light.sentence
    (device,) = light.analysis.devices
    assert [step.number for step in light.analysis.steps] == [4, 5]
    # The first step begins with its first call, at 45 us; each ends where the wait did, at 198 and 398 us.
    assert [step.span_ns for step in light.analysis.steps] == [153 * US, 200 * US]
    assert (device.busy_in_window_ns, device.idle_ns) == (80 * US, 273 * US)
    joined = Measured(full, step_time_ns=200 * US, light=light)
    assert joined.bound.device_share == pytest.approx(40 / 200)
    assert joined.timed is light.analysis


def test_a_step_more_in_front_tells_where_the_first_begins(load: Load) -> None:
    full = analyze(load(steps(400 * US, names=True)))
    light = light_pass(load(steps(200 * US, names=False, count=3)), full)
    assert light.analysis is not None
    assert [step.span_ns for step in light.analysis.steps] == [200 * US, 200 * US]
    (device,) = light.analysis.devices
    assert (device.activities, device.busy_in_window_ns, device.idle_ns) == (4, 80 * US, 320 * US)


def test_pauses_that_only_the_pass_with_names_has_are_the_profilers(load: Load) -> None:
    full = analyze(load(steps(2_000 * US, names=True)))  # half a millisecond between the launches
    light = light_pass(load(steps(200 * US, names=False)), full)
    assert Measured(full, step_time_ns=200 * US).bound.kind is BoundKind.HOST_WORK
    joined = Measured(full, step_time_ns=200 * US, light=light)
    assert joined.bound.kind is BoundKind.DISPATCH
    assert "dispatch_bound" in {finding.rule for finding in joined.findings}


@pytest.mark.parametrize("step_us", [8_000, None])
def test_what_a_longer_light_pass_waits_for_is_no_dispatch(load: Load, step_us: int | None) -> None:
    """Recording operators makes dispatch slower: what only the light pass waits for has another cause."""
    full = analyze(load(steps(400 * US, names=True)))
    assert Measured(full).bound.kind is BoundKind.DISPATCH
    light = light_pass(load(steps(8_000 * US, names=False)), full)  # two milliseconds between the launches
    assert light.analysis is not None
    joined = Measured(full, step_time_ns=None if step_us is None else float(step_us * US), light=light)
    assert joined.bound.kind is BoundKind.HOST_WORK
    (work,) = (finding for finding in joined.findings if finding.rule == "host_work")
    assert work.where == Where()  # no record of the light pass names what the host did
    # The verdict refers to the steps that the bars and tables show.
    (device,) = light.analysis.devices
    assert joined.step_evidence.not_theirs is None
    if step_us is None:
        assert joined.bound.device_share == pytest.approx(device.busy_in_window_ns / device.window.duration_ns)
        assert "recording device activities only slows the host down" in joined.bound.evidence
    else:
        assert joined.bound.sentence.endswith(
            "of the unprofiled step the device waits for the host's other work, then blocking calls (37.4 %)."
        )


@pytest.mark.parametrize(
    ("kernels", "sentence"),
    [
        (("gemm", "gelu"), "the launch number 2 is `gelu`, not `add`"),
        (("gemm",), "2 activities were launched, not 4"),
    ],
)
def test_passes_that_differ_are_not_joined(load: Load, kernels: tuple[str, ...], sentence: str) -> None:
    full = analyze(load(steps(400 * US, names=True)))
    light = light_pass(load(steps(200 * US, names=False, kernels=kernels)), full)
    assert light.analysis is None
    assert sentence in light.sentence
    joined = Measured(full, light=light)
    assert joined.timed is full
    document = build_trace_document(joined, NativeFunctions.shipped())
    assert document.light is not None
    assert not document.light.agrees
    assert document.timed_devices == document.devices
    assert sentence in render(kernel_report(document)).replace("\\", "")


def test_a_recorded_pair_agrees_and_is_less_slowed_down() -> None:
    full = analyze(read(DATA / "logged_losses.json.xz"))
    light = light_pass(read(DATA / "logged_losses.light.json.xz"), full)
    assert light.analysis is not None
    (one,), (other,) = light.analysis.devices, full.devices
    assert light.analysis.step_count == full.step_count == 3
    assert one.activities == other.activities
    assert one.sum_ns == pytest.approx(other.sum_ns, rel=0.01)
    assert one.window.duration_ns < 0.8 * other.window.duration_ns
    assert [step.activities for step in light.analysis.steps] == [step.activities for step in full.steps]


def test_documents_have_the_figures_of_the_light_pass_beside_the_others(load: Load) -> None:
    full: Analysis = analyze(load(steps(400 * US, names=True)))
    light = light_pass(load(steps(200 * US, names=False)), full)
    document = build_trace_document(Measured(full, light=light), NativeFunctions.shipped())
    assert document.light is not None
    assert document.timed_devices[0].idle_ns == 273 * US
    assert document.devices[0].idle_ns == (800 - 80) * US
    assert document.devices[0].sum_ns == sum(kernel.total_ns for kernel in document.kernels)
    text = render(kernel_report(document))
    assert "light pass (device activities only)" in text
