"""``opscope analyze INPUT...``: what a trace says, and how far it can be trusted. Needs no PyTorch."""

import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from opscope.base.errors import UsageError
from opscope.base.parts import Stage, stage
from opscope.cli.options import Positive, brief_or_format_option, top_option
from opscope.cli.reading import (
    TOLD,
    Doubted,
    damage_option,
    end_with,
    gpu_option,
    input_option,
    part_of,
    part_options,
    traces_of,
)
from opscope.cli.startup import import_libraries, timings_option, tune_for_one_analysis
from opscope.cli.stats_output import is_counters_file, print_counters, print_stats, stats_option
from opscope.documents.stats import Report
from opscope.knowledge.devices import Device
from opscope.readers.archives import is_archive
from opscope.readers.reading import read
from opscope.render.table_formats import Format
from opscope.report.by import By
from opscope.runs.inputs import measured_of

if TYPE_CHECKING:
    from opscope.cli.analysis_output import Analysed


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice([by.value for by in By]),
    help="What each row of the table shows.  [default: operator; kernel if most work belongs to no operator]",
)
@top_option()
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort by this column, named as in the table ('Self CPU') or as in --format csv (self_cpu_ns).",
)
@click.option(
    "--graph-capture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A trace of the capture of the CUDA graphs: names the operators behind the nodes of a replay.",
)
@click.option(
    "--compile-log",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="What PyTorch wrote while it compiled: the folder of TORCH_TRACE, or a file of TORCH_TRACE or TORCH_LOGS. "
    "May be given several times.",
)
@click.option(
    "--step-time",
    type=Positive(),
    metavar="MS",
    help="The time of a step without the profiler, in milliseconds. The verdict and all savings then refer to it.",
)
@click.option(
    "--each", is_flag=True, help="Show each of several traces, as by itself, instead of a line for each of a folder's."
)
@click.option(
    "--tree",
    is_flag=True,
    help="The same as --by tree: what runs inside what, down to kernels, longest first.",
)
@click.option("--full-names", is_flag=True, help="Print whole kernel names on a terminal instead of short ones.")
@click.option(
    "--why", is_flag=True, help="Also print how it is known: evidence, devices, gaps, accounting, and checks in doubt."
)
@stats_option("Sum up what programs did with CUDA over all inputs, in the tables that nsys stats has")
@click.option("--strict", is_flag=True, help="Exit with code 1 if a trust check fails.")
@gpu_option
@part_options
@input_option
@timings_option
@damage_option
@brief_or_format_option
def command(
    inputs: tuple[Path, ...],
    by: str | None,
    top: int | None,
    sort: str | None,
    graph_capture: Path | None,
    compile_log: tuple[Path, ...],
    step_time: float | None,
    each: bool,
    tree: bool,
    full_names: bool,
    why: bool,
    reports: tuple[Report, ...] | None,
    strict: bool,
    gpu: Device | None,
    steps: tuple[int, int] | None,
    window: tuple[int, int] | None,
    max_input: int,
    allow_damaged: bool,
    brief: bool,
    output_format: str,
) -> None:
    """Analyse traces of torch.profiler (.json, .json.gz or .pftrace), of any PyTorch from 1.13 on, NVIDIA or AMD.

    INPUT may also be a run directory of opscope profile (then the step times that were measured beside the trace count
    too) or of opscope exec, an SQLite export of Nsight Systems, a database of rocmProfileData (.rpd), a folder or an
    archive of traces, a directory that opscope export --parquet made, or - for standard input. With a CSV file of
    Nsight Compute (ncu --csv), alone or beside one of these, its counters are shown, joined to the launches by kernel
    and order.

    Of the traces of a folder there is a line each (what bounds it, how busy its device is, what is found first, whether
    it can be trusted), and what they share; --each shows all of them, and --by a table over all.

    With --compile-log, what PyTorch wrote while it compiled is joined with the steps: graph breaks, recompilations,
    skipped CUDA graphs, and the lines and operators of each compiled kernel.

    Shows what bounds the step, what to do first, the trust checks that fail, and a table. --format json prints
    everything, by the schema opscope.analysis/1. --brief says what bounds a step, where it goes, up to three findings,
    what was not measured and why, and which commands to run next; square brackets hold addresses, and opscope show
    TRACE#ADDRESS prints what is there.
    """
    if brief and output_format == Format.TABLE.value:
        output_format = Format.BRIEF.value
    as_brief = brief and output_format != Format.BRIEF.value  # the document of the brief, in another format
    if as_brief:
        asks_more = bool(by or sort or tree or top is not None or each or why)
        _refuse_beside_brief(inputs, output_format, asks_more=asks_more, sums=reports is not None)
    if reports is not None:
        if any((by, sort, graph_capture, compile_log, step_time, each, tree, why, strict, gpu, steps, window)):
            raise UsageError("--stats goes with --top, --full-names and --format alone")
        _print_stats(inputs, reports, top, max_input, output_format, full_names=full_names, allow_damaged=allow_damaged)
        return
    if tree:
        if by not in (None, By.TREE.value):
            raise UsageError(f"--tree is --by tree, and no --by {by}")
        by = By.TREE.value
    tune_for_one_analysis()
    counters = tuple(path for path in inputs if is_counters_file(path))
    if counters:
        if by or sort or graph_capture or compile_log or step_time or strict or steps or window:
            raise UsageError(
                "--by, --sort, --graph-capture, --compile-log, --step-time, --steps, --window and --strict do not "
                "apply to counters"
            )
        others = tuple(path for path in inputs if path not in counters)
        print_counters(counters, others, max_input, top, output_format, gpu, allow_damaged=allow_damaged)
        return
    libraries_imported = Event()
    unreadable: list[str] = []
    part = part_of(steps, window)
    traces = traces_of(inputs, max_input, unreadable, libraries_imported, part=part)
    # The imports take as long as reading 50 MB does, and go on meanwhile.
    import_libraries(libraries_imported)
    with stage(Stage.IMPORT):
        from opscope.cli.analysis_output import Analysed, RowChoice, print_analyses, print_briefs, print_lines
        from opscope.documents.verdict import Verdict
        from opscope.knowledge.native_functions import NativeFunctions

        shipped = NativeFunctions.shipped()
    capture = None if graph_capture is None else read(graph_capture, max_bytes=max_input)
    analysed = tuple(
        Analysed(str(file), *measured_of(file, trace, shipped, capture, step_time_ms=step_time, gpu=gpu), file.name)
        for file, trace in traces
    )
    analysed = _with_log(analysed, compile_log, max_input)
    if as_brief:
        print_briefs(analysed, output_format)
    elif _at_a_glance(inputs, len(analysed), output_format, asked=each or by is not None or top is not None):
        print_lines(analysed, output_format, sort)
    else:
        rows = RowChoice(None if by is None else By(by), sort, top, full_names)
        print_analyses(analysed, output_format, rows, why=why)
    # Damage (exit code 4) comes before what --strict says of the other checks.
    doubted = tuple(Doubted.of(one.path, one.measured.trust) for one in analysed)
    end_with(doubted, unreadable, told=output_format in TOLD, allow_damaged=allow_damaged)
    if strict and any(one.measured.trust.verdict is Verdict.FAIL for one in analysed):
        sys.exit(1)


