"""Columns of tables. Heading and content are defined together, so that nothing depends on positions.

`table_of` builds tables for people, `field_values` the CSV of the same rows.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from opscope.render.blocks import Name, Table

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
