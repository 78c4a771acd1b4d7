"""What CUDA toolkits need of drivers and host compilers (``data/cuda_toolkits.toml``, with its sources)."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from msgspec import Struct

from opscope.knowledge.compute_capabilities import version_of

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
