"""``opscope brief TRACE|RUN``: what it shows in a few lines. Needs no PyTorch."""

from pathlib import Path
from threading import Event

import click

from opscope.base.stages import Stage, stage
from opscope.cli.options import Positive, format_option
from opscope.cli.reading import gpu_option, input_option, traces_of
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.cli.trust import TOLD, Doubted, damage_option, end_with
from opscope.knowledge.devices import Device
from opscope.render.table_formats import Format
from opscope.runs.inputs import measured_of


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="TRACE|RUN", type=click.Path(path_type=Path))
@click.option(
    "--step-time",
    type=Positive(),
    metavar="MS",
    help="The time of a step without the profiler, in milliseconds. The verdict and all savings then refer to it.",
)
@gpu_option
@input_option
@damage_option
@format_option
def command(
    path: Path, step_time: float | None, gpu: Device | None, max_input: int, allow_damaged: bool, output_format: str
) -> None:
    """Say in at most 2,000 tokens what a trace or a run of one configuration shows.

    That is what bounds a step, where it goes, up to three findings (what each could save and how that is known, the
    change, a command that tests it), what was not measured and why, and which commands to run next. Square brackets
    hold addresses: opscope show TRACE#ADDRESS prints what is there.

    Of several traces there is a line each; name one of them for more. --format json prints the schema opscope.brief/1.
    """
    tune_for_one_analysis()
    libraries_imported, unreadable = Event(), list[str]()
    traces = traces_of([path], max_input, unreadable, libraries_imported)
    import_libraries(libraries_imported)
    with stage(Stage.IMPORT):
        from opscope.cli.analysis_output import Analysed, brief_of, print_lines
        from opscope.cli.emit import Output, emit
        from opscope.knowledge.native_functions import NativeFunctions
        from opscope.render.blocks import Name, Table
        from opscope.report.brief import brief_section

        shipped = NativeFunctions.shipped()
    analysed = tuple(
        Analysed(file.name, *measured_of(file, trace, shipped, step_time_ms=step_time, gpu=gpu))
        for file, trace in traces
    )
    # What people read is the brief too.
    shown = Format.BRIEF.value if output_format == Format.TABLE.value else output_format
    if len(analysed) == 1:
        brief = brief_of(analysed[0])
        rows = ((one.id, str(round(one.likely_ns)), Name(one.title), Name(one.prove)) for one in brief.findings)
        table = Table(("id", "likely_ns", "title", "prove"), tuple(rows))
        emit(Output.of_section(brief, lambda: table, lambda: brief_section(brief)), shown)
    else:
        print_lines(analysed, shown, None)
    doubted = tuple(Doubted.of(one.path, one.measured.trust) for one in analysed)
    end_with(doubted, unreadable, told=shown in TOLD, allow_damaged=allow_damaged)
