"""What kind of work a kernel does, where no operator is known that launched it."""

from collections.abc import Mapping
from typing import Final

from opscope.knowledge.categories import Category, Classification
from opscope.knowledge.kernels.decoded import DecodedKernel, Operation

_CATEGORIES: Final[Mapping[Operation, Category]] = {
    Operation.GEMM: Category.MATRIX,
    Operation.GEMV: Category.MATRIX,
    Operation.DOT: Category.MATRIX,
    Operation.SPLIT_K_REDUCTION: Category.MATRIX,
    Operation.FPROP: Category.CONVOLUTION,
    Operation.DGRAD: Category.CONVOLUTION,
    Operation.WGRAD: Category.CONVOLUTION,
    Operation.ATTENTION: Category.ATTENTION,
    Operation.ATTENTION_BACKWARD: Category.ATTENTION,
    Operation.NORMALIZATION: Category.NORMALIZATION,
    Operation.NORMALIZATION_BACKWARD: Category.NORMALIZATION,
    Operation.SOFTMAX: Category.ACTIVATION,  # as aten::_softmax
    Operation.SOFTMAX_BACKWARD: Category.ACTIVATION,
    Operation.ELEMENTWISE: Category.ELEMENTWISE,
    Operation.FOREACH: Category.ELEMENTWISE,
    Operation.REDUCTION: Category.REDUCTION,
    Operation.COPY: Category.MEMORY,
    Operation.FILL: Category.MEMORY,
    Operation.LAYOUT_CHANGE: Category.MEMORY,
    Operation.INDEXING: Category.INDEXING,
    Operation.SCATTER_GATHER: Category.INDEXING,
    Operation.EMBEDDING_BACKWARD: Category.EMBEDDING,
    Operation.POOLING: Category.POOLING,
    Operation.POOLING_BACKWARD: Category.POOLING,
    Operation.LOSS: Category.LOSS,
    Operation.LOSS_BACKWARD: Category.LOSS,
    Operation.DROPOUT: Category.RANDOM,
    Operation.RANDOM: Category.RANDOM,
    Operation.SCAN: Category.SCAN,
    Operation.SORT: Category.SORT,
}
_FAMILIES: Final[Mapping[str, Category]] = {"NCCL": Category.COMMUNICATION, "Inductor": Category.COMPILED}


def kernel_classification(decoded: DecodedKernel) -> Classification:
    """Classify a kernel by what its name says."""
    by_family = _FAMILIES.get(decoded.family or "")
    if by_family is not None:
        return Classification(by_family, f"kernel of {decoded.family}", by_fact=False)
    if decoded.operation is not None and (category := _CATEGORIES.get(decoded.operation)) is not None:
        return Classification(category, f"the kernel's name says: {decoded.operation}", by_fact=False)
    return Classification(Category.OTHER, "the kernel's name does not say what it does", by_fact=False)
