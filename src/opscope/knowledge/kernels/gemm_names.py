"""Matrix products and convolutions: cuBLAS, cuDNN, CUTLASS, Tensile."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from opscope.base.text import lazy_pattern
from opscope.knowledge.dtypes import cpp_dtype
from opscope.knowledge.kernels.decoded import (
    FP32_CORES,
    FP64_CORES,
    MATRIX_CORES,
    TENSOR_CORES,
    DecodedKernel,
    Operation,
    dtype_text,
    plain_unit,
)

_OPERATION: Final[Mapping[str, str]] = {
    "gemm": "GEMM",
    "fprop": "convolution",
    "dgrad": "convolution backward (data)",
    "wgrad": "convolution backward (weights)",
}
_DTYPE = r"(?:tf32|bf16|f16|f32|f64|f8|e4m3|e5m2|i8|i32|s8|u8)"


def _tile_text(tile: Sequence[int | None]) -> str:
    return "x".join(str(side) for side in tile if side is not None)


def _product_summary(decoded: DecodedKernel) -> str:
    """Name a product: "FP32 GEMM 128x64x8, no Tensor Cores"."""
    dtype = decoded.compute_dtype or decoded.input_dtype
    parts = [dtype_text(dtype)] if dtype else []
    parts.append(_OPERATION.get(decoded.operation or "", decoded.operation or "kernel"))
    parts += [_tile_text(decoded.tile)] if decoded.tile else []
    unit = ", no Tensor Cores" if decoded.unit in (FP32_CORES, FP64_CORES) else ""
    unit = f", {decoded.unit}" if decoded.unit in (TENSOR_CORES, MATRIX_CORES) else unit
    split = ", split-K" if decoded.split_k else ""
    return " ".join(parts) + unit + split


_NVJET = lazy_pattern(
    r"nvjet_(?:(?P<arch>sm\d+)_)?(?P<types>[a-z0-9]+)_(?:(?P<path>mma|tma)_)?(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
    r"_(?:(?P<cx>\d+)x(?P<cy>\d+)_)?(?:(?P<ctas>\d)cta_)?(?P<raster>[hv])_bz(?P<rest>(?:_[A-Za-z0-9]+)*?)_(?P<layout>[NT]{2,3})"
)


def nvjet(name: str) -> DecodedKernel | None:
    """Read cuBLASLt for Hopper and later: ``nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT``."""
    if not name.startswith("nvjet"):
        return None
    match = _NVJET.fullmatch(name.partition("(")[0])
    if match is None:
        return DecodedKernel(
            summary="cuBLASLt GEMM, Tensor Cores",
            family="nvjet",
            operation=Operation.GEMM,
            unit=TENSOR_CORES,
            unknown=(name,),
        )
    options = [option for option in match["rest"].split("_") if option]
    known = {"splitK", "bias", "relu", "gelu", "coopA", "coopB", "coop"}
    details = [("epilogue", option) for option in options if option in ("bias", "relu", "gelu")]
    details += [("schedule", option) for option in options if option.startswith("coop")]
    details += [("thread blocks per tile", match["ctas"])] if match["ctas"] else []
    unknown = [f"types {match['types']}", f"order {match['raster']}"]
    unknown += [f"third letter {match['layout'][2]}"] if len(match["layout"]) > 2 else []
    unknown += [option for option in options if option not in known]
    decoded = DecodedKernel(
        summary="",
        family="nvjet",
        operation=Operation.GEMM,
        architecture=match["arch"],
        unit=TENSOR_CORES,
        layout=match["layout"][:2].lower(),
        tile=(int(match["m"]), int(match["n"]), int(match["k"])),
        stages=int(match["stages"]),
        cluster=None if match["cx"] is None else (int(match["cx"]), int(match["cy"])),
        split_k="splitK" in options,
        details=tuple(details),
        unknown=tuple(unknown),
    )
    return replace(decoded, summary=_product_summary(decoded))


# Types: of both operands, of the multiplication and the sum, of the result.
_XMMA = lazy_pattern(
    rf"(?P<arch>sm\d+)_xmma_(?P<op>gemm|fprop|dgrad|wgrad)_(?:(?P<algorithm>[a-z_]*implicit_gemm[a-z_]*?)_)?"
    rf"(?P<a>{_DTYPE})(?P<b>{_DTYPE})_(?P<compute>{_DTYPE})(?P<accumulate>{_DTYPE})_(?P<out>{_DTYPE})_"
    r"(?:(?P<layout>[nt]{2})_(?P<out_layout>[nt])|(?P<conv>[a-z0-9]*(?:krsc|kcrs))_(?P<conv_out>[a-z0-9]+))_"
    r"tilesize(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<rest>.*)"
)


def xmma(name: str) -> DecodedKernel | None:
    """Read cuBLAS and cuDNN: ``sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_..._ffma_...``."""
    match = _XMMA.match(name)
    if match is None:
        return None
    rest = match["rest"]
    details = [("algorithm", match["algorithm"].replace("_", " "))] if match["algorithm"] else []
    for what, pattern in (
        ("warps", r"warpsize(\d+x\d+x\d+)"),
        ("warp groups", r"warpgroupsize(\d+x\d+x\d+)"),
        ("instruction", r"tensor(\d+x\d+x\d+)"),
        ("alignment of the first operand", r"aligna(\d+)"),
    ):
        if result := re.search(pattern, rest):
            details.append((what, result[1]))
    if result := re.search(r"segment_k_(on|off)", rest):
        details.append(("segment K", result[1]))
    stages = re.search(r"stage(\d+)", rest)
    # ffma and simt are instructions of the ordinary cores.
    tensor = "_tensor" in f"_{rest}" or "warpgroupsize" in rest
    plain = re.search(r"(?:^|_)(ffma|simt)", rest) is not None
    on_tensor_cores = TENSOR_CORES if tensor else None
    decoded = DecodedKernel(
        summary="",
        family="xmma",
        operation=Operation(match["op"]),
        architecture=match["arch"],
        unit=plain_unit(match["accumulate"]) if plain else on_tensor_cores,
        # TF32 is a format of the unit; in memory it takes 32 bits.
        input_dtype="f32" if match["a"] == "tf32" else match["a"],
        compute_dtype=match["compute"],
        accumulate_dtype=match["accumulate"],
        output_dtype=match["out"],
        layout=match["layout"] or f"{match['conv']} -> {match['conv_out']}",
        tile=(int(match["m"]), int(match["n"]), int(match["k"])),
        stages=int(stages[1]) if stages else None,
        split_k="split_k" in rest or "splitk" in rest.lower(),
        details=tuple(details),
    )
    return replace(decoded, summary=_product_summary(decoded))


_CUTLASS = lazy_pattern(
    r"cutlass_(?:(?P<arch>\d+)_)?(?P<unit>wmma_tensorop|tensorop|simt)_(?:(?P<input>bf16|f16|tf32|s8|i8|f32|f64)_)?"
    r"(?P<accumulate>[shdczi])(?P<instruction>\d{3,6})?(?P<op>gemm|fprop|dgrad|wgrad)"
    r"(?:_(?P<variant>(?:relu|optimized|analytic|fixed_channels|few_channels|grouped)(?:_(?:relu|optimized|analytic))*))?"
    r"(?:_(?P<output>bf16|f16|tf32|s8|f32|f64))?_(?P<m>\d+)x(?P<n>\d+)(?:_(?P<k>\d+)x(?P<stages>\d+))?"
    r"(?:_(?P<layout>[nt]{2}|nhwc|nchw))?(?:_(?P<stride>unity_stride|strided))?(?:_align(?P<align>\d+))?"
)
_ACCUMULATE: Final[Mapping[str, str]] = {
    "s": "f32",
    "h": "f16",
    "d": "f64",
    "c": "complex64",
    "z": "complex128",
    "i": "i32",
}


def cutlass(name: str) -> DecodedKernel | None:
    """Read CUTLASS 2 as cuBLAS and cuDNN name it: ``cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4``."""
    if not re.match(r"(?:void )?(?:cutlass\w*::Kernel2?<)?cutlass_", name):
        return None
    match = _CUTLASS.search(name)
    if match is None:
        return None
    accumulate = _ACCUMULATE[match["accumulate"]]
    tensor = match["unit"] != "simt"
    listed = match["input"] or (match["output"] if match["op"] != "gemm" else None)
    # Single-precision products on Tensor Cores multiply in TF32; nothing else fits the instruction.
    inputs = "f32" if listed in (None, "tf32") and accumulate == "f32" else listed or accumulate
    compute = "tf32" if tensor and inputs == "f32" else inputs
    details = [("instruction", match["instruction"])] if match["instruction"] else []
    details += [("variant", match["variant"].replace("_", " "))] if match["variant"] else []
    details += [("stride", match["stride"].replace("_", " "))] if match["stride"] else []
    details += [("alignment in elements", match["align"])] if match["align"] else []
    decoded = DecodedKernel(
        summary="",
        family="cutlass",
        operation=Operation(match["op"]),
        architecture=f"sm{match['arch']}" if match["arch"] else None,
        unit=TENSOR_CORES if tensor else plain_unit(accumulate),
        input_dtype=inputs,
        compute_dtype=compute,
        accumulate_dtype=accumulate,
        output_dtype="f32" if match["output"] == "tf32" else match["output"] or inputs,
        layout=match["layout"],
        tile=(int(match["m"]), int(match["n"]), int(match["k"]) if match["k"] else None),
        stages=int(match["stages"]) if match["stages"] else None,
        details=tuple(details),
    )
    return replace(decoded, summary=_product_summary(decoded))


_CODENAMED = lazy_pattern(
    r"(?P<arch>maxwell|pascal|volta|turing|ampere|hopper|blackwell)_(?:(?P<input>fp16|bf16|int8|tf32|fp32)_)?"
    r"(?P<accumulate>[shdcizg])(?P<instruction>\d{3,6})?(?P<op>gemm|cudnn)(?:_(?P<output>fp16|bf16|int8|fp32))?"
    r"(?:_(?P<complex>cgemm|zgemm))?_(?P<m>\d+)x(?P<n>\d+)(?P<rest>.*)"
)
_CODENAMES: Final[Mapping[str, str]] = {
    "maxwell": "sm50", "pascal": "sm60", "volta": "sm70", "turing": "sm75", "ampere": "sm80", "hopper": "sm90",
    "blackwell": "sm100",
}  # fmt: skip
_FP_NAMES: Final[Mapping[str, str]] = {"fp16": "f16", "bf16": "bf16", "int8": "i8", "tf32": "tf32", "fp32": "f32"}


def codenamed(name: str) -> DecodedKernel | None:
    """Read cuBLAS' older names: ``ampere_sgemm_128x64_tn``."""
    match = _CODENAMED.match(name)
    if match is None or match["accumulate"] not in _ACCUMULATE:
        return None
    accumulate = _ACCUMULATE[match["accumulate"]]
    # Only Tensor Cores have instructions of a shape: 16816 is 16x8x16.
    tensor = match["instruction"] is not None
    inputs = _FP_NAMES.get(match["input"] or "", accumulate)
    if tensor and match["input"] is None:
        inputs = "f16" if match["instruction"] in ("884", "1688", "16816") and accumulate != "f64" else accumulate
    layout = re.search(r"_([nt]{2})(?:_|$)", match["rest"])
    stages = re.search(r"stages_(?:\d+x)?(\d+)", match["rest"])
    decoded = DecodedKernel(
        summary="",
        family="cuBLAS",
        operation=Operation.GEMM if match["op"] == "gemm" else Operation.FPROP,
        architecture=_CODENAMES[match["arch"]],
        unit=TENSOR_CORES if tensor else plain_unit(accumulate),
        input_dtype=inputs,
        compute_dtype=inputs,
        accumulate_dtype=accumulate,
        output_dtype=_FP_NAMES.get(match["output"] or "", inputs),
        layout=layout[1] if layout else None,
        tile=(int(match["m"]), int(match["n"])),
        stages=int(stages[1]) if stages else None,
        split_k="splitK" in match["rest"] or "split_k" in match["rest"],
        details=(("instruction", match["instruction"]),) if tensor else (),
    )
    return replace(decoded, summary=_product_summary(decoded))


