"""nvcc: which one there is, for which devices it builds, and building with it."""

import ctypes
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from opscope.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.files import cache_folder
from opscope.knowledge.compute_capabilities import capability_of, compute_capabilities, gencode, version_of
from opscope.toolchain.messages import first_error
from opscope.toolchain.programs import host_compiler, program, version_text

_SECONDS: Final = 1800
_VERSION: Final = re.compile(r"release [\d.]+, V([\d.]+)")
_LIBRARY_FLAGS: Final = ("-shared", "-Xcompiler=-fPIC")


class Kind(StrEnum):
    """What can be built."""

    EXECUTABLE = "executable"
    LIBRARY = "library"
    EXTENSION = "extension"
    CUBIN = "cubin"
    PTX = "ptx"


@dataclass(frozen=True, slots=True)
class Nvcc:
    """One compiler.

    Attributes:
        path: where it is.
        version: ``13.0.88``.
        capabilities: the compute capabilities that it builds for, the oldest first.
        flags: what it needs to find its own parts.
    """

    path: Path
    version: str
    capabilities: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """What a build gave.

    Attributes:
        output: the file.
        command: as it was run, for a shell.
        text: what the compiler printed.
        seconds: how long it took.
    """

    output: Path
    command: str
    text: str
    seconds: float


class BuildFailedError(OpscopeError):
    """The source cannot be compiled: the compiler's first error, with its line."""


def compiler() -> Path:
    """Return the nvcc of ``CUDA_HOME``, of the path, of its usual place, or of NVIDIA's wheels.

    Raises:
        EnvironmentLacksError: there is none.
    """
    return program("nvcc")


def installed() -> Nvcc:
    """Describe the nvcc that is here.

    Raises:
        EnvironmentLacksError: there is none, or it does not run.
    """
    return _described(compiler())


