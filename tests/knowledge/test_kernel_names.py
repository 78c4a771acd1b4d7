"""What kernel names say: real names with expected fields, and properties that every name has."""

import json
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.decoded import FP32_CORES, MATRIX_CORES, TENSOR_CORES
from opscope.knowledge.kernels.kinds import short_names
from opscope.knowledge.kernels.names import base_name, canonical, common_spelling, library_of
from opscope.readers.reading import read
from tests.command import opscope
from tests.conftest import DATA

CASES: list[dict[str, Any]] = json.loads((DATA / "kernel_names.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"][:60])
def test_real_names_say_what_was_read_off_them(case: dict[str, Any]) -> None:
    """Names of the recorded H200 traces; the expected fields were compared with the names by eye."""
    found = json.loads(msgspec.json.encode(decode_name(case["name"])))
    assert {field: found[field] for field in case["expected"]} == case["expected"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"
            "_kernel__5x_cublas",
            {
                "summary": "FP32 GEMM 128x64x8, no Tensor Cores", "architecture": "sm80", "unit": FP32_CORES,
                "input_dtype": "f32", "accumulate_dtype": "f32", "output_dtype": "f32", "layout": "tn",
                "tile": (128, 64, 8), "stages": 3, "split_k": False,
            },
        ),
        (
            "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16_execute_kernel"
            "__5x_cublas",
            {"unit": TENSOR_CORES, "input_dtype": "bf16", "accumulate_dtype": "f32", "tile": (32, 32, 64), "stages": 6},
        ),
        (
            "ampere_sgemm_128x64_tn",
            {"architecture": "sm80", "unit": FP32_CORES, "input_dtype": "f32", "layout": "tn", "tile": (128, 64)},
        ),
        (
            "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn",
            {
                "unit": TENSOR_CORES, "input_dtype": "f16", "accumulate_dtype": "f32", "output_dtype": "f16",
                "stages": 3, "layout": "tn",
            },
        ),
        (
            "volta_h884gemm_64x128_ldg8_nn",
            {"architecture": "sm70", "unit": TENSOR_CORES, "input_dtype": "f16", "accumulate_dtype": "f16"},
        ),
        ("volta_dgemm_64x64_nn", {"unit": "FP64 cores", "input_dtype": "f64", "layout": "nn"}),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align8>(Params)",
            {"unit": TENSOR_CORES, "input_dtype": "f16", "accumulate_dtype": "f32", "tile": (32, 32, 128), "stages": 2},
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_dgemm_64x64_8x3_nt_align1>(cutlass::Params)",
            {"unit": "FP64 cores", "input_dtype": "f64", "layout": "nt", "tile": (64, 64, 8)},
        ),
        (
            "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_splitK_bias_TNT",
            {"architecture": "sm90", "layout": "tn", "tile": (192, 128, 64), "stages": 5, "cluster": (1, 2),
             "split_k": True, "input_dtype": None},
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_MT128x16x128_MI16x16x1_SN_LDSB1",
            {
                "layout": "tn", "tile": (128, 16, 128), "unit": MATRIX_CORES, "unknown": (),
                "input_dtype": "bf16", "accumulate_dtype": "f32", "output_dtype": "bf16",
                "summary": "AMD BF16 GEMM 128x16x128, Matrix Cores",
            },
        ),
        (
            "Cijk_Ailk_Bljk_HHS_BH_MT64x64x32_SE",
            {"unit": None, "input_dtype": "f16", "accumulate_dtype": "f32", "output_dtype": "f16"},
        ),
        ("Cijk_Ailk_Bljk_HSS_BH_MT64x64x32_SE", {"input_dtype": "f16", "output_dtype": "f32"}),
        ("Cijk_Ailk_Bljk_S_B_MT64x64x16_SE", {"input_dtype": "f32", "output_dtype": "f32"}),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE", {"input_dtype": None, "unknown": ("types SB",)}),
        ("Cijk_Ailk_Bljk_HBH_MT64x64x16_SE", {"input_dtype": None, "unknown": ("types HBH",)}),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, "
            "false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, "
            "false, true>(pytorch_flash::Flash_fwd_params)",
            {"operation": "attention", "input_dtype": "bf16", "tile": (128, 128), "unit": TENSOR_CORES},
        ),
        (
            "fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::Params)",
            {"operation": "attention backward", "input_dtype": "bf16", "tile": (128, 128), "architecture": "sm80"},
        ),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            {"operation": "collective", "input_dtype": "bf16", "summary": "NCCL ReduceScatter Sum bf16"},
        ),
        ("triton_red_fused_native_layer_norm_12", {"family": "Inductor"}),
        (
            "void at_cuda_detail::cub::DeviceRadixSortSingleTileKernel<int>(int const*)",
            {"family": "CUB", "summary": "CUB radix sort single tile"},
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int)",
            {"functor": "MulFunctor", "vector_width": 4, "input_dtype": "f32"},
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::Half, at::native::MeanOps<c10::Half, "
            "float, float, c10::Half>, unsigned int, c10::Half, 4> >(at::native::ReduceOp<c10::Half>)",
            {"functor": "MeanOps", "input_dtype": "f16", "accumulate_dtype": "f32", "operation": "reduction"},
        ),
        (
            "void at::native::(anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, float, 8, true, false>"
            "(float*, c10::BFloat16 const*, int, int, int, bool const*, int, bool)",
            {"input_dtype": "bf16", "output_dtype": "f32", "accumulate_dtype": "f32"},
        ),
    ],
)  # fmt: skip
def test_names_of_other_origin(name: str, expected: dict[str, object]) -> None:
    decoded = decode_name(name)
    assert {field: getattr(decoded, field) for field in expected} == expected


