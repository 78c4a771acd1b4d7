"""``opscope runs``: what was measured here, when, with which result."""

from pathlib import Path

import click

from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.documents.runs import RunsDocument
from opscope.report.runs_table import runs_table
from opscope.runs.folders import RESULTS, past_runs


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path), default=RESULTS)
@format_option
def command(folder: Path, output_format: str) -> None:
    """List the runs in FOLDER (profiling_results), the oldest first: target, date, what bounds the step, its time.

    opscope diff without arguments compares the last two of one target.
    """
    rows = tuple(past_runs(folder))
    emit(Output.of_table(RunsDocument(runs=rows), runs_table(rows), f"Runs in {folder}"), output_format)
