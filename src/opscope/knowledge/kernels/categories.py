"""What kind of work a kernel does, where no operator is known that launched it."""

from collections.abc import Mapping
from typing import Final

from opscope.knowledge.categories import Category, Classification
from opscope.knowledge.kernels.decoded import DecodedKernel

# How the operation in a decoded name begins -> category. The first that fits decides.
_CATEGORIES: Final[Mapping[str, Category]] = {
    "gem": Category.MATRIX,
    "dot": Category.MATRIX,
    "split-K": Category.MATRIX,
    "fprop": Category.CONVOLUTION,
    "dgrad": Category.CONVOLUTION,
    "wgrad": Category.CONVOLUTION,
    "attention": Category.ATTENTION,
    "normalization": Category.NORMALIZATION,
    "softmax": Category.ACTIVATION,  # as aten::_softmax
    "elementwise": Category.ELEMENTWISE,
    "foreach": Category.ELEMENTWISE,
    "reduction": Category.REDUCTION,
    "copy": Category.MEMORY,
    "layout change": Category.MEMORY,
    "indexing": Category.INDEXING,
    "scatter": Category.INDEXING,
    "embedding": Category.EMBEDDING,
    "pooling": Category.POOLING,
    "loss": Category.LOSS,
    "dropout": Category.RANDOM,
    "random": Category.RANDOM,
}
_FAMILIES: Final[Mapping[str, Category]] = {"NCCL": Category.COMMUNICATION, "Inductor": Category.COMPILED}


def kernel_classification(decoded: DecodedKernel) -> Classification:
    """Classify a kernel by what its name says."""
    by_family = _FAMILIES.get(decoded.family or "")
    if by_family is not None:
        return Classification(by_family, f"kernel of {decoded.family}", by_fact=False)
    for beginning, category in _CATEGORIES.items():
        if (decoded.operation or "").startswith(beginning):
            return Classification(category, f"the kernel's name says: {decoded.operation}", by_fact=False)
    return Classification(Category.OTHER, "the kernel's name does not say what it does", by_fact=False)
