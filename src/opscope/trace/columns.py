"""The tables of a trace and their columns, parsed from ``columns.h``, which the compiled reader includes too.

Imports nothing large: trace files are read while numpy and polars are still being imported.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern


class ColumnKind(StrEnum):
    """What a column holds; ``columns.h`` explains each kind."""

    THREAD = "THREAD"
    NAME = "NAME"
    TEXT = "TEXT"
    KIND = "KIND"
    INT64 = "INT64"
    INT32 = "INT32"
    FLOAT64 = "FLOAT64"

    @property
    def is_code(self) -> bool:
        """Whether the compiled reader stores a code instead of the value: the number of a thread, text or kind."""
        return self in (ColumnKind.THREAD, ColumnKind.NAME, ColumnKind.TEXT, ColumnKind.KIND)


class SchemaColumn(Struct, frozen=True):
    """One column, with what it means in a sentence."""

    name: str
    kind: ColumnKind
    meaning: str


class TableOfTrace(Struct, frozen=True):
    """One table, with what its rows are."""

    name: str
    meaning: str
    columns: tuple[SchemaColumn, ...]


# A table is one #define over several lines that end in a backslash; the comment on its first line is its meaning.
_TABLE: Final = lazy_pattern(
    r"#define OPSCOPE_(?P<name>[A-Z_]+)\(COLUMN\) /\* (?P<meaning>.*?) \*/(?P<columns>(?:[^\n]*\\\n)*[^\n]*)"
)
_COLUMN: Final = lazy_pattern(r'COLUMN\((?P<name>\w+), (?P<kind>\w+), "(?P<meaning>[^"]*)"\)')
_ORDER: Final = lazy_pattern(r"TABLE\(\w+, OPSCOPE_(\w+)\)")


def _read(text: str) -> Mapping[str, TableOfTrace]:
    # In the order of OPSCOPE_TABLES: a table's position is its number in the interface of the compiled reader.
    tables = {match["name"]: match for match in _TABLE.finditer(text)}
    return {
        name.lower(): TableOfTrace(name.lower(), tables[name]["meaning"], _columns(tables[name]["columns"]))
        for name in _ORDER.findall(text)
    }


def _columns(text: str) -> tuple[SchemaColumn, ...]:
    return tuple(
        SchemaColumn(match["name"], ColumnKind(match["kind"]), match["meaning"]) for match in _COLUMN.finditer(text)
    )


TABLES: Final = _read(Path(__file__).with_name("columns.h").read_text(encoding="utf-8"))
