"""General knowledge about kernels of a kind: how they move data, what waits for what. Checked on no single kernel."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from opscope.knowledge.kernels.decoded import Operation


class KernelPattern(Struct, frozen=True):
    """How kernels of a kind usually work, in sentences.

    Attributes:
        memory: how they read and write.
        synchronisation: what waits for what.
        gain: what usually makes them faster.
    """

    memory: str
    synchronisation: str
    gain: str


_PRODUCT = KernelPattern(
    "Thread blocks stage tiles of both operands in shared memory, so that each loaded element is used for a whole row "
    "or column of the tile.",
    "The threads of a block wait for each other once per step in depth; blocks do not wait, except where split-K adds "
    "up their parts.",
    "Lower precision on Tensor Cores, sizes that are multiples of the tile, and products that are batched together.",
)
_ROWS = KernelPattern(
    "A row is read by one warp or thread block, neighbouring threads reading neighbouring elements.",
    "Threads combine their partial results through warp shuffles, and through shared memory with a barrier where a "
    "block shares a row.",
    "Fusion with the elementwise operators around it: torch.compile, or a fused kernel.",
)
_EACH = KernelPattern(
    "Neighbouring threads read and write neighbouring elements, several at a time where the kernel is vectorised.",
    "None: no thread waits for another.",
    "Fusion with its neighbours: the time is that of reading and writing, which fused operators do once.",
)
_ATTENTION = KernelPattern(
    "A block keeps a tile of queries and passes over the keys and values in tiles staged in shared memory; the "
    "matrix of scores is never written out.",
    "The threads of a block wait for each other once per tile of keys; blocks do not wait for each other.",
    "Lower precision, and masks that let whole tiles be skipped.",
)
_INDEXED = KernelPattern(
    "Reads follow the indices: neighbouring threads read neighbouring elements within a row, rows lie anywhere.",
    "None when reading; scattered writes to one place are atomic or sorted first.",
    "Indices in ascending order, and rows that are multiples of 128 bytes.",
)
_PATTERNS: Final[Mapping[Operation, KernelPattern]] = {
    **dict.fromkeys((Operation.GEMM, Operation.GEMV, Operation.FPROP, Operation.DGRAD, Operation.WGRAD), _PRODUCT),
    **dict.fromkeys((Operation.ATTENTION, Operation.ATTENTION_BACKWARD), _ATTENTION),
    **dict.fromkeys((Operation.SOFTMAX, Operation.SOFTMAX_BACKWARD), _ROWS),
    **dict.fromkeys((Operation.NORMALIZATION, Operation.NORMALIZATION_BACKWARD), _ROWS),
    **dict.fromkeys((Operation.REDUCTION, Operation.LOSS, Operation.LOSS_BACKWARD), _ROWS),
    **dict.fromkeys((Operation.ELEMENTWISE, Operation.POINTWISE, Operation.FOREACH), _EACH),
    **dict.fromkeys((Operation.COPY, Operation.FILL, Operation.LAYOUT_CHANGE), _EACH),
    **dict.fromkeys((Operation.DROPOUT, Operation.RANDOM), _EACH),
    Operation.INDEXING: _INDEXED,
}


def pattern_of(operation: Operation | None) -> KernelPattern | None:
    """Return how kernels with this operation in their name usually work; None if that is not known."""
    return None if operation is None else _PATTERNS.get(operation)
