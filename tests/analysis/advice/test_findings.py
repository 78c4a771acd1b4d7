"""Each rule on a step of 10 ms worked out by hand: where it holds, and where it must not fire. Times in nanoseconds."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.advice.advised import STATEMENTS, first_screen_of
from opscope.analysis.advice.context import Draft, Range
from opscope.analysis.advice.on_cpu import CPU_STATEMENTS as ON_CPU
from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.documents.findings import Finding, Rule, StepBasis, Where
from opscope.documents.verdict import Verdict
from opscope.report.brief import first_screen, first_things
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
STEP = 10 * MS
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
FFMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
    "__5x_cublas"
)
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT"
UNALIGNED = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_nn_align1>"
    "(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_nn_align1::Params)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >(int)"
)
Analyze = Callable[[KinetoTrace], Analysis]


class Step:
    """A step on an H200 whose host issues calls ahead of the device."""

    def __init__(self) -> None:
        self.trace = KinetoTrace(deviceProperties=[H200])
        self.trace.step(1, 0, STEP)
        self.host = self.device = 10 * US

    def call(
        self,
        operator: str,
        kernel: str,
        time: int,
        dims: list[Any],
        types: list[str],
        *,
        values: list[str] | None = None,
        strides: list[Any] | None = None,
        grid: tuple[int, int, int] = (1320, 1, 1),
        around: str | None = None,
        category: str = "kernel",
    ) -> None:
        """One operator with one kernel, right after the one before."""
        args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values or [""] * len(dims)}
        if strides is not None:
            args["Input Strides"] = strides
        if around is not None:
            self.trace.operator(around, self.host - 500, 9_500)
        self.trace.operator(operator, self.host, 8 * US, **args)
        start = max(self.device, self.host + 6 * US)
        self.trace.launched_kernel(
            kernel, (self.host + 2 * US, 3 * US), (start, time), category=category, grid=list(grid), block=[128, 1, 1]
        )
        self.host, self.device = self.host + 10 * US, start + time

    def product(self, kernel: str, time: int, sizes: tuple[int, int, int], dtype: str, **more: Any) -> None:
        rows, depth, columns = sizes
        self.call("aten::mm", kernel, time, [[rows, depth], [depth, columns]], [dtype, dtype], **more)

    def done(self) -> KinetoTrace:
        """Let the host wait for the device until the end of the step."""
        self.trace.launch(self.host, STEP - 10 * US - self.host, name="cudaDeviceSynchronize")
        return self.trace


def found(analysis: Analysis, wall: float | None = STEP) -> list[Finding]:
    evidence = analysis.evidence_with(steps=1, wall_ns=wall, ran_on_gpu=True)
    return list(analysis.findings_with(evidence, None))


def rules(analysis: Analysis, wall: float | None = STEP) -> list[str]:
    return [finding.rule for finding in found(analysis, wall)]


# 4096^3 products: 137.4 GFLOP; 2.05 ms at the FP32 cores' 66.9 TFLOP/s, 278 us at TF32's 494.7, 139 us at BF16's 989.4.
CUBE = (4096, 4096, 4096)


def test_products_on_the_fp32_cores(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(4):
        step.product(FFMA, 2_400 * US, CUBE, "float")
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.FP32_PRODUCTS
    # TF32's limit is 277.8 us a product. It was measured to reach 83 % of that and 4.5 us, 70 % and 6.5 us, or 48 %
    # and 6.9 us; 2 % of the step and 8 % of what remains of it are left open on both sides.
    reached = ((0.83, 4.5), (0.7, 6.5), (0.48, 6.9))
    high, likely, low = (4 * (2_400 - 277.8 / share - more) * US for share, more in reached)
    assert first.saving_ns.high == pytest.approx(high + 0.02 * STEP + 0.08 * (STEP - high), rel=0.01)
    assert first.likely_ns == pytest.approx(likely, rel=0.01)
    assert first.saving_ns.low == pytest.approx(low - 0.02 * STEP - 0.08 * (STEP - low), rel=0.01)
    assert first.derivation.startswith("by replay: TF32 at 70% (48% to 83%) of the limit")
    assert first.where.operator == "aten::mm"
    assert "set_float32_matmul_precision" in first.action


def test_products_on_the_tensor_cores_near_their_limit_are_left_alone(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(50):
        step.product(BF16, 199 * US, CUBE, "c10::BFloat16")
    analysis = analyzed(step.done())
    assert rules(analysis) == [Rule.NEAR_LIMIT]
    (finding,) = found(analysis)
    assert (finding.saving_ns.low, finding.saving_ns.high) == (0, 0)


def test_copies_at_the_limit_of_the_memory_may_be_needless(analyzed: Analyze) -> None:
    """A 2 GB tensor is read and written in 895 us at 4.8 TB/s."""
    step = Step()
    for _ in range(9):
        step.call(
            "aten::copy_",
            "Memcpy DtoD (Device -> Device)",
            1_105 * US,
            [[1 << 29]] * 2,
            ["float"] * 2,
            category="gpu_memcpy",
        )
    analysis = analyzed(step.done())
    measured = Measured(analysis, step_time_ns=STEP)
    (finding,) = measured.findings
    assert finding.rule == "near_limit"
    assert "in how it is done" in finding.title
    assert "whether these data must be moved at all, no trace tells" in finding.action


def test_a_step_that_has_no_room_for_the_work_is_another_one(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(5):
        step.product(FFMA, 1_800 * US, CUBE, "float")
    analysis = analyzed(step.done())
    measured = Measured(analysis, step_time_ns=STEP / 2)
    assert "may have run meanwhile, or other steps were timed. It does not count" in measured.bound.evidence
    assert measured.bound.kind == "device"
    (check,) = (one for one in measured.trust.checks if one.name == "same_steps")
    assert check.verdict is Verdict.WARN
    assert check.sentence == (
        "Shares and savings refer to recorded steps. An unprofiled step of 5.000 ms is shorter than the device's work "
        "in a recorded one (9.000 ms): other programs may have run meanwhile, or other steps were timed."
    )
    assert any(line.startswith("WARN same_steps: Shares") for line in first_screen(measured).failed)
    assert not any(one.name == "same_steps" for one in Measured(analysis, step_time_ns=STEP).trust.checks)
    assert found(analysis, wall=STEP / 2) == found(analysis, wall=None)


@pytest.mark.parametrize(("columns", "fires"), [(50257, True), (50304, False)])
def test_sizes_that_keep_the_fast_kernels_away(analyzed: Analyze, columns: int, fires: bool) -> None:
    step = Step()
    for _ in range(4):  # 158 GFLOP: 160 us at the limit
        step.product(UNALIGNED if fires else BF16, 1_600 * US, (2048, 768, columns), "c10::BFloat16")
    names = rules(analyzed(step.done()))
    assert (Rule.UNALIGNED_SIZES in names) is fires
    assert (Rule.SLOW_PRODUCT_KERNEL in names) is not fires  # nothing else explains it


def test_double_precision_is_named(analyzed: Analyze) -> None:
    step = Step()
    dgemm = "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_warpsize2x2x1_tensor16x8x8"
    for _ in range(4):
        step.product(dgemm, 2_300 * US, CUBE, "double")
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.SLOW_PRODUCT_KERNEL
    assert "double precision" in first.title


@pytest.mark.parametrize(("blocks", "fires"), [(4, True), (132, False)])
def test_a_grid_that_is_smaller_than_the_device(analyzed: Analyze, blocks: int, fires: bool) -> None:
    step = Step()
    for _ in range(10):
        step.call(
            "aten::_softmax", "softmax", 900 * US, [[4, 100_000], [], []], ["float", "Scalar", "Scalar"],
            values=["", "-1", "False"], grid=(blocks, 1, 1),
        )  # fmt: skip
    assert (Rule.SMALL_GRID in rules(analyzed(step.done()))) is fires


def dispatching(busy: int) -> KinetoTrace:
    """An operator every 20 us, whose kernel takes so long."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for start in range(0, STEP, 20 * US):
        trace.operator("aten::add", start, 18 * US)
        trace.launched_kernel("add", (start + 8 * US, 4 * US), (start + 13 * US, busy))
    return trace


