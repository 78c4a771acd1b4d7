"""Findings on optimizers, and on devices that take turns; times in nanoseconds."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.documents.findings import Finding, Rule
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
Analyze = Callable[[KinetoTrace], Analysis]


def findings(analysis: Analysis) -> list[Finding]:
    return list(Measured(analysis).findings)


def test_two_optimizers_are_told_apart(analyzed: Analyze) -> None:
    """AdamW takes 20 kernels of 100 us a step, SGD three."""
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    at = 20 * US
    for name, kernels in (("AdamW", 20), ("SGD", 3)):
        begin = at
        for _ in range(kernels):
            trace.operator("aten::_foreach_add_", at, 90 * US)
            trace.launched_kernel("multi_tensor_apply_kernel", (at + 5 * US, 5 * US), (at + 20 * US, 100 * US))
            at += 100 * US
        trace.annotation(f"Optimizer.step#{name}.step", begin, at - begin)
    trace.launch(at, 10 * MS - at, name="cudaDeviceSynchronize")
    own = [finding for finding in findings(analyzed(trace)) if finding.rule == Rule.UNFUSED_OPTIMIZER]
    assert [finding.title for finding in own] == ["`AdamW` takes 20 kernels a step: a few kernels per operation"]


@pytest.mark.parametrize("closure", [False, True])
def test_a_closure_is_no_part_of_the_optimizer(closure: bool, analyzed: Analyze) -> None:
    """SGD takes 10 kernels of 100 us; before them come 12 of the forward pass and 12 of the backward pass.

    In one case they lie within its step, as with Lightning; in the other another thread's backward pass goes on beside
    the optimizer's step.
    """
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    at = 20 * US
    begin = at
    for number in range(12):
        trace.operator("aten::mm", at, 90 * US, **{"Sequence number": number, "Fwd thread id": 0})
        trace.launched_kernel("gemm", (at + 5 * US, 5 * US), (at + 20 * US, 100 * US))
        at += 110 * US
    for number in reversed(range(12)):
        node = "autograd::engine::evaluate_function: MmBackward0"
        trace.operator(node, at, 90 * US, tid=200, **{"Sequence number": number, "Fwd thread id": 1})
        trace.launched_kernel("gemm_t", (at + 5 * US, 5 * US), (at + 20 * US, 100 * US), tid=200)
        at += 110 * US
    begin = begin if closure else at
    for _ in range(10):
        trace.operator("aten::_foreach_add_", at, 90 * US)
        trace.launched_kernel("multi_tensor_apply_kernel", (at + 5 * US, 5 * US), (at + 20 * US, 100 * US))
        if not closure:
            trace.operator("autograd::engine::evaluate_function: MmBackward0", at + 10 * US, 20 * US, tid=201)
        at += 110 * US
    trace.annotation("Optimizer.step#SGD.step", begin, at - begin)
    trace.launch(at, 10 * MS - at, name="cudaDeviceSynchronize")
    analysis = analyzed(trace)
    assert analysis.phases == {"forward": 12 * 100 * US, "backward": 12 * 100 * US, "optimizer": 10 * 100 * US}
    (own,) = [finding for finding in findings(analysis) if finding.rule == Rule.UNFUSED_OPTIMIZER]
    assert own.title == "`SGD` takes 10 kernels a step: a few kernels per operation"
    # Its kernels run for 1 ms, and with the waits between them and before the first they take 1.2 ms.
    assert own.saving_ns.high <= 1_250 * US


def test_an_optimizer_whose_own_operators_are_recorded_by_autograd(analyzed: Analyze) -> None:
    """Without torch.no_grad() they have sequence numbers, too; nothing ran backward, so no closure ran."""
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    at = 20 * US
    for number in range(20):
        trace.operator("aten::add_", at, 90 * US, **{"Sequence number": number, "Fwd thread id": 0})
        trace.launched_kernel("add", (at + 5 * US, 5 * US), (at + 20 * US, 100 * US))
        at += 110 * US
    trace.annotation("Optimizer.step#Mine.step", 20 * US, at - 20 * US)
    trace.launch(at, 10 * MS - at, name="cudaDeviceSynchronize")
    analysis = analyzed(trace)
    assert analysis.phases == {"forward": 0, "backward": 0, "optimizer": 20 * 100 * US}


def test_collecting_garbage_costs_no_more_than_the_device_idles(analyzed: Analyze) -> None:
    """A step of 10 ms, of which the device works for 9; Python collects garbage for 2 ms."""
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    trace.operator("aten::mm", 0, 20 * US)
    trace.launched_kernel("gemm", (2 * US, 5 * US), (20 * US, 9 * MS))
    trace.launch(50 * US, 9_940 * US, name="cudaDeviceSynchronize")
    analysis = analyzed(trace)
    evidence = replace(analysis.evidence_with(steps=1, wall_ns=10.0 * MS, ran_on_gpu=True), collecting_ns=2.0 * MS)
    (own,) = [one for one in analysis.advice_with(evidence, None).findings if one.rule == Rule.GARBAGE_COLLECTION]
    assert own.saving_ns.high == pytest.approx(1 * MS)


@pytest.mark.parametrize("at_once", [False, True])
def test_devices_that_take_turns(at_once: bool, analyzed: Analyze) -> None:
    """Device 0 works for 4 ms, then device 1 for 3 ms; or both begin at once."""
    trace = KinetoTrace()
    trace.step(1, 0, 8 * MS)
    trace.operator("aten::mm", 0, 20 * US)
    trace.launched_kernel("gemm", (2 * US, 5 * US), (20 * US, 4 * MS), device=0)
    trace.operator("aten::mm", 30 * US, 20 * US)
    second = 20 * US if at_once else 4_100 * US
    trace.launched_kernel("gemm", (32 * US, 5 * US), (max(second, 40 * US), 3 * MS), device=1)
    trace.launch(100 * US, 8 * MS - 200 * US, name="cudaDeviceSynchronize")
    own = [finding for finding in findings(analyzed(trace)) if finding.rule == Rule.DEVICES_TAKE_TURNS]
    assert bool(own) is not at_once
    if own:
        assert own[0].saving_ns.high == pytest.approx(3 * MS, rel=0.01)
        assert own[0].saving_ns.low == 0


def test_pinning_memory_in_each_step(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    trace.operator("aten::pin_memory", 10 * US, 8 * MS)
    trace.launch(20 * US, 8 * MS - 20 * US, name="cudaHostAlloc")
    trace.operator("aten::mm", 8_100 * US, 20 * US)
    trace.launched_kernel("gemm", (8_102 * US, 5 * US), (8_110 * US, MS))
    trace.launch(8_150 * US, 1_800 * US, name="cudaDeviceSynchronize")
    own = next(finding for finding in findings(analyzed(trace)) if finding.rule == Rule.ALLOCATOR_CHURN)
    assert "pin memory once" in own.action
    assert "empty_cache" not in own.action


def test_reading_a_value_is_no_exposed_copy(analyzed: Analyze) -> None:
    """A copy of 4 bytes that takes 300 us of a step of 1 ms; of 1 MiB it is one."""
    for moved, is_copy in ((4, False), (1 << 20, True)):
        trace = KinetoTrace()
        trace.step(1, 0, MS)
        trace.operator("aten::mm", 0, 20 * US)
        trace.launched_kernel("gemm", (2 * US, 5 * US), (20 * US, 500 * US))
        trace.operator("aten::item", 30 * US, 900 * US)
        run = (530 * US, 300 * US)
        trace.launched_kernel(
            "Memcpy DtoH (Device -> Pinned)", (40 * US, 5 * US), run, category="gpu_memcpy", bytes=moved
        )
        trace.launch(50 * US, 850 * US, name="cudaStreamSynchronize")
        rules = [finding.rule for finding in findings(analyzed(trace))]
        assert (Rule.EXPOSED_COPY in rules) is is_copy


def test_other_changes_do_not_save_what_a_step_waits_for_data(analyzed: Analyze) -> None:
    """Recorded is a step of 10 ms with 4 ms of waiting for data; timed are 12 ms, with 9 ms of it.

    The host does something else for 4 ms of the recorded step.
    """
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    trace.operator("aten::mm", 0, 20 * US)
    trace.launched_kernel("gemm", (2 * US, 5 * US), (20 * US, 500 * US))
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    trace.annotation(loader, 4_900 * US, 4_090 * US)
    trace.operator("aten::sort", 560 * US, 4_300 * US)  # on tensors of the host
    trace.operator("aten::mm", 4_870 * US, 20 * US)
    trace.launched_kernel("gemm", (4_872 * US, 5 * US), (4_880 * US, 10 * US))
    trace.operator("aten::mm", 9_000 * US, 20 * US)
    trace.launched_kernel("gemm", (9_002 * US, 5 * US), (9_010 * US, 500 * US))
    trace.launch(9_050 * US, 940 * US, name="cudaDeviceSynchronize")
    analysis = analyzed(trace)
    evidence = analysis.evidence_with(steps=1, wall_ns=12.0 * MS, ran_on_gpu=True)
    unaware = {finding.rule: finding.saving_ns for finding in analysis.advice_with(evidence, None).findings}
    assert unaware[Rule.HOST_WORK].high > 4 * MS
    aware = analysis.advice_with(replace(evidence, data_ns=9.0 * MS), None).findings
    saved = {finding.rule: finding.saving_ns for finding in aware}
    assert saved[Rule.INPUT_PIPELINE].high == pytest.approx(9 * MS)
    assert saved[Rule.HOST_WORK].high <= 3 * MS
    assert aware[0].rule == Rule.INPUT_PIPELINE
