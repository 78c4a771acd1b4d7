"""``opscope runs``: what was measured here, when, with which result."""

from pathlib import Path

import click

from opscope.cli.options import format_option
from opscope.cli.say import show
from opscope.cli.terminal import echo_table
from opscope.documents.runs import RunsDocument
from opscope.record.codec import encode
from opscope.render.table_formats import as_csv, as_markdown
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
    if output_format == "json":
        show(encode(RunsDocument(runs=rows)))
        return
    table = runs_table(rows)
    if output_format == "csv":
        show(as_csv(table))
    elif output_format == "md":
        show(as_markdown(table, f"Runs in {folder}"))
    else:
        echo_table(table)
