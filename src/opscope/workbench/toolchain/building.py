"""Builds a source into a `BuildDocument`, or lists its kernels."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from opscope.analysis.costs.occupancy import LaunchConfiguration, check_launch, entry_of
from opscope.base.errors import EnvironmentLacksError, OpscopeError
from opscope.base.files import scratch
from opscope.documents.build import BinaryEntry, BuildDocument, KernelListing, KernelResources, ListingDocument
from opscope.knowledge.binaries.elf import open_elf
from opscope.knowledge.binaries.fatbins import CodeKind, fat_binaries
from opscope.knowledge.devices import capability_of, compute_capabilities
from opscope.machine.driver import driver
from opscope.machine.programs import program
from opscope.workbench.toolchain import nvcc
from opscope.workbench.toolchain.listing import kernel_resources, messages, ptx_kernels, sass_kernels

_SECONDS: Final = 120
_RELOCATABLE: Final = ("-rdc=true", "--relocatable-device-code=true")
_STORED: Final = {CodeKind.CUBIN: "sass", CodeKind.PTX: "ptx"}
SUFFIXES: Final = {nvcc.BuildKind.EXECUTABLE: "", nvcc.BuildKind.LIBRARY: ".so", nvcc.BuildKind.EXTENSION: ".so"}


def chosen_capabilities(asked: Sequence[str], *, universal: bool) -> tuple[str, ...]:
    """Return the compute capabilities to build for: those asked for, all, or those of this machine's GPUs.

    Args:
        asked: words such as ``sm_90`` or ``9.0``; empty for the GPUs of this machine.
        universal: whether to build for all that nvcc knows; ``asked`` then does not count.

    Raises:
        UsageError: a word is not an architecture, or nvcc does not build for it.
        EnvironmentLacksError: nvcc is missing, or nothing was asked for and there is no GPU.
    """
    compiler = nvcc.installed()
    if universal:
        return compiler.capabilities
    if asked:
        return nvcc.architectures(compiler, asked)
    here = driver()
    numbers = list(dict.fromkeys(device.compute_capability for device in here.devices))
    if not numbers:
        raise EnvironmentLacksError(
            f"for which GPU? {here.error or 'There is none here'}: --arch sm_90, or --universal"
        )
    return nvcc.architectures(compiler, numbers)


def build_file(
    source: Path, output: Path, kind: nvcc.BuildKind, numbers: Sequence[str], block: int, more: Iterable[str] = ()
) -> BuildDocument:
    """Build a file, and report the resources of its kernels.

    Args:
        source: a ``.cu`` file.
        output: the file to write; the name of an extension's module is taken from it.
        kind: what to build.
        numbers: compute capabilities.
        block: how many threads a block has whose occupancy is reported.
        more: further flags for nvcc.

    Raises:
        UsageError: a flag makes nvcc write something else, or nvcc misreads a name.
        EnvironmentLacksError: nvcc, the host's compiler or PyTorch is missing.
        BuildFailedError: the source cannot be compiled.
    """
    more = tuple(more)
    nvcc.refuse_flags(more)
    own = nvcc.extension_flags(output.stem.partition(".")[0]) if kind is nvcc.BuildKind.EXTENSION else ()
    built = nvcc.compile_file(source, output, kind, numbers, (*own, *more))
    compiler = nvcc.installed()
    return BuildDocument(
        source=str(source),
        output=str(output),
        kind=str(kind),
        nvcc=str(compiler.path),
        nvcc_version=compiler.version,
        command=built.command,
        seconds=built.seconds,
        block_threads=block,
        kernels=tuple(with_occupancy(kernel, block) for kernel in kernel_resources(built.text)),
        contents=tuple(contents(output)),
        messages=tuple(result for result in messages(built.text) if result.kind == "warning"),
        # With relocatable device code, the linker decides what kernels take: ptxas does not know it yet.
        linked_figures=not any(one in " ".join(more).replace(" true", "=true") for one in _RELOCATABLE),
    )


def with_occupancy(kernel: KernelResources, block: int) -> KernelResources:
    """Add the theoretical occupancy of blocks of ``block`` threads, or why they cannot be launched.

    A kernel of an unknown architecture is returned unchanged.
    """
    capability = compute_capabilities().get(capability_of(kernel.arch) or "")
    if capability is None:
        return kernel
    launch = LaunchConfiguration((1, 1, 1), (block, 1, 1), kernel.registers, kernel.shared_memory_bytes)
    result = check_launch(launch, capability, None)
    return replace(kernel, occupancy=entry_of(result.occupancy), problem="; ".join(result.problems) or None)


def listing_of(source: Path, kind: str, number: str, more: Iterable[str] = ()) -> ListingDocument:
    """Compile a source for one architecture, and list its kernels.

    Args:
        source: a ``.cu`` file.
        kind: ``ptx`` or ``sass``.
        number: the compute capability, such as ``9.0``.
        more: further flags for nvcc.

    Raises:
        UsageError: a flag makes nvcc write something else, or nvcc misreads a name.
        EnvironmentLacksError: nvcc, nvdisasm or the host's compiler is missing.
        BuildFailedError: the source cannot be compiled.
    """
    more = tuple(more)
    nvcc.refuse_flags(more)
    with scratch() as folder:
        output = folder / f"listing.{kind}"
        nvcc.compile_file(source, output, nvcc.BuildKind.PTX if kind == "ptx" else nvcc.BuildKind.CUBIN, [number], more)
        kernels = ptx_kernels(output.read_text()) if kind == "ptx" else disassembled(output)
        return ListingDocument(kind=kind, origin=str(source), kernels=tuple(kernels))


def disassembled(cubin: Path) -> Iterator[KernelListing]:
    """Yield the kernels of a cubin, as nvdisasm reads it.

    Raises:
        EnvironmentLacksError: nvdisasm is missing, or does not run.
        OpscopeError: nvdisasm cannot read the file.
    """
    command = [str(program("nvdisasm")), "-g", "-c", str(cubin)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentLacksError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise OpscopeError(f"nvdisasm cannot read {cubin.name}: {lines[0] if lines else 'it failed without a word'}")
    yield from sass_kernels(done.stdout)


def contents(path: Path) -> Iterator[BinaryEntry]:
    """Yield the GPU code in an ELF file: one entry per kind, architecture and compression, with its bytes in all."""
    sizes: dict[tuple[str, str, bool], int] = {}
    with open_elf(path) as elf:
        for binary in fat_binaries(elf):
            for image in binary.images if not binary.relocatable else ():
                if image.kind in _STORED:
                    key = (_STORED[image.kind], image.target, image.compression is not None)
                    sizes[key] = sizes.get(key, 0) + image.size
    for (kind, arch, compressed), size in sizes.items():
        yield BinaryEntry(kind=kind, arch=arch, size_bytes=size, compressed=compressed)
