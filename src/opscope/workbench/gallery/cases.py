"""Benchmarks that are examples: each module has a function ``case`` that returns what is compared."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

    from opscope.workbench.benchmarking.case import Case

# name -> (module, what it shows)
GALLERY: Final[Mapping[str, tuple[str, str]]] = {
    "square": ("square", "the same square written in several ways"),
    "gelu": ("gelu", "by hand, PyTorch, CUDA, Triton, torch.compile: what fusing is worth"),
    "add": ("add", "as fast as memory allows: PyTorch, CUDA, Triton"),
    "matmul": ("matmul", "a product at float32, TF32 and 16 bits"),
    "cdist": ("cdist", "distances as a product, and as differences"),
    "softmax": ("softmax", "a reduction per row: by hand, PyTorch, Triton, torch.compile"),
    "layer_norm": (
        "layer_norm",
        "a normalisation per row: by hand, PyTorch, Triton, torch.compile",
    ),
    "coalescing": ("coalescing", "a matrix copied with warps along columns, and along rows"),
    "transpose": ("transpose", "a matrix transposed directly, and by tiles in shared memory"),
    "bank-conflicts": (
        "bank_conflicts",
        "tiles of 32 x 32 words of shared memory, and of 32 x 33",
    ),
    "divergence": ("divergence", "two branches mixed in each warp, and in warps that agree"),
    "occupancy": (
        "occupancy",
        "loads that wait, with one block on a multiprocessor, and with many",
    ),
    "vector-loads": ("vector_loads", "memory moved by float, and by float4"),
    "fusion": ("fusion", "three elementwise kernels, and one that does the same"),
    "graphs": ("graphs", "twenty small kernels one by one, and as a CUDA graph"),
}

TIMERS: Final = "timers"  # one function, timed in the ways that people do: see `opscope.workbench.gallery.timers`


def gallery_case(name: str, device: "torch.device") -> "Case":
    """Return a case by its name, with the variants that a device can run.

    Args:
        name: a key of `GALLERY`.
        device: where the variants are to run.

    Raises:
        EnvironmentLacksError: the case compares CUDA kernels, and an NVIDIA GPU or nvcc is missing.
    """
    result: Case = importlib.import_module(f"{__package__}.{GALLERY[name][0]}").case(device)
    return result
