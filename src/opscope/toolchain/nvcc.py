"""Builds CUDA sources into shared libraries with nvcc, once per source, compiler and architecture.

The libraries have C functions that take pointers and a stream, and are called through ctypes: no headers of PyTorch are
compiled, so a build takes seconds.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from opscope.errors import EnvironmentLacksError, OpscopeError
from opscope.files import cache_folder

_SECONDS = 300


@cache
def compiler() -> Path:
    """Return the nvcc of ``CUDA_HOME``, of the path, or of its usual place.

    Raises:
        EnvironmentLacksError: there is none.
    """
    home = os.environ.get("CUDA_HOME")
    places = [Path(home) / "bin" / "nvcc"] if home else []
    found = shutil.which("nvcc")
    places += [Path(found)] if found else []
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    for place in places:
        if place.is_file():
            return place
    raise EnvironmentLacksError("nvcc is not installed (CUDA_HOME, or the path, says where it is)")


@cache
def _version(nvcc: Path) -> str:
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=_SECONDS).stdout


def build(source: Path, capability: tuple[int, int]) -> ctypes.CDLL:
    """Build a source, unless that was done before, and load it.

    Args:
        source: a ``.cu`` file with C functions.
        capability: the device's, (9, 0).

    Raises:
        EnvironmentLacksError: nvcc is missing.
        OpscopeError: the source cannot be compiled.
    """
    nvcc = compiler()
    architecture = f"{capability[0]}{capability[1]}"
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = ["-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC", target]
    key = hashlib.sha256("\0".join([source.read_text(), _version(nvcc), *command]).encode()).hexdigest()[:20]
    library = cache_folder() / "cuda" / f"{source.stem}-{key}.so"
    if not library.is_file():
        _compile(nvcc, command, source, library)
    return ctypes.CDLL(str(library))


def _compile(nvcc: Path, command: list[str], source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        partial = Path(folder) / library.name
        done = subprocess.run(
            [nvcc, *command, str(source), "-o", str(partial)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise OpscopeError(f"nvcc cannot compile {source}: {done.stderr.strip()[-2000:]}")
        partial.replace(library)