def test_what_a_name_does_not_say_is_unknown() -> None:
    decoded = decode_name("nvjet_sm90_tst_128x128_64x6_4x2_h_bz_NTT")
    assert decoded.input_dtype is None
    assert "types tst" in decoded.unknown
    assert decode_name("my_kernel(float*)").unknown == ("my_kernel(float*)",)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("at::cuda::philox::unpack_cudnn(at::PhiloxCudaState, long*, long*)", None),
        ("void at::native::foo<cutlass::gemm::kernel<float> >(int)", None),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(Params)", "cuBLAS"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64>(Params)", "cuDNN"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)", "cuBLAS"),
        ("triton_poi_fused_add_0", "Triton"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int> >(Params)", "CUTLASS"),
        ("Cijk_Alik_Bljk_BBS_BH_MT128x16x128_MI16x16x1", "Tensile (rocBLAS, hipBLASLt)"),
    ],
)
def test_libraries_are_known_by_the_function_and_not_by_its_arguments(name: str, library: str | None) -> None:
    assert library_of(name) == library


@given(st.text())
def test_any_text_is_decoded_to_something(name: str) -> None:
    decoded = decode_name(name)
    assert decoded.unit != TENSOR_CORES or decoded.family is not None
    canonical(name)
    base_name(name)
    library_of(name)


def test_one_spelling_for_what_demanglers_write_differently() -> None:
    one = "void f<4ul, std::array<char*, 3ul>, (bool)1>((anonymous namespace)::T, unsigned long)"
    other = "f<4,at::detail::Array<char*, 3>, true>({anonymous}::T, unsigned long int)"
    assert canonical(one) == canonical(other)


TRANSPOSED = {"n": False, "t": True}
PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1)}


