"""``opscope exec COMMAND...``: records what any program does with CUDA, and sums it up. Needs no PyTorch."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import digest_of, path_text, write_whole
from opscope.cli.options import folder_option, format_option, overwrite_option, redaction_options, redactor_of
from opscope.cli.say import say
from opscope.cli.stats_output import print_stats, refuse_several_as_csv, stats_options
from opscope.documents.stats import Report
from opscope.record.capture import EXECUTION, RAW, RECORDING_ENDING, Execution
from opscope.record.redaction import Redactor
from opscope.runs.folders import named_folder, new_folder, point_latest

_HELP: Final = """Run a program and record what it does with CUDA, in every process that it starts.

Any program will do: C++, Fortran, Python, a script, torchrun. It runs as without opscope, with its own input, output
and exit code; when COMMAND itself ends, tables are printed, after what it printed. The recording is kept: opscope
analyze, sql and export read it (opscope analyze RUN --stats all --format json gives the tables alone).

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
@folder_option("Where the recording goes.  [default: profiling_results/exec_PROGRAM-DATE-TIME]")
@overwrite_option("an earlier recording in that folder")
@redaction_options
@stats_options
@format_option
def command(
    arguments: tuple[str, ...],
    output_dir: Path | None,
    overwrite: bool,
    redact: tuple[str, ...],
    keep_arguments: bool,
    reports: tuple[Report, ...],
    top: int | None,
    full_names: bool,
    output_format: str,
) -> None:
    """Run a program; see ``_HELP``."""
    from opscope.collect.cuda.command import Command, CudaCollector

    wanted = Command(arguments)
    wanted.found()  # a missing program is refused before anything is made
    refuse_several_as_csv(reports, output_format)
    redactor = redactor_of(redact, keep_arguments=keep_arguments)
    replaced = None if output_dir is None else _replaceable(named_folder(output_dir), overwrite=overwrite)
    collector = CudaCollector.here()
    name = f"exec_{path_text(Path(Path(arguments[0]).name))}"
    folder = new_folder(name) if output_dir is None else named_folder(output_dir)
    folder = Path(os.path.abspath(folder))  # the program may leave its folder, or remove it
    try:
        (folder / RAW).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write to {folder}: {error.strerror or error}") from error

    def begun(record: Execution) -> None:
        # Called just before the program starts: if the collector fails earlier, an earlier recording stays.
        if replaced is not None:
            _remove(folder, replaced)
        _keep(folder, record, redactor)

    try:
        record = collector.collect(wanted, folder / RAW, begun).record
    except OpscopeError:
        _discard(folder, unnamed=output_dir is None)
        raise
    try:
        if record.recordings or output_dir is not None:
            _keep(folder, record, redactor)
            if output_dir is None:
                point_latest(folder)
        else:
            _discard(folder, unnamed=True)
        _print(folder, record, reports, top, output_format, full_names=full_names)
    except (OpscopeError, OSError) as error:  # what the program ended with comes first
        if not record.exit_code:
            raise
        say(f"opscope: {error}")
    sys.exit(record.exit_code)


def _replaceable(folder: Path, *, overwrite: bool) -> Execution | None:
    """Return the record of an earlier run in a folder, which may be replaced; None where the folder is free.

    Raises:
        UsageError: something is there, and the user did not say ``--overwrite``, or it is not a recording.
    """
    from opscope.base.errors import BadInputError
    from opscope.record.codec import decode

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not overwrite:
        raise UsageError(f"{folder} is there already: name another folder, or --overwrite replaces the recording in it")
    if (folder / RAW).is_symlink():
        raise UsageError(f"{folder / RAW} is a link: recordings are written into a folder of their own")
    try:
        return decode(folder / EXECUTION, Execution)
    except BadInputError as error:
        raise UsageError(f"{folder} holds something else than a recording, and is not replaced: {error}") from error


def _remove(folder: Path, record: Execution) -> None:
    """Remove the recordings of an earlier run that still are what was written; links are not followed."""
    # The record may have been changed: a name in it must not lead out of the folder, or to a file of another kind.
    for name, digest in record.digests.items():
        path = folder / RAW / name
        ours = Path(name).name == name and name.endswith(RECORDING_ENDING)
        links = path.is_symlink() or path.parent.is_symlink()
        if ours and not links and path.is_file() and digest_of(path) == digest:
            path.unlink()


def _discard(folder: Path, *, unnamed: bool) -> None:
    """Remove the folder of a run that left nothing, unless the user named it."""
    if not unnamed:
        return
    shutil.rmtree(folder, ignore_errors=True)
    for parent in folder.parents[:2]:
        with suppress(OSError):  # it holds other runs
            parent.rmdir()


def _keep(folder: Path, record: Execution, redactor: Redactor) -> None:
    from opscope.record.codec import encode

    written = replace(record, command=redactor.arguments(record.command))
    write_whole(folder / EXECUTION, encode(written))


def _print(
    folder: Path,
    record: Execution,
    reports: tuple[Report, ...],
    top: int | None,
    output_format: str,
    *,
    full_names: bool,
) -> None:
    from opscope.readers.reading import read

    if sys.stdout is not None:  # it may have been closed
        sys.stdout.flush()
    for line in _said(record):
        say(f"opscope: {line}")
    traces = [read(folder / RAW / name) for name in record.recordings]
    if not traces:
        return
    print_stats(traces, reports, top, output_format, full_names=full_names)
    say(f"opscope: the recording is in {_shown(folder)}")


def _shown(folder: Path) -> Path:
    """Return a folder as its user would name it."""
    with suppress(OSError, ValueError):
        return folder.relative_to(Path.cwd())
    return folder


def _said(record: Execution) -> Iterator[str]:
    """Yield what users must know of the run beside its recordings."""
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
