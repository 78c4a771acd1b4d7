"""Columns of tables, and tables as aligned text, CSV or Markdown, for commands with ``--format``.

Heading and content of a column are defined together, so that nothing depends on positions. `table_of` builds tables for
people, `field_values` the CSV of the same rows.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

from opscope.base.text import lazy_pattern, printable
from opscope.render.blocks import Name, Section, Table
from opscope.render.markdown import render

T = TypeVar("T")


# Without slots: on Python 3.11 a frozen generic class that has them cannot be built as ``Column[Row](...)``.
class Column(Struct, Generic[T], frozen=True):
    """A column of a table for people.

    Attributes:
        heading: its heading.
        text: formats the cell of a row; it must return a `Name` for text from a trace or a user.
        numeric: whether it is set flush right.
        optional: whether it may be left out if there is no room.
    """

    heading: str
    text: Callable[[T], str]
    numeric: bool = False
    optional: bool = False


def table_of(columns: Sequence[Column[T]], rows: Iterable[T]) -> Table:
    """Build a table with these columns and one line for each of ``rows``."""
    return Table(
        columns=tuple(column.heading for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
        numeric=frozenset(at for at, column in enumerate(columns) if column.numeric),
        optional=frozenset(at for at, column in enumerate(columns) if column.optional),
    )


def field_values(row: object, names: Iterable[str]) -> tuple[Name, ...]:
    """Return fields of a record for CSV: plain figures, and an empty text if a value is None."""
    return tuple(Name("" if (value := getattr(row, name)) is None else str(value)) for name in names)


class Format(StrEnum):
    """The output formats that every command with tables offers."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"
    BRIEF = "brief"


def as_text(table: Table) -> str:
    """Align the columns with spaces. Nothing is cut or wrapped, so names can be searched for."""
    grid = [tuple(" ".join(printable(cell).split()) for cell in row) for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    lines = [_aligned(row, widths, table.numeric) for row in grid]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _aligned(row: tuple[str, ...], widths: list[int], numeric: frozenset[int]) -> str:
    cells = [
        cell.rjust(width) if i in numeric else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def as_csv(table: Table) -> str:
    """Write comma-separated values with a header line; cells that a spreadsheet would compute are escaped."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in (table.columns, *table.rows):
        writer.writerow([_no_formula(printable(cell)) for cell in row])
    return out.getvalue().rstrip("\n")


_NUMBER = lazy_pattern(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_FLAG = lazy_pattern(r"--?[a-z][a-z-]*=[a-z]+_?[0-9a-z]+")  # a compiler's: -arch=sm_90
_MAY_BE_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def _no_formula(cell: str) -> str:
    """Put an apostrophe before text that a spreadsheet would take for a formula; numbers stay as they are."""
    harmless = cell == "-" or _NUMBER.fullmatch(cell) or _FLAG.fullmatch(cell)
    if cell.startswith(_MAY_BE_FORMULAS) and not harmless:
        return f"'{cell}"
    return cell


def as_markdown(table: Table, title: str) -> str:
    """Write a Markdown section with the table."""
    return render(Section((title,), (table,)), level=2).rstrip("\n")
