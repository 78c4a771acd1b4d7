"""Savings by replay: worked out by hand, alone and together, and what they leave open."""

from collections.abc import Callable
from typing import Final

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.documents.findings import Finding, Rule
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
