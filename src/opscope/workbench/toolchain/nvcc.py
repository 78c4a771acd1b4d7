"""Finds nvcc, tells for which devices it builds, and builds with it."""

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import PRIVATE_FILE, is_own, partial_prefix, private_folder
from opscope.base.processes import run_within
from opscope.base.text import lazy_pattern
from opscope.knowledge.devices import capability_of, compute_capabilities, gencode, version_of
from opscope.machine.programs import host_compiler, program, version_text, wheel_headers
from opscope.workbench.toolchain.listing import first_error

_SECONDS: Final = 1800
_FIRST_WITH_LETTER: Final = 9  # the first major version that has a letter: sm_90a
_VERSION: Final = lazy_pattern(r"release [\d.]+, V([\d.]+)")
_MISREAD: Final = lazy_pattern(r"[`$\"',\\]")  # nvcc passes names to a shell, and splits them at commas
# Flags that change what nvcc writes, or where.
_ELSEWHERE: Final = (
    *("-o", "--output-file", "-c", "--compile", "-dc", "--device-c", "-dw", "-ptx", "--ptx", "-cubin", "--cubin"),
    *("-fatbin", "--fatbin", "-dlink", "--device-link", "-lib", "--lib", "-E", "--preprocess", "-M", "-MM", "-cuda"),
    *("-dryrun", "--dryrun", "-odir", "--output-directory", "-optix-ir", "--optix-ir"),
)
_HOST_FLAGS: Final = ("-ccbin", "--compiler-bindir")
_LIBRARY_FLAGS: Final = ("-shared", "-Xcompiler=-fPIC")


class BuildKind(StrEnum):
    """What can be built."""

    EXECUTABLE = "executable"
    LIBRARY = "library"
    EXTENSION = "extension"
    CUBIN = "cubin"
    PTX = "ptx"


class Nvcc(Struct, frozen=True):
    """One installation of nvcc.

    Attributes:
        path: of the program.
        version: such as ``13.0.88``; ``unknown`` if it does not tell.
        capabilities: the compute capabilities that it builds for, such as ``9.0``, the lowest first.
        flags: the flags that it needs to find its own libraries.
    """

    path: Path
    version: str
    capabilities: tuple[str, ...]
    flags: tuple[str, ...]


class BuildResult(Struct, frozen=True):
    """The result of a build.

    Attributes:
        output: the file that was written.
        command: the command, quoted for a shell.
        text: what the compiler printed.
        seconds: how long the build took.
    """

    output: Path
    command: str
    text: str
    seconds: float


class BuildFailedError(OpscopeError):
    """The source cannot be compiled; the message has the compiler's first error, with its line."""


def compiler() -> Path:
    """Return the path of nvcc: from ``CUDA_HOME``, the PATH, its usual place, or NVIDIA's wheels.

    Raises:
        EnvironmentLacksError: nvcc is not installed.
    """
    return program("nvcc")


def installed() -> Nvcc:
    """Describe the nvcc of this machine.

    Raises:
        EnvironmentLacksError: nvcc is not installed, or does not run.
    """
    return _described(compiler())


