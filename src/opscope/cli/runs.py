"""``opscope runs``: what was measured here, when, with which result, and how far a run is that goes on."""

import time
from pathlib import Path
from typing import Final

import click

from opscope.base.errors import UsageError
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.say import say
from opscope.cli.terminal import echo_lines
from opscope.documents.comparison import RunRow, RunsDocument
from opscope.report.runs_table import runs_table
from opscope.report.step_parts import step_cell
from opscope.runs.folders import RESULTS, is_in_progress, past_runs, progress_of, run_folders

_PAUSE: Final = 0.5  # seconds between two looks


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path), default=RESULTS)
@click.option(
    "--watch",
    is_flag=True,
    help="Follow the newest run in FOLDER that this machine measures: a line for each configuration as it ends, until "
    "the run does. Jobs of several ranks have no results before they end.",
)
@format_option
def command(folder: Path, watch: bool, output_format: str) -> None:
    """List the runs in FOLDER (profiling_results), the oldest first: target, date, what bounds the step, its time.

    opscope diff without arguments compares the last two of one target.
    """
    if watch:
        if output_format != "table":
            raise UsageError(f"--watch prints lines as they come, so --format {output_format} does not apply")
        _watch(folder)
        return
    rows = tuple(past_runs(folder))
    emit(Output.of_table(RunsDocument(runs=rows), runs_table(rows), f"Runs in {folder}"), output_format)


def _watch(folder: Path) -> None:
    """Follow the newest run in progress, and what the same command measures after it (presets have several parts)."""
    run = _newest_in_progress(folder)
    if run is None:
        raise UsageError(f"no run in {folder} is in progress on this machine")
    while run is not None:
        _follow(run)
        time.sleep(_PAUSE)
        run = _newest_in_progress(folder)


def _newest_in_progress(folder: Path) -> Path | None:
    going = [run for run in run_folders(folder) if is_in_progress(run)] if folder.is_dir() else []
    return max(going, key=lambda run: run.stat().st_ctime_ns, default=None)


def _follow(run: Path) -> None:
    """Print what a run has, and what it gets, until it ends or the process that measures it does."""
    say(f"{run}:", err=False)
    printed: set[tuple[str, str | None]] = set()
    while True:
        goes_on = is_in_progress(run)  # before the look, so that nothing is missed that ends in between
        result = progress_of(run)
        # Results of an earlier run stay until there are new ones (--overwrite): all of them have ended, this has not.
        if result is not None and (result.pending or not goes_on):
            of = len(result.ended) + len(result.pending)
            for number, row in enumerate(result.ended, 1):
                if (result.created, row.configuration) not in printed:
                    printed.add((result.created, row.configuration))
                    echo_lines([f"  {number} of {of}  {_line(row)}"])
        if not goes_on:
            break
        time.sleep(_PAUSE)
    if result is not None and result.pending:
        say(f"The process that measured it has ended. Not measured: {', '.join(result.pending)}.", err=False)


def _line(row: RunRow) -> str:
    step = "" if row.step_ns is None else f"{step_cell(row.step_ns, row.step_basis)} per step, "
    return f"{row.configuration}: {step}{row.outcome}"
