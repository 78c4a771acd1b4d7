"""``opscope whatif TRACE``: a step with other durations, by replay of its recording. Needs no PyTorch."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from opscope.base.errors import UsageError
from opscope.base.files import STANDARD_OUTPUT, refuse_output
from opscope.base.files import output as output_file
from opscope.cli.emit import Output, emit
from opscope.cli.options import (
    LARGEST_NUMBER,
    SMALLEST,
    Positive,
    format_option,
    output_option,
    overwrite_option,
    shown_rows,
    top_option,
)
from opscope.cli.reading import (
    Doubted,
    damage_option,
    end_with,
    gpu_option,
    input_option,
    part_of,
    part_options,
    traces_of,
)
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.knowledge.devices import Device
from opscope.runs.inputs import TraceFile, measured_of

if TYPE_CHECKING:
    from opscope.analysis.replay.build import Steps
    from opscope.analysis.structure.links import Links
    from opscope.trace.model import Trace


class Scaling(click.ParamType[tuple[str, float]]):
    """Work and a factor: ``aten::mm=0.5``."""

    name = "scaling"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the name and the factor."""
        name, _, factor = str(value).rpartition("=")
        try:
            number = float(factor)
        except ValueError:
            number = -1.0
        if not name or not 0 <= number <= LARGEST_NUMBER:
            self.fail(f"takes a name and a factor, such as aten::mm=0.5, not {value!r}", param, ctx)
        return name, number


