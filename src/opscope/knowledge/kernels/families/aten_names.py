"""Kernels of ATen: elementwise and reduction templates with a functor, and templates with a purpose of their own."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from opscope.base.text import lazy_pattern
from opscope.knowledge.dtypes import cpp_dtype
from opscope.knowledge.kernels.decoded import DecodedKernel, Operation, dtype_text, template_arguments
from opscope.knowledge.kernels.names import base_name

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