_TENSILE = lazy_pattern(
    r"Cijk_(?P<a>A\w{3})_(?P<b>B\w{3})_(?P<types>[A-Z0-9]+)(?:_\w*?)?_MT(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(?:_MI(?P<instruction>\d+x\d+x\d+))?"
)
_TENSILE_LETTERS: Final[Mapping[str, str]] = {"S": "f32", "D": "f64", "H": "f16", "B": "bf16"}
"""Tensile's letters for types, as its documentation's page on precision lists them."""


def _tensile_types(letters: str) -> tuple[str | None, str | None, str | None]:
    """Read the types of the inputs, the sum and the output: ``BBS`` reads and writes bf16 and adds up in f32.

    One letter stands for all three. Two (``SB``) are an older form, whose second letter is not a type: not read.
    """
    types = [_TENSILE_LETTERS.get(letter) for letter in letters]
    if len(types) == 1:
        return types[0], types[0], types[0]
    if len(types) == 3 and None not in types and types[2] in ("f32", "f64"):
        return types[0], types[2], types[1]
    return None, None, None


def tensile(name: str) -> DecodedKernel | None:
    """Read AMD's Tensile: ``Cijk_Alik_Bljk_BBS_BH_MT128x16x128_MI16x16x1_...``."""
    match = _TENSILE.match(name)
    if match is None:
        return None
    inputs, accumulate, output = _tensile_types(match["types"])
    decoded = DecodedKernel(
        summary="",
        family="Tensile",
        operation=Operation.GEMM,
        unit=MATRIX_CORES if match["instruction"] else None,
        input_dtype=inputs,
        accumulate_dtype=accumulate,
        output_dtype=output,
        # i and j count the result's sides, and l what is summed over: Ailk and Bljk are as they are, not transposed.
        layout=("t" if match["a"] == "Alik" else "n") + ("t" if match["b"] == "Bjlk" else "n"),
        tile=(int(match["m"]), int(match["n"]), int(match["k"])),
        details=(("instruction", match["instruction"]),) if match["instruction"] else (),
        unknown=() if inputs else (f"types {match['types']}",),
    )
    return replace(decoded, summary=f"AMD {_product_summary(decoded)}")


