"""How sums of CUDA activities are chosen and printed: by ``opscope stats``, and by ``opscope exec`` at its end."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from opscope.base.errors import UsageError
from opscope.cli.say import say, show
from opscope.documents.stats import Report

if TYPE_CHECKING:
    from opscope.trace.model import Trace

F = TypeVar("F", bound=Callable[..., Any])
_ALL: Final = "all"
_SHOWN: Final = 20  # rows of a table on a screen


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
            "--full-names", is_flag=True, help="Whole kernel names on a terminal too, not what they mean in short."
        ),
        click.option(
            "--top", type=click.IntRange(min=0), help=f"Rows of each table; 0 for all.  [default: {_SHOWN} in tables]"
        ),
        click.option(
            "--stats",
            "reports",
            type=_Reports(),
            default=str(Report.GPU),
            show_default=True,
            help=f"Which tables: {', '.join(Report)}; or {_ALL}.",
        ),
    ):
        function = option(function)
    return function


def refuse_several_as_csv(reports: Sequence[Report], output_format: str) -> None:
    """Refuse several tables as CSV, which holds one.

    Raises:
        UsageError: they are wanted so.
    """
    if output_format == "csv" and len(reports) > 1:
        raise UsageError("--format csv writes one table: name it with --stats")


def print_stats(
    traces: "Sequence[Trace]", reports: Sequence[Report], top: int | None, output_format: str, *, full_names: bool
) -> None:
    """Print tables over all traces together.

    Raises:
        UsageError: several tables are wanted as CSV, which holds one.
    """
    from opscope.cli.terminal import echo_lines, echo_table, on_terminal
    from opscope.record.codec import encode
    from opscope.render.table_formats import as_csv, as_markdown
    from opscope.report.stats_document import after_table, build_stats, plain, process_lines, table_of, title_of

    refuse_several_as_csv(reports, output_format)
    stats = build_stats(traces, reports)
    if output_format == "json":
        show(encode(stats))
        return
    shown = top or None
    if top is None and output_format == "table":
        shown = _SHOWN
    for entry in stats.reports:
        if output_format == "csv":
            show(as_csv(plain(table_of(entry, shown))))
        elif output_format == "md":
            show(as_markdown(table_of(entry, shown), title_of(entry.name)))
        else:
            say("", err=False)
            say(title_of(entry.name), err=False)
            if entry.rows:
                echo_table(table_of(entry, shown, short_names=on_terminal() and not full_names))
            else:
                say(f"  {entry.empty}", err=False)
            echo_lines(after_table(entry, shown))
    lines = list(process_lines(stats))
    if output_format == "table" and lines:
        say("", err=False)
        echo_lines(lines)
    elif lines:
        for line in lines:
            say(line)
