"""Traces that others recorded: what an expert accepts of them; and the phenomena behind, by hand."""

import json
from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.documents.findings import Rule
from opscope.documents.verdict import BoundKind
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.decoded import Operation
from opscope.readers.reading import read
from tests.conftest import ROOT
from tests.kineto import KinetoTrace

DATA = ROOT / "tests" / "data" / "foreign"
EXPECTED = json.loads((DATA / "expected.json").read_text())
US, MS = 1_000, 1_000_000
Analyze = Callable[[KinetoTrace], Analysis]


@pytest.mark.parametrize("name", EXPECTED)
def test_what_an_expert_accepts(name: str) -> None:
    measured, accepted = Measured(analyze(read(DATA / name))), EXPECTED[name]
    assert measured.bound.kind in accepted["bound"]
    assert len(measured.bound.sentence.split()) <= 25
    first = [finding.rule for finding in measured.findings[:3]]
    if accepted["one_of_the_first_three"] is not None:
        assert set(first) & set(accepted["one_of_the_first_three"])
    for finding in measured.findings:
        if finding.rule in accepted["never_more_than_5_percent"]:
            assert finding.saving_ns.high <= 0.05 * finding.of_step_ns
        said = " ".join((finding.title, finding.derivation, finding.action, *(fact.text for fact in finding.evidence)))
        assert not [word for word in accepted["never_says"] if word in said]


def bound(analyzed: Analyze, trace: KinetoTrace) -> tuple[BoundKind, set[str], str]:
    measured = Measured(analyzed(trace))
    verdict = measured.bound
    return verdict.kind, {finding.rule for finding in measured.findings}, f"{verdict.sentence} {verdict.evidence}"


def kernels(trace: KinetoTrace, begin: int, count: int, every: int, time: int = 50 * US) -> int:
    """Issue some kernels, each by an operator; return when the last one ends."""
    for number in range(count):
        at = begin + number * every
        trace.operator("aten::mul", at, 12 * US)
        trace.launched_kernel("void mul_kernel(float*)", (at + 2 * US, 6 * US), (at + 10 * US, time))
    return begin + count * every + time


def test_work_from_before_the_recording_is_neither_idle_time_nor_latency(analyzed: Analyze) -> None:
    """A kernel starts 400 ms after its launch, while the host sits in a copy: the device worked on what was queued."""
    trace = KinetoTrace()
    trace.launched_kernel("void mul_kernel(float*)", (100 * US, 5 * US), (400 * MS, 50 * US))
    trace.launch(120 * US, 400 * MS - 20 * US, name="hipMemcpyWithStream")
    kernels(trace, 400 * MS + 60 * US, 40, 60 * US)
    kind, _, sentence = bound(analyzed, trace)
    assert kind is BoundKind.DEVICE, sentence
    # The same without the wait is latency that nothing explains.
    alone = KinetoTrace()
    alone.launched_kernel("void mul_kernel(float*)", (100 * US, 5 * US), (400 * MS, 50 * US))
    alone.launched_kernel("void add_kernel(float*)", (50 * US, 5 * US), (60 * US, 50 * US))
    kernels(alone, 400 * MS + 60 * US, 40, 60 * US)
    assert bound(analyzed, alone)[0] is not BoundKind.DEVICE


def test_a_capture_is_not_a_step(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    end = kernels(trace, 10 * US, 2, 100 * US)
    trace.launch(end, 5 * US, name="cudaStreamBeginCapture")
    for number in range(50):
        trace.operator("aten::mul", end + (number + 1) * 100 * US, 20 * US)
        trace.launch(end + (number + 1) * 100 * US + 5 * US, 5 * US)
    trace.launch(end + 52 * 100 * US, 5 * US, name="cudaStreamEndCapture")
    kernels(trace, end + 60 * 100 * US, 2, 100 * US)
    kind, rules, sentence = bound(analyzed, trace)
    assert kind is BoundKind.CAPTURE
    assert not rules
    assert "50 of 54 launches" in sentence


@pytest.mark.parametrize(
    ("name", "took"), [("cudaLaunchKernel", 80 * MS), ("cudaFree", 90 * MS), ("hipMalloc", 70 * MS)]
)
def test_what_sets_up_a_context_or_loads_code_is_a_cold_start(name: str, took: int, analyzed: Analyze) -> None:
    trace = KinetoTrace()
    end = kernels(trace, 10 * US, 10, 100 * US)
    if name == "cudaLaunchKernel":
        trace.launched_kernel("void first(float*)", (end, took), (end + took, 20 * US))
    else:
        trace.launch(end, took, name=name)
    kernels(trace, end + took + 50 * US, 10, 100 * US)
    kind, rules, _ = bound(analyzed, trace)
    assert kind is BoundKind.COLD_START
    assert Rule.COLD_START in rules
    assert Rule.ALLOCATOR_CHURN not in rules


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("warmup step", True), ("[model|0|Warm-Up|forward]", True), ("lr_warmup", False), ("warmup_steps=100", False)],
)
def test_ranges_that_call_themselves_warm_up(name: str, is_one: bool, analyzed: Analyze) -> None:
    trace = KinetoTrace()
    end = kernels(trace, 10 * US, 40, 20 * US)
    trace.annotation(name, 0, end)
    kind, rules, sentence = bound(analyzed, trace)
    assert (kind is BoundKind.COLD_START) is is_one, sentence
    if is_one:
        assert rules == {Rule.COLD_START}
        assert "profile later steps" in sentence


def test_the_part_that_calls_itself_warm_up_is_told(analyzed: Analyze) -> None:
    """The device works from 20 us to 850 us, and the range ends at 642.5 us: three quarters of that."""
    trace = KinetoTrace()
    kernels(trace, 10 * US, 40, 20 * US)
    trace.annotation("warmup step", 0, 642_500)
    (finding,) = Measured(analyzed(trace)).findings
    assert finding.title == "75.0 % of the recording is in ranges that call themselves warm-up"


def test_a_launch_that_waits_for_room_in_its_queue_is_not_cold(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("void mul_kernel(float*)", (0, 5 * US), (10 * US, 60 * MS))
    trace.launched_kernel("void mul_kernel(float*)", (20 * US, 59 * MS), (60 * MS + 20 * US, 10 * MS))
    assert bound(analyzed, trace)[0] is BoundKind.DEVICE


def test_where_the_host_was_not_recorded_nothing_is_said_of_it(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    kernels(trace, 10 * US, 5, 100 * US)
    kernels(trace, 900 * MS, 5, 100 * US)
    kind, rules, sentence = bound(analyzed, trace)
    assert kind is BoundKind.UNKNOWN
    assert Rule.HOST_WORK not in rules
    assert "Operators and calls of the host cover" in sentence


def test_a_program_with_a_gpu_whose_device_was_not_recorded_did_not_run_on_the_cpu(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, MS)
    assert bound(analyzed, trace)[0] is BoundKind.HOST_ONLY
    trace.operator("aten::pin_memory", MS, MS)
    kind, _, sentence = bound(analyzed, trace)
    assert kind is BoundKind.UNKNOWN
    assert "aten::pin_memory" in sentence


@pytest.mark.parametrize("name", ["batched_transpose_16x64_pack_1x4_half", "batched_transpose_32x32_half"])
def test_layout_changes_by_miopen_are_known(name: str) -> None:
    assert decode_name(name).operation is Operation.LAYOUT_CHANGE
