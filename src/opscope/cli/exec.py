"""``opscope exec COMMAND...``: records what any program does with CUDA, and sums it up. Needs no PyTorch."""

import itertools
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opscope.cli.options import format_option
from opscope.cli.stats_output import print_stats, refuse_several_as_csv, stats_options
from opscope.documents.stats import Report
from opscope.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.record.execution import EXECUTION, RAW
from opscope.text import printable

if TYPE_CHECKING:
    from opscope.record.execution import Execution

_PARENT = Path("profiling_results")


_HELP: Final = """Run a program and record what it does with CUDA, in every process that it starts.

Any program will do: C++, Fortran, Python, a script, torchrun. It runs as without opscope, with its own input, output
and exit code; when COMMAND itself ends, tables are printed, after what it printed. The recording is kept: opscope
stats, analyze, sql, convert and export read it (opscope stats RUN --format json gives the tables alone).

\b
Examples:
  opscope exec ./add
  opscope exec --stats cuda_api_sum,um_sum -- ./add 1000
  opscope exec -o run torchrun --nproc-per-node 2 train.py
"""


@click.command(
    help=_HELP,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
    },
)
@click.argument("arguments", metavar="[--] COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output-dir",
    type=click.Path(path_type=Path),
    help=f"Where the recording goes.  [default: {_PARENT}/exec_PROGRAM, with a number]",
)
@stats_options
@format_option
def command(
    arguments: tuple[str, ...],
    output_dir: Path | None,
    reports: tuple[Report, ...],
    top: int | None,
    full_names: bool,
    output_format: str,
) -> None:
    """Run a program; see ``_HELP``."""
    from opscope.collect.cuda.command import Command, CudaCollector

    wanted = Command(arguments)
    wanted.found()
    refuse_several_as_csv(reports, output_format)
    collector = CudaCollector.here()
    folder = _folder(output_dir, arguments[0])
    try:
        (folder / RAW).mkdir(parents=True)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        record = collector.collect(wanted, folder / RAW).record
    except OpscopeError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        if record.recordings or output_dir is not None:
            _keep(folder, record)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # it holds other runs
                folder.parent.rmdir()
        _print(folder, record, reports, top, output_format, full_names=full_names)
    except (OpscopeError, OSError) as error:  # what the program ended with comes first
        if not record.exit_code:
            raise
        click.echo(printable(f"opscope: {error}"), err=True)
    sys.exit(record.exit_code)


def _folder(given: Path | None, program: str) -> Path:
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise UsageError(f"{given} is there already: name another folder, or remove it")
        return given
    begin = _PARENT / f"exec_{Path(program).name}"
    candidates = itertools.chain([begin], (begin.with_name(f"{begin.name}_{number}") for number in itertools.count(2)))
    return next(folder for folder in candidates if not folder.exists())


def _keep(folder: Path, record: "Execution") -> None:
    from opscope.files import write_whole
    from opscope.record.codec import encode

    write_whole(folder / EXECUTION, encode(record))


def _print(
    folder: Path,
    record: "Execution",
    reports: tuple[Report, ...],
    top: int | None,
    output_format: str,
    *,
    full_names: bool,
) -> None:
    from opscope.readers import read

    if sys.stdout is not None:  # it may have been closed
        sys.stdout.flush()
    for line in _said(record):
        click.echo(printable(f"opscope: {line}"), err=True)
    traces = [read(folder / RAW / name) for name in record.recordings]
    if not traces:
        return
    print_stats(traces, reports, top, output_format, full_names=full_names)
    click.echo(printable(f"opscope: the recording is in {folder}"), err=True)


def _said(record: "Execution") -> Iterator[str]:
    """Yield what is to be said of the command, beside its recordings."""
    for tool in record.other_tools:
        when = "" if tool.after_seconds is None else f" after {tool.after_seconds:.1f} s"
        yield (
            f"{tool.program} was started{when}. It does not work beside another collector: what ran under it was not "
            "recorded, and its own results are whole."
        )
    if not record.recordings and not record.other_tools:
        yield (
            f"no process of {record.command[0]} was seen to use CUDA or NVTX: nothing was recorded (it ran for "
            f"{record.seconds:.1f} s and ended with exit code {record.exit_code}). What runs without this environment, "
            "as under sudo or in a container, is not seen"
        )
