"""``opscope stats INPUT...``: sums of API calls, kernels, memory operations, ranges. Needs no PyTorch."""

from pathlib import Path
from threading import Event

import click

from opscope.base.errors import UsageError
from opscope.cli.options import format_option
from opscope.cli.reading import input_option, traces_of
from opscope.cli.startup import import_libraries
from opscope.cli.stats_output import print_stats, stats_options
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.documents.stats import Report


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@stats_options
@input_option
@damage_option
@format_option
def command(
    inputs: tuple[Path, ...],
    reports: tuple[Report, ...],
    top: int | None,
    full_names: bool,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Sum up what programs did with CUDA, in the tables that nsys stats has.

    INPUT is a run of opscope exec, a trace of torch.profiler, an SQLite export of Nsight Systems, or a folder of these;
    the sums are over all of them. Shares are of the table's own rows.
    """
    # Written with a space instead of a comma, the name of a second table becomes an input.
    if mistaken := [path for path in inputs if str(path) in set(Report) and not path.exists()]:
        raise UsageError(f"--stats takes names with commas between them, as cuda_api_sum,{mistaken[0]}")
    libraries_imported = Event()
    unreadable: list[str] = []
    traces = traces_of(inputs, max_input, unreadable, libraries_imported)
    import_libraries(libraries_imported)
    read = list(traces)
    print_stats([trace for _, trace in read], reports, top, output_format, full_names=full_names)
    doubted = tuple(Doubted.of_file(str(file), trace.source) for file, trace in read)
    end_with(doubted, unreadable, told=output_format in ("table", "brief"), allow_damaged=allow_damaged)
