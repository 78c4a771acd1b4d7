"""What a kernel's name can say, and what the readers of names share."""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct

TENSOR_CORES: Final = "Tensor Cores"
MATRIX_CORES: Final = "Matrix Cores"
FP32_CORES: Final = "FP32 cores"
FP64_CORES: Final = "FP64 cores"


class Operation(StrEnum):
    """What a kernel computes."""

    GEMM = "gemm"
    GEMV = "gemv"
    DOT = "dot"
    SPLIT_K_REDUCTION = "split-K reduction"
    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention backward"
    SOFTMAX = "softmax"
    SOFTMAX_BACKWARD = "softmax backward"
    NORMALIZATION = "normalization"
    NORMALIZATION_BACKWARD = "normalization backward"
    DROPOUT = "dropout"
    EMBEDDING_BACKWARD = "embedding backward"
    LOSS = "loss"
    LOSS_BACKWARD = "loss backward"
    POOLING = "pooling"
    POOLING_BACKWARD = "pooling backward"
    ELEMENTWISE = "elementwise"
    POINTWISE = "pointwise"
    FOREACH = "foreach"
    REDUCTION = "reduction"
    INDEXING = "indexing"
    SCATTER_GATHER = "scatter or gather"
    RANDOM = "random numbers"
    COPY = "copy"
    FILL = "copy (fill)"
    LAYOUT_CHANGE = "layout change"
    SCAN = "scan"
    SORT = "sort"
    SELECTION = "selection"
    TEMPLATE = "template (matrix product, convolution or attention)"
    SET_UP = "set-up"
    COLLECTIVE = "collective"


class DecodedKernel(Struct, frozen=True, kw_only=True):
    """What is in a kernel's name. None stands for "the name does not say".

    Attributes:
        summary: a short name for people.
        family: whose naming it follows: nvjet, xmma, cutlass, ...
        operation: what it computes.
        architecture: the oldest one it was written for: sm80.
        unit: what does the arithmetic: Tensor Cores (NVIDIA), Matrix Cores (AMD), FP32 cores.
        input_dtype: of the data in memory.
        compute_dtype: what the unit multiplies, where it differs from what is in memory (tf32).
        accumulate_dtype: what it adds up in.
        output_dtype: what it writes.
        layout: transposes of the first and second operand: nn, nt, tn, tt; of a convolution the data layouts.
        tile: what a thread block (or cluster) works on at once: two sides of the result in the name's order, and
            the depth, which may be unknown.
        stages: how many tiles are loaded ahead.
        cluster: thread blocks in a cluster.
        split_k: whether several thread blocks share one tile of the result and add up.
        vector_width: elements that a thread loads at once.
        functor: the C++ functor or function that an elementwise or reduction template applies.
        details: further facts, as name and value.
        unknown: parts of the name that are not understood.
    """

    summary: str
    family: str | None = None
    operation: Operation | None = None
    architecture: str | None = None
    unit: str | None = None
    input_dtype: str | None = None
    compute_dtype: str | None = None
    accumulate_dtype: str | None = None
    output_dtype: str | None = None
    layout: str | None = None
    tile: tuple[int | None, ...] | None = None
    stages: int | None = None
    cluster: tuple[int, ...] | None = None
    split_k: bool | None = None
    vector_width: int | None = None
    functor: str | None = None
    details: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()


def dtype_text(dtype: str) -> str:
    """Write a data type as people do: FP32, BF16, INT64."""
    return re.sub(r"^F(?=\d)", "FP", re.sub(r"^I(?=\d)", "INT", dtype.upper()))


def plain_unit(dtype: str) -> str:
    """Return the unit that does the arithmetic of a type (``f64``) without Tensor Cores."""
    return FP64_CORES if dtype == "f64" else FP32_CORES


def template_arguments(name: str) -> list[str]:
    """Return the template arguments of a kernel function, split at the outermost commas; empty if there are none."""
    start = name.find("<")
    if start < 0:
        return []
    depth, begin, result = 0, start + 1, []
    for place in range(start, len(name)):
        character = name[place]
        if character in "<({[":
            depth += 1
        elif character == ">" and name[place - 1] == "-":  # an arrow closes nothing
            continue
        elif character in ">)}]":
            depth -= 1
            if depth == 0:
                result.append(name[begin:place].strip())
                break
        elif character == "," and depth == 1:
            result.append(name[begin:place].strip())
            begin = place + 1
    return result
