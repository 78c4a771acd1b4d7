"""CUDA graphs: twenty small kernels, each of which needs the result of the last, issued one by one and as one graph.

The host takes longer to issue a small kernel than the device takes to run it. A graph is made once, and launched by one
call. The kernels are the same, so the gain is in the time by the host's clock.
"""

from typing import Final

import torch

from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery import technique_kernels as kernels

_KERNELS: Final = 20


def inputs(size: int, device: torch.device) -> torch.Tensor:
    """Return random numbers."""
    return torch.randn(size, device=device)


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """Issue each kernel."""
    for _ in range(_KERNELS):
        x = kernels.sine(x)
    return x


def graph(x: torch.Tensor) -> torch.Tensor:
    """Launch the graph; while the stream is being captured, which allows no launch of a graph, issue its kernels."""
    if torch.cuda.is_current_stream_capturing():
        return one_by_one(x)
    return kernels.replay_sines(x, _KERNELS)


def pytorch(x: torch.Tensor) -> torch.Tensor:
    """Issue PyTorch's kernels."""
    for _ in range(_KERNELS):
        x = torch.sin(x)
    return x


def case(device: torch.device) -> Case:
    """Return the case.

    Raises:
        EnvironmentLacksError: the device is not an NVIDIA GPU, or nvcc is missing.
    """
    kernels.refuse_without_cuda(device)
    variants: dict[str, Function] = {"one by one": one_by_one, "graph": graph, "pytorch": pytorch}
    return Case("graphs", variants, inputs, pytorch, {"size": 1 << 16})
