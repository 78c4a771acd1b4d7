"""Savings by replay: worked out by hand, alone and together, and what they leave open."""

from collections.abc import Callable
from typing import Final

import pytest

from opscope.analysis.advice.replayed import choices_of
from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.documents.findings import Finding, Rule
from opscope.readers.reading import read
from tests.conftest import DATA
from tests.kineto import KinetoTrace

Analyze = Callable[..., Analysis]
US: Final = 1_000
MS: Final = 1_000_000
STEP: Final = 20 * MS
H200: Final = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
FFMA: Final = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma"


def product(trace: KinetoTrace, at: int, start: int, took: int) -> None:
    """A product of 8192 x 2048 by 2048 x 8192 in FP32: 275 GFLOP, 556 us at TF32's 494.7 TFLOP/s."""
    inputs = {"Input Dims": [[8192, 2048], [2048, 8192]], "Input type": ["float", "float"]}
    trace.operator("aten::mm", at, 15 * US, **inputs)
    trace.launched_kernel(FFMA, (at + 8 * US, 4 * US), (start, took), grid=[128, 64, 1])


def steps_of_products(products: int, every: int, took: int) -> KinetoTrace:
    """Two steps: FP32 products issued one after the other, then a wait for the last one."""
    trace = KinetoTrace(deviceProperties=[H200])
    for number in range(2):
        begin = number * (STEP + MS)
        end = begin
        for place in range(products):
            at = begin + 10 * US + place * every
            end = max(end, at + 15 * US) + 1 * US
            product(trace, at, end, took)
            end += took
        waits = begin + 30 * US + (products - 1) * every
        trace.launch(waits, end + 3 * US - waits, name="cudaDeviceSynchronize")
        trace.step(number, begin, end + 5 * US - begin)
    return trace


def by_rule(analysis: Analysis, wall: float | None) -> dict[str, Finding]:
    return {finding.rule: finding for finding in Measured(analysis, step_time_ns=wall).findings}


def test_faster_work_saves_what_it_saves_where_the_device_is_the_bound(analyzed: Analyze) -> None:
    analysis = analyzed(steps_of_products(4, 20 * US, 4 * MS))
    own = by_rule(analysis, None)[Rule.FP32_PRODUCTS]
    # 556 us at 70 % of TF32's peak and 6.5 us instead of 4 ms, four times; the step has 16 ms.
    assert own.likely_ns == pytest.approx(4 * (4 * MS - 556 * US / 0.7 - 6.5 * US), rel=0.02)
    assert own.derivation.startswith("by replay")
    assert own.saving_ns.low < own.likely_ns < own.saving_ns.high < 16.1 * MS


def test_faster_work_saves_nothing_where_the_host_is_the_bound(analyzed: Analyze) -> None:
    """A product every 4 ms that takes 2 ms: only the last one's time counts."""
    analysis = analyzed(steps_of_products(4, 4 * MS, 2 * MS))
    own = by_rule(analysis, None)
    assert own[Rule.FP32_PRODUCTS].likely_ns == pytest.approx(2 * MS - 556 * US / 0.7 - 6.5 * US, rel=0.05)
    # Meanwhile the host does other work for nearly 4 ms, which hides three of four products.
    assert own[Rule.HOST_WORK].likely_ns > 4 * MS


def test_what_hides_each_other_is_named_as_a_pair(analyzed: Analyze) -> None:
    """The host does something else for 4 ms between two products of 2 ms: each alone leaves the other one's time."""
    analysis = analyzed(steps_of_products(4, 4 * MS, 2 * MS))
    own = by_rule(analysis, None)
    pair, parts = own[Rule.ONLY_TOGETHER], [own[Rule.FP32_PRODUCTS], own[Rule.HOST_WORK]]
    # Of 12 ms with three pauses of the host, shorter without the profiler, and a product, four products of 0.8 ms stay.
    assert pair.likely_ns == pytest.approx(9 * MS, rel=0.05)
    assert pair.likely_ns > sum(part.likely_ns for part in parts) + 0.05 * pair.of_step_ns
    assert all(part.action in pair.action for part in parts)
    assert set(pair.overlaps) == {part.id for part in parts}
    assert pair.todo == "TF32 or bf16 with less host work"


