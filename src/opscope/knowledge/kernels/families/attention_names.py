"""Attention kernels, and cuDNN's kernels without a naming scheme."""

import re
from collections.abc import Mapping
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.knowledge.dtypes import cpp_dtype
from opscope.knowledge.kernels.decoded import TENSOR_CORES, DecodedKernel, Operation, dtype_text, template_arguments
from opscope.knowledge.kernels.names import base_name, library_of

# ---------------------------------------------------------------- generated kernels


_NCCL = lazy_pattern(
    r"(?:nccl(?:Dev)?Kernel)_?(?P<collective>[A-Z][A-Za-z]+?)(?:_(?P<operation>Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv))?"
    r"(?:_(?P<dtype>f16|bf16|f32|f64|i8|u8|i32|u32|i64|u64|f8e4m3|f8e5m2|float|half|double))?"
    r"(?:_(?P<algorithm>RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|NVLS|NVLS_TREE|PAT))?(?:_(?P<protocol>LL128|LL|SIMPLE))?(?:\(|$)"
)


def memory(name: str) -> DecodedKernel | None:
    """Read the copies and fills of the CUDA runtime: ``Memcpy HtoD (Pageable -> Device)``."""
    if not name.startswith(("Memcpy ", "Memset ")):
        return None
    return DecodedKernel(
        summary=name, family="CUDA", operation=Operation.COPY if name.startswith("Memcpy") else Operation.FILL
    )


def nccl(name: str) -> DecodedKernel | None:
    """Read NCCL: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""
    match = _NCCL.match(name)
    if match is None:
        return None
    generic = match["collective"] == "Generic"
    details = [(what, match[what]) for what in ("operation", "algorithm", "protocol") if match[what]]
    parts = [match["collective"], *(match[what] for what in ("operation", "dtype") if match[what])]
    return DecodedKernel(
        summary="NCCL collective (generic kernel)" if generic else f"NCCL {' '.join(parts)}",
        family="NCCL",
        operation=Operation.COLLECTIVE,
        input_dtype=match["dtype"],
        details=tuple(details if generic else [("collective", match["collective"]), *details]),
        # NCCL is built with few kernels and launches the one that is specialised most closely: RING_LL for messages of
        # every size; it may run another collective too.
        unknown=("the collective",)
        if generic
        else ("whether this specialisation ran another collective, algorithm or protocol",),
    )


_TRITON: Final[Mapping[str, tuple[Operation, str]]] = {
    "poi": (Operation.POINTWISE, "pointwise"),
    "red": (Operation.REDUCTION, "reduction, looping over the reduced dimension"),
    "per": (Operation.REDUCTION, "reduction, the reduced dimension in one block"),
    "tem": (Operation.TEMPLATE, "template (matrix product, convolution or attention)"),
    "for": (Operation.FOREACH, "foreach"),
    "spl": (Operation.SCAN, "split scan"),
}
_INDUCTOR = lazy_pattern(r"triton_(?P<kind>poi|red|per|tem|for|spl)_fused_(?:(?P<operators>\w*?)_)?(?P<number>\d+)")


def inductor(name: str) -> DecodedKernel | None:
    """Read torch.compile's kernels: ``triton_poi_fused_add_mul_0``."""
    match = _INDUCTOR.fullmatch(name)
    if match is None:
        return None
    operators = match["operators"] or ""
    operation, how = _TRITON[match["kind"]]
    return DecodedKernel(
        summary=f"torch.compile {how.partition(',')[0]}: {operators or 'fused'}",
        family="Inductor",
        operation=operation,
        details=(("how", how), ("fused operators, in alphabetical order", operators), ("number", match["number"])),
    )


# A word in the name of one of CUB's functions -> what that does. The first word that fits decides.
_ALGORITHMS: Final[Mapping[str, Operation]] = {
    "scan": Operation.SCAN,
    "sort": Operation.SORT,
    "merge": Operation.SORT,
    "histogram": Operation.SORT,
    "select": Operation.SELECTION,
    "unique": Operation.SELECTION,
    "reduce": Operation.REDUCTION,
}


