"""An operator from a CUDA file: built, checked, verified, and timed beside PyTorch's.

python examples/custom_operator/add.py                         # verifies and times itself
opscope bench examples/custom_operator/add.py                  # the same on the command line
"""

from pathlib import Path

import torch

import opscope


def _fake_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Say what the result looks like, for torch.compile."""
    return torch.empty_like(x)


FLOATS = opscope.Requires(dtypes=(torch.float32,))
kernels = opscope.load_kernel(
    Path(__file__).with_name("add.cu"),
    {"add": _fake_add},
    requires={"x": FLOATS, "y": opscope.Requires(dtypes=(torch.float32,), shape_of="x")},
    name="example_add",
)


def inputs(size: int = 1 << 24, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    """Return two vectors."""
    return torch.randn(size, device=device), torch.randn(size, device=device)


def pytorch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Use PyTorch's."""
    return x + y


def own(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Use the kernel of add.cu, which reads dense tensors."""
    return kernels.add(x.contiguous(), y.contiguous())


if __name__ == "__main__":
    torch.library.opcheck(kernels.add, inputs(1000))
    print(opscope.bench({"pytorch": pytorch, "own": own}, inputs=inputs()))
