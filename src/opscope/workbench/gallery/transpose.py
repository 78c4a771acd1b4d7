"""Tiles in shared memory: a matrix transposed directly, and by tiles.

Directly, either the reads or the writes run along columns, and a sector of 32 bytes is moved for each element of 4. A
tile is read by rows, transposed in shared memory, and written by rows.
"""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels
from opscope.workbench.gallery.coalescing import inputs


def pytorch(x: torch.Tensor) -> torch.Tensor:
    """Transpose with PyTorch: a copy of a transposed view."""
    return x.t().contiguous()


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {
        "naive": kernels.transpose_naive,
        "tile": kernels.transpose_tile_33,
        "pytorch": pytorch,
    }
    return Case("transpose", variants, inputs, pytorch, {"rows": 4096, "columns": 4096})
