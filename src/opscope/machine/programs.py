"""Where the programs of a CUDA toolkit are: of an installed one, of NVIDIA's wheels, or of Triton's."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from opscope.base.errors import EnvironmentLacksError

_SECONDS: Final = 60
_USUAL: Final = Path("/usr/local/cuda/bin")
_PACKAGES: Final = {
    "nvcc": "pip install 'opscope[cuda]', or a CUDA toolkit",
    "nvdisasm": "pip install 'opscope[cuda]', or a CUDA toolkit",
}


def folders() -> Iterator[Path]:
    """Yield the folders where programs of CUDA may be, the first choice first."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "bin"
    yield from (Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place)
    yield _USUAL
    for package in package_folders("nvidia"):
        yield from sorted(package.glob("*/bin"), reverse=True)  # cu13/bin, cuda_nvcc/bin
    for package in package_folders("triton"):
        yield package / "backends" / "nvidia" / "bin"


def package_folders(name: str) -> list[Path]:
    """Return the folders of an installed package, which may have several; empty if it is not installed."""
    result = importlib.util.find_spec(name)
    return [Path(place) for place in (result.submodule_search_locations or ())] if result else []


def wheel_headers(name: str) -> list[str]:
    """Return the folders of NVIDIA's wheels that hold a header: PyTorch's headers include those of libraries.

    Args:
        name: the header's file name.
    """
    return [
        str(folder)
        for package in package_folders("nvidia")
        for folder in sorted(package.glob("*/include"), reverse=True)
        if (folder / name).is_file()
    ]


def find_program(name: str) -> Path | None:
    """Return the path of a program of CUDA; None if it is not installed."""
    return next((result for folder in folders() if (result := folder / name).is_file()), None)


def program(name: str) -> Path:
    """Return the path of a program of CUDA.

    Raises:
        EnvironmentLacksError: it is not installed.
    """
    result = find_program(name)
    if result is None:
        raise EnvironmentLacksError(f"{name} is not installed: {_PACKAGES.get(name, 'a CUDA toolkit has it')}")
    return result


@cache
def version_text(path: Path) -> str:
    """Return what a program prints when it is asked for its version.

    Raises:
        subprocess.SubprocessError: it fails, or takes too long.
    """
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=_SECONDS).stdout


def host_compiler() -> str | None:
    """Return the C++ compiler that nvcc uses; None if it is not installed.

    It is the one that ``$NVCC_CCBIN`` names, as a program or its folder, else ``g++``.
    """
    named = os.environ.get("NVCC_CCBIN") or "g++"
    return shutil.which(str(Path(named) / "g++") if Path(named).is_dir() else named)
