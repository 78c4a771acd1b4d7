"""``opscope ranks PATH...``: a job's traces together: who is late and why, on one clock. Needs no PyTorch."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opscope.base.errors import BadInputError, UsageError
from opscope.base.processes import cores
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.say import say
from opscope.cli.startup import tune_for_one_analysis

if TYPE_CHECKING:
    from opscope.distributed.engines import Engine

_BY: Final = ("late", "heat", "rank", "step", "group", "collective")
_SHARD: Final = re.compile(r"(\d+)/(\d+)")


class _Shard(click.ParamType[tuple[int, int]]):
    name = "shard"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Read ``I/N``."""
        match = _SHARD.fullmatch(str(value))
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            self.fail(f"{value!r} is not I/N with 1 <= I <= N", param, ctx)
        return int(match[1]), int(match[2])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--by",
    type=click.Choice(_BY),
    help="Print one table instead of the summary: late ranks, how late each rank is in each step, all ranks with "
    "their clocks, steps, process groups, or collectives.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="How many processes read traces.  [default: one per core]"
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Read the traces on the workers of a Dask cluster, which must see them under the same paths. Needs "
    "opscope[ranks].",
)
@click.option(
    "--shard",
    type=_Shard(),
    metavar="I/N",
    help="Only read the I-th of N parts of the traces and keep their summaries beside them, as one task of a batch "
    "system; the same command without --shard then finds all of them.",
)
@format_option
def command(
    paths: tuple[str, ...],
    by: str | None,
    jobs: int | None,
    dask: str | None,
    shard: tuple[int, int] | None,
    output_format: str,
) -> None:
    """Read the traces of a job's ranks together: which ranks are late, why, and what collectives cost.

    PATH is a trace of one rank, a folder of traces, or a pattern in quotes. A rank's number is in its trace's header,
    or in the file's name (rank12.json.gz).

    A summary of each trace is kept in a folder .opscope beside it and found again by the trace's content. --format json
    prints a document of the schema opscope.ranks/1.
    """
    tune_for_one_analysis()
    from opscope.distributed.engines import engine_for
    from opscope.distributed.inputs import files_of, record_of
    from opscope.distributed.job import document_of, read_job

    if dask is not None and jobs is not None:
        raise UsageError("--jobs is about processes of this machine: with --dask the cluster decides")
    files = files_of(paths)
    # Workers of a cluster are in folders of their own.
    files = files if dask is None else [path.absolute() for path in files]
    engine = engine_for(len(files), jobs or cores(), dask)
    if shard is not None:
        _read_shard(files[shard[0] - 1 :: shard[1]], engine)
        return
    job = read_job(files, engine, record_of(paths))
    document = document_of(job)
    from opscope.report.ranks_document import RANKS_TABLES, ranks_section, ranks_values

    if by is None:
        emit(
            Output.of_section(document, lambda: ranks_values(document, "late"), lambda: ranks_section(document)),
            output_format,
        )
        return
    from opscope.cli.terminal import echo_table
    from opscope.render.blocks import Section

    table = RANKS_TABLES[by](document)
    emit(
        Output(
            document=lambda: document,
            values=lambda: ranks_values(document, by),
            sections=lambda: (Section((by,), (table,)),),
            text=lambda: echo_table(table),
        ),
        output_format,
    )


def _read_shard(files: Sequence[Path], engine: "Engine") -> None:
    """Summarise some traces, and fail if a summary could not be kept."""
    from opscope.distributed.engines import Lost
    from opscope.distributed.kept import keep

    failed = 0
    for path, result in engine.run(keep, files):
        if isinstance(result, Lost):
            failed += 1
            say(f"{path}: {result.reason}")
    say(f"{len(files) - failed} of {len(files)} traces are summarised")
    if failed:
        raise BadInputError(f"{failed} of {len(files)} traces could not be summarised")
