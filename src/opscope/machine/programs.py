"""Finds programs of a CUDA toolkit and a host compiler, and CUPTI: its headers and its library.

CUPTI comes with a toolkit, with NVIDIA's wheels, or with Triton.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.base.errors import EnvironmentLacksError
from opscope.base.text import lazy_pattern
from opscope.knowledge.devices import first_driver, version_of

# ---------------------------------------------------------------- programs


_SECONDS: Final = 60
_USUAL_FOLDER: Final = Path("/usr/local/cuda/bin")
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
    yield _USUAL_FOLDER
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


# ---------------------------------------------------------------- CUPTI


_USUAL: Final = Path("/usr/local/cuda")
_DEFINED: Final = lazy_pattern(r"#define\s+CUPTI_API_VERSION\s+(\d+)")
_NEEDED: Final = ("cupti_activity.h", "cupti_callbacks.h", "cupti_version.h")
_OLDEST_API: Final = 18  # of CUDA 12.0; CUDA 11.8 has the same number, but not the records
_FIRST_WITH_RELEASE: Final = 130000  # since CUDA 13, the number is made of CUDA's version
_HOW: Final = "pip install 'opscope[cuda]' (it holds nvidia-cuda-cupti), or install a CUDA toolkit"


class Cupti(Struct, frozen=True):
    """A CUPTI that programs can be built for.

    Attributes:
        headers: the folders to include.
        library: the shared library.
        api_version: ``CUPTI_API_VERSION`` of its header: 130001 since CUDA 13; before that a small number.
    """

    headers: tuple[Path, ...]
    library: Path
    api_version: int

    @property
    def cuda(self) -> str:
        """The major version of CUDA that it belongs to."""
        return str(self.api_version // 10_000) if self.api_version >= _FIRST_WITH_RELEASE else "12"


def find_cupti(driver: str | None) -> Cupti:
    """Return the newest CUPTI that the driver can serve.

    Args:
        driver: the driver's own version; None where it is not known, or there is none.

    Raises:
        EnvironmentLacksError: there is none, or only ones that are too new for the driver.
    """
    results = list(_all())
    if not results:
        raise EnvironmentLacksError(f"CUPTI is not installed, with its headers: {_HOW}")
    served = [one for one in results if driver is None or _serves(driver, one)]
    if not served:
        newest = max(results, key=lambda one: one.api_version)
        raise EnvironmentLacksError(
            f"the driver {driver} is too old for the CUPTI here, which is of CUDA {newest.cuda} and needs "
            f"{first_driver(newest.cuda)}: update the driver, or pip install nvidia-cuda-cupti-cu12 "
            "nvidia-cuda-runtime-cu12"
        )
    return max(served, key=lambda one: one.api_version)  # the first of several of one version


def _serves(driver: str, cupti: Cupti) -> bool:
    least = first_driver(cupti.cuda)
    return least is None or version_of(driver) >= version_of(least)


def _all() -> Iterator[Cupti]:
    seen = set()
    for headers, libraries in _places():
        folders = tuple(folder for folder in headers if folder.is_dir())
        home = next((folder for folder in folders if all((folder / name).is_file() for name in _NEEDED)), None)
        library = next((path for folder in libraries for path in sorted(folder.glob("libcupti.so*"))), None)
        if home is None or library is None or not any((folder / "cuda.h").is_file() for folder in folders):
            continue
        version = _DEFINED.search((home / "cupti_version.h").read_text(encoding="utf-8", errors="replace"))
        # Several places may be links to one library.
        if version and int(version[1]) >= _OLDEST_API and (real := library.resolve()) not in seen:
            seen.add(real)
            yield Cupti((home, *(folder for folder in folders if folder != home)), real, int(version[1]))


def _places() -> Iterator[tuple[list[Path], list[Path]]]:
    """Yield folders with headers (CUPTI's and CUDA's) and folders with its library, that belong together."""
    named = [Path(place) for name in ("CUDA_HOME", "CUDA_PATH") if (place := os.environ.get(name))]
    for home in (*named, _USUAL):
        extras = home / "extras" / "CUPTI"
        yield [extras / "include", home / "include"], [extras / "lib64", home / "lib64", home / "lib"]
    for package in package_folders("nvidia"):
        for version in sorted(package.glob("cu[0-9]*"), reverse=True):  # CUDA 13: all in one folder
            yield [version / "include"], [version / "lib"]
        yield (
            [package / "cuda_cupti" / "include", package / "cuda_runtime" / "include"],
            [package / "cuda_cupti" / "lib"],
        )
    for package in package_folders("triton"):
        nvidia = package / "backends" / "nvidia"
        yield [nvidia / "include"], [nvidia / "lib" / "cupti"]