def test_a_device_that_waits_for_launches(analyzed: Analyze) -> None:
    (first, *_) = found(analyzed(dispatching(2 * US)))
    assert first.rule == Rule.DISPATCH_BOUND
    assert first.saving_ns.high == pytest.approx(9 * MS, rel=0.01)
    # A graph leaves 1 ms of work and about half a millisecond of pauses; less 2 % of the step and 8 % of what is left.
    assert 8 * MS < first.saving_ns.low < (9 - 0.5 - 0.2) * MS


def test_without_a_step_time_the_range_is_what_the_profiler_leaves_open(analyzed: Analyze) -> None:
    (first, *_) = found(analyzed(dispatching(2 * US)), wall=None)
    assert first.rule == Rule.DISPATCH_BOUND
    # Without the profiler the step is shorter than the 10 ms recorded, and at least its 1 ms of work stays.
    assert 1 * MS < first.saving_ns.low < first.likely_ns < first.saving_ns.high < 8.09 * MS
    # That it is near its limit does not follow without shapes.
    assert rules(analyzed(dispatching(19_900)), wall=None) == [Rule.DEAREST_WORK]


# ---------------------------------------------------------------- advice by the kind of program


@pytest.mark.parametrize(
    ("around", "says"),
    [
        ("execute_context_0(0)_generation_8(8)", "without --enforce-eager"),
        ("execute_diffusion_4_1024x1024", "replay a CUDA graph for each batch size"),
        ("vllm/v1/worker/gpu_worker.py(3): execute_model", "without --enforce-eager"),
        ("sglang/srt/managers/scheduler.py(7): run_batch", "without --disable-cuda-graph"),
        ("tensorrt_llm/_torch/pyexecutor/py_executor.py(9): _forward_step", "cuda_graph_config"),
        ("/opt/venv/site-packages/vllm/v1/worker/gpu_worker.py(3): execute_model", "without --enforce-eager"),
        ("step[DECODE bs=32]", "without --disable-cuda-graph"),
        ("/home/u/vllm-notes/infer.py(3): main", "mode='reduce-overhead'"),
        ("<string>(1): compare_with_vllm", "mode='reduce-overhead'"),
        ("train.py(10): step", "mode='reduce-overhead'"),
        ("mysvllmish.py(10): step", "mode='reduce-overhead'"),
    ],
)
def test_launches_are_made_fewer_as_the_program_allows(analyzed: Analyze, around: str, says: str) -> None:
    trace = dispatching(2 * US)
    if around.startswith(("execute", "step[")):
        trace.annotation(around, 0, STEP)
    else:
        trace.slice("python_function", around, 0, STEP)
    (first, *_) = found(analyzed(trace))
    assert first.rule == Rule.DISPATCH_BOUND
    assert says in first.action


def test_a_server_that_trains_is_no_server(analyzed: Analyze) -> None:
    trace = dispatching(2 * US)
    trace.slice("python_function", "vllm/worker.py(3): step", 0, STEP)
    trace.operator("autograd::engine::evaluate_function: AddBackward0", 9 * MS, 18 * US, tid=101)
    assert "reduce-overhead" in found(analyzed(trace))[0].action


def test_no_graph_of_cuda_is_advised_on_other_devices(analyzed: Analyze) -> None:
    trace = dispatching(2 * US)
    for event in trace.events:
        if event["cat"] == "cuda_runtime":
            event |= {"cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"}
    (first, *_) = found(analyzed(trace))
    assert first.rule == Rule.DISPATCH_BOUND
    assert "CUDA" not in first.action + (first.todo or "")
    assert "graph" not in first.wrong_if + first.derivation


def test_the_place_of_launches_is_where_most_of_the_waiting_is(analyzed: Analyze) -> None:
    # The longest wait, of 1 ms, is in the loss; the blocks have 300 waits of 13 us, thrice as much.
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for number in range(300):
        start = number * 20 * US
        trace.operator("aten::add", start, 18 * US)
        trace.launched_kernel("add", (start + 8 * US, 4 * US), (start + 13 * US, 7 * US))
    trace.slice("python_function", "train.py(20): blocks", 0, 6 * MS)
    trace.slice("python_function", "train.py(30): loss", 6 * MS, 3 * MS)
    for start in range(6 * MS, 7 * MS, 20 * US):  # short operators, which launch nothing
        trace.operator("aten::view", start, 18 * US)
    trace.operator("aten::mean", 7 * MS, 18 * US)
    trace.launched_kernel("mean", (7 * MS + 8 * US, 4 * US), (7 * MS + 13 * US, 3 * MS - 20 * US))
    dispatch = next(finding for finding in found(analyzed(trace)) if finding.rule == Rule.DISPATCH_BOUND)
    assert dispatch.where.python == "train.py(20): blocks"


