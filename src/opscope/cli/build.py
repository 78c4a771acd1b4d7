"""``opscope kernel build FILE.cu``: build with nvcc, and say what the kernels take."""

from pathlib import Path

import click
from msgspec.structs import replace

from opscope.base.errors import UsageError
from opscope.base.files import STANDARD_OUTPUT, refuse_output, refuse_outputs
from opscope.cli.emit import Output
from opscope.cli.emit import emit as print_output
from opscope.cli.options import WORDS, format_option, output_option, overwrite_option
from opscope.cli.ptx import echo_listing
from opscope.cli.say import say
from opscope.cli.terminal import echo_lines, echo_table
from opscope.documents.build import BuildDocument
from opscope.knowledge.binaries.elf import is_elf
from opscope.render.blocks import Bullets, Section
from opscope.report.build_document import build_lines, kernels_table
from opscope.workbench.toolchain.building import SUFFIXES, build_file, chosen_capabilities, listing_of
from opscope.workbench.toolchain.nvcc import BuildKind


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("flags", nargs=-1, metavar="[-- NVCC-FLAGS...]")
@click.option(
    "--arch",
    type=WORDS,
    default=(),
    help="Build for these architectures: sm_80,sm_90.  [default: the GPUs of this machine]",
)
@click.option(
    "--universal", is_flag=True, help="Build for every architecture that this nvcc supports, with PTX for newer ones."
)
@click.option(
    "--kind",
    type=click.Choice([str(kind) for kind in SUFFIXES]),
    default="executable",
    show_default=True,
    help="What to build: a program, a shared library, or a Python module with PyTorch's headers.",
)
@output_option("What to write.  [default: SOURCE without .cu, beside it]")
@overwrite_option("a file that is not a build")
@click.option("--emit", type=click.Choice(["ptx", "sass"]), help="Print the code of the kernels instead of building.")
@click.option("--kernel", help="Show only kernels whose name contains this.")
@click.option(
    "--block",
    type=click.IntRange(1, 1024),
    default=256,
    show_default=True,
    help="Threads per block, for the occupancy.",
)
@format_option
def command(
    source: Path,
    flags: tuple[str, ...],
    arch: tuple[str, ...],
    universal: bool,
    kind: str,
    output: Path | None,
    overwrite: bool,
    emit: str | None,
    kernel: str | None,
    block: int,
    output_format: str,
) -> None:
    """Build a CUDA source; show the command, and per kernel registers, shared memory, spills and occupancy.

    nvcc is that of CUDA_HOME, of the path, or of NVIDIA's wheels (pip install 'opscope[cuda]'); no GPU is needed.
    --emit shows PTX, or machine code (SASS), each instruction under its line of the source.
    """
    if universal and arch:
        raise UsageError("--universal builds for all architectures, --arch for some: give one of them")
    numbers = chosen_capabilities(arch, universal=universal)
    if emit is not None:
        if len(numbers) > 1:
            say(f"opscope: for {numbers[-1]} alone: --emit shows one architecture")
        refuse_outputs((output,), [source], overwrite=overwrite)
        echo_listing(listing_of(source, emit, numbers[-1], flags), kernel, output, output_format)
        return
    if output == STANDARD_OUTPUT:
        raise UsageError("a build is written to a file: name it with -o; --emit shows code")
    made = BuildKind(kind)
    target = output or source.with_suffix(SUFFIXES[made])
    # An earlier build gives way without --overwrite.
    refuse_output(target, [source], overwrite=overwrite or is_elf(target))
    _show(build_file(source, target, made, numbers, block, flags), kernel, output_format)


def _show(document: BuildDocument, kernel: str | None, output_format: str) -> None:
    shown = tuple(one for one in document.kernels if kernel is None or kernel in one.name)
    if kernel is not None and not shown:
        names = ", ".join(dict.fromkeys(one.name for one in document.kernels)) or "none"
        raise UsageError(f"no kernel's name holds {kernel!r}; there are: {names}")
    table = kernels_table(replace(document, kernels=shown))

    def text() -> None:
        echo_lines(build_lines(document))
        if shown:
            echo_table(table)

    lines = Bullets(tuple((line,) for line in build_lines(document)))
    section = Section(("Build",), (lines, table))
    output = Output(document=lambda: document, values=lambda: table, sections=lambda: (section,), text=text)
    print_output(output, output_format)
