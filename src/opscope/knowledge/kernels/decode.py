"""What a kernel's name says: library, architecture, unit, data types, layout, tile and more.

Each family of names has one function, here or in `opscope.knowledge.kernels.gemm_names`; the first that understands a
name decides. What a name holds that is not understood is listed as unknown and never guessed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from opscope.base.text import lazy_pattern, or_unknown
from opscope.knowledge.dtypes import cpp_dtype
from opscope.knowledge.kernels.decoded import (
    TENSOR_CORES,
    DecodedKernel,
    Operation,
    dtype_text,
    plain_unit,
    template_arguments,
)
from opscope.knowledge.kernels.gemm_names import (
    codenamed,
    cutlass,
    nvjet,
    plain_gemm,
    split_k_reduction,
    tensile,
    vector_product,
    xmma,
)
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


# cuDNN's convolutions without Tensor Cores (cuDNN 5 to 9, as profilers recorded them on V100, T4 and 2080 Ti). Its
# Winograd and FFT transforms are parts of one.
_OLD_CONVOLUTION: Final = lazy_pattern(
    r"(?:cudnn_(?:infer|train|ops)_)?(?:maxwell|pascal|volta|turing|ampere)_scudnn_(?P<scudnn>winograd)"
    r"|(?:\w+::)*(?:"
    r"(?P<dgrad>dgrad(?:2d)?_\w*|dgrad_engine)<(?P<dgrad_type>\w+)"
    r"|(?P<wgrad>wgrad(?:2d|_alg\d)?_\w*)<(?P<wgrad_type>\w+)"
    r"|(?P<forward>implicit_convolve_\w+|convolve_(?:sgemm|common_engine\w*)|conv2d_grouped_direct_kernel)<(?P<forward_type>\w+)"
    r"|(?P<winograd>winograd(?:Forward|Wgrad)\w*)<(?P<winograd_type>\w+)"
    r"|(?P<fft>fft2d_(?:r2c|c2r)_\w+)<(?P<fft_type>\w+)"
    r"|(?P<dse>(?:vector|regular)_fft(?:_\w+)?)<(?:[\w ]+, )*?(?P<dse_type>float|double)\b"
    r"|(?P<sums>pointwise_mult_and_sum_complex)<(?P<sums_type>float|double)2)"
)
_PARTS: Final = {
    "scudnn": ("Winograd convolution", Operation.FPROP),
    "dgrad": ("convolution's input gradient", Operation.DGRAD),
    "wgrad": ("convolution's weight gradient", Operation.WGRAD),
    "forward": ("convolution", Operation.FPROP),
    "winograd": ("Winograd convolution's transform", Operation.FPROP),
    "fft": ("FFT convolution's transform", Operation.FPROP),
    "dse": ("FFT convolution's transform", Operation.FPROP),
    "sums": ("FFT convolution's products", Operation.FPROP),
}


def old_convolution(name: str) -> DecodedKernel | None:
    """Read cuDNN's convolutions on the ordinary cores: ``volta_scudnn_winograd_...``, ``dgrad_engine<float, ...>``."""
    match = _OLD_CONVOLUTION.match(name)
    if match is None:
        return None
    part = next(part for part in _PARTS if match[part])
    dtype = "f32" if part == "scudnn" else cpp_dtype(match[f"{part}_type"])
    if dtype is None:
        return None
    words, operation = _PARTS[part]
    is_plain = dtype in ("f32", "f64")
    return DecodedKernel(
        summary=f"{dtype_text(dtype)} {words}{', no Tensor Cores' if is_plain else ''}",
        family="cuDNN",
        operation=operation,
        unit=plain_unit(dtype) if is_plain else None,
        input_dtype=dtype,
        unknown=("further parts of the name",),
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


# ---------------------------------------------------------------- kernels of ATen


_INPUT, _OUTPUT, _ACC = "input_dtype", "output_dtype", "accumulate_dtype"


class _Template(Struct, frozen=True):
    """A kernel template of ATen. Numbers are positions of template arguments, from 0.

    Attributes:
        what: what it does, for people.
        operation: the same as a kind.
        dtypes: field of `DecodedKernel` -> the argument that is its type.
        numbers: name of a detail -> the argument that is its value.
        vector_width: the argument that says how many elements a load takes; None where none does.
    """

    what: str
    operation: Operation
    dtypes: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    vector_width: int | None = None


_ROW = {_INPUT: 0, _OUTPUT: 1, _ACC: 2}
_BLOCK = {_INPUT: 1, _ACC: 2, _OUTPUT: 3}  # after the number of elements per load
_TWO = {_INPUT: 0, _ACC: 1}
_LENGTH = {"log2 of the row length": 3}
_TEMPLATES: Final[Mapping[str, _Template]] = {
    "softmax_warp_forward": _Template("softmax, a row per warp", Operation.SOFTMAX, _ROW, _LENGTH),
    "softmax_warp_backward": _Template("softmax backward, a row per warp", Operation.SOFTMAX_BACKWARD, _ROW, _LENGTH),
    "cunn_SoftMaxForward": _Template("softmax, a row per block", Operation.SOFTMAX, _BLOCK, vector_width=0),
    "cunn_SoftMaxForwardSmem": _Template("softmax, a row in shared memory", Operation.SOFTMAX, _BLOCK, vector_width=0),
    "cunn_SoftMaxForwardReg": _Template(
        "softmax, a row in registers", Operation.SOFTMAX, {_INPUT: 0, _ACC: 1, _OUTPUT: 2}
    ),
    "cunn_SoftMaxForwardGmem": _Template("softmax, a row per block", Operation.SOFTMAX, _BLOCK, vector_width=0),
    "cunn_SoftMaxBackward": _Template(
        "softmax backward, a row per block", Operation.SOFTMAX_BACKWARD, _BLOCK, vector_width=0
    ),
    "cunn_SoftMaxBackwardSmem": _Template(
        "softmax backward, a row in shared memory", Operation.SOFTMAX_BACKWARD, _BLOCK, vector_width=0
    ),
    "vectorized_layer_norm_kernel": _Template("layer norm, vectorized", Operation.NORMALIZATION, _TWO),
    "LayerNormForwardCUDAKernel": _Template("layer norm", Operation.NORMALIZATION, _TWO),
    "RowwiseMomentsCUDAKernel": _Template("mean and variance per row", Operation.NORMALIZATION, _TWO),
    "layer_norm_grad_input_kernel": _Template("layer norm backward (input)", Operation.NORMALIZATION_BACKWARD, _TWO),
    "layer_norm_grad_input_kernel_vectorized": _Template(
        "layer norm backward (input), vectorized", Operation.NORMALIZATION_BACKWARD, _TWO
    ),
    "GammaBetaBackwardCUDAKernelTemplate": _Template(
        "layer norm backward (weight and bias)", Operation.NORMALIZATION_BACKWARD, _TWO
    ),
    "fused_dropout_kernel_vec": _Template("dropout, vectorized", Operation.DROPOUT, _TWO, vector_width=4),
    "fused_dropout_kernel": _Template("dropout", Operation.DROPOUT, _TWO),
    "embedding_backward_feature_kernel": _Template("embedding backward", Operation.EMBEDDING_BACKWARD, _TWO),
    "nll_loss_forward_reduce_cuda_kernel_2d": _Template("NLL loss", Operation.LOSS, _TWO),
    "nll_loss_backward_reduce_cuda_kernel_2d": _Template("NLL loss backward", Operation.LOSS_BACKWARD, {_INPUT: 0}),
    "max_pool_forward_nchw": _Template("max pooling (NCHW)", Operation.POOLING, {_INPUT: 0}),
    "max_pool_backward_nchw": _Template("max pooling backward (NCHW)", Operation.POOLING_BACKWARD, _TWO),
    "CatArrayBatchedCopy": _Template("concatenation", Operation.COPY),
    "CatArrayBatchedCopy_contig": _Template("concatenation, contiguous", Operation.COPY),
    "CatArrayBatchedCopy_alignedK_contig": _Template("concatenation, aligned", Operation.COPY),
    "CatArrayBatchedCopy_vectorized": _Template("concatenation, vectorized", Operation.COPY),
    "indexSelectLargeIndex": _Template("index_select, many indices", Operation.INDEXING, {_INPUT: 0}),
    "indexSelectSmallIndex": _Template("index_select, few indices", Operation.INDEXING, {_INPUT: 0}),
    "vectorized_gather_kernel": _Template(
        "gather of rows, vectorized", Operation.INDEXING, numbers={"bytes per load": 0}
    ),
    "batch_norm_collect_statistics_kernel": _Template("batch norm statistics", Operation.NORMALIZATION),
    "batch_norm_transform_input_kernel": _Template("batch norm", Operation.NORMALIZATION, {_INPUT: 0}),
}
_ELEMENTWISE: Final[Mapping[str, tuple[Operation, str]]] = {
    "vectorized_elementwise_kernel": (Operation.ELEMENTWISE, "elementwise, vectorized"),
    "vectorized_templated_elementwise_kernel": (Operation.ELEMENTWISE, "elementwise, vectorized, with casts"),
    "unrolled_elementwise_kernel": (Operation.ELEMENTWISE, "elementwise, with casts or uneven sizes"),
    "unrolled_elementwise_kernel_for_multi_outputs": (Operation.ELEMENTWISE, "elementwise, several outputs"),
    "elementwise_kernel": (Operation.ELEMENTWISE, "elementwise, strided"),
    "elementwise_kernel_manual_unroll": (Operation.ELEMENTWISE, "elementwise, strided, unrolled"),
    "elementwise_kernel_with_index": (Operation.ELEMENTWISE, "elementwise, from the index"),
    "index_elementwise_kernel": (Operation.INDEXING, "indexing"),
    "_scatter_gather_elementwise_kernel": (Operation.SCATTER_GATHER, "scatter or gather"),
    "distribution_elementwise_grid_stride_kernel": (Operation.RANDOM, "random numbers"),
    "multi_tensor_apply_kernel": (Operation.FOREACH, "foreach over many tensors"),
    "reduce_kernel": (Operation.REDUCTION, "reduction"),
}
# Wrappers around the functor or function that does the work.
_WRAPPERS: Final = frozenset(
    {
        *("gpu_kernel_impl", "gpu_kernel_impl_nocast", "gpu_kernel_with_index", "launch_legacy_kernel"),
        *("opmath_gpu_kernel_with_scalars", "opmath_symmetric_gpu_kernel_with_scalars"),
        *("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "binary_internal", "ReduceOp", "func_wrapper_t"),
        *("TensorListMetadata", "TensorListScalarListMetadata", "FusedOptimizerTensorListMetadata"),
        *("memory", "detail", "Array", "native", "templates", "cuda"),
    }
)
# Templates that call a lambda over the index.
_OVER_AN_INDEX: Final = frozenset(
    {"elementwise_kernel", "elementwise_kernel_manual_unroll", "index_elementwise_kernel"}
    | {"_scatter_gather_elementwise_kernel"}
)
_FUNCTOR_TYPE = lazy_pattern(r"\w*Functor\w*<([^,<>]+(?:<[^<>]*>)?)")
_LAMBDA = lazy_pattern(r"\{lambda\(([^(),]+?)(?:,[^()]*)?\)#\d+\}")
_QUALIFIED = lazy_pattern(r"at::native::((?:\(anonymous namespace\)::|\{anonymous\}::|\w+::)*)([A-Za-z_]\w*)")


def aten(name: str) -> DecodedKernel | None:
    """Read ATen's own kernels: templates with a functor, and templates with a purpose of their own."""
    function = base_name(name).rpartition("::")[2]
    if function in _ELEMENTWISE:
        return _elementwise(name, function)
    if function in _TEMPLATES:
        return _described(name, _TEMPLATES[function])
    return None


def _described(name: str, template: _Template) -> DecodedKernel:
    arguments = template_arguments(name)

    def at(position: int | None) -> str | None:
        return arguments[position] if position is not None and position < len(arguments) else None

    dtypes = {kind: cpp_dtype(at(position)) for kind, position in template.dtypes.items()}
    width = at(template.vector_width)
    dtype = dtypes.get(_INPUT)
    return DecodedKernel(
        summary=f"{dtype_text(dtype)} {template.what}" if dtype else template.what,
        family="ATen",
        operation=template.operation,
        vector_width=int(width) if width and width.isdigit() else None,
        details=tuple((what, at(position) or "") for what, position in template.numbers.items()),
        input_dtype=dtypes.get(_INPUT),
        accumulate_dtype=dtypes.get(_ACC),
        output_dtype=dtypes.get(_OUTPUT),
    )


def _elementwise(name: str, function: str) -> DecodedKernel:
    arguments = template_arguments(name)
    functor = _functor(arguments)
    dtype, accumulate = _element_types(name, arguments, function)
    details = []
    width = None
    if function.startswith("vectorized") and arguments and arguments[0].isdigit():
        width = int(arguments[0])
    elif function == "reduce_kernel" and len(arguments) > 1:
        details += [("most threads", arguments[0]), ("outputs per thread", arguments[1])]
    elif function in ("elementwise_kernel", "index_elementwise_kernel", "_scatter_gather_elementwise_kernel"):
        details += [("threads", arguments[0]), ("elements per thread", arguments[1])] if len(arguments) > 1 else []
    operands = re.search(r"(?:std::array|at::detail::Array)<char\s*\*, (\d+)", name)
    details += [("tensors", operands[1])] if operands else []
    operation, what = _ELEMENTWISE[function]
    parts = [dtype_text(dtype)] if dtype else []
    parts += [functor] if functor else []
    return DecodedKernel(
        summary=f"{' '.join(parts)} ({what})" if parts else what,
        family="ATen",
        operation=operation,
        input_dtype=dtype,
        accumulate_dtype=accumulate,
        vector_width=width,
        functor=functor,
        details=tuple(details),
        unknown=() if functor else ("the functor",),
    )


def _functor(arguments: Sequence[str]) -> str | None:
    for argument in arguments:
        for match in _QUALIFIED.finditer(argument):  # wrappers stand around the functor, so before it
            if match[2] not in _WRAPPERS:
                return match[2]
    return None


def _element_types(name: str, arguments: Sequence[str], function: str) -> tuple[str | None, str | None]:
    """Return element and accumulation type: from the reduction, the functor's arguments, or the innermost lambda."""
    if function == "reduce_kernel":
        reduction = re.search(r"ReduceOp<([^,<>]+(?:<[^<>]*>)?), at::native::(?:\w+::)*(\w+)<([^<>]*)", name)
        if reduction is None:
            return None, None
        inner = [part.strip() for part in reduction[3].split(",")]
        # MeanOps<element, accumulate, factor, output> and its relatives; func_wrapper_t<accumulate, ...> has one type.
        return cpp_dtype(reduction[1].strip()), cpp_dtype(inner[1] if len(inner) > 2 else inner[0])
    if function == "distribution_elementwise_grid_stride_kernel":
        return cpp_dtype(arguments[0]) if arguments else None, None
    text = ", ".join(arguments)
    if "OpaqueType" in text or function == "elementwise_kernel_with_index":
        return None, None  # elements of a size, of no type; and a function of the index
    for match in _FUNCTOR_TYPE.finditer(text):
        if dtype := cpp_dtype(match[1].strip()):
            return dtype, None
    # Strided templates wrap the function in a lambda over the index, which comes last.
    lambdas = [match[1].strip() for match in _LAMBDA.finditer(text)]
    own = lambdas[:-1] if function in _OVER_AN_INDEX else lambdas
    return cpp_dtype(own[-1]) if own else None, None


# ---------------------------------------------------------------- decoding


_FAMILIES: Final[tuple[Callable[[str], DecodedKernel | None], ...]] = (
    nvjet, xmma, cutlass, codenamed, tensile, vector_product, plain_gemm, split_k_reduction,
    flash, efficient, cudnn_attention, old_convolution, cudnn, miopen, memory, nccl, inductor, aten, cub,
)  # fmt: skip


@lru_cache(maxsize=1 << 14)
def decode_name(name: str) -> DecodedKernel:
    """Decode a kernel's name, as profilers record it.

    A name that no family understands gets a summary, and is listed whole in ``unknown``.
    """
    plain = name.strip().removeprefix("void ")
    for family in _FAMILIES:
        if (decoded := family(plain)) is not None:
            return decoded
    base = base_name(name).rpartition("::")[2] or plain
    library = library_of(name)
    summary = f"{library} kernel {base}" if library else base
    return DecodedKernel(summary=summary[:120], unknown=(plain,))


def told_kernel(name: str) -> str:
    """Return what a kernel's name says for the middle of a sentence; quoted where no family understands it."""
    decoded = decode_name(name)
    is_understood = decoded.unknown != (name.strip().removeprefix("void "),)
    return decoded.summary if is_understood else or_unknown(decoded.summary)