def cub(name: str) -> DecodedKernel | None:
    """Read CUB and Thrust, whose functions say what they do."""
    if "cub::" not in base_name(name) + "::" and "thrust::" not in base_name(name) + "::":
        return None
    kernel = base_name(name).rpartition("::")[2]
    words = re.sub(r"^Device|Kernel$|_kernel$", "", kernel)
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words).replace("_", " ").lower()
    return DecodedKernel(
        summary=f"CUB {spaced}".strip(),
        family="CUB",
        operation=next((operation for word, operation in _ALGORITHMS.items() if word in spaced), None),
        details=(("algorithm", spaced),) if spaced else (),
        unknown=("template arguments",),
    )


# ---------------------------------------------------------------- attention kernels


_FLASH = lazy_pattern(
    r"(?:pytorch_flash|flash)::flash_(?P<pass>fwd|bwd)_?(?P<variant>\w*?)_?kernel<.*?"
    r"Flash_(?:fwd|bwd)_kernel_traits<(?P<dim>\d+), (?P<m>\d+), (?P<n>\d+), (?P<warps>\d+)"
)


def flash(name: str) -> DecodedKernel | None:
    """Read FlashAttention 2: ``flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, ...``."""
    match = _FLASH.match(name)
    if match is None:
        return None
    dtype = re.search(r"cutlass::(bfloat16_t|half_t)", name)
    kind = "forward" if match["pass"] == "fwd" else "backward"
    details = [("head dimension", match["dim"]), ("warps", match["warps"])]
    details += [("variant", match["variant"].replace("_", " "))] if match["variant"] else []
    read = {"bfloat16_t": "bf16", "half_t": "f16"}.get(dtype[1]) if dtype else None
    return DecodedKernel(
        summary=f"flash attention {kind}, head dimension {match['dim']}, {match['m']}x{match['n']}",
        family="FlashAttention 2",
        operation=Operation.ATTENTION if kind == "forward" else Operation.ATTENTION_BACKWARD,
        unit=TENSOR_CORES,
        input_dtype=read,
        accumulate_dtype="f32",
        output_dtype=read,
        tile=(int(match["m"]), int(match["n"])),
        split_k="splitkv" in match["variant"],
        details=tuple(details),
        unknown=("boolean template arguments",),
    )


_EFFICIENT = lazy_pattern(
    r"fmha_cutlass(?P<pass>[FB])_(?P<dtype>f32|f16|bf16)_(?P<aligned>aligned|notaligned)_(?P<m>\d+)x(?P<n>\d+)"
    r"(?P<options>(?:_[a-z0-9]+)*?)_sm(?P<arch>\d+)"
)


def efficient(name: str) -> DecodedKernel | None:
    """Read memory-efficient attention: ``fmha_cutlassF_f32_aligned_64x64_rf_sm80``."""
    match = _EFFICIENT.match(name)
    if match is None:
        return None
    kind = "forward" if match["pass"] == "F" else "backward"
    # FP32 operands go through TF32 Tensor Core instructions only if that is allowed; the name does not say.
    unit = None if match["dtype"] == "f32" else TENSOR_CORES
    options = [option for option in match["options"].split("_") if option]
    return DecodedKernel(
        summary=f"{dtype_text(match['dtype'])} memory-efficient attention {kind} {match['m']}x{match['n']}",
        family="memory-efficient attention",
        operation=Operation.ATTENTION if kind == "forward" else Operation.ATTENTION_BACKWARD,
        architecture=f"sm{match['arch']}",
        unit=unit,
        input_dtype=match["dtype"],
        accumulate_dtype="f32",
        output_dtype=match["dtype"],
        tile=(int(match["m"]), int(match["n"])),
        details=(("alignment", match["aligned"]), *(("option", option) for option in options)),
    )


