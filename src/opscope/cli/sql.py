"""``opscope sql QUERY INPUT...``: SQL over the tables of one or many traces, within limits of time and memory."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import click
import polars as pl
from click.core import ParameterSource
from msgspec import Struct, field

from opscope.analysis.analyzed import analyze
from opscope.base.errors import UsageError
from opscope.base.processes import cores
from opscope.base.units import format_bytes
from opscope.cli.emit import Output, emit
from opscope.cli.options import Positive, format_option
from opscope.cli.reading import Doubted, Size, damage_option, end_with, input_option, traces_of
from opscope.cli.say import say
from opscope.cli.terminal import echo_table
from opscope.distributed.engines import engine_for
from opscope.distributed.frames import TABLES_OF_JOB
from opscope.distributed.inputs import files_of, record_of
from opscope.distributed.job import Job, read_job
from opscope.distributed.summary import RankSummary
from opscope.documents.verdict import Check
from opscope.export.sql_tables import COMPUTED, checked, frames_of, schema_table, table_names
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.events import empty_trace
from opscope.render.blocks import Name, Section, Table
from opscope.report.explain_sections import failed_checks
from opscope.runs.inputs import measured_of
from opscope.trace.columns import TABLES

_TYPED: Final = ParameterSource.COMMANDLINE
_LOOKED_EVERY_S: Final = 0.05
_STATM: Final = Path("/proc/self/statm")


class QueryResult(Struct, frozen=True, kw_only=True):
    """The answer to a query.

    Attributes:
        schema: of this document.
        query: as the user wrote it.
        columns: the names of the result's columns.
        rows: one tuple per row, as long as ``columns``.
        failed_checks: the trust checks that traces fail, by trace; traces that fail none are left out.
    """

    schema: Literal["opscope.sql/1"] = "opscope.sql/1"
    query: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    failed_checks: dict[str, tuple[Check, ...]] = field(default_factory=dict)


_HELP = f"""Run a SQL query over traces, converted traces, run directories and folders of traces.

Every table has the column "trace". Tables of the records: {", ".join(TABLES)}. Tables of what they cost:
{", ".join(COMPUTED)}. Times are nanoseconds. --schema lists all columns with what they mean.

With --ranks the inputs are the traces of one job's ranks, and tables are over all of them: ranks, steps, communications
(on one clock), work, gaps.