@cache
def _described(path: Path) -> Nvcc:
    try:
        found = _VERSION.search(version_text(path))
        listed = subprocess.run(
            [path, "--list-gpu-arch"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentLacksError(f"{path} does not run: {error}") from error
    numbers = {number for word in listed.split() if (number := capability_of(word)) is not None}
    root = path.resolve().parent.parent
    # The wheels of 13.0 and 13.1 look for their libraries in lib64, and have lib.
    flags = (f"-L{root / 'lib'}",) if (root / "lib" / "libcudart_static.a").is_file() else ()
    version = found[1] if found else "unknown"
    return Nvcc(path, version, tuple(sorted(numbers, key=version_of)), flags)


def architectures(nvcc: Nvcc, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the compute capabilities of words like ``sm_90``, ``9.0`` or ``sm_90a``, with the letter kept.

    Raises:
        UsageError: a word is none, or this nvcc does not build for it.
    """
    return tuple(_architecture(nvcc, word) for word in asked)


def _architecture(nvcc: Nvcc, word: str) -> str:
    number = capability_of(word)
    if number is None:
        raise UsageError(f"{word!r} is no architecture: sm_90 is one, and 9.0 is the same")
    if number not in nvcc.capabilities:
        raise UsageError(f"nvcc {nvcc.version} does not build for sm_{number.replace('.', '')}{_why(number)}")
    letter = word[-1] if word[-1] in "af" else ""
    return number + letter


def _why(number: str) -> str:
    known = compute_capabilities().get(number)
    if known is None:
        return ""
    until = f"to {known.cuda_max}" if known.cuda_max else "on"
    return f" ({known.architecture}): CUDA {known.cuda_min} {until} does"


def target_flags(numbers: Sequence[str]) -> tuple[str, ...]:
    """Return nvcc's flags for machine code of each compute capability, and PTX of the newest for later devices."""
    flags = [flag for number in numbers for flag in gencode(number, ptx=False)]
    general = [number for number in numbers if number[-1].isdecimal()]  # PTX of sm_90a runs on nothing else
    if general:
        flags += gencode(max(general, key=version_of), sass=False)
    return tuple(flags)


def run(source: Path, output: Path, kind: Kind, numbers: Sequence[str], more: Iterable[str] = ()) -> Built:
    """Build a file.

    Args:
        source: a ``.cu`` file.
        output: what to write.
        kind: what to make of it.
        numbers: compute capabilities; one for a cubin or PTX.
        more: further flags.

    Raises:
        EnvironmentLacksError: nvcc, or the host's compiler, is missing.
        BuildFailedError: the source cannot be compiled.
    """
    nvcc = installed()
    if host_compiler() is None:
        raise EnvironmentLacksError("nvcc needs a C++ compiler of the host: g++ is not installed")
    command = [str(nvcc.path), *_of_kind(kind, numbers), *more, *nvcc.flags, str(source), "-o", str(output)]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise BuildFailedError(f"nvcc did not end within {_SECONDS} s") from error
    text = done.stdout + done.stderr
    if done.returncode:
        raise BuildFailedError(f"nvcc cannot build {source.name}: {first_error(text)}")
    return Built(output, shlex.join(command), text, time.perf_counter() - began)


def _of_kind(kind: Kind, numbers: Sequence[str]) -> tuple[str, ...]:
    common = ("-O3", "-std=c++17", "-lineinfo")
    if kind in (Kind.CUBIN, Kind.PTX):
        virtual = f"compute_{numbers[0].replace('.', '')}"
        real = virtual if kind is Kind.PTX else virtual.replace("compute_", "sm_")
        return (*common, f"-{kind.value}", f"-arch={real}")
    flags = (*common, "-Xptxas=-v", *target_flags(numbers))
    return flags if kind is Kind.EXECUTABLE else (*flags, *_LIBRARY_FLAGS)


def build(source: Path, capability: tuple[int, int]) -> ctypes.CDLL:
    """Build a source with C functions, unless that was done before, and load it.

    No headers of PyTorch are compiled, so a build takes seconds.

    Args:
        source: a ``.cu`` file with C functions.
        capability: the device's, (9, 0).

    Raises:
        EnvironmentLacksError: nvcc is missing.
        BuildFailedError: the source cannot be compiled.
    """
    number = f"{capability[0]}.{capability[1]}"
    nvcc = installed()
    key = hashlib.sha256("\0".join([source.read_text(), nvcc.version, number]).encode()).hexdigest()[:20]
    library = cache_folder() / "cuda" / f"{source.stem}-{key}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            partial = Path(folder) / library.name
            run(source, partial, Kind.LIBRARY, [number])
            partial.replace(library)
    return ctypes.CDLL(str(library))


def extension_flags(name: str) -> tuple[str, ...]:
    """Return the flags that a C++ extension of PyTorch is built with.

    Args:
        name: of the module.

    Raises:
        EnvironmentLacksError: PyTorch, or its headers for CUDA, are missing.
    """
    try:
        from torch._C import _GLIBCXX_USE_CXX11_ABI
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError as error:
        raise EnvironmentLacksError(
            "an extension is built with PyTorch, which is missing: pip install torch"
        ) from error
    import sysconfig

    places = [place for place in include_paths() if os.path.isdir(place)]
    if not any((Path(place) / "ATen" / "cuda" / "CUDAContext.h").is_file() for place in places):
        raise EnvironmentLacksError("an extension needs a PyTorch with CUDA: this one has no ATen/cuda/CUDAContext.h")
    libraries = library_paths()
    return (
        *(f"-isystem={place}" for place in (*places, sysconfig.get_path("include"))),
        *(f"-L{place}" for place in libraries),
        *(f"-Xlinker=-rpath,{place}" for place in libraries),
        *("-lc10", "-ltorch", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda", "-ltorch_python"),
        *(f"-DTORCH_EXTENSION_NAME={name}", f"-D_GLIBCXX_USE_CXX11_ABI={int(_GLIBCXX_USE_CXX11_ABI)}"),
    )
