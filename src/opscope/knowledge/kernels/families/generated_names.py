"""Names that libraries and compilers generate: the CUDA runtime, NCCL, torch.compile, CUB."""

import re
from collections.abc import Mapping
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.knowledge.kernels.decoded import DecodedKernel, Operation
from opscope.knowledge.kernels.names import base_name

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
