"""Bank conflicts: a transposition by tiles of 32 x 32, and of 32 x 33 words of shared memory.

Word n of shared memory is in bank n % 32, and a bank serves one word at a time. With rows of 32 words, a column lies in
one bank, and a warp that reads it waits 32 times. One word of padding in each row spreads the column over all banks.
"""

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels
from opscope.workbench.gallery.coalescing import inputs
from opscope.workbench.gallery.transpose import pytorch


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {
        "32 x 32": kernels.transpose_tile_32,
        "32 x 33": kernels.transpose_tile_33,
        "pytorch": pytorch,
    }
    return Case("bank-conflicts", variants, inputs, pytorch, {"rows": 4096, "columns": 4096})
