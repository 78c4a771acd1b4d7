"""What a kernel's name says: library, architecture, unit, data types, layout, tile and more.

Each family of names has one function in `opscope.knowledge.kernels.families`; the first that understands a name
decides. What a name holds that is not understood is listed as unknown and never guessed.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from opscope.base.text import or_unknown
from opscope.knowledge.kernels.decoded import DecodedKernel
from opscope.knowledge.kernels.families.aten_names import aten
from opscope.knowledge.kernels.families.attention_names import (
    cub,
    cudnn,
    cudnn_attention,
    efficient,
    flash,
    inductor,
    memory,
    miopen,
    nccl,
)
from opscope.knowledge.kernels.families.gemm_names import (
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

_FAMILIES: Final[tuple[Callable[[str], DecodedKernel | None], ...]] = (
    nvjet, xmma, cutlass, codenamed, tensile, vector_product, plain_gemm, split_k_reduction,
    flash, efficient, cudnn_attention, cudnn, miopen, memory, nccl, inductor, aten, cub,
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
