"""``opscope peaks``: measure what the devices here do at most, and keep it."""

import click

from opscope.base.errors import EnvironmentLacksError
from opscope.base.files import PRIVATE_FILE, private_folder, write_whole
from opscope.base.text import printable
from opscope.base.units import format_share
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.say import say
from opscope.knowledge.devices import device_called
from opscope.knowledge.measured_peaks import peaks_file
from opscope.record.codec import encode
from opscope.record.peaks import MeasuredPeaks, PeaksList
from opscope.render.blocks import Name, Table

_TERA = 1e12


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--device", default="all", show_default=True, help="The device to measure: cuda:0, or all for one of each model."
)
@format_option
def command(device: str, output_format: str) -> None:
    """Measure the peaks of the GPUs here, in at most half a minute each: products by precision, and memory.

    They are kept for this user, by the device's name, and every command that says how far work is from the device's
    limit uses them from then on instead of the datasheet's. Run it while nothing else uses the device.
    """
    measured = tuple(_measured(device))
    # Shown first: a result that cannot be kept is printed all the same.
    _show(measured, output_format)
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


def _show(measured: tuple[MeasuredPeaks, ...], output_format: str) -> None:
    emit(Output.of_table(PeaksList(peaks=measured), _table(measured), "Peaks"), output_format)


def _measured(chosen: str) -> tuple[MeasuredPeaks, ...]:
    try:
        from opscope.workbench.benchmarking.peaks import measure_devices
    except ImportError as error:
        raise EnvironmentLacksError("peaks are measured with PyTorch, which is missing: pip install torch") from error
    return measure_devices(chosen)


def _table(measured: tuple[MeasuredPeaks, ...]) -> Table:
    rows = []
    for one in measured:
        sheet = device_called(one.device, one.multiprocessors)
        for name, rate in one.flop_per_s.items():
            rows.append(_row(one, name, f"{rate / _TERA:,.1f} TFLOP/s", rate, sheet.peaks.get(name) if sheet else None))
        memory = one.memory_bytes_per_s
        rows.append(
            _row(one, "memory", f"{memory / _TERA:,.3f} TB/s", memory, sheet.memory_bytes_per_s if sheet else None)
        )
    return Table(("Device", "Peak", "Measured", "of the datasheet's"), tuple(rows), frozenset({2, 3}))


def _row(one: MeasuredPeaks, name: str, shown: str, rate: float, sheet: float | None) -> tuple[str, str, str, str]:
    return (Name(one.device), name, shown, "-" if not sheet else format_share(rate, sheet))