def own_kernel(name: str, *, time: int) -> KinetoTrace:
    """A step that waits 3 ms for other work of the host, and whose kernel, which no operator launches, takes most."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    trace.launched_kernel(name, (5 * US, 2 * US), (10 * US, time))
    trace.launch(10 * US, time + 2 * US, name="cudaDeviceSynchronize")
    trace.launched_kernel("fill", (9_980 * US, 2 * US), (9_985 * US, 10 * US))
    return trace


def test_a_kernel_that_is_the_program_is_named(analyzed: Analyze) -> None:
    first, second, named, *_ = found(analyzed(own_kernel("matmul_k(float*, float*, int)", time=7 * MS)), wall=None)
    assert min(first.saving_ns.high, second.saving_ns.high) > 0
    assert named.rule == Rule.DEAREST_WORK
    assert "One kernel takes 70.0 % of the step: `matmul_k" in named.title
    assert "(7.000 ms per step)" in named.title
    assert named.where.kernel == "matmul_k(float*, float*, int)"
    assert named.saving_ns.high == 0  # how far it is from its limit is not known
    assert named.is_first


def test_a_kernel_on_several_streams_at_once_takes_the_time_of_one(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for stream in (7, 8, 9):
        trace.launched_kernel("my_kernel", (5 * US, 2 * US), (10 * US, 9 * MS), stream=stream)
    trace.launch(10 * US, 9_002 * US, name="cudaDeviceSynchronize")
    (named,) = [one for one in found(analyzed(trace), wall=None) if one.rule == Rule.DEAREST_WORK]
    assert "One kernel takes 90.0 % of the step: `my_kernel` (9.000 ms per step)" in named.title


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("matmul_k(float*, float*, int)", 2_900 * US),  # less than three tenths of the step
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 7 * MS),
    ],
)
def test_a_kernel_that_is_little_of_it_or_moves_data_is_not(analyzed: Analyze, name: str, time: int) -> None:
    assert Rule.DEAREST_WORK not in rules(analyzed(own_kernel(name, time=time)), wall=None)


def test_a_kernel_near_its_limit_or_of_another_finding_is_not_named(analyzed: Analyze) -> None:
    """A product of BF16 at its limit has nothing to look into; of one in FP32 another rule speaks already."""
    for kernel in (BF16, FFMA):
        step = Step()
        step.call("aten::mm", kernel, 9 * MS, [[16384, 16384], [16384, 16384]], ["c10::BFloat16"] * 2)
        assert Rule.DEAREST_WORK not in rules(analyzed(step.trace), wall=None)


def iterations(wait: str | None, *, operator: str | None = None, work: int = 60 * US) -> KinetoTrace:
    """Every 100 us 60 us of work, that takes 20 us to issue, and then perhaps a wait for it."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for begin in range(0, STEP - 100 * US, 100 * US):
        trace.operator("aten::mm", begin, 18 * US)
        trace.launched_kernel("gemm", (begin + 8 * US, 4 * US), (begin + 20 * US, work))
        if operator is not None:
            trace.operator(operator, begin + 21 * US, work + 4 * US)
        if wait is not None:
            trace.launch(begin + 22 * US, work, name=wait)
    trace.launch(STEP - 50 * US, 20 * US, name="cudaDeviceSynchronize")
    return trace


@pytest.mark.parametrize(
    ("wait", "operator", "rule"),
    [
        ("cudaStreamSynchronize", "aten::_local_scalar_dense", Rule.BLOCKING_READ),
        ("cudaStreamSynchronize", "aten::nonzero", Rule.BLOCKING_READ),
        ("cudaDeviceSynchronize", None, Rule.EXPLICIT_SYNC),
        ("cudaEventSynchronize", None, Rule.EXPLICIT_SYNC),
        ("hipDeviceSynchronize", None, Rule.EXPLICIT_SYNC),
    ],
)
def test_waits_that_keep_the_host_from_running_ahead(
    analyzed: Analyze, wait: str, operator: str | None, rule: Rule
) -> None:
    analysis = analyzed(iterations(wait, operator=operator))
    (first, *_) = found(analysis)
    assert first.rule == rule
    # The step becomes the device's 6 ms of work; a part of its 10 ms may be due to the profiler.
    assert 3.4 * MS < first.likely_ns < 4 * MS
    assert first.saving_ns.high > 3.9 * MS
    assert first.where.call == wait
    assert "98 times a step" in first.title  # after the last one the step launches nothing


def test_the_wait_at_the_end_of_a_step_is_no_finding(analyzed: Analyze) -> None:
    names = rules(analyzed(iterations(None)))
    assert Rule.EXPLICIT_SYNC not in names
    assert Rule.BLOCKING_READ not in names


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Memcpy HtoD (Pageable -> Device)", Rule.BLOCKING_COPY),
        ("Memcpy HtoD (Pinned -> Device)", Rule.EXPOSED_COPY),
        ("Memcpy DtoD (Device -> Device)", None),
    ],
)
def test_copies_that_nothing_runs_beside(analyzed: Analyze, name: str, rule: Rule | None) -> None:
    step = Step()
    step.call("aten::copy_", name, 6 * MS, [[1 << 22], [1 << 22]], ["float", "float"], category="gpu_memcpy")
    for event in step.trace.events:
        if event["name"] == name:
            event["args"]["bytes"] = 6_000_000  # 1 GB/s
    step.product(BF16, 3 * MS, (8192, 8192, 16384), "c10::BFloat16")
    copies = [f for f in found(analyzed(step.done())) if f.rule in (Rule.BLOCKING_COPY, Rule.EXPOSED_COPY)]
    assert [f.rule for f in copies] == ([] if rule is None else [rule])
    if rule is Rule.BLOCKING_COPY:  # 6 MB of pinned memory take 0.12 ms at 50 GB/s
        assert copies[0].likely_ns == pytest.approx(5.88 * MS, rel=0.02)


def test_a_copy_beside_work_is_no_finding(analyzed: Analyze) -> None:
    step = Step()
    step.product(BF16, 9 * MS, (8192, 8192, 16384), "c10::BFloat16")
    step.trace.launched_kernel(
        "Memcpy HtoD (Pageable -> Device)", (40 * US, 5 * US), (60 * US, 8 * MS), stream=9, category="gpu_memcpy"
    )
    assert Rule.BLOCKING_COPY not in rules(analyzed(step.done()))


