"""Writes to standard output: at full width into pipes and files, fitted to a terminal's width and in its colours.

Which text means what is decided where it is written (`opscope.report.step_parts`).
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Final

import click

from opscope.base.text import printable
from opscope.cli.say import say, show
from opscope.render.blocks import Block, Bullets, Code, Section, Table, Tone, Toned, joined
from opscope.render.table_formats import as_text

if TYPE_CHECKING:
    from rich.text import Text

_LEAST_TEXT = 24  # characters that a column of text is to keep: before it gets fewer, optional columns are left out
_GAP = 2  # characters between columns
# Names of the sixteen colours that every terminal has, so that its user's own scheme holds.
COLOURS: Final = {Tone.GOOD: "green", Tone.DOUBT: "yellow", Tone.BAD: "red"}
# What fills a bar: work, exposed communication, exposed copies, idle time (`opscope.report.step_parts`).
_FILLS: Final = {"█": "blue", "▓": "magenta", "▒": "cyan", "░": "yellow"}


def on_terminal() -> bool:
    """Tell whether standard output is a terminal; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines; on a terminal, long ones are wrapped between words, and what follows is indented."""
    width = shutil.get_terminal_size().columns
    for line in lines:
        text = printable(line)
        if on_terminal() and len(text) > width:
            indent = " " * (len(text) - len(text.lstrip()) + 2)
            text = textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
        if isinstance(line, Toned) and in_colours():
            show(coloured(text, line.tone))
        elif on_terminal():
            show(text)  # wrapped, so of several lines
        else:
            say(text, err=False)


def echo_table(table: Table) -> None:
    """Print a table: aligned, and on a terminal no wider than that.

    Numbers are never cut. Where there is no room, optional columns are left out (and named), and text is wrapped; where
    that does not do, rows are written one below the other, a line per column.
    """
    if not on_terminal():
        show(as_text(table))
        return
    if not table.rows:
        echo_lines(["  ".join(table.columns)])
        return
    width = shutil.get_terminal_size().columns
    fitting, hidden = _without_optional(table, width)
    if _width_needed(fitting) <= width:
        _print_fitted(fitting, width)
    else:
        fitting, hidden = table, []  # one below the other, there is room for every column
        _print_rows_below_each_other(fitting)
    if hidden:
        echo_lines([f"(hidden to fit the terminal: {', '.join(hidden)}; --format csv has all)"])


def _without_optional(table: Table, width: int) -> tuple[Table, list[str]]:
    """Leave out optional columns, the last first, until there is room for the others."""
    shown = list(range(len(table.columns)))
    needs = [_needed(table, i) for i in shown]
    hidden: list[int] = []
    for i in sorted(table.optional, reverse=True):
        if sum(needs[k] for k in shown) + _GAP * (len(shown) - 1) <= width:
            break
        shown.remove(i)
        hidden.append(i)
    return _columns(table, shown), [table.columns[i] for i in sorted(hidden)]


def _width_needed(table: Table) -> int:
    return sum(_needed(table, i) for i in range(len(table.columns))) + _GAP * (len(table.columns) - 1)


def _print_rows_below_each_other(table: Table) -> None:
    longest = max(map(len, table.columns))
    for number, row in enumerate(table.rows):
        if number:
            say("", err=False)
        echo_lines(
            f"{heading:<{longest}}  {' '.join(cell.split())}" for heading, cell in zip(table.columns, row, strict=True)
        )


def _needed(table: Table, position: int) -> int:
    """Return how many characters a column needs: all of its widest number, or enough of a text to be read."""
    widest = max(len(cell[position]) for cell in (table.columns, *table.rows))
    return widest if position in table.numeric else min(widest, _LEAST_TEXT)


def _columns(table: Table, positions: list[int]) -> Table:
    return Table(
        tuple(table.columns[i] for i in positions),
        tuple(tuple(row[i] for i in positions) for row in table.rows),
        frozenset(new for new, old in enumerate(positions) if old in table.numeric),
    )


def _print_fitted(table: Table, width: int) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for i, heading in enumerate(table.columns):
        if i in table.numeric:
            grid.add_column(_heading(heading), justify="right", no_wrap=True, min_width=_needed(table, i))
        else:
            grid.add_column(_heading(heading), overflow="fold", min_width=_needed(table, i))
    for row in table.rows:
        grid.add_row(*(Text(" ".join(printable(cell).split()), style=_style(cell)) for cell in row))
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(grid)


def _style(cell: str) -> str:
    # rich leaves colours out by itself where NO_COLOR is set or the terminal is dumb.
    return COLOURS.get(cell.tone, "") if isinstance(cell, Toned) else ""


def _heading(text: str) -> "Text":
    from rich.text import Text

    return Text(printable(text))


def echo_block(block: Block) -> None:
    """Print a block of a section."""
    if isinstance(block, Table):
        echo_table(block)
    elif isinstance(block, Bullets):
        echo_lines(joined(("  ", *item)) for item in block.items)
    elif isinstance(block, Code):
        for line in block.lines:  # never wrapped: it is copied from here
            say(f"    {printable(line.expandtabs(4))}", err=False)
    else:
        echo_lines([joined(block.parts)])


def echo_section(section: Section) -> None:
    """Print a section and all below it."""
    echo_lines(["".join(section.title)])
    for block in section.blocks:
        if isinstance(block, Table):
            say("", err=False)
        echo_block(block)
    for inner in section.sections:
        say("", err=False)
        echo_section(inner)


def in_colours() -> bool:
    """Tell whether standard output shows colours: a terminal does, unless NO_COLOR is set (no-color.org)."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, tone: Tone) -> str:
    """Return text with the terminal's marks around each of its lines; it must be free of marks before."""
    return "\n".join(_coloured_line(line, tone) for line in text.split("\n"))


def _coloured_line(line: str, tone: Tone) -> str:
    if tone is Tone.STRONG:
        return click.style(line, bold=True)
    if tone is Tone.BAR:
        runs = (("".join(run), _FILLS.get(fill)) for fill, run in groupby(line))
        return "".join(run if colour is None else click.style(run, fg=colour) for run, colour in runs)
    return click.style(line, fg=COLOURS[tone])
