"""Coalescing: a matrix copied with neighbouring threads along columns, and along rows.

Memory is read and written in sectors of 32 bytes. 32 neighbours of 4 bytes in a row lie in four sectors; 32 neighbours
in a column lie in 32 sectors, of which an eighth is used.
"""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels


def inputs(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return a matrix of random numbers."""
    return torch.randn(rows, columns, device=device)


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {
        "along columns": kernels.copy_along_columns,
        "along rows": kernels.copy_along_rows,
        "pytorch": torch.clone,
    }
    return Case("coalescing", variants, inputs, torch.clone, {"rows": 4096, "columns": 4096})
