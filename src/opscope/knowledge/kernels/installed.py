"""The kernels of libraries on this machine: PyTorch's own and extensions, cached by their content.

Paths of source files are found among a library's constants, as checks pass ``__FILE__``.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from msgspec import Struct

from opscope.base.demangle import demangler
from opscope.base.errors import BadInputError, OpscopeError
from opscope.base.files import PRIVATE_FILE, cache_folder, private_folder, regular, scratch, write_whole
from opscope.base.text import lazy_pattern
from opscope.knowledge.binaries.elf import Elf, open_elf
from opscope.knowledge.binaries.registrations import CudaLibrary, cuda_library
from opscope.knowledge.kernels.index import FORMAT, IndexedKernel, SourceIndex, build_index

_DIGEST = r"[0-9a-f]{64}"
TORCH_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so")
_LARGEST = 8 << 30  # bytes of a library in a wheel
_MOST_PACKED = 50  # times: what unpacks to more is not a library
_ENDINGS = (b".cu\0", b".cuh\0", b".cpp\0", b".cc\0", b".h\0", b".hpp\0")
_PATH = lazy_pattern(rb"[\w./+-]+")
_LONGEST = 1024
_REPOSITORY = "/aten/src/ATen/native/"


def source_paths(elf: Elf) -> list[str]:
    """Return the paths of source files that a library's code mentions."""
    constants = elf.section(".rodata")
    first, last = constants.offset, constants.offset + constants.size
    results = set()
    for ending in _ENDINGS:  # far faster than one expression over some hundred megabytes
        place = elf.data.find(ending, first, last)
        while place >= 0:
            begin = elf.data.rfind(b"\0", max(first, place - _LONGEST), place) + 1
            path = elf.data[begin : place + len(ending) - 1]
            if begin and _PATH.fullmatch(path):  # 0: no text begins so near
                results.add(path.decode("latin-1"))
            place = elf.data.find(ending, place + 1, last)
    return sorted(results)


def repository_root(paths: Iterable[str]) -> str:
    """Return the folder that PyTorch was built in, with a slash (``/pytorch/``); empty where no path is of PyTorch."""
    roots = Counter(path.split(_REPOSITORY)[0] for path in paths if _REPOSITORY in path)
    return f"{roots.most_common(1)[0][0]}/" if roots else ""


def in_repository(path: str, root: str) -> str:
    """Return a path relative to the repository; generated files lie in ``build/``."""
    return str(PurePosixPath(path.removeprefix(root)))


def by_file_name(paths: Iterable[str], root: str) -> Mapping[str, set[str]]:
    """Return file name -> paths below the root, relative to it."""
    results: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if path.startswith(root):
            results[PurePosixPath(path).name].add(in_repository(path, root))
    return results


class NoKernelsError(BadInputError):
    """A library holds no CUDA kernels."""


class InstalledTorch(Struct, frozen=True):
    """The PyTorch of this Python environment, as its files describe it; it is not imported.

    Attributes:
        version: ``2.11.0+cu130``.
        git: the commit it was built from.
        libraries: the libraries that hold CUDA kernels; empty for a build without CUDA.
    """

    version: str
    git: str | None
    libraries: tuple[Path, ...]