def _with_log(analysed: "tuple[Analysed, ...]", paths: tuple[Path, ...], max_input: int) -> "tuple[Analysed, ...]":
    """Add what PyTorch wrote while it compiled, if there is that, to the trace of the same process.

    Raises:
        UsageError: there are several traces.
        BadInputError: the log cannot be read, or says nothing of compiling.
    """
    if not paths:
        return analysed
    from msgspec.structs import replace

    from opscope.readers.compile_log import read_compile_log

    if len(analysed) != 1:
        raise UsageError(f"--compile-log is of one process: name one trace, not {len(analysed)}")
    threads = analysed[0].measured.analysis.trace.threads
    processes = {int(process) for process, _ in threads if process.isdigit()}
    log = read_compile_log(paths, processes, max_bytes=max_input)
    return (replace(analysed[0], measured=replace(analysed[0].measured, compile_log=log)),)


def _refuse_beside_brief(inputs: tuple[Path, ...], output_format: str, *, asks_more: bool, sums: bool) -> None:
    """Refuse what the document of a brief has no place for.

    Raises:
        UsageError: there is something.
    """
    if sums or any(map(is_counters_file, inputs)):
        raise UsageError(f"--brief --format {output_format} is of traces: leave out one of the two")
    if asks_more:
        raise UsageError(f"--brief --format {output_format} is of whole traces: leave out --by, --top and the like")


def _print_stats(
    inputs: tuple[Path, ...],
    reports: tuple[Report, ...],
    top: int | None,
    max_input: int,
    output_format: str,
    *,
    full_names: bool,
    allow_damaged: bool,
) -> None:
    """Print sums over all inputs, in the tables that nsys stats has."""
    # Written with a space instead of a comma, the name of a second table becomes an input.
    if mistaken := [path for path in inputs if str(path) in set(Report) and not path.exists()]:
        raise UsageError(f"--stats takes names with commas between them, as cuda_api_sum,{mistaken[0]}")
    libraries_imported, unreadable = Event(), list[str]()
    traces = traces_of(inputs, max_input, unreadable, libraries_imported)
    import_libraries(libraries_imported)
    opened = list(traces)
    print_stats([trace for _, trace in opened], reports, top, output_format, full_names=full_names)
    doubted = tuple(Doubted.of_file(str(file), trace.source) for file, trace in opened)
    end_with(doubted, unreadable, told=output_format in TOLD, allow_damaged=allow_damaged)


def _at_a_glance(inputs: tuple[Path, ...], traces: int, output_format: str, *, asked: bool) -> bool:
    """Tell whether a line for each trace says enough: of several traces of a folder, where no table was asked for."""
    of_several = any(path.is_dir() or is_archive(path) for path in inputs)
    return traces > 1 and of_several and output_format != "json" and not asked