def waiting(between: Callable[[KinetoTrace], None]) -> KinetoTrace:
    """A millisecond of work, 7 ms of something else, a millisecond of work."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for begin, end in ((10 * US, MS), (9 * MS, 9_900 * US)):
        trace.operator("aten::mm", begin - 9 * US, 8 * US)
        trace.launched_kernel("gemm", (begin - 5 * US, 2 * US), (begin, end - begin))
        trace.launch(begin, end - begin + 2 * US, name="cudaDeviceSynchronize")
    between(trace)
    return trace


@pytest.mark.parametrize(
    ("between", "rule"),
    [
        (lambda trace: trace.annotation("enumerate(DataLoader)#_Single.__next__", 1_100 * US, 7_500 * US),
         Rule.INPUT_PIPELINE),
        (lambda trace: trace.annotation("preprocess", 1_100 * US, 7_500 * US), Rule.HOST_WORK),
        (lambda trace: trace.launch(1_010 * US, 7_900 * US, name="cudaMalloc"), Rule.ALLOCATOR_CHURN),
        (lambda trace: trace.launch(1_010 * US, 7_900 * US, name="cuLibraryLoadData"), Rule.COLD_START),
        (lambda trace: trace.annotation("entire_frame_compile (dynamo_timed)", 1_010 * US, 7_900 * US),
         Rule.RECOMPILATION),
    ],
)  # fmt: skip
def test_what_the_host_does_meanwhile(analyzed: Analyze, between: Callable[[KinetoTrace], None], rule: Rule) -> None:
    (first, *_) = found(analyzed(waiting(between)))
    assert first.rule == rule
    # Of other work a part is assumed to stay.
    assert 6 * MS < first.likely_ns < 8.1 * MS
    assert first.likely_ns < first.saving_ns.high < 8.5 * MS


def test_work_that_waits_for_another_stream(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    trace.launched_kernel("first", (10 * US, 5 * US), (20 * US, 500 * US))
    trace.launched_kernel("second", (30 * US, 5 * US), (9 * MS, 500 * US), stream=9)
    trace.launch(40 * US, 9_900 * US, name="cudaDeviceSynchronize")
    assert rules(analyzed(trace))[0] == Rule.STREAM_DEPENDENCY


def test_queued_work_of_the_only_stream_waits_for_no_other_one(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    trace.launched_kernel("first", (10 * US, 5 * US), (20 * US, 500 * US))
    trace.launched_kernel("second", (30 * US, 5 * US), (9 * MS, 500 * US))
    trace.launch(40 * US, 9_900 * US, name="cudaDeviceSynchronize")
    analysis = analyzed(trace)
    assert Rule.STREAM_DEPENDENCY not in rules(analysis)
    assert "waits for other streams, devices or programs" in Measured(analysis, step_time_ns=STEP).bound.sentence


def chain(names: list[str], elements: int = 1 << 24) -> KinetoTrace:
    step = Step()
    for name in names:
        step.call(name, ADD, 300 * US, [[elements], [elements]], ["float", "float"])
    step.product(BF16, 9 * MS - len(names) * 300 * US, (8192, 8192, 16384), "c10::BFloat16")
    return step.done()


def test_elementwise_kernels_one_after_the_other(analyzed: Analyze) -> None:
    names = ["aten::add", "aten::mul", "aten::tanh", "aten::sub", "aten::mul", "aten::add"] * 2
    (first, *_) = found(analyzed(chain(names)))
    assert first.rule == Rule.FUSIBLE_CHAIN
    # What is left of 12 kernels reads 64 MiB and writes as much: 28 us at 4.8 TB/s, of which 66 % are likely reached.
    assert first.likely_ns == pytest.approx((12 * 300 - 28 / 0.66 - 2.2) * US, rel=0.01)
    assert first.saving_ns.high <= 12 * 300 * US + 0.05 * STEP  # other work may find its data in the cache


def test_the_same_operator_over_and_over_may_work_on_other_tensors(analyzed: Analyze) -> None:
    assert Rule.FUSIBLE_CHAIN not in rules(analyzed(chain(["aten::add_"] * 12)))
    assert Rule.FUSIBLE_CHAIN not in rules(analyzed(chain(["aten::add"])))


def test_a_chain_ends_with_its_step(analyzed: Analyze) -> None:
    """Four kernels in each of two steps, with nothing in between; the last one ends outside of the steps."""
    trace, ms = KinetoTrace(deviceProperties=[H200]), MS
    names = ("aten::add", "aten::mul", "aten::tanh", "aten::sub")
    for number in range(2):
        begin = number * 8 * ms
        trace.step(number, begin, 8 * ms)
        for place, name in enumerate(names):
            start = begin + place * 2 * ms
            inputs = {"Input Dims": [[1 << 24], [1 << 24]], "Input type": ["float", "float"]}
            trace.operator(name, start, 20 * US, **inputs)
            trace.launched_kernel(ADD, (start + 5 * US, 5 * US), (start + 50 * US, 2 * ms - 1 * US))
    finding = next(one for one in found(analyzed(trace)) if one.rule == Rule.FUSIBLE_CHAIN)
    # Two chains, of four and of three kernels: all but one of each could go, not all but one of the seven.
    assert finding.saving_ns.high == pytest.approx(0.95 * 5 * (2 * ms - 1 * US), rel=0.001)


def test_attention_that_is_written_out(analyzed: Analyze) -> None:
    step = Step()
    scores, heads = [16, 4096, 4096], [16, 4096, 64]
    bf16 = "c10::BFloat16"
    step.call("aten::bmm", BF16, 900 * US, [heads, [16, 64, 4096]], [bf16, bf16])
    step.call("aten::mul", ADD, 700 * US, [scores, []], [bf16, "double"])
    step.call("aten::_softmax", "softmax", 900 * US, [scores, [], []], [bf16, "Scalar", "Scalar"],
              values=["", "-1", "False"])  # fmt: skip
    step.call("aten::bmm", BF16, 900 * US, [scores, heads], [bf16, bf16])
    step.product(BF16, 5 * MS, (8192, 8192, 16384), bf16)
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.EAGER_ATTENTION
    assert first.saving_ns.high <= 3_400 * US + 0.05 * STEP
    other = Step()  # a softmax over classes is not an attention
    other.call("aten::_softmax", "softmax", 3 * MS, [[65536, 4096], [], []], [bf16, "Scalar", "Scalar"],
               values=["", "-1", "False"])  # fmt: skip
    other.product(BF16, 6 * MS, (8192, 8192, 16384), bf16)
    assert Rule.EAGER_ATTENTION not in rules(analyzed(other.done()))


@pytest.mark.parametrize(("kernel", "fires"), [(ADD, True), ("FusedAdamMathFunctor<float, 4, true>", False)])
def test_an_optimizer_of_many_kernels(analyzed: Analyze, kernel: str, fires: bool) -> None:
    step = Step()
    step.product(BF16, 5 * MS, (8192, 8192, 16384), "c10::BFloat16")
    begin = step.host
    for _ in range(200):
        step.call("aten::add_", kernel, 20 * US, [[1 << 20], [1 << 20]], ["float", "float"])
    step.trace.annotation("Optimizer.step#AdamW.step", begin, step.host - begin)
    names = {finding.rule: finding for finding in found(analyzed(step.done()))}
    assert (Rule.UNFUSED_OPTIMIZER in names) is fires
    if fires:
        assert "200 kernels a step" in names[Rule.UNFUSED_OPTIMIZER].title
        assert "fused=True" in names[Rule.UNFUSED_OPTIMIZER].action


def test_conversions_of_layout(analyzed: Analyze) -> None:
    step = Step()
    convert = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)2>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, __nv_bfloat16 const*, __nv_bfloat16*)"  # noqa: E501
    for _ in range(10):
        step.call("aten::cudnn_convolution", convert, 300 * US, [[32, 64, 56, 56]], ["c10::BFloat16"])
        step.call("aten::cudnn_convolution", "sm90_xmma_fprop", 500 * US, [[32, 64, 56, 56]], ["c10::BFloat16"])
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.LAYOUT_CONVERSION
    assert "channels_last" in first.action


@pytest.mark.parametrize(("dims", "fires"), [([4096, 4096], True), ([512, 4096], False)])
def test_weights_that_are_converted_again(analyzed: Analyze, dims: list[int], fires: bool) -> None:
    """Only what has the shape of a weight is one."""
    step = Step()
    for _ in range(20):
        step.call("aten::copy_", ADD, 100 * US, [dims, dims, []], ["c10::BFloat16", "float", "Scalar"])
        step.product(BF16, 300 * US, (1024, 4096, 4096), "c10::BFloat16")
    assert (Rule.REPEATED_CASTS in rules(analyzed(step.done()))) is fires


def test_copies_that_only_change_strides(analyzed: Analyze) -> None:
    def names(source: list[int]) -> list[str]:
        step = Step()
        for _ in range(40):
            step.call(
                "aten::copy_", ADD, 100 * US, [[4096, 4096], [4096, 4096], []], ["float", "float", "Scalar"],
                strides=[[4096, 1], source, []],
            )  # fmt: skip
            step.product(BF16, 100 * US, (4096, 4096, 2048), "c10::BFloat16")
        return rules(analyzed(step.done()))

    assert Rule.CONTIGUOUS_COPIES in names([1, 4096])
    assert Rule.CONTIGUOUS_COPIES not in names([4096, 1])
    assert Rule.CONTIGUOUS_COPIES not in names([0, 1])  # an expanded tensor is made whole


def test_forward_work_within_the_backward_pass(analyzed: Analyze) -> None:
    def names(inner: str) -> list[str]:
        step = Step()
        begin = step.host
        for _ in range(10):
            step.call("aten::addmm", BF16, 400 * US, [[4096]], ["c10::BFloat16"], around=inner)
            step.product(BF16, 500 * US, (4096, 4096, 4096), "c10::BFloat16")
        node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
        step.trace.operator(node, begin - US, step.host - begin + US, **{"Sequence number": 7, "Fwd thread id": 1})
        return rules(analyzed(step.done()))

    assert Rule.RECOMPUTATION in names("aten::linear")
    assert Rule.RECOMPUTATION not in names("aten::mm")


def test_a_module_that_runs_twice_is_only_a_possibility(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(2):
        begin = step.host
        step.product(BF16, 4_950 * US, (8192, 16384, 16384), "c10::BFloat16")
        step.trace.slice("python_function", "nn.Module: Encoder_0", begin - US, 10 * US)
        step.product(BF16, 20 * US, (512, 4096, 4096), "c10::BFloat16")  # a head
    first, second = found(analyzed(step.done()))
    assert (first.rule, second.rule) == (Rule.NEAR_LIMIT, Rule.DUPLICATE_WORK)
    assert "Nothing certain to gain" in first.title
    assert second.where.module == "Encoder_0"
    assert second.saving_ns.low == 0


def test_data_that_move_between_devices(analyzed: Analyze) -> None:
    step = Step()
    step.product(BF16, 4 * MS, (8192, 8192, 16384), "c10::BFloat16")
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    step.call("record_param_comms", name, 5 * MS, [[1 << 24]], ["float"], grid=(16, 1, 1))
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.EXPOSED_COMMUNICATION
    assert first.saving_ns.high == 5 * MS


def test_a_rank_that_waits_for_others_cannot_save_that(analyzed: Analyze) -> None:
    step = Step()
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for time in (500 * US, 500 * US, 500 * US, 7 * MS):  # the last one waits: usual are 500 us, 1.5 ms is the most
        step.call("record_param_comms", name, time, [[1 << 24]], ["float"], grid=(16, 1, 1))
    by_rule = {finding.rule: finding for finding in found(analyzed(step.done()))}
    exposed = by_rule[Rule.EXPOSED_COMMUNICATION]
    assert "5.500 ms of it waiting for other ranks" in exposed.title
    assert exposed.saving_ns.high == 3 * MS
    assert by_rule[Rule.LATE_RANK].saving_ns.high == 5_500 * US


@pytest.mark.parametrize("beside", [True, False])
def test_work_beside_other_streams_saves_nothing_for_certain(analyzed: Analyze, beside: bool) -> None:
    step = Step()
    for _ in range(4):
        step.product(FFMA, 2_400 * US, CUBE, "float")
    if beside:
        step.trace.launched_kernel("a_long_one", (2 * US, 2 * US), (12 * US, 9_700 * US), stream=9)
    first = next(finding for finding in found(analyzed(step.done())) if finding.rule == Rule.FP32_PRODUCTS)
    if beside:  # the other kernel holds the step up; without work beside it, it may be faster
        assert first.saving_ns.low == 0
        assert first.likely_ns < 0.05 * STEP
    else:
        assert first.saving_ns.low > 0.5 * STEP
    assert first.saving_ns.high > 8 * MS


def test_small_grids_that_fill_the_device_together_are_none(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    for stream in range(4):
        trace.launched_kernel(
            "mine", (10 * US * (stream + 1), 5 * US), (100 * US, 9 * MS), stream=stream, grid=[33, 1, 1]
        )
    trace.launch(60 * US, STEP - 70 * US, name="cudaDeviceSynchronize")
    assert Rule.SMALL_GRID not in rules(analyzed(trace))


def test_copies_to_the_host_are_not_told_to_pin_what_is_on_the_device(analyzed: Analyze) -> None:
    step = Step()
    name = "Memcpy DtoH (Device -> Pageable)"
    step.call("aten::copy_", name, 6 * MS, [[1 << 22], [1 << 22]], ["float", "float"], category="gpu_memcpy")
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.BLOCKING_COPY
    assert "x.pin_memory()" not in first.action
    assert "pinned buffer" in first.action


def test_a_step_that_is_longer_than_the_recorded_one_is_another_one(analyzed: Analyze) -> None:
    step = Step()
    step.product(FFMA, 2_400 * US, CUBE, "float")
    bound = Measured(analyzed(step.done()), step_time_ns=20 * STEP).bound
    assert "is longer than a recorded one" in bound.evidence
    assert "recorded step" not in bound.evidence or bound.share_low == pytest.approx(0.24, rel=0.01)


def test_what_frees_memory_after_the_last_activity_is_named(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    trace.launched_kernel(BF16, (10 * US, 5 * US), (20 * US, MS))
    trace.launch(1_050 * US, 8_900 * US, name="cudaFree")
    analysis = analyzed(trace)
    assert Measured(analysis, step_time_ns=STEP).bound.kind == "allocation"
    assert rules(analysis)[0] == Rule.ALLOCATOR_CHURN


def test_overlapping_findings_say_so_and_an_incomplete_file_has_none(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(2):
        step.product(FFMA, 4_900 * US, CUBE, "float", grid=(16, 1, 1))
    both = {finding.id: finding for finding in found(analyzed(step.done()))}
    assert both["fp32_products"].overlaps == ("small_grid",)
    assert both["small_grid"].overlaps == ("fp32_products",)


def test_findings_of_an_incomplete_file_are_none(analyzed: Analyze, tmp_path: Any) -> None:
    from opscope.analysis.analyzed import analyze
    from opscope.readers.reading import read

    text = dispatching(2 * US).text()
    path = tmp_path / "cut.json"
    path.write_text(text[: len(text) // 2])
    assert analyze(read(path)).findings == ()


def test_findings_stand_in_the_document(tmp_path: Any) -> None:
    from tests.command import opscope

    path = dispatching(2 * US).write(tmp_path / "t.json")
    result = opscope("analyze", "--format", "json", str(path))
    document = json.loads(result.stdout)
    (first, *_) = document["findings"]
    assert first["rule"] == "dispatch_bound"
    assert {
        "id",
        "rule",
        "title",
        "where",
        "saving_ns",
        "of_step_ns",
        "evidence",
        "action",
        "prove",
        "overlaps",
    } <= set(first)
    assert {"text", "basis", "figures", "source"} == set(first["evidence"][0])
    text = opscope("analyze", str(path)).stdout.splitlines()
    assert text[0] == "t.json on NVIDIA H200: 1 step; trust: warn (1)"
    assert text[1].endswith("[dispatch]")
    assert re.fullmatch(r"  [█░]{48}", text[2])
    assert text[3].startswith("  a recorded step: compute ")
    assert text[4].startswith("  recorded step 10.00 ms, about ")
    assert re.match(r"1  replay launches as a CUDA graph +([\d.]+ to|up to|about) [\d.]+ [mu]s", text[7])
    evidence = opscope("analyze", "--why", str(path)).stdout
    assert re.search(r"^1\. [\d.]+ % to [\d.]+ % of the step without the profiler \(", evidence, re.MULTILINE)
    assert "[dispatch_bound" in evidence


@pytest.mark.parametrize(("walls", "turn"), [((5.0, 5.2, 6.0, 11.5), 4), ((5.0, 10.0, 20.0, 40.0), None)])
def test_batches_that_are_too_small_for_the_device(walls: tuple[float, ...], turn: int | None) -> None:
    from opscope.analysis.advice.small_batch import small_batches
    from opscope.documents.comparison import ComparisonRow
    from opscope.documents.verdict import Verdict

    unknown = dict.fromkeys(
        (
            *("event_ns", "profiled_step_ns", "device_sum_ns", "device_busy_ns", "cpu_self_ns", "sequences_per_second"),
            *("tokens_per_second", "peak_memory_bytes", "launch_bound", "contended"),
        )
    )
    rows = [
        ComparisonRow(
            **unknown, id=f"bs{size}", batch_size=size, seq_len=128, wall_ns=wall * MS,
            wall_low_ns=0.99 * wall * MS, wall_high_ns=1.01 * wall * MS,
            device_share=0.5, peak_memory_kind="", bound="device", trust=Verdict.PASS,
            categories_ns={}, top_operators=(), axes={"batch_size": size, "seq_len": 128},
        )
        for size, wall in zip((1, 2, 4, 8), walls, strict=True)
    ]  # fmt: skip
    found = list(small_batches(rows, "bert"))
    if turn is None:
        assert found == []
        return
    (finding,) = found
    # Of the best throughput, 8 in 11.5 ms, batches of 4 have 96 %: a quarter of 6 ms replaces 5 ms.
    assert finding.saving_ns.high == round((5 - 6 / 4) * MS)
    assert finding.saving_ns.low == round((0.99 * 5 - 1.01 * 6 / 4) * MS)
    assert finding.prove == "opscope profile bert --batch-sizes 1 4"


def test_without_shapes_the_names_of_kernels_tell_of_products(analyzed: Analyze) -> None:
    def names(kernel: str) -> list[str]:
        trace = KinetoTrace(deviceProperties=[H200])
        trace.step(1, 0, STEP)
        for place in range(9):
            begin = place * MS
            trace.operator("aten::mm", begin, 20 * US)
            trace.launched_kernel(kernel, (begin + 5 * US, 2 * US), (begin + 20 * US, 970 * US), grid=[64, 16, 1])
        trace.launch(9 * MS - 900 * US, 1_850 * US, name="cudaDeviceSynchronize")
        return rules(analyzed(trace), wall=9.2 * MS)

    assert names(FFMA)[0] == Rule.FP32_PRODUCTS
    assert names(UNALIGNED)[0] == Rule.UNALIGNED_SIZES
    assert names("sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_tensor16x8x8")[0] == (
        Rule.SLOW_PRODUCT_KERNEL
    )
    assert Rule.NEAR_LIMIT not in names(BF16)


def test_data_that_come_between_are_other_inputs(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(2):
        step.call("aten::copy_", "Memcpy HtoD (Pinned -> Device)", 20 * US, [[64]], ["float"], category="gpu_memcpy")
        begin = step.host
        step.product(BF16, 4_940 * US, (8192, 16384, 16384), "c10::BFloat16")
        step.trace.slice("python_function", "nn.Module: Encoder_0", begin - US, 11 * US)
    assert Rule.DUPLICATE_WORK not in rules(analyzed(step.done()))


def test_work_outside_the_steps_is_not_theirs(analyzed: Analyze) -> None:
    """Products of a warm-up before the step neither count as time of the step nor find anything in it."""
    step = Step()
    step.product(BF16, 9_500 * US, (8192, 16384, 16384), "c10::BFloat16")
    trace = step.done()
    for number in range(4):
        begin = -40 * MS + number * 9 * MS
        dims = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2}
        trace.operator("aten::mm", begin, 20 * US, **dims)
        trace.launched_kernel(FFMA, (begin + 2 * US, 3 * US), (begin + 10 * US, 8 * MS), grid=[1320, 1, 1])
    assert Rule.FP32_PRODUCTS not in rules(analyzed(trace))


def test_a_softmax_of_other_sizes_than_the_products_is_no_attention(analyzed: Analyze) -> None:
    """As many elements are not the same matrices: a router's softmax over experts, between two products."""
    step, bf16 = Step(), "c10::BFloat16"
    step.call("aten::bmm", BF16, 2 * MS, [[16, 4096, 64], [16, 64, 4096]], [bf16, bf16])
    step.call("aten::_softmax", "softmax", 2 * MS, [[64, 16384, 256], [], []], [bf16, "Scalar", "Scalar"],
              values=["", "-1", "False"])  # fmt: skip
    step.call("aten::bmm", BF16, 2 * MS, [[16, 4096, 4096], [16, 4096, 64]], [bf16, bf16])
    assert Rule.EAGER_ATTENTION not in rules(analyzed(step.done()))