_VECTOR_PRODUCT = lazy_pattern(
    r"(?:std::enable_if<.*?>::type )?(?:internal::)?(gemvx?|gemvNSP|gemv2[NT]|gemmSN|gemmk1|dot)(?:::|_|<)"
)


def vector_product(name: str) -> DecodedKernel | None:
    """Read cuBLAS' matrix-vector products and products with few columns."""
    match = _VECTOR_PRODUCT.match(name)
    if match is None:
        return None
    layout = re.match(r"gemmSN_([NT]{2})", name)
    small = name.startswith("gemmSN")
    # The first type is what is added up in; the operands' stands in the argument that holds the tensors.
    types = re.search(r"Tensor\w*<(float|double|__half|__nv_bfloat16) const>", name) or re.search(
        r"<(?:int, )*(float|double|__half|__nv_bfloat16)", name
    )
    dtype = cpp_dtype(types[1]) if types else None
    kind, operation = "matrix-vector product", Operation.GEMV
    if small:
        kind, operation = "GEMM with few columns", Operation.GEMM
    elif match[1] == "dot":
        kind, operation = "dot product", Operation.DOT
    return DecodedKernel(
        summary=f"{dtype_text(dtype)} {kind}, no Tensor Cores" if dtype in ("f32", "f64") else kind,
        family="cuBLAS",
        operation=operation,
        unit=plain_unit(dtype) if dtype in ("f32", "f64") else None,
        input_dtype=dtype,
        layout=layout[1].lower() if layout else None,
        unknown=("further template arguments",),
    )


