"""How sums of CUDA activities are chosen and printed: by ``analyze --stats``, and by ``opscope exec`` at its end."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from opscope.base.errors import UsageError
from opscope.cli.options import shown_rows, top_option
from opscope.cli.say import say
from opscope.documents.stats import Report

if TYPE_CHECKING:
    from opscope.trace.model import Trace

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
