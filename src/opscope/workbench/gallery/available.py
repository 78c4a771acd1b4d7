"""Tells which ways of writing a kernel are available on this machine."""

import importlib.util

import torch

from opscope.base.errors import EnvironmentLacksError
from opscope.workbench.toolchain.nvcc import compiler


def has_cuda(device: torch.device) -> bool:
    """Tell whether CUDA C++ can be built for a device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    try:
        compiler()
    except EnvironmentLacksError:
        return False
    return True


def has_triton(device: torch.device) -> bool:
    """Tell whether Triton can build for a device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None