_SGEMM = lazy_pattern(r"(?P<type>[sdhcz])gemm_(?P<variant>\w*?)<(?P<arguments>[^>]*)>")


def plain_gemm(name: str) -> DecodedKernel | None:
    """Read cuBLAS' kernels without an architecture: ``sgemm_largek_lds64<true, false, ...>`` (transposes first)."""
    match = _SGEMM.match(name)
    if match is None:
        return None
    flags = [argument.strip() for argument in match["arguments"].split(",")]
    layout = "".join("t" if flag == "true" else "n" for flag in flags[:2]) if flags[:2] else None
    dtype = _ACCUMULATE[match["type"]]
    decoded = DecodedKernel(
        summary="",
        family="cuBLAS",
        operation=Operation.GEMM,
        unit=plain_unit(dtype) if dtype in ("f32", "f64") else None,
        input_dtype=dtype,
        accumulate_dtype=dtype,
        output_dtype=dtype,
        layout=layout,
        split_k="splitk" in match["variant"].lower() or None,
        details=(("variant", match["variant"]),) if match["variant"] else (),
        unknown=(f"template arguments {', '.join(flags[2:])}",) if flags[2:] else (),
    )
    return replace(decoded, summary=_product_summary(decoded))


_SPLIT_K = lazy_pattern(r"(?:cublasLt::)?splitKreduce_kernel|.*reduction::kernel::ReduceSplitK")


def split_k_reduction(name: str) -> DecodedKernel | None:
    """Read the kernels that add up the parts of a split-K product."""
    if not _SPLIT_K.match(name):
        return None
    return DecodedKernel(
        summary="sum of a split-K product's parts",
        family="cuBLAS" if "cublas" in name else "cutlass",
        operation=Operation.SPLIT_K_REDUCTION,
        split_k=True,
        unknown=("template arguments",),
    )
