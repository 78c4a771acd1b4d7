"""How sums of CUDA activities are chosen and printed: by ``analyze --stats``, and by ``opscope exec`` at its end."""

import csv
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec.structs import replace

from opscope.base.errors import BadInputError, UsageError
from opscope.cli.options import shown_rows, top_option
from opscope.cli.say import say
from opscope.documents.stats import Report
from opscope.readers.formats import TRACE_ENDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.documents.stats import CountersDocument
    from opscope.knowledge.devices import Device
    from opscope.record.counters import KernelCounters
    from opscope.report.counters_document import RunProcess
    from opscope.trace.model import Trace

# ---------------------------------------------------------------- counters


_BEGINNING = 1 << 16  # bytes at the beginning of a file that tell what it is
_OTHERS = (*TRACE_ENDINGS, ".gz", ".xz", ".zst")  # packed files, and those that are large as a rule
_MOST = 1 << 30  # bytes of a table


def is_counters_file(path: Path) -> bool:
    """Tell whether an input is a table that Nsight Compute printed, by its beginning."""
    if path.name.endswith(_OTHERS):
        return False
    try:
        # To look into a pipe would take its beginning away from whoever reads it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except OSError:
        return False
    from opscope.readers.ncu import is_counters

    return is_counters(beginning.decode("utf-8", "replace"))


class JoinedCounters:
    """Tables of Nsight Compute, and the run that they are joined with, trace by trace.

    Args:
        files: the tables.
        gpu: the model of the devices, from the user; None takes what the files say.

    Raises:
        BadInputError: a file is too large, cut off, or holds no kernel.
    """

    def __init__(self, files: tuple[Path, ...], gpu: "Device | None") -> None:
        self._files, self._gpu = files, gpu
        self._counters = [one for number, file in enumerate(files) for one in _counters_in(file, number)]
        self._run: list[RunProcess] = []

    def add(self, trace: "Trace") -> None:
        """Add a process of the run. One that used no device was not counted, and is left out."""
        from opscope.report.counters_document import run_process

        if (process := run_process(trace)) is not None:
            self._run.append(process)

    def document(self) -> "CountersDocument":
        """Return the counters, joined with the traces that were added.

        Raises:
            UsageError: the run has another number of processes.
        """
        from opscope.report.counters_document import build_counters

        return build_counters([str(file) for file in self._files], self._counters, self._run, self._gpu)


def _counters_in(file: Path, number: int) -> "Iterator[KernelCounters]":
    """Yield the launches of a table; its number tells processes apart that have one id, as in containers."""
    from opscope.readers.ncu import read_kernel_counters

    if file.stat().st_size > _MOST:
        raise BadInputError(f"{file} is larger than {_MOST:,} bytes, as tables of Nsight Compute are not")
    try:
        result = read_kernel_counters(file.read_text(encoding="utf-8", errors="replace"))
    except csv.Error as error:
        raise BadInputError(f"{file} is not a whole table of Nsight Compute: {error}") from error
    if not result:
        raise BadInputError(f"{file} is a table of Nsight Compute without any kernel")
    yield from (replace(one, process=f"{number}:{one.process}") for one in result)


def print_counters(
    files: tuple[Path, ...],
    inputs: tuple[Path, ...],
    max_input: int,
    top: int | None,
    output_format: str,
    gpu: "Device | None" = None,
    *,
    allow_damaged: bool,
) -> None:
    """Print counters, joined to the launches of a run.

    Args:
        files: tables of Nsight Compute.
        inputs: the traces of the run; empty prints the counters alone.
        max_input: refuse a trace that unpacks to more bytes.
        top: how many rows; None or 0 for all.
        output_format: ``table``, ``json``, ``csv`` or ``md``.
        gpu: the model of the devices, from the user; None takes what the files say.
        allow_damaged: whether a damaged trace is not a failure.

    Raises:
        UsageError: the run has another number of processes.
        BadInputError: a file holds no kernel.
        DamagedInputError: a trace is damaged, and that is not allowed.
    """
    from opscope.cli.emit import Output, emit
    from opscope.cli.reading import Doubted, end_with, traces_of
    from opscope.cli.terminal import echo_lines, echo_table
    from opscope.report.counters_document import counters_table, counters_values

    counters = JoinedCounters(files, gpu)
    unreadable: list[str] = []
    doubted = []
    for file, trace in traces_of(inputs, max_input, unreadable) if inputs else ():
        doubted.append(Doubted.of_file(str(file), trace.source))
        counters.add(trace)
    document = counters.document()
    table = counters_table(document, top or None)

    def text() -> None:
        echo_table(table)
        say("", err=False)
        echo_lines(document.notes)

    output = Output.of_table(document, table, "Counters")
    emit(replace(output, values=lambda: counters_values(document, top or None), text=text), output_format)
    end_with(tuple(doubted), unreadable, allow_damaged=allow_damaged)


