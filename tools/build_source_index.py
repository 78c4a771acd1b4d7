"""Write the kernel-to-source index that opscope ships for a PyTorch release.

    pip download --no-deps torch==2.11.0 && python -m zipfile -e torch-*.whl unpacked
    python tools/build_source_index.py unpacked --wheel torch-*.whl -o src/opscope/knowledge/data/kernels

A release whose kernels are those of another one gets an entry in builds.json, and no file of its own.

Needs capstone. PyTorch need not be installed.
"""

import argparse
import hashlib
import re
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from source_index.definitions import header_definitions
from source_index.host_files import host_files
from source_index.launch_sites import launch_sites
from source_index.paths import unit_paths

from opscope.base.demangle import demangler
from opscope.knowledge.binaries.elf import X86_64, open_elf
from opscope.knowledge.binaries.registrations import cuda_library
from opscope.knowledge.kernels.index import (
    BUILDS,
    HostFile,
    IndexedKernel,
    ShippedBuild,
    SourceIndex,
    SourceLine,
    build_index,
)
from opscope.knowledge.kernels.installed import in_repository, repository_root, source_paths
from opscope.knowledge.native_functions import TorchVersion

_CUDA_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
_HOST_LIBRARIES = ("libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_cpu.so")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unpacked", type=Path, help="folder of an unpacked CUDA wheel")
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel itself, for its name and digest")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the index")
    arguments = parser.parse_args()
    index = index_of_wheel(arguments.unpacked)
    content = index.of_build(torch="", git=None, build_ids={}).packed()
    same = [path for path in sorted(arguments.output.glob("*.kernels")) if path.read_bytes() == content]
    path = same[0] if same else arguments.output / f"torch-{index.torch}.kernels"
    path.write_bytes(content)
    with arguments.wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    build = ShippedBuild(index.torch, index.git, dict(index.build_ids), path.name, arguments.wheel.name, digest)
    _list(build, arguments.output / BUILDS)
    print(f"{path}: {index.kernel_count:,} kernels, {len(content):,} bytes")


def _list(build: ShippedBuild, path: Path) -> None:
    """Add a build to the list, or replace its entry."""
    builds = {known.torch: known for known in msgspec.json.decode(path.read_bytes(), type=list[ShippedBuild])}
    listed = sorted({**builds, build.torch: build}.values(), key=_release)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n")


def _release(build: ShippedBuild) -> tuple[int, ...]:
    version = TorchVersion.parse(build.torch)
    return version.release if version else ()


def index_of_wheel(wheel: Path) -> SourceIndex:
    """Build the index of an unpacked wheel."""
    version = (wheel / "torch" / "version.py").read_text()
    files: dict[str, set[str]] = defaultdict(set)
    sites: dict[str, set[SourceLine]] = defaultdict(set)
    build_ids = {}
    for name in _CUDA_LIBRARIES:
        path = wheel / "torch" / "lib" / name
        if path.is_file():
            build_ids[name] = _add_library(path, files, sites)
    kernels = [IndexedKernel(name, frozenset(files[name]), frozenset(sites[name])) for name in files]
    return build_index(
        kernels,
        torch=_assigned(version, "__version__"),
        git=_assigned(version, "git_version"),
        build_ids=build_ids,
        definitions=header_definitions(wheel / "torch" / "include"),
        functions=_functions(wheel),
    )


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"^{name}\b.*= '([^']*)'", text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"torch/version.py does not name {name}")
    return match[1]


def _add_library(path: Path, files: dict[str, set[str]], sites: dict[str, set[SourceLine]]) -> str:
    demangle = demangler()
    with open_elf(path) as elf:
        if elf.machine != X86_64:
            raise SystemExit(f"{path} is not for x86-64: lines and files of functions are read from that code only")
        library = cuda_library(elf)
        launched = launch_sites(elf, library)
        paths = source_paths(elf)
    root = repository_root(paths)
    units = unit_paths(library, launched, paths, root)
    for kernel in library.kernels:
        name = demangle(kernel.name)
        files[name].add(units.get(kernel.unit, library.units[kernel.unit]))
        sites[name] |= {
            SourceLine(in_repository(site.file, root), site.line, site.function)
            for site in launched.get(kernel.name, ())
        }
    return library.build_id or ""


def _functions(wheel: Path) -> dict[str, HostFile]:
    """Find the file of every C++ function that native_functions.yaml names."""
    yaml = (wheel / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml").read_text()
    wanted = _cpp_functions(yaml)
    found: dict[str, HostFile] = {}
    for name in _HOST_LIBRARIES:
        path = wheel / "torch" / "lib" / name
        if path.is_file():
            with open_elf(path) as elf:
                found |= {k: v for k, v in host_files(elf, wanted).items() if k not in found or v.named}
    return found


def _cpp_functions(yaml: str) -> set[str]:
    """Return the functions that the file can mean: kernels listed under dispatch keys, and the operators' own names."""
    bases = set(re.findall(r"^- func: (\w+)", yaml, re.MULTILINE))
    kernels = set(re.findall(r"^    [\w, ]+: (\w+(?:::\w+)*)\s*$", yaml, re.MULTILINE))
    names = {name if "::" in name else f"at::native::{name}" for name in bases | kernels}
    structured = {f"at::native::structured_{name}::impl" for name in kernels if "::" not in name}
    return names | structured


if __name__ == "__main__":
    main()
