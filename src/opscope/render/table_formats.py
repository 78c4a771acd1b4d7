"""Renders tables as aligned text, CSV or Markdown, for commands with ``--format``."""

import csv
import io
from enum import StrEnum

from opscope.base.patterns import lazy_pattern
from opscope.base.text import printable
from opscope.render.blocks import Section, Table
from opscope.render.markdown import render


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