def test_all_together_are_one_replay(analyzed: Analyze) -> None:
    analysis = analyzed(steps_of_products(4, 4 * MS, 2 * MS))
    measured = Measured(analysis, step_time_ns=None)
    together = measured.advice.together
    assert together is not None
    assert {"fp32_products", "host_work"} <= set(together.findings)
    by_id = {finding.id: finding for finding in measured.findings}
    adds = [by_id[name].adds_ns for name in together.findings]
    assert all(one is not None and one > 0 for one in adds)
    assert sum(one for one in adds if one is not None) == pytest.approx(together.likely_ns, rel=0.01)
    assert together.saving_ns.low <= together.likely_ns <= together.saving_ns.high
    # Three products hide behind the host: together they save more than the sum.
    assert together.likely_ns > sum(by_id[name].likely_ns for name in together.findings)


def test_a_step_that_is_not_understood_keeps_its_sums(analyzed: Analyze) -> None:
    """Kernels that begin 5 ms after all that is known of them: no replay tells what they wait for."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for place in range(3):
        product(trace, (10 + 20 * place) * US, (5 + 5 * place) * MS, 1 * MS)
    trace.launch(100 * US, 16 * MS, name="cudaDeviceSynchronize")
    measured = Measured(analyzed(trace), step_time_ns=None)
    assert measured.advice.together is None
    assert not any(finding.derivation.startswith("by replay") for finding in measured.findings)
    assert all(finding.adds_ns is None for finding in measured.findings)


# ---------------------------------------------------------------- choices, and traces without steps


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in (DATA / "findings").glob("*.json.xz")
                                        if ".light." not in path.name)[::3])  # fmt: skip
def test_more_of_a_change_never_makes_a_step_longer(name: str) -> None:
    measured = Measured(analyze(read(DATA / "findings" / f"{name}.json.xz")))
    advice = measured.advice
    choices = choices_of(advice.replayed, advice.findings, advice.remedies)
    if choices is None:
        return
    count, kinds = len(choices.findings), len(choices.positions)
    assert len(choices.step_ns) == kinds**count
    overlaps = {finding.id: finding.overlaps for finding in advice.findings}
    assert not any(one in overlaps[other] for one in choices.findings for other in choices.findings)
    for place, step in enumerate(choices.step_ns):
        for below in (kinds**one for one in range(count)):
            if place // below % kinds:
                assert step <= choices.step_ns[place - below]


def test_a_recording_without_steps_is_saved_from_as_it_would_be_without_the_profiler(analyzed: Analyze) -> None:
    trace = steps_of_products(4, 20 * US, 4 * MS)
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    advice = Measured(analyzed(trace)).advice
    own = next(finding for finding in advice.findings if finding.rule == Rule.FP32_PRODUCTS)
    assert own.derivation.startswith("by replay")
    assert own.of_step == "recording without the profiler, as estimated"
    assert "of the recording without the profiler" in own.saving
    assert own.saving_ns.high <= own.of_step_ns


def test_repeated_casts_leave_the_first_of_each_weight(analyzed: Analyze) -> None:
    """Two forward passes an update: the casts of one of them go, of weights and of biases, by their time."""
    trace = KinetoTrace(deviceProperties=[H200])
    saved = 0
    for number in range(2):
        begin = number * STEP
        at = end = begin + 10 * US
        for _ in range(2):
            for layer in range(6):
                for dims, took in (([256 + 8 * layer, 512], 100 * US), ([256 + 8 * layer], 2 * US)):
                    shapes = {"Input Dims": [dims, dims], "Input type": ["c10::Half", "float"]}
                    trace.operator("aten::copy_", at, 9 * US, **shapes)
                    trace.launched_kernel("cast", (at + US, 5 * US), (end := max(end, at + 8 * US), took))
                    at, end = at + 10 * US, end + took + US
                    saved += took
                inputs = {"Input Dims": [[64, 512], [512, 256 + 8 * layer]], "Input type": ["c10::Half", "c10::Half"]}
                trace.operator("aten::mm", at, 9 * US, **inputs)
                trace.launched_kernel("hgemm", (at + US, 5 * US), (end := max(end, at + 8 * US), 20 * US))
                at, end = at + 10 * US, end + 21 * US
        for again in (False, True):
            trace.operator("torch::autograd::AccumulateGrad", at, 8 * US, tid=200)
            if again:
                trace.operator("aten::add_", at + US, 4 * US, tid=200)
            at += 10 * US
        trace.launch(at, end + 3 * US - at, name="cudaDeviceSynchronize")
        trace.step(number, begin, end + 5 * US - begin)
    own = by_rule(analyzed(trace), None)[Rule.REPEATED_CASTS]
    assert own.derivation.startswith("by replay")
    assert own.saving_ns.low <= own.likely_ns <= own.saving_ns.high
    # Half of the casts of each shape go, and the pauses after them; the device is the bound.
    assert own.likely_ns == pytest.approx(saved / 2 / 2, rel=0.1)
