"""``opscope gpus``: facts about GPUs, which ones this machine has, and what they do at most."""

import sys
from collections.abc import Iterator

import click

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import PRIVATE_FILE, private_folder, write_whole
from opscope.base.text import printable
from opscope.base.units import format_share
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.reading import TOLD
from opscope.cli.say import say
from opscope.cli.terminal import echo_lines, echo_table
from opscope.documents.machine import GpusDocument
from opscope.knowledge.devices import device_called, peaks_file
from opscope.machine.driver import driver
from opscope.record.codec import encode
from opscope.record.machine import MeasuredPeaks, PeaksList
from opscope.render.blocks import Name, Paragraph, Section, Table
from opscope.report.gpus_document import chosen_gpus, gpus_here, gpus_table, known_gpus

_MISSING = 3  # exit code
_TERA = 1e12


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="[NAME]...")
@click.option("--detect", is_flag=True, help="Show the GPUs of this machine, as the driver describes them.")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure the peaks of the GPUs here, in at most half a minute each: products by precision, and memory. Run it "
    "while nothing else uses the device.",
)
@click.option("--device", help="The device to measure: cuda:0, or all for one of each model.  [default: all]")
@click.option("--architecture", help="Show only this architecture: hopper, 9.0, sm_90.")
@format_option
def command(
    words: tuple[str, ...],
    detect: bool,
    measure: bool,
    device: str | None,
    architecture: str | None,
    output_format: str,
) -> None:
    """Show GPUs: architecture, compute capability, how to build for them, memory, and peak rates.

    NAME chooses by a part of the name: h100 4090. Rates are of dense products, without sparsity; on Tensor Cores with
    32-bit accumulation. --format json has all of them, the accumulation in 16 bits too, and the source of each figure.
    With --detect it ends with exit code 3 where there is no device.

    Peaks that --measure finds are kept for this user, by the device's name, and every command that says how far work is
    from the device's limit uses them from then on instead of the datasheet's.
    """
    if device is not None and not measure:
        raise UsageError("--device is for --measure")
    if measure:
        if words or detect or architecture:
            raise UsageError("--measure is of the GPUs here: leave out NAME, --detect and --architecture")
        _measure(device or "all", output_format)
        return
    document = gpus_here(driver()) if detect else GpusDocument(gpus=known_gpus())
    document = GpusDocument(
        gpus=chosen_gpus(document.gpus, words, architecture),
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


def _measure(device: str, output_format: str) -> None:
    measured = tuple(_measured_peaks(device))
    # Shown first: a result that cannot be kept is printed all the same.
    emit(Output.of_table(PeaksList(peaks=measured), _peaks_table(measured), "Peaks"), output_format)
    for one in measured:
        _keep(one)


def _keep(one: MeasuredPeaks) -> None:
    target = peaks_file(one.device)
    try:
        target = private_folder(target.parent.name) / target.name
        write_whole(target, encode(one), PRIVATE_FILE)
    except OSError as error:
        raise EnvironmentLacksError(
            f"the peaks could not be kept as {target} ({error.strerror}); OPSCOPE_CACHE names another folder"
        ) from error
    say(f"opscope: kept as {printable(str(target))}")


def _measured_peaks(chosen: str) -> tuple[MeasuredPeaks, ...]:
    try:
        from opscope.workbench.benchmarking.peaks import measure_devices
    except ImportError as error:
        raise EnvironmentLacksError("peaks are measured with PyTorch, which is missing: pip install torch") from error
    return measure_devices(chosen)


def _peaks_table(measured: tuple[MeasuredPeaks, ...]) -> Table:
    rows = []
    for one in measured:
        sheet = device_called(one.device, one.multiprocessors)
        for name, rate in one.flop_per_s.items():
            rows.append(
                _peak(one, name, f"{rate / _TERA:,.1f} TFLOP/s", rate, sheet.peaks.get(name) if sheet else None)
            )
        memory = one.memory_bytes_per_s
        rows.append(
            _peak(one, "memory", f"{memory / _TERA:,.3f} TB/s", memory, sheet.memory_bytes_per_s if sheet else None)
        )
    return Table(("Device", "Peak", "Measured", "of the datasheet's"), tuple(rows), frozenset({2, 3}))


def _peak(one: MeasuredPeaks, name: str, shown: str, rate: float, sheet: float | None) -> tuple[str, str, str, str]:
    return (Name(one.device), name, shown, "-" if not sheet else format_share(rate, sheet))