def test_what_was_converted_once_was_not_converted_again(analyzed: Analyze) -> None:
    step = Step()
    step.call("aten::copy_", ADD, 4 * MS, [[4096, 4096], [4096, 4096], []], ["c10::BFloat16", "float", "Scalar"])
    step.product(BF16, 4 * MS, (1024, 4096, 4096), "c10::BFloat16")
    assert Rule.REPEATED_CASTS not in rules(analyzed(step.done()))


def test_an_optimizer_without_a_fused_form_is_compiled(analyzed: Analyze) -> None:
    step = Step()
    begin = step.host
    for _ in range(200):
        step.call("aten::add_", ADD, 40 * US, [[1 << 20], [1 << 20]], ["float", "float"])
    step.trace.annotation("Optimizer.step#Lion.step", begin, step.host - begin)
    (finding,) = (item for item in found(analyzed(step.done())) if item.rule == Rule.UNFUSED_OPTIMIZER)
    assert finding.action == "torch.compile(optimizer.step)"


def test_what_overlaps_comes_after_what_stands_alone(analyzed: Analyze) -> None:
    """Recomputed products on the FP32 cores: both findings say that they save some of the same time."""
    step = Step()
    begin = step.host
    for _ in range(4):
        step.call("aten::addmm", FFMA, 2_400 * US, [[4096], [4096, 4096], [4096, 4096]], ["float"] * 3,
                  around="aten::linear")  # fmt: skip
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    step.trace.operator(node, begin - US, step.host - begin + US, **{"Sequence number": 7, "Fwd thread id": 1})
    both = {finding.id: finding for finding in found(analyzed(step.done()))}
    assert both["recomputation"].overlaps == ("fp32_products",)
    lines = ["".join(map(str, line)) for line in first_things(list(both.values()))]
    assert any("some of the same time as 1" in line for line in lines)


