"""``opscope limits INPUT``: how far each operator call is from what the device allows."""

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
from msgspec.structs import replace

from opscope.analysis.costs.limits import NO_MODEL
from opscope.analysis.measured import Measured
from opscope.cli.emit import Output, emit
from opscope.cli.options import Positive, format_option, shown_rows, top_option
from opscope.cli.reading import Doubted, damage_option, end_with, gpu_option, input_option, traces_of
from opscope.documents.limits import LimitsDocuments
from opscope.knowledge.devices import Device
from opscope.knowledge.native_functions import NativeFunctions
from opscope.report.limits_document import BY, build_limits, limits_section, limits_values
from opscope.runs.inputs import measured_of


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--by", type=click.Choice(BY), default="shape", show_default=True, help="What each row of the table shows."
)
@top_option()
@click.option(
    "--step-time",
    type=Positive(),
    metavar="MS",
    help="The time of a step without the profiler, in milliseconds. The use of the device then refers to it.",
)
@gpu_option
@input_option
@damage_option
@format_option
def command(
    inputs: tuple[Path, ...],
    by: str,
    top: int | None,
    step_time: float | None,
    gpu: Device | None,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Show how far work is from what the device allows: ideal time, share of the limit, and time lost, by call.

    The ideal time follows from the operations and the least bytes of a call, by its recorded shapes, and from the peaks
    of the device: those that opscope gpus --measure found, else the datasheet's. INPUT is a trace, a folder of traces,
    a converted trace or a run directory. --format json prints the schema opscope.limits/1. Exits with code 1 if a
    call was faster than its limit: then a model or a peak is wrong.
    """
    unreadable: list[str] = []
    shipped = NativeFunctions.shipped()
    documents, doubted = [], []
    for file, trace in traces_of(inputs, max_input, unreadable):
        measured, _ = measured_of(file, trace, shipped, None, step_time_ms=step_time, gpu=gpu)
        with _asking_pytorch(measured) as asked:  # the answers come while the document is built
            documents.append(build_limits(asked, by))
        doubted.append(Doubted.of(str(file), measured.trust))
    shown = shown_rows(top)
    output = Output(
        document=lambda: documents[0] if len(documents) == 1 else LimitsDocuments(traces=tuple(documents)),
        values=lambda: limits_values(documents, top or None),
        sections=lambda: [limits_section(document, shown) for document in documents],
    )
    emit(output, output_format)
    end_with(tuple(doubted), unreadable, told=False, allow_damaged=allow_damaged)
    if any(document.limits.over_limit for document in documents):
        sys.exit(1)


@contextlib.contextmanager
def _asking_pytorch(measured: Measured) -> Iterator[Measured]:
    """Let PyTorch tell the costs of calls that no rule knows, where there are any and it is installed."""
    analysis = measured.analysis
    if not any(row.reason == NO_MODEL for row in analysis.limits) or find_spec("torch") is None:
        yield measured
        return
    from opscope.collect.rebuilt_costs import costs_by_pytorch

    with costs_by_pytorch() as rebuild:
        yield replace(measured, analysis=replace(analysis, rebuild=rebuild))
