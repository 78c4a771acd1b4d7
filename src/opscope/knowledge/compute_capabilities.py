"""What is known of each compute capability (``data/compute_capabilities.toml``, with its sources).

``data/cuda_toolkits.toml`` says, with its sources, what CUDA toolkits need of drivers and host compilers.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from msgspec import Struct

# CUDA release notes 13.2, tables 2 and 3: the first driver of each major version runs what any toolkit of it built.
_FIRST_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


class Toolkit(Struct, frozen=True, kw_only=True):
    """One release of CUDA.

    Attributes:
        version: ``12.8``.
        gcc: the newest GCC that its nvcc accepts, by major version.
    """

    version: str
    gcc: int


@cache
def toolkits() -> Mapping[str, Toolkit]:
    """Return the toolkits by version, the oldest first."""
    text = resources.files("opscope.knowledge").joinpath("data", "cuda_toolkits.toml").read_text("utf-8")
    return {version: Toolkit(version=version, **values) for version, values in tomllib.loads(text).items()}


def toolkit_of(version: str) -> Toolkit | None:
    """Return the toolkit of a version with or without its last part (``12.8``, ``12.8.93``); None if not known."""
    return toolkits().get(".".join(map(str, version_of(version)[:2])))


def runs_on(cuda: str, driver_cuda: str) -> bool:
    """Tell whether programs built with one version of CUDA run on a driver that supports another.

    The major version decides.
    """
    return version_of(cuda)[:1] <= version_of(driver_cuda)[:1]


def first_driver(cuda: str) -> str | None:
    """Return the first Linux driver that runs programs built with a version of CUDA; None where it is not known."""
    major = version_of(cuda)[:1]
    return _FIRST_DRIVER.get(major[0]) if major else None


class MultiprocessorLimits(Struct, frozen=True, kw_only=True):
    """The limits of one multiprocessor.

    Attributes:
        blocks, threads, registers, shared_memory_bytes: how much it holds at a time.
        reserved_shared_memory_bytes: what the system takes of it per thread block.
        shared_memory_unit_bytes: what a thread block's shared memory is rounded up to.
    """

    blocks: int
    threads: int
    registers: int
    shared_memory_bytes: int
    reserved_shared_memory_bytes: int
    shared_memory_unit_bytes: int


class ComputeCapability(Struct, frozen=True, kw_only=True):
    """A generation of NVIDIA's devices.

    Attributes:
        number: ``9.0``.
        architecture: ``Hopper``.
        cuda_min: the first CUDA toolkit that builds for it.
        cuda_max: the last one; None where the newest does.
        fp32_cores: ordinary cores of a multiprocessor.
        block_shared_memory_bytes: the most that a thread block can ask for (opt-in).
        multiprocessor: the limits of one.
    """

    number: str
    architecture: str
    cuda_min: str
    fp32_cores: int
    block_shared_memory_bytes: int
    multiprocessor: MultiprocessorLimits
    cuda_max: str | None = None

    @property
    def toolkits(self) -> str:
        """The CUDA toolkits that build for it, as text: ``CUDA 9.0 to 12.9``."""
        return f"CUDA {self.cuda_min} {f'to {self.cuda_max}' if self.cuda_max else 'on'}"


@cache
def compute_capabilities() -> Mapping[str, ComputeCapability]:
    """Return what is known by number (``9.0``), the oldest first."""
    text = resources.files("opscope.knowledge").joinpath("data", "compute_capabilities.toml").read_text("utf-8")
    return {number: _capability(number, values) for number, values in tomllib.loads(text).items()}


def _capability(number: str, values: Mapping[str, Any]) -> ComputeCapability:
    limits = MultiprocessorLimits(**values["multiprocessor"])
    return ComputeCapability(number=number, **{**values, "multiprocessor": limits})


def sm_of(number: str) -> str:
    """Return what compilers call a compute capability: ``sm_90`` for ``9.0``, ``sm_90a`` for ``9.0a``.

    The gfx name of an AMD device stays as it is.
    """
    return number if not number[:1].isdecimal() else f"sm_{number.replace('.', '')}"


def gencode(number: str, *, ptx: bool = True, sass: bool = True) -> tuple[str, ...]:
    """Return nvcc's flags to build for a compute capability.

    Args:
        number: ``9.0``.
        ptx: whether to include PTX, which newer devices translate.
        sass: whether to include machine code.
    """
    virtual = sm_of(number).replace("sm_", "compute_")
    codes = ((sm_of(number),) if sass else ()) + ((virtual,) if ptx else ())
    return tuple(f"-gencode=arch={virtual},code={code}" for code in codes)


def capability_of(sm: str) -> str | None:
    """Return the compute capability of ``sm_90``, ``compute_90``, ``sm_90a`` or ``9.0``; None for any other text."""
    # The last digit is the minor version: sm_90 is 9.0, sm_120 is 12.0.
    digits = sm.removeprefix("sm_").removeprefix("compute_").rstrip("af").replace(".", "")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdecimal() and len(digits) >= 2 else None


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers to compare: (12, 8) for ``12.8``; the first part that is not a number ends it."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