def test_a_recording_without_steps_speaks_of_the_recording(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.operator("aten::mm", 0, 9_000, **{"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2})
    trace.launched_kernel(FFMA, (1 * US, 3 * US), (5 * US, 5 * MS), grid=[1320, 1, 1])
    (finding, *_) = analyzed(trace).findings
    assert finding.of_step is StepBasis.ESTIMATED_RECORDING
    text = " ".join((finding.title, finding.derivation, *(fact.text for fact in finding.evidence)))
    assert "step" not in text
    assert "5.000 ms in the recording" in text
    assert "of the recording" in finding.saving


@pytest.mark.parametrize(("share", "fires"), [(0.7, True), (0.05, False)])
def test_far_from_the_limit_is_not_near_it_though_no_rule_knows_why(
    analyzed: Analyze, share: float, fires: bool
) -> None:
    step = Step()
    moved = 9_500 * US * share * 4.8e3  # bytes at 4.8 TB/s
    step.call("aten::neg", ADD, 9_500 * US, [[int(moved / 8)]], ["float"])
    assert (Rule.NEAR_LIMIT in rules(analyzed(step.done()))) is fires


@pytest.mark.parametrize(
    ("rules", "first"),
    [
        (["duplicate_work", "host_work", "cold_start", "small_grid", "near_limit"], {1, 3, 4}),
        (["host_work", "cold_start", "small_grid"], {0, 1, 2}),
        (["duplicate_work", "host_work", "cold_start"], {0, 1, 2}),
    ],
)
def test_the_first_are_those_that_save_other_time(rules: list[str], first: set[int]) -> None:
    """``cold_start`` saves some of the time that ``host_work`` does; what is merely possible comes last."""
    claims = {"host_work": frozenset({"idle"}), "cold_start": frozenset({"idle"})}
    drafts = [
        Draft(
            rule=Rule(rule), title="", where=Where(), saving=Range(0.0, 1.0), derivation="", evidence=(), todo="",
            action="", wrong_if="", claims=claims.get(rule, frozenset()),
        )
        for rule in rules
    ]  # fmt: skip
    assert first_screen_of(drafts) == first


def test_copies_whose_memory_is_not_named_are_not_called_pinned(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, STEP)
    trace.operator("aten::copy_", 10 * US, 20 * US)
    trace.launched_kernel("CopyHostToDevice", (12 * US, 3 * US), (30 * US, 7 * MS), category="gpu_memcpy")
    (finding,) = (item for item in found(analyzed(trace)) if item.rule == Rule.EXPOSED_COPY)
    assert finding.title.startswith("Copies between host and device")
    assert "pin_memory" in finding.action


def test_a_warm_up_does_not_hide_that_a_step_is_near_its_limit(analyzed: Analyze) -> None:
    step = Step()
    step.product(BF16, 9_900 * US, (32768, 8192, 16384), "c10::BFloat16")
    trace = step.done()
    trace.operator("aten::mm", -60 * MS, 20 * US)
    trace.launched_kernel("unknown", (-60 * MS + 2 * US, 3 * US), (-60 * MS + 10 * US, 50 * MS))
    (finding,) = found(analyzed(trace))
    assert finding.rule == Rule.NEAR_LIMIT
    # 2 * 32,768 * 8,192 * 16,384 operations at 989.4 TFLOP/s take 8.890 ms of its 9.9 ms, in a step of 10 ms.
    assert finding.title == "Nothing cheap to gain: the device is busy 99.0 % of the step, at 89.8 % of the limit"


def test_a_memory_allocation_in_every_iteration_of_an_unmarked_recording(analyzed: Analyze) -> None:
    trace = KinetoTrace(deviceProperties=[H200])
    for begin in range(0, STEP, MS):
        trace.launch(begin, 600 * US, name="cudaMalloc")
        trace.operator("aten::mm", begin + 610 * US, 20 * US)
        trace.launched_kernel("gemm", (begin + 612 * US, 5 * US), (begin + 620 * US, 300 * US))
    (finding,) = (item for item in analyzed(trace).findings if item.rule == Rule.ALLOCATOR_CHURN)
    assert finding.title.startswith("Memory is allocated or freed 9 times in the recording")
    assert not any(" step" in fact.text for fact in finding.evidence)


def test_work_far_from_its_limit_is_named_where_no_rule_speaks_of_it(analyzed: Analyze) -> None:
    """An addition of 2 GB in and 1 GB out takes 1.6 ms of an H200's 4.8 TB/s at 40 % of its limit."""
    step = Step()
    for number in range(5):
        step.product(BF16, 199 * US, CUBE, "c10::BFloat16")
        add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
        step.call(
            "aten::add", f"{add}{number and ''}", 1_600 * US, [[1 << 28], [1 << 28], []], ["float", "float", "Scalar"]
        )
    first = next(one for one in found(analyzed(step.done()), wall=None) if one.rule == Rule.FAR_FROM_LIMIT)
    assert "`aten::add` runs at 4" in first.title
    assert first.saving_ns.low == 0
    most = 5 * (1_600 - 3 * (1 << 30) / 4.8e12 * 1e6 / 0.8) * US
    assert first.likely_ns == pytest.approx(0.1 * most, rel=0.05)
    assert most < first.saving_ns.high < most + 0.1 * STEP
    quick = Step()
    for _ in range(12):
        quick.call("aten::add", add, 750 * US, [[1 << 28], [1 << 28], []], ["float", "float", "Scalar"])
    assert Rule.FAR_FROM_LIMIT not in rules(analyzed(quick.done()), wall=None)


def test_products_on_the_fp32_cores_of_a_device_before_tf32(analyzed: Analyze) -> None:
    """A V100 multiplies 16 bits eight times as fast, and has no TF32."""
    v100 = {"id": 0, "name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    step = Step()
    step.trace = KinetoTrace(deviceProperties=[v100])
    step.trace.step(1, 0, STEP)
    step.product("volta_sgemm_128x64_nn", 9_500 * US, CUBE, "float")
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.FP32_PRODUCTS
    assert "float16" in first.action
    assert "TF32" not in first.action
    assert first.saving_ns.low > 0.3 * STEP


def test_each_rule_states_itself_once() -> None:
    by_blocking_copies = {Rule.BLOCKING_COPY: 2}  # large copies, and many small ones
    counts = Counter(statement.rule for statement in STATEMENTS)
    of_jobs = {Rule.LATE_RANKS, Rule.SLOW_RANKS, Rule.LATE_IN_TURN, Rule.SLOW_LINK}  # tests/distributed
    of_sweeps, on_cpu = {Rule.SMALL_BATCH}, Counter(statement.rule for statement in ON_CPU)
    assert set(on_cpu.values()) == {1}
    alone = {rule for rule in on_cpu if rule not in counts}
    assert alone == {
        *(Rule.IDLE_CORES, Rule.DOUBLE_PRECISION, Rule.SCALAR_READS),
        *(Rule.ACTIVE_DROPOUT, Rule.UNUSED_GRAPH),
    }
    assert counts == {rule: by_blocking_copies.get(rule, 1) for rule in Rule if rule not in of_sweeps | of_jobs | alone}


# ---------------------------------------------------------------- several steps


def repeated(trace: KinetoTrace, times: int) -> KinetoTrace:
    """The same step several times, one right after the other."""
    result = KinetoTrace(**trace.header)
    for number in range(times):
        for event in trace.events:
            args = dict(event["args"])
            if "correlation" in args:
                args["correlation"] += 1_000_000 * number
            name = f"ProfilerStep#{number + 1}" if event["name"].startswith("ProfilerStep#") else event["name"]
            result.events.append({**event, "name": name, "ts": event["ts"] + number * STEP / 1000, "args": args})
    return result


def of_calls(*calls: tuple[str, str, int, list[Any], list[str]], times: int = 1) -> KinetoTrace:
    step = Step()
    for _ in range(times):
        for call in calls:
            step.call(*call)
    return step.done()


def of_products(kernel: str, time: int, sizes: tuple[int, int, int], dtype: str, times: int) -> KinetoTrace:
    rows, depth, columns = sizes
    return of_calls(("aten::mm", kernel, time, [[rows, depth], [depth, columns]], [dtype, dtype]), times=times)


CONVERT = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)2>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, __nv_bfloat16 const*, __nv_bfloat16*)"  # noqa: E501
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BF = "c10::BFloat16"
BIG = ("aten::mm", BF16, 4 * MS, [[8192, 8192], [8192, 16384]], [BF, BF])
ONE_STEP: dict[str, Callable[[], KinetoTrace]] = {
    "products in FP32": lambda: of_products(FFMA, 2_400 * US, CUBE, "float", 4),
    "unaligned products": lambda: of_products(UNALIGNED, 1_600 * US, (2048, 768, 50257), BF, 4),
    "short unaligned products": lambda: of_products(UNALIGNED, 2_500, (64, 64, 67), BF, 900),
    "dispatch": lambda: dispatching(2 * US),
    "reads": lambda: iterations("cudaStreamSynchronize", operator="aten::_local_scalar_dense"),
    "synchronizations": lambda: iterations("cudaDeviceSynchronize"),
    "loading": lambda: waiting(
        lambda t: t.annotation("enumerate(DataLoader)#_Single.__next__", 1_100 * US, 7_500 * US)
    ),
    "host work": lambda: waiting(lambda t: t.annotation("preprocess", 1_100 * US, 7_500 * US)),
    "allocation": lambda: waiting(lambda t: t.launch(1_010 * US, 7_900 * US, name="cudaMalloc") and None),
    "chain": lambda: chain(["aten::add", "aten::mul", "aten::tanh", "aten::sub", "aten::mul", "aten::add"] * 2),
    "layout": lambda: of_calls(
        ("aten::cudnn_convolution", CONVERT, 300 * US, [[32, 64, 56, 56]], [BF]),
        ("aten::cudnn_convolution", "sm90_xmma_fprop", 500 * US, [[32, 64, 56, 56]], [BF]),
        times=10,
    ),
    "casts": lambda: of_calls(
        ("aten::copy_", ADD, 100 * US, [[4096, 4096], [4096, 4096], []], [BF, "float", "Scalar"]),
        ("aten::mm", BF16, 300 * US, [[1024, 4096], [4096, 4096]], [BF, BF]),
        times=20,
    ),
    "communication": lambda: of_calls(BIG, ("record_param_comms", REDUCE, 5 * MS, [[1 << 24]], ["float"])),
    "copies": lambda: of_calls(BIG, *[("aten::add", ADD, 40 * US, [[1 << 20], [1 << 20]], ["float", "float"])] * 50),
}


def words_and_times(sentence: str) -> tuple[str, list[float]]:
    """A sentence without its times, and these in nanoseconds."""
    pattern, units = r"([\d.,]+) (ns|us|ms|s)\b", {"ns": 1, "us": US, "ms": MS, "s": 1_000 * MS}
    times = [float(number.replace(",", "")) * units[unit] for number, unit in re.findall(pattern, sentence)]
    return re.sub(pattern, "TIME", sentence), times


@pytest.mark.parametrize("name", ONE_STEP)
@pytest.mark.parametrize("wall", [STEP, None])
def test_three_equal_steps_say_what_one_says(analyzed: Analyze, name: str, wall: float | None) -> None:
    trace = ONE_STEP[name]()
    one = analyzed(trace)
    three = analyzed(repeated(trace, 3))
    single = one.findings_with(one.evidence_with(steps=1, wall_ns=wall, ran_on_gpu=True), None)
    several = three.findings_with(three.evidence_with(steps=3, wall_ns=wall, ran_on_gpu=True), None)
    assert single
    assert [finding.rule for finding in several] == [finding.rule for finding in single]
    for before, after in zip(single, several, strict=True):
        # The first step begins with nothing before it, the others do not.
        room = {"rel": 0.02, "abs": 0.01 * STEP}
        (words, times), (same, others) = (words_and_times(finding.title) for finding in (before, after))
        assert same == words
        assert others == pytest.approx(times, **room)
        assert after.likely_ns == pytest.approx(before.likely_ns, **room)
        assert after.saving_ns.low == pytest.approx(before.saving_ns.low, **room)
        assert after.saving_ns.high == pytest.approx(before.saving_ns.high, **room)