@cache
def _described(path: Path) -> Nvcc:
    try:
        match = _VERSION.search(version_text(path))
        listed = subprocess.run(
            [path, "--list-gpu-arch"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        raise EnvironmentLacksError(f"{path} does not run: {lines[-1] if lines else error}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentLacksError(f"{path} does not run: {error}") from error
    numbers = {number for word in listed.split() if (number := capability_of(word)) is not None}
    if not numbers:
        raise EnvironmentLacksError(f"{path} did not list its target architectures; is it a working nvcc?")
    root = path.resolve().parent.parent
    # nvcc of the wheels 13.0 and 13.1 looks for its libraries in lib64, but they are in lib.
    flags = (f"-L{root / 'lib'}",) if (root / "lib" / "libcudart_static.a").is_file() else ()
    version = match[1] if match else "unknown"
    return Nvcc(path, version, tuple(sorted(numbers, key=version_of)), flags)


def architectures(nvcc: Nvcc, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the compute capabilities of words like ``sm_90``, ``9.0`` or ``sm_90a``, with their letters (``9.0a``).

    Raises:
        UsageError: a word is not an architecture, or this nvcc does not build for it.
    """
    return tuple(dict.fromkeys(_architecture(nvcc, word) for word in asked))


def _architecture(nvcc: Nvcc, word: str) -> str:
    number = capability_of(word)
    if number is None:
        raise UsageError(f"{word!r} is not an architecture; examples are sm_90 and 9.0, which mean the same")
    if number not in nvcc.capabilities:
        raise UsageError(f"nvcc {nvcc.version} does not build for sm_{number.replace('.', '')}{_why(number)}")
    letter = word[-1] if word[-1] in "af" else ""
    if letter and version_of(number)[0] < _FIRST_WITH_LETTER:
        raise UsageError(f"{word!r} is not an architecture: letter suffixes start at sm_90a")
    return number + letter


def _why(number: str) -> str:
    known = compute_capabilities().get(number)
    if known is None:
        return ""
    return f" ({known.architecture}): {known.toolkits} does"


def target_flags(numbers: Sequence[str]) -> tuple[str, ...]:
    """Return nvcc's flags for machine code of each compute capability, and for PTX of the highest for later devices."""
    flags = [flag for number in numbers for flag in gencode(number, ptx=False)]
    general = [number for number in numbers if number[-1].isdecimal()]  # PTX of compute_90a runs on sm_90 only
    if general:
        flags += gencode(max(general, key=version_of), sass=False)
    return tuple(flags)


def compile_file(
    source: Path, output: Path, kind: BuildKind, numbers: Sequence[str], more: Iterable[str] = ()
) -> BuildResult:
    """Build a file.

    Args:
        source: a ``.cu`` file.
        output: the file to write; it must not be the source.
        kind: what to build.
        numbers: compute capabilities, such as ``9.0`` or ``9.0a``; only the first counts for a cubin or PTX.
        more: further flags.

    Raises:
        EnvironmentLacksError: nvcc or the host's compiler is missing, or the output's folder cannot be written to.
        UsageError: nvcc misreads a name, or the flags make it write something else.
        BuildFailedError: the source cannot be compiled.
    """
    nvcc, more = installed(), tuple(more)
    if host_compiler() is None and not any(flag.startswith(_HOST_FLAGS) for flag in more):
        named = os.environ.get("NVCC_CCBIN")
        where = f"NVCC_CCBIN names {named}, which is not there" if named else "there is no g++ on the path"
        raise EnvironmentLacksError(f"nvcc needs a C++ compiler of the host: {where}")
    _refuse(source, output)
    command = [
        str(nvcc.path),
        *_of_kind(kind, numbers, more),
        *more,
        *nvcc.flags,
        str(source.absolute()),
        "-o",
        str(output.absolute()),
    ]
    began = time.perf_counter()
    try:
        done = run_within(command, _SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BuildFailedError(f"nvcc did not end within {_SECONDS} s") from error
    except OSError as error:
        raise EnvironmentLacksError(f"{nvcc.path} does not run: {error}") from error
    text = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode:
        raise BuildFailedError(f"nvcc cannot build {source.name}: {first_error(text)}")
    if not output.is_file():
        raise UsageError(f"nvcc did not write {output}: the flags that were added make it write something else")
    return BuildResult(output, shlex.join(command), text, time.perf_counter() - began)


def _refuse(source: Path, output: Path) -> None:
    """Check the names of source and output: nvcc passes them to a shell.

    Raises:
        UsageError: nvcc would misread a name, or the output is the source.
        EnvironmentLacksError: the output cannot be written.
    """
    for path in (source, output):
        if match := _MISREAD.search(str(path.absolute())):
            raise UsageError(f"nvcc misreads names with {match[0]!r}: rename {path}")
    if output.exists() and output.samefile(source):
        raise UsageError(f"the output {output} is the source itself")
    if not output.absolute().parent.is_dir() or not os.access(output.absolute().parent, os.W_OK):
        raise EnvironmentLacksError(f"{output} cannot be written: its folder is not there, or not writable")


def refuse_flags(flags: Iterable[str]) -> None:
    """Check that no flag makes nvcc write something other than what is reported.

    Raises:
        UsageError: there is such a flag.
    """
    for flag in flags:
        if flag.partition("=")[0] in _ELSEWHERE:
            raise UsageError(f"{flag} makes nvcc write something else: --kind, --emit and -o say what is written")


def _is_replaced(flag: str, more: Sequence[str]) -> bool:
    """Tell whether one of the user's flags replaces a default."""
    if flag == "-lineinfo":
        return any(one in ("-G", "--device-debug", "-lineinfo", "--generate-line-info") for one in more)
    name = "-std" if flag.startswith("-std") else "-O"
    return any(one.removeprefix("-").startswith(name) or one.startswith(name) for one in more)


def _of_kind(kind: BuildKind, numbers: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    common = tuple(flag for flag in ("-O3", "-std=c++17", "-lineinfo") if not _is_replaced(flag, more))
    if kind in (BuildKind.CUBIN, BuildKind.PTX):
        virtual = f"compute_{numbers[0].replace('.', '')}"
        real = virtual if kind is BuildKind.PTX else virtual.replace("compute_", "sm_")
        return (*common, f"-{kind.value}", f"-arch={real}")
    flags = (*common, "-Xptxas=-v", *target_flags(numbers))
    return flags if kind is BuildKind.EXECUTABLE else (*flags, *_LIBRARY_FLAGS)


def build(source: Path, capability: tuple[int, int]) -> ctypes.CDLL:
    """Build a source with C functions, unless it is in the cache, and load it.

    No headers of PyTorch are compiled, so a build takes seconds.

    Args:
        source: a ``.cu`` file with C functions.
        capability: of the device, as major and minor version: (9, 0).

    Raises:
        EnvironmentLacksError: nvcc or the host's compiler is missing, or the cache cannot be written to.
        BuildFailedError: the source cannot be compiled.
    """
    number = f"{capability[0]}.{capability[1]}"
    nvcc = installed()
    key = hashlib.sha256("\0".join([source.read_text(), nvcc.version, number]).encode()).hexdigest()[:20]
    library = private_folder("cuda") / f"{source.stem}-{key}.so"
    if not is_own(library):
        with tempfile.TemporaryDirectory(prefix=partial_prefix(), dir=library.parent) as folder:
            partial = Path(folder) / library.name
            compile_file(source, partial, BuildKind.LIBRARY, [number])
            # In place only when it is whole: other processes may look for it at any time.
            partial.chmod(PRIVATE_FILE)
            partial.replace(library)
    return ctypes.CDLL(str(library))


def extension_flags(name: str) -> tuple[str, ...]:
    """Return the flags that build a C++ extension of PyTorch.

    Args:
        name: the name of the extension's module.

    Raises:
        EnvironmentLacksError: PyTorch is missing, or built without CUDA.
    """
    try:
        import torch
        from torch._C import _GLIBCXX_USE_CXX11_ABI
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError as error:
        raise EnvironmentLacksError(
            "an extension is built with PyTorch, which is missing: pip install torch"
        ) from error
    import sysconfig

    if torch.version.cuda is None:
        raise EnvironmentLacksError("an extension needs a PyTorch with CUDA; this one is built for the CPU")
    places = [place for place in include_paths() if os.path.isdir(place)]
    libraries = library_paths()
    return (
        *(f"-isystem={place}" for place in (*places, *wheel_headers("cusparse.h"), sysconfig.get_path("include"))),
        *(f"-L{place}" for place in libraries),
        *(f"-Xlinker=-rpath,{place}" for place in libraries),
        *("-lc10", "-ltorch", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda", "-ltorch_python"),
        *(f"-DTORCH_EXTENSION_NAME={name}", f"-D_GLIBCXX_USE_CXX11_ABI={int(_GLIBCXX_USE_CXX11_ABI)}"),
    )