\b
Examples:
  opscope sql --schema
  opscope sql "select trace, sum(total_ns) / 1e6 as ms from kernel_costs group by trace" runs/*/
  opscope sql "select operator, step, sum(duration_ns) as ns from linked_activities group by operator, step" t.json
  opscope sql --ranks "select rank, median(late_ns) as late from steps group by rank order by late desc" job/
"""


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("query", required=False)
@click.argument("inputs", metavar="INPUT...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--schema", "show_schema", is_flag=True, help="List all tables and columns, with their meaning.")
@click.option(
    "--ranks", "of_ranks", is_flag=True, help="The inputs are traces of one job's ranks: query tables over all ranks."
)
@click.option(
    "--timeout",
    type=Positive(0.001),
    default=300.0,
    show_default=True,
    help="End the query after this many seconds.",
)
@click.option(
    "--max-memory",
    type=Size(),
    default=4 << 30,
    help="End the query if it needs more memory than this beside the tables.  [default: 4GiB]",
)
@click.option("--strict", is_flag=True, help="Fail if an input is not a trace, instead of leaving it out.")
@input_option
@damage_option
@format_option
def command(
    query: str | None,
    inputs: tuple[Path, ...],
    show_schema: bool,
    of_ranks: bool,
    timeout: float,
    max_memory: int,
    strict: bool,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Run a query; see ``_HELP``."""
    if show_schema:
        if query is not None:
            raise UsageError("--schema takes neither a query nor a trace: all traces have the same tables")
        _print_schema(output_format, of_ranks=of_ranks)
        return
    if query is None or not inputs:
        raise UsageError("a query and a trace are needed: opscope sql 'select ...' trace.json (--schema lists tables)")
    _refuse_swapped(query, inputs)
    if of_ranks and (strict or click.get_current_context().get_parameter_source("max_input") is _TYPED):
        raise UsageError("--strict and --max-input are for single traces: leave them out with --ranks")
    # Only the tables that the query names are made.
    runnable, wanted = checked(query, tuple(TABLES_OF_JOB) if of_ranks else table_names())
    tables = _of_job(inputs, wanted) if of_ranks else _read(inputs, wanted, max_input, strict=strict)
    with limited("the query", timeout, max_memory):
        result = _run(runnable, tables.frames)
    failed = {one.trace: one.failed for one in tables.doubted if one.failed}
    columns, rows = tuple(result.columns), tuple(result.rows())
    table = _table(result)
    below = tuple(Section((Name(trace),), tuple(failed_checks(checks))) for trace, checks in failed.items())
    output = Output(
        document=lambda: QueryResult(query=query, columns=columns, rows=rows, failed_checks=failed),
        values=lambda: table,
        sections=lambda: (Section(("Result",), (table,), below),),
        text=lambda: echo_table(table),
    )
    emit(output, output_format)
    end_with(tables.doubted, tables.unreadable, told=output_format in ("md", "brief"), allow_damaged=allow_damaged)


def _refuse_swapped(query: str, inputs: tuple[Path, ...]) -> None:
    """Say so where the trace stands before the query."""
    swapped = any(str(path).lstrip(" (\n\t").lower().startswith(("select", "with")) for path in inputs)
    if swapped or _is_there(query):
        raise UsageError(
            f"the query comes first: opscope sql 'select ...' {query if _is_there(query) else 'trace.json'}"
        )


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name
        return False


def _print_schema(output_format: str, *, of_ranks: bool) -> None:
    # Even a trace without events has all tables, with all columns.
    table = _schema_of_job() if of_ranks else schema_table(frames_of(analyze(empty_trace()), table_names()))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    emit(Output.of_table(rows, table, "Tables"), output_format)


class _Tables(Struct, frozen=True):
    """What a query reads: the tables of all traces, what the traces' checks say, and files that are not traces."""

    frames: Mapping[str, pl.DataFrame]
    doubted: tuple[Doubted, ...]
    unreadable: tuple[str, ...]


def _read(inputs: tuple[Path, ...], wanted: tuple[str, ...], max_input: int, *, strict: bool) -> _Tables:
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in wanted}
    shipped = NativeFunctions.shipped()
    doubted: list[Doubted] = []
    unreadable: list[str] = []
    for file, trace in traces_of(inputs, max_input, unreadable, skipped=None if strict else []):
        measured, _ = measured_of(file, trace, shipped, as_marked=True)  # tables hold all records, and no others
        doubted.append(Doubted.of(str(file), measured.trust))
        for name, frame in frames_of(measured.analysis, wanted).items():
            # Differences of unsigned counts would wrap around.
            signed = frame.with_columns(pl.col(pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64).cast(pl.Int64))
            parts[name].append(signed.select(pl.lit(str(file)).alias("trace"), pl.all()))
    return _Tables({name: pl.concat(frames) for name, frames in parts.items()}, tuple(doubted), tuple(unreadable))


def _of_job(inputs: tuple[Path, ...], wanted: tuple[str, ...]) -> _Tables:
    """Return tables over all ranks; a part of a job that cannot be read is said."""
    names = [str(path) for path in inputs]
    files = files_of(names)
    job = read_job(files, engine_for(len(files), cores(), None), record_of(names))
    for path, reason in job.unread.items():
        say(f"opscope: {path}: {reason}")
    frames = {name: TABLES_OF_JOB[name].frame(job) for name in wanted}
    # Categories are numbered per table; SQL compares text.
    as_strings = pl.col(pl.Categorical).cast(pl.String)
    return _Tables({name: frame.with_columns(as_strings) for name, frame in frames.items()}, (), tuple(job.unread))


def _schema_of_job() -> Table:
    # Even a rank without events has all tables, with all columns.
    nothing = Job({0: RankSummary.empty()}, None, [], {})
    rows: list[tuple[str, str, str, str]] = []
    for name, table in TABLES_OF_JOB.items():
        rows.append((name, "", "", table.meaning))
        rows += [
            (name, column, str(kind), table.columns[column]) for column, kind in table.frame(nothing).schema.items()
        ]
    return Table(("table", "column", "type", "meaning"), tuple(rows))


def _table(result: pl.DataFrame) -> Table:
    rows = tuple(tuple("" if value is None else Name(value) for value in row) for row in result.iter_rows())
    numeric = frozenset(i for i, dtype in enumerate(result.dtypes) if dtype.is_numeric())
    return Table(tuple(result.columns), rows, numeric)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep standard error free of what polars' own threads print when they give up."""
    # They write to the descriptor itself, so replacing sys.stderr would not do.
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _run(query: str, frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    try:
        with _quiet():
            result: pl.DataFrame = pl.SQLContext(dict(frames), eager=True).execute(query)
        return result
    except pl.exceptions.PanicException as error:
        raise UsageError(f"the query cannot be run: polars gave up on it ({error})") from error
    except pl.exceptions.PolarsError as error:
        # polars adds its plan of the query; what is wrong stands before it.
        message = " ".join(str(error).partition("Resolved plan until failure")[0].split())
        message = message.partition(" This error occurred in the following expression")[0]
        raise UsageError(
            f"the query cannot be run: {message}. 'opscope sql --schema' lists the columns, with --ranks those of a job"
        ) from error


def _resident_bytes() -> int:
    """Return how much memory the process has; 0 where the system does not tell."""
    try:
        # The second number: resident pages.
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def limited(what: str, seconds: float, more_bytes: int) -> Iterator[None]:
    """End the process, with the exit code of wrong usage, if the block passes a limit.

    A thread watches the limits. It can only end the whole process: what computes outside of Python is not interrupted.

    Args:
        what: what runs in the block, as the message calls it.
        seconds: how long it may take.
        more_bytes: how much more memory than now it may take.
    """
    sys.stderr.flush()
    # A copy of standard error: the block may put something else in its place.
    over, errors = threading.Event(), os.dup(2)
    end, most = time.monotonic() + seconds, _resident_bytes() + more_bytes

    def watch() -> None:
        while not over.wait(_LOOKED_EVERY_S):
            late, large = time.monotonic() > end, _resident_bytes() > most
            if late or large:
                limit = f"{seconds:g} s (--timeout)" if late else f"{format_bytes(more_bytes)} (--max-memory)"
                os.write(errors, f"opscope: {what} takes more than {limit}, and was ended\n".encode())
                os._exit(UsageError.exit_code)

    thread = threading.Thread(target=watch, daemon=True, name="opscope-limits")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(errors)