# ---------------------------------------------------------------- sums of a recording


F = TypeVar("F", bound=Callable[..., Any])
_ALL: Final = "all"


class _Reports(click.ParamType[tuple[Report, ...]]):
    name = "reports"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Report, ...]:
        """Read ``cuda_api_sum,um_sum``, or ``all``."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        if names == [_ALL]:
            return tuple(Report)
        known = {str(report): report for report in Report}
        if not names or (unknown := [name for name in names if name not in known]):
            wrong = f"there is no table {unknown[0]}" if names else "no table is named"
            self.fail(f"{wrong}; there are {', '.join(known)}, or {_ALL}", param, ctx)
        return tuple(known[name] for name in dict.fromkeys(names))


def stats_options(function: F) -> F:
    """Add ``--stats``, ``--top`` and ``--full-names``."""
    for option in (
        click.option(
            "--full-names", is_flag=True, help="Print whole kernel names on a terminal instead of short ones."
        ),
        top_option("rows of each table"),
        stats_option("Which tables", str(Report.GPU)),
    ):
        function = option(function)
    return function


def stats_option(what: str, default: str | None = None) -> Callable[[F], F]:
    """Add ``--stats``, which names tables.

    Args:
        what: what is printed, in words.
        default: which, unless the user names some.
    """
    return click.option(
        "--stats",
        "reports",
        type=_Reports(),
        metavar="TABLES",
        default=default,
        show_default=default is not None,
        help=f"{what}: {', '.join(Report)}; or {_ALL}.",
    )


def refuse_several_as_csv(reports: Sequence[Report], output_format: str) -> None:
    """Refuse several tables as CSV, which holds one.

    Raises:
        UsageError: the format is CSV, and there are several.
    """
    if output_format == "csv" and len(reports) > 1:
        raise UsageError("--format csv writes one table: name it with --stats")


def print_stats(
    traces: "Sequence[Trace]", reports: Sequence[Report], top: int | None, output_format: str, *, full_names: bool
) -> None:
    """Print tables over all traces together.

    Args:
        traces: at least one.
        reports: which tables.
        top: how many rows of each: 0 for all; None for the default, and for all in CSV.
        output_format: ``table``, ``json``, ``csv`` or ``md``.
        full_names: whether kernels have their whole names on a terminal too.

    Raises:
        UsageError: several tables are wanted as CSV, which holds one.
    """
    from opscope.cli.emit import Output, emit
    from opscope.cli.terminal import echo_lines, echo_table, on_terminal
    from opscope.render.blocks import Section
    from opscope.report.stats_document import after_table, build_stats, plain, process_lines, stats_table, title_of

    refuse_several_as_csv(reports, output_format)
    stats = build_stats(traces, reports)
    shown = shown_rows(top)
    lines = tuple(process_lines(stats))

    def text() -> None:
        for entry in stats.reports:
            say("", err=False)
            say(title_of(entry.name), err=False)
            if entry.rows:
                echo_table(stats_table(entry, shown, short_names=on_terminal() and not full_names))
            else:
                say(f"  {entry.empty}", err=False)
            echo_lines(after_table(entry, shown))
        if lines:
            say("", err=False)
            echo_lines(lines)

    output = Output(
        document=lambda: stats,
        values=lambda: plain(stats_table(stats.reports[0], top or None)),
        sections=lambda: [Section((title_of(entry.name),), (stats_table(entry, shown),)) for entry in stats.reports],
        text=text,
    )
    emit(output, output_format)
    for line in lines if output_format in ("csv", "md") else ():
        say(line)
