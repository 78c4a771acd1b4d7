"""``opscope gpus``: facts about GPUs, and which ones this machine has."""

import sys
from collections.abc import Iterator

import click

from opscope.base.text import printable
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.say import say
from opscope.cli.terminal import echo_lines, echo_table
from opscope.cli.trust import TOLD
from opscope.documents.gpus import GpusDocument
from opscope.machine.driver import driver
from opscope.render.blocks import Paragraph, Section
from opscope.report.gpus_document import chosen, gpus_here, gpus_table, known_gpus

_MISSING = 3  # exit code


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="[NAME]...")
@click.option("--detect", is_flag=True, help="Show the GPUs of this machine, as the driver describes them.")
@click.option("--architecture", help="Show only this architecture: hopper, 9.0, sm_90.")
@format_option
def command(words: tuple[str, ...], detect: bool, architecture: str | None, output_format: str) -> None:
    """Show GPUs: architecture, compute capability, how to build for them, memory, and peak rates.

    NAME chooses by a part of the name: h100 4090. Rates are of dense products, without sparsity; on Tensor Cores with
    32-bit accumulation. --format json has all of them, the accumulation in 16 bits too, and the source of each figure.
    With --detect it ends with exit code 3 where there is no device.
    """
    document = gpus_here(driver()) if detect else GpusDocument(gpus=known_gpus())
    document = GpusDocument(
        gpus=chosen(document.gpus, words, architecture),
        driver=document.driver,
        driver_cuda=document.driver_cuda,
        problem=document.problem,
    )
    _show(document, output_format)
    if document.problem is not None:
        if output_format != "json":
            say(f"opscope: {printable(document.problem)}")
        sys.exit(_MISSING)
    if not document.gpus:
        say("opscope: no GPU has that name or architecture; opscope gpus lists all")
        sys.exit(1)


def _show(document: GpusDocument, output_format: str) -> None:
    if output_format in TOLD and document.problem is not None and not document.gpus:
        return
    table = gpus_table(document)
    notes = tuple(_notes(document))

    def text() -> None:
        # The unit stands below the table, once, and not in every heading.
        echo_table(gpus_table(document, units=False))
        echo_lines(["Rates in TFLOP/s, dense; on Tensor Cores with 32-bit accumulation.", *notes])

    section = Section(("GPUs",), (table, *(Paragraph.of(note) for note in notes)))
    emit(Output(document=lambda: document, values=lambda: table, sections=lambda: (section,), text=text), output_format)


def _notes(document: GpusDocument) -> Iterator[str]:
    if document.driver is not None:
        yield f"Driver {document.driver}, for CUDA up to {document.driver_cuda}."
    yield from (f"{gpu.name}: {gpu.note}" for gpu in document.gpus if gpu.note is not None)