def installed_torch() -> InstalledTorch | None:
    """Find the installed PyTorch; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    return torch_in(Path(next(iter(spec.submodule_search_locations))))


def torch_in(folder: Path) -> InstalledTorch | None:
    """Describe the PyTorch in a folder, of any platform; None if there is none.

    Args:
        folder: the package itself, or the folder that it lies in.
    """
    package = next((place for place in (folder / "torch", folder) if (place / "version.py").is_file()), None)
    if package is None:
        return None
    try:
        text = (package / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    libraries = tuple(path for name in TORCH_LIBRARIES if (path := package / "lib" / name).is_file())
    return _described(text, libraries)


def _described(text: str, libraries: tuple[Path, ...]) -> InstalledTorch | None:
    version = re.search(r"^__version__\b.*= '([^']+)'", text, re.MULTILINE)
    git = re.search(r"^git_version\b.*= '([^']+)'", text, re.MULTILINE)
    return InstalledTorch(version[1], git[1] if git else None, libraries) if version else None


@contextmanager
def torch_in_wheel(wheel: Path) -> Iterator[InstalledTorch]:
    """Describe the PyTorch of a wheel, of any platform; its libraries are unpacked for the time of the block.

    Raises:
        BadInputError: the file is not a wheel of PyTorch, or is damaged.
    """
    if not wheel.is_file():
        raise BadInputError(f"there is no wheel {wheel}")
    with scratch() as folder:
        yield _read_wheel(wheel, folder)


def _read_wheel(wheel: Path, folder: Path) -> InstalledTorch:
    try:
        with zipfile.ZipFile(regular(wheel)) as archive:
            text = archive.read("torch/version.py").decode("utf-8", "replace")
            libraries = tuple(_unpacked(archive, folder))
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise BadInputError(f"{wheel} is not a wheel of PyTorch: {error}") from error
    if not libraries:
        raise BadInputError(f"{wheel} holds no libraries with CUDA kernels")
    described = _described(text, libraries)
    if described is None:
        raise BadInputError(f"{wheel} does not say which PyTorch it holds")
    return described


def _unpacked(archive: zipfile.ZipFile, folder: Path) -> Iterator[Path]:
    for name in TORCH_LIBRARIES:
        try:
            member = archive.getinfo(f"torch/lib/{name}")
        except KeyError:
            continue
        # The size is what the archive claims, and is checked before anything is unpacked.
        if member.file_size > min(_LARGEST, _MOST_PACKED * max(member.compress_size, 1)):
            raise BadInputError(
                f"{name} in the wheel says that it takes {member.file_size:,} bytes: more than a library"
            )
        target = folder / name
        with archive.open(member) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        yield target


def build_ids(libraries: Iterable[Path]) -> dict[str, str]:
    """Return the build id of each library that has one and can be read, by file name."""
    results = {}
    for path in libraries:
        try:
            with open_elf(path) as elf:
                if build_id := elf.build_id():
                    results[path.name] = build_id
        except BadInputError:
            continue
    return results


def library_index(path: Path, *, torch: str, git: str | None) -> SourceIndex:
    """Index the kernels of a library, or read the index from the user's cache.

    Args:
        path: the library.
        torch: the PyTorch that it belongs to or was built for.
        git: the commit of that PyTorch, if known.

    Raises:
        BadInputError: the library is missing, stripped, damaged or no ELF library, or holds no CUDA kernels.
        EnvironmentLacksError: C++ names cannot be read on this system.
    """
    with open_elf(path) as elf:
        cached = _cache_file(path)
        if (index := _read_cache(cached)) is not None:
            return index.described(torch=torch, git=git, library=path.name)
        library = cuda_library(elf)
        if not library.kernels:
            raise NoKernelsError(f"{path} registers no CUDA kernels")
        paths = _unit_paths(elf, library)
    index = _index(path.name, library, paths, torch=torch, git=git)
    _write_cache(cached, index.packed())
    return index


def _index(name: str, library: CudaLibrary, paths: dict[int, str], *, torch: str, git: str | None) -> SourceIndex:
    demangle = demangler()
    files: dict[str, set[str]] = defaultdict(set)
    for kernel in library.kernels:
        files[demangle(kernel.name)].add(paths.get(kernel.unit, library.units[kernel.unit]))
    kernels = (IndexedKernel(kernel, frozenset(result)) for kernel, result in files.items())
    return build_index(kernels, torch=torch, git=git, build_ids={name: library.build_id or ""})


def _unit_paths(elf: Elf, library: CudaLibrary) -> dict[int, str]:
    """Return the path of each translation unit whose name stands in one path only among the library's constants."""
    paths = source_paths(elf)
    named = by_file_name(paths, repository_root(paths))
    units = Counter(library.units)
    return {
        number: next(iter(named[unit]))
        for number, unit in enumerate(library.units)
        if len(named.get(unit, ())) == 1 and units[unit] == 1
    }


# ---------------------------------------------------------------- cache


def _cache_file(library: Path) -> Path:
    """Return the file for a library's index: named after the library's content, and `FORMAT` for how it is read.

    Not after its build id, which a library claims: another one that claims it would answer in its place.
    """
    return cache_folder() / "kernels" / f"{_digest(library)}-{FORMAT}.kernels"


def _digest(library: Path) -> str:
    """Return the digest of a file's content, which is kept for as long as the system says that the file is the same."""
    state = library.stat()
    identity = (os.path.realpath(library), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
    name = hashlib.blake2b(repr((*identity, state.st_ctime_ns)).encode(), digest_size=16).hexdigest()
    kept = cache_folder() / "kernels" / f"{name}.digest"
    try:
        digest = kept.read_text(encoding="ascii")
        if re.fullmatch(_DIGEST, digest):
            return digest
    except (OSError, ValueError):
        pass
    with library.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
    _write_cache(kept, digest.encode())
    return digest


def _read_cache(path: Path) -> SourceIndex | None:
    try:
        return SourceIndex.unpacked(path.read_bytes())
    except (OSError, BadInputError):
        return None


def _write_cache(path: Path, content: bytes) -> None:
    """Keep something. A cache that cannot be written costs time, nothing else."""
    try:
        write_whole(private_folder(path.parent.name) / path.name, content, PRIVATE_FILE)
    except (OSError, OpscopeError):
        return


def torch_index(installed: InstalledTorch) -> list[SourceIndex]:
    """Index the libraries of the installed PyTorch; empty for a build without CUDA.

    Raises:
        BadInputError: a library is stripped or damaged.
        EnvironmentLacksError: C++ names cannot be read on this system.
    """
    results = []
    for path in installed.libraries:
        try:
            results.append(library_index(path, torch=installed.version, git=installed.git))
        except NoKernelsError:  # aarch64's linear algebra has none
            continue
    return results