class Times(click.ParamType[float]):
    """How many times as fast or as much: ``2x``."""

    name = "times"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the factor."""
        number = factor_in(str(value))
        if number is None:
            self.fail(f"takes a factor above 0, such as 2x, not {value!r}", param, ctx)
        return number


def factor_in(text: str) -> float | None:
    """Return the factor that a text such as ``2x`` names; None if it names none above 0."""
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        return None
    return number if SMALLEST <= number <= LARGEST_NUMBER else None


class Faster(click.ParamType[tuple[str, float]]):
    """A link and how many times as fast it is: ``nvlink=2x``."""

    name = "faster"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the link and the factor."""
        from opscope.analysis.replay.changes import LINKS

        link, _, factor = str(value).partition("=")
        number = factor_in(factor)
        if link not in LINKS or number is None:
            wanted = f"takes one of {', '.join(LINKS)} and a factor, such as nvlink=2x"
            self.fail(f"{wanted}, not {value!r}", param, ctx)
        return link, number


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("input_path", metavar="INPUT", type=click.Path(path_type=Path))
@click.option(
    "--finding",
    multiple=True,
    metavar="ID",
    help="With the change that this finding of opscope analyze advises, and its likely assumptions: fp32_products.",
)
@click.option(
    "--remove", multiple=True, metavar="OPERATOR", help="Without these operators and all that they launch: aten::item."
)
@click.option(
    "--scale",
    multiple=True,
    type=Scaling(),
    metavar="NAME=FACTOR",
    help="The kernels of these operators, or kernels of this name, take FACTOR times as long: aten::mm=0.5.",
)
@click.option(
    "--to-limit",
    multiple=True,
    metavar="NAME",
    help="The kernels of these operators take the least time that the device allows, as in opscope limits.",
)
@click.option(
    "--no-wait",
    multiple=True,
    metavar="NAME",
    help="These API calls, or those that these operators make, return without waiting for the device.",
)
@click.option(
    "--overlap",
    type=click.Choice(["collectives"]),
    help="Other work does not wait for collectives.",
)
@click.option(
    "--bandwidth",
    multiple=True,
    type=Faster(),
    metavar="LINK=FACTORx",
    help="What moves data over nvlink, pcie or the device's memory is FACTOR times as fast: nvlink=2x.",
)
@click.option(
    "--workers",
    type=Times(),
    metavar="FACTORx",
    help="A DataLoader loads batches FACTOR times as fast, ahead of the step: 4x for 4 workers instead of the main "
    "process, 2x for twice as many.",
)
@click.option(
    "--batch-size",
    type=Times(),
    metavar="FACTORx",
    help="The device's work takes what it would with FACTOR times the batch; needs --fitted-to.",
)
@click.option(
    "--fitted-to",
    type=click.Path(path_type=Path),
    metavar="TRACE",
    help="Another trace of the same program, with another batch size, to which the costs of --batch-size are fitted.",
)
@click.option("--no-launch-gaps", is_flag=True, help="Each step's work is launched at once, as by a CUDA graph.")
@click.option(
    "--as-recorded",
    is_flag=True,
    help="Start from the recorded step. Without this, what recording cost the host is estimated and taken out first.",
)
@click.option(
    "--step-time",
    type=Positive(),
    metavar="MS",
    help="How long a step takes without a profiler, in milliseconds, where you know it.",
)
@output_option(
    "Write the changed steps as a Chrome trace, for Perfetto; packed if it ends in .gz.",
    "--chrome",
    standard_output=False,
)
@overwrite_option("the file")
@top_option("parts of the critical path")
@gpu_option
@part_options
@input_option
@damage_option
@format_option
def command(
    input_path: Path,
    finding: tuple[str, ...],
    remove: tuple[str, ...],
    scale: tuple[tuple[str, float], ...],
    to_limit: tuple[str, ...],
    no_wait: tuple[str, ...],
    overlap: str | None,
    bandwidth: tuple[tuple[str, float], ...],
    workers: float | None,
    batch_size: float | None,
    fitted_to: Path | None,
    no_launch_gaps: bool,
    as_recorded: bool,
    step_time: float | None,
    output: Path | None,
    overwrite: bool,
    top: int | None,
    gpu: Device | None,
    steps: tuple[int, int] | None,
    window: tuple[int, int] | None,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Tell how long a step of INPUT would take with some changes, and what it spends its time on.

    INPUT is a trace, or a run directory with one. A few steps around the one of median length become a graph: calls in
    the order of their threads, work after its launch and in the order of its stream, waits after what they wait for.
    The graph is replayed with other durations; the order stays. Names may hold * and ?. Options may be given several
    times; changes are made in the order of the options in this help.

    Without a change, shows the critical path: what a step is spent on. --format json prints the schema
    opscope.whatif/1.
    """
    if output is not None:
        if output == STANDARD_OUTPUT:
            raise UsageError("standard output is for what the changes save: name a file for the steps")
        refuse_output(output, [input_path, *([fitted_to] if fitted_to else [])], overwrite=overwrite)
    if (batch_size is None) is not (fitted_to is None):
        raise UsageError("--batch-size and --fitted-to go together: costs are fitted to two traces")
    tune_for_one_analysis()
    libraries_imported = Event()
    unreadable: list[str] = []
    traces = traces_of((input_path,), max_input, unreadable, libraries_imported, part=part_of(steps, window))
    import_libraries(libraries_imported)
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.report.whatif_document import (
        Asked,
        build_whatif,
        changed_steps,
        changes_asked,
        whatif_section,
        whatif_values,
    )

    file, trace = _only(traces, input_path)
    measured, _ = measured_of(file, trace, NativeFunctions.shipped(), step_time_ms=step_time, gpu=gpu)
    analysis = measured.analysis
    replayable = _replayable(str(file), analysis.trace, analysis.links)
    doubted = [Doubted.of(str(file), measured.trust)]
    other = None
    if fitted_to is not None:
        name, beside = _only(traces_of((fitted_to,), max_input, unreadable), fitted_to)
        second, _ = measured_of(name, beside, NativeFunctions.shipped(), gpu=gpu)
        other = _replayable(str(name), second.analysis.trace, second.analysis.links)
        doubted.append(Doubted.of(str(name), second.trust))

    asked = Asked(
        finding=finding,
        remove=remove,
        scale=scale,
        to_limit=to_limit,
        no_wait=no_wait,
        overlap_collectives=overlap is not None,
        bandwidth=bandwidth,
        workers=workers,
        batch_size=None if other is None or batch_size is None else (batch_size, other),
        no_launch_gaps=no_launch_gaps,
    )
    named = tuple(changes_asked(measured, replayable, asked))
    document = build_whatif(str(file), replayable, named, measured.unprofiled_step_ns, as_recorded=as_recorded)
    if output is not None:
        from opscope.export.chrome import replayed_events

        changed = changed_steps(replayable, named, measured.unprofiled_step_ns, as_recorded=as_recorded)
        content = replayed_events(changed, f"{file}, replayed")
        with output_file(output) as written:
            written.write(gzip.compress(content) if output.suffix == ".gz" else content)
    shown = Output.of_section(
        document, lambda: whatif_values(document), lambda: whatif_section(document, shown_rows(top))
    )
    emit(shown, output_format)
    end_with(tuple(doubted), unreadable, allow_damaged=allow_damaged)


def _only(traces: Iterator[tuple[TraceFile, "Trace"]], path: Path) -> tuple[TraceFile, "Trace"]:
    file, trace = next(traces)
    if next(traces, None) is not None:
        raise UsageError(f"{path} holds several traces: name one, such as {file}")
    return file, trace


def _replayable(name: str, trace: "Trace", links: "Links") -> "Steps":
    from opscope.analysis.replay.build import replayed_steps

    steps = replayed_steps(trace, links)
    if steps is None:
        raise UsageError(f"{name} holds nothing that could be replayed: no operator, call or work of a device")
    return steps
