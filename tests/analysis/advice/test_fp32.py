"""Products and convolutions on the FP32 cores: what is counted, and which precision is the best of the device."""

import pytest

from opscope.documents.findings import Rule
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.decoded import FP32_CORES, Operation
from tests.analysis.advice.test_findings import ADD, CUBE, FFMA, MS, STEP, US, Analyze, Step, found
from tests.kineto import KinetoTrace

RTX_3060 = {
    "id": 0,
    "name": "NVIDIA GeForce RTX 3060",
    "computeMajor": 8,
    "computeMinor": 6,
    "numSms": 28,
    "totalGlobalMem": 12_487_294_976,
}
RTX_2080TI = {"id": 0, "name": "NVIDIA GeForce RTX 2080 Ti", "computeMajor": 7, "computeMinor": 5, "numSms": 68}
SIMT = "cutlass_80_simt_sgemm_128x128_8x4_nt_align1"
DGRAD = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, true>(int, int)"


class On(Step):
    def __init__(self, device: dict[str, object]) -> None:
        super().__init__()
        self.trace = KinetoTrace(deviceProperties=[device])
        self.trace.step(1, 0, STEP)

    def region(self, *kernels: tuple[str, int]) -> None:
        """A compiled region: one operator with many kernels, of which no sizes are recorded."""
        self.trace.operator("CompiledFunction", self.host, 8 * US * len(kernels))
        for number, (kernel, time) in enumerate(kernels):
            start = max(self.device, self.host + 6 * US)
            self.trace.launched_kernel(kernel, (self.host + 1 * US + 7 * US * number, 3 * US), (start, time))
            self.device = start + time
        self.host += 8 * US * len(kernels)


def test_every_product_of_a_compiled_region_counts(analyzed: Analyze) -> None:
    step = On(RTX_3060)
    step.region((SIMT, 3 * MS), (ADD, MS), ("ampere_sgemm_128x64_nn", 2 * MS), (SIMT, MS))
    first = next(one for one in found(analyzed(step.done())) if one.rule == Rule.FP32_PRODUCTS)
    assert first.title == "Matrix products run on the FP32 cores (6.000 ms per step); the Tensor Cores are idle"


def test_where_tf32_is_no_faster_bfloat16_is_advised(analyzed: Analyze) -> None:
    """A GeForce RTX 3060 multiplies TF32 as fast as FP32 (12.7 TFLOP/s), bfloat16 twice as fast."""
    step = On(RTX_3060)
    step.product(FFMA, 9_500 * US, (2048, 4096, 4096), "float")
    first = next(one for one in found(analyzed(step.done())) if one.rule == Rule.FP32_PRODUCTS)
    assert "torch.bfloat16" in first.action
    assert "set_float32_matmul_precision" not in first.action
    # 68.7 GFLOP take 2.70 ms at bfloat16's 25.5 TFLOP/s: no more than 6.81 of the 9.5 ms can be saved.
    assert 5 * MS < first.saving_ns.high <= 6_810 * US


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("volta_scudnn_128x64_relu_interior_nn_v1", Operation.FPROP),
        ("turing_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", Operation.FPROP),
        ("cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v0", Operation.FPROP),
        (DGRAD, Operation.DGRAD),
        ("void wgrad_alg0_engine<float, 128, 6, 8, 3, 3, 5, true, 512>(int)", Operation.WGRAD),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(int)", Operation.FPROP),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)", Operation.FPROP),
        ("void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*)", Operation.FPROP),
        ("void DSE::regular_fft_pad<0, 1, 256, 16, 16, 1, float, float, float2>(float2*, float*)", Operation.FPROP),
        ("void pointwise_mult_and_sum_complex<float2, 8, 4>(float2*, float2*, float2*)", Operation.FPROP),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<float, float>(int)", Operation.FPROP),
    ],
)
def test_convolutions_on_the_fp32_cores_are_advised_half_precision(
    analyzed: Analyze, kernel: str, operation: Operation
) -> None:
    decoded = decode_name(kernel)
    assert (decoded.operation, decoded.unit) == (operation, FP32_CORES)
    step = On(RTX_2080TI)
    for _ in range(9):
        step.call("aten::cudnn_convolution", kernel, MS, [], [])
    (first, *_) = found(analyzed(step.done()))
    assert first.rule == Rule.FP32_PRODUCTS
    assert first.title == "Convolutions run on the FP32 cores (9.000 ms per step); the Tensor Cores are idle"
    assert "torch.float16" in first.action


def test_convolutions_on_a_device_with_tf32_are_allowed_it(analyzed: Analyze) -> None:
    step = Step()
    for _ in range(9):
        step.call("aten::cudnn_convolution", DGRAD, MS, [], [])
    (first, *_) = found(analyzed(step.done()))
    assert "torch.backends.cudnn.allow_tf32 = True" in first.action


def test_half_a_convolution_of_half_precision_is_none(analyzed: Analyze) -> None:
    decoded = decode_name("void cudnn::detail::dgrad_engine<__half, 512, 6, 5, 3, 3, 3, true>(int)")
    assert (decoded.operation, decoded.unit, decoded.input_dtype) == (Operation.DGRAD, None, "f16")


def test_products_and_convolutions_are_named_both(analyzed: Analyze) -> None:
    step = On(RTX_2080TI)
    step.call("aten::cudnn_convolution", DGRAD, 6 * MS, [], [])
    step.product("volta_sgemm_128x64_nn", 3 * MS, (1024, 4096, 4096), "float")
    (first, *_) = found(analyzed(step.done()))
    assert first.title.startswith("Matrix products and convolutions run on the FP32 cores (9.000 ms per step)")
    assert first.where.operator == "aten::cudnn_convolution"


def test_what_is_added_up_in_fp32_is_not_multiplied_there(analyzed: Analyze) -> None:
    """The first type of gemmSN is that of the sums; its operands are bfloat16 here."""
    name = "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<{} const> >"
    assert decode_name(name.format("__nv_bfloat16")).input_dtype == "bf16"
    assert decode_name(name.format("__nv_bfloat16")).unit is None
    assert decode_name(name.format("float")).unit == FP32_CORES
    step = Step()
    for _ in range(9):
        step.product(name.format("__nv_bfloat16"), MS, CUBE, "c10::BFloat16")
    assert Rule.FP32_PRODUCTS not in [finding.rule for finding in found(analyzed(step.done()))]