_CUDNN_SDPA = lazy_pattern(
    r"cudnn_generated_fort_native_sdpa_(?P<arch>sm\d+)_flash_(?P<pass>fprop|bprop)_(?P<unit>wgmma|mma)_(?P<dtype>f16|bf16|f8)"
    r"_knob_(?P<knob>\d+)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<warps>\d+x\d+x\d+)_cga(?P<cluster>\d+)x(?P<cy>\d+)x(?P<cz>\d+)"
)


def cudnn_attention(name: str) -> DecodedKernel | None:
    """Read cuDNN's attention: ``cudnn_generated_fort_native_sdpa_sm90_flash_fprop_...``."""
    match = _CUDNN_SDPA.match(name)
    if match is None:
        return None
    kind = "forward" if match["pass"] == "fprop" else "backward"
    return DecodedKernel(
        summary=f"cuDNN flash attention {kind} {match['m']}x{match['n']}x{match['k']}, Tensor Cores",
        family="cuDNN",
        operation=Operation.ATTENTION if kind == "forward" else Operation.ATTENTION_BACKWARD,
        architecture=match["arch"],
        unit=TENSOR_CORES,
        tile=(int(match["m"]), int(match["n"]), int(match["k"])),
        cluster=(int(match["cluster"]), int(match["cy"]), int(match["cz"])),
        details=(("instruction", match["unit"]), ("warps", match["warps"])),
        # The name says f16 for bfloat16 tensors too.
        unknown=(f"data type: {match['dtype']} in the name stands for 16 bits of either kind", f"knob {match['knob']}"),
    )


# How the function's name begins, what it does, and as what kind of operation.
_CUDNN_KERNELS: Final[tuple[tuple[str, str, Operation], ...]] = (
    ("bn_fw_tr", "batch norm forward (training)", Operation.NORMALIZATION),
    ("bn_fw_inf", "batch norm forward (inference)", Operation.NORMALIZATION),
    ("bn_bw", "batch norm backward", Operation.NORMALIZATION_BACKWARD),
    ("nchwToNhwc", "layout change NCHW to NHWC", Operation.LAYOUT_CHANGE),
    ("nhwcToNchw", "layout change NHWC to NCHW", Operation.LAYOUT_CHANGE),
    ("reduce_wgrad", "sum of weight gradients", Operation.REDUCTION),
    ("init_device_workspace", "workspace set-up", Operation.SET_UP),
    ("compute_dot_do_o", "attention backward, first step", Operation.ATTENTION_BACKWARD),
    ("convert_dq_to_16bits", "attention backward, last step", Operation.ATTENTION_BACKWARD),
)


def cudnn(name: str) -> DecodedKernel | None:
    """Read cuDNN's kernels that are plain C++ functions, as far as their purpose is known."""
    if library_of(name) != "cuDNN":
        return None
    function = base_name(name).rpartition("::")[2]
    for beginning, what, operation in _CUDNN_KERNELS:
        if function.startswith(beginning):
            arguments = template_arguments(name)
            dtype = cpp_dtype(arguments[0]) if arguments else None
            return DecodedKernel(
                summary=f"cuDNN {dtype_text(dtype)} {what}" if dtype else f"cuDNN {what}",
                family="cuDNN",
                operation=operation,
                input_dtype=dtype,
                unknown=("further template arguments",) if len(arguments) > 1 else (),
            )
    return None


_TRANSPOSE: Final = lazy_pattern(r"^batched_transpose_(?P<tile>\d+x\d+)_(?:pack_\w+?_)?(?:ediv_\w+?_)?(?P<type>\w+)")


def miopen(name: str) -> DecodedKernel | None:
    """Read MIOpen's kernels that change the layout of tensors around its convolutions."""
    match = _TRANSPOSE.match(name)
    if match is None or library_of(name) != "MIOpen":
        return None
    return DecodedKernel(
        summary=f"MIOpen layout change between NCHW and NHWC, tiles of {match['tile']}",
        family="MIOpen",
        operation=Operation.LAYOUT_CHANGE,
    )