@pytest.mark.parametrize("trace", sorted((DATA / "traces").glob("*.json.gz")), ids=lambda path: path.name)
def test_layouts_agree_with_the_strides_of_every_matrix_product(trace: Any) -> None:
    """BLAS is called column-major: its first operand is our second one; row-major reads as not transposed."""
    rows = analyze(read(trace)).launch_shapes.filter(pl.col("operator").is_in(list(PRODUCTS)))
    for row in rows.iter_rows(named=True):
        layout = decode_name(row["name"]).layout
        if layout is None or layout not in ("nn", "nt", "tn", "tt"):
            continue
        first, second = PRODUCTS[row["operator"]]
        dims, strides = json.loads(row["input_dims"]), json.loads(row["input_strides"])
        for letter, operand in ((layout[0], second), (layout[1], first)):
            shape, stride = dims[operand][-2:], strides[operand][-2:]
            if 1 in shape:
                continue  # either reading is right
            assert (stride[0] == 1) == TRANSPOSED[letter], (row["name"], dims, strides)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void at::native::k<(int)4, (bool)0, std::array<char *, (unsigned long)3>>(int, T2, T3)",
         "void at::native::k<4, false, std::array<char*, 3ul> >(int, float, std::array<char*, 3ul>)"),
        ("void <unnamed>::k<T<const float *>>(T1)", "void at::(anonymous namespace)::k<T<float const*> >(float)"),
        ("void k<void native::f<native::g(at::B &)::[lambda() (instance 3)]::operator ()() const::[lambda(c10::Half) "
         "(instance 1)]>(at::B &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
         "void at::k<at::native::f<at::native::g(at::B&)::{lambda()#3}::operator()() const::{lambda(c10::Half)#1}>(at::"
         "B&, at::native::g(at::B&)::{lambda()#3}::operator()() const::{lambda(c10::Half)#1} const&)::{lambda(int)#1}>"
         "(int, float)"),
        ("k<(E)1, -1>(int)", "void a::b::k<(c::E)1, -1>(long)"),
        ("k<void f<int>(T1)::[lambda(int) (instance 1)]>(int)", "k<f<int>(int)::{lambda(int)#1}>(int)"),
    ],
)  # fmt: skip
def test_what_all_profilers_write_of_one_kernel(one: str, other: str) -> None:
    assert common_spelling(one) == common_spelling(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("k<4>(int)", "k<8>(int)"),
        ("k<true>()", "k<false>()"),
        ("k<f()::{lambda(float)#1}>()", "k<f()::{lambda(double)#1}>()"),
        ("k<f()::{lambda()#1}>()", "k<f()::{lambda()#2}>()"),
        ("k<f()::{lambda()#1}>()", "k<g()::{lambda()#1}>()"),
        ("void a::k<float>(T1)", "void a::k<double>(T1)"),
        ("k<A::{lambda()#1}>()", "k<B::{lambda()#1}>()"),
        ("k(float*)", "k(double*)"),
    ],
)
def test_what_tells_kernels_apart_stays(one: str, other: str) -> None:
    assert common_spelling(one) != common_spelling(other)


@given(st.text(alphabet="(){}<>[]:, *k1T_lambdaist#", max_size=200))
def test_any_text_has_a_common_spelling(name: str) -> None:
    found = common_spelling(f"k{name}")
    assert " " not in found
    assert common_spelling(f"void k{name}") == found


def test_kernels_of_one_short_name_are_told_apart_by_their_operands() -> None:
    """As their document, the page and tables on terminals name them."""
    path = str(DATA / "traces" / "bert_fp32_eager_bs8_seq128.json.gz")
    kernels = json.loads(opscope("analyze", path, "--format", "json").stdout)["kernels"]
    names = [row["name"] for row in kernels if "tilesize64x64x8" in row["name"]]
    assert {short_names(names)[name] for name in names} == {
        "FP32 GEMM 64x64x8, no Tensor Cores, nn",
        "FP32 GEMM 64x64x8, no Tensor Cores, tn",
    }
    brief = opscope("analyze", path, "--by", "kernel", "--brief").stdout
    assert "FP32 GEMM 64x64x8, no Tensor Cores, nn" in brief
    alone = short_names(names[:1])
    assert list(alone.values()) == ["FP32 GEMM 64x64x8, no Tensor Cores"]
