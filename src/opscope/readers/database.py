"""SQLite databases that profilers write: opened so that a hostile one can do nothing, and read within bounds."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import quote

import polars as pl
from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.base.files import path_text
from opscope.readers.content import Content
from opscope.readers.unpacked import OpenedReader, whole

_LONGEST_TEXT: Final = 1 << 20
_LONGEST_VALUE: Final = 1 << 24
# Limits on what a database can hold for its size: each row of a b-tree takes at least a cell of two bytes and its
# pointer (https://sqlite.org/fileformat2.html, 1.6), and UTF-16 text grows at most by half in UTF-8.
_SHORTEST_ROW: Final = 4
_LEAST_ROWS: Final = 1_000
_TEXTS_RATIO: Final = 2
_LEAST_TEXTS: Final = 16 << 20
# Reading takes some 5 ns a byte; this is ten times as long.
_LEAST_SECONDS: Final = 8.0
_BYTES_PER_SECOND: Final = 20e6
_STEPS_BETWEEN: Final = 10_000  # of SQLite's machine, between two looks at the clock
_ROWS_AT_ONCE: Final = 10_000


_EXPECTED: Final = "an export that Nsight Systems wrote, or a database of rocmProfileData"

Row = tuple[Any, ...]


@contextmanager
def opened(content: Content) -> Iterator["Database"]:
    """Open the database in a file's content.

    Raises:
        BadInputError: the database cannot be read, or holds more than its size allows; also where what is done within
            meets that.
    """
    source = content.source
    path, size = path_text(source.path), _size_of(content)
    bounds = Bounds(size)
    try:
        with closing(_opened(content, bounds)) as connection:
            yield Database(connection, bounds, path, size, source.damage, _columns(connection, bounds))
    except (sqlite3.Error, OverflowError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        if bounds.exceeded is not None:
            raise BadInputError(f"{path} is not {_EXPECTED}: {bounds.exceeded}") from error
        raise BadInputError(f"{path} is not whole, or not {_EXPECTED}: {error}") from error


class Database(Struct):
    """An open database.

    Attributes:
        connection: the database.
        bounds: what it may hold.
        path: of its file, for people.
        size_bytes: of the file.
        damage: why a part is missing; None if none is known to be.
        columns: of each table, by its name.
    """

    connection: sqlite3.Connection
    bounds: "Bounds"
    path: str
    size_bytes: int
    damage: str | None
    columns: dict[str, set[str]]

    def rows(self, table: str, wanted: Sequence[str], *, texts: bool = False) -> list[Row]:
        """Return columns of a table as numbers or None (or as texts); no rows if there is no such table.

        A column that the table lacks is None in every row. Rows stand in the order of the table, so that those of two
        queries belong together.

        Raises:
            sqlite3.Error: the table cannot be read, or holds more than the file's size allows.
        """
        if table not in self.columns:
            return []
        kind = "TEXT" if texts else "INTEGER"
        columns = ", ".join(f'CAST("{name}" AS {kind})' if name in self.columns[table] else "NULL" for name in wanted)
        return self.bounds.rows(self.connection.execute(f'SELECT {columns} FROM "{table}" ORDER BY rowid'))

    def texts(self, table: str, number: str, text: str) -> dict[int, str]:
        """Return a table of texts by their numbers.

        Raises:
            sqlite3.Error: as `rows`.
        """
        query = f'SELECT CAST("{number}" AS INTEGER), CAST("{text}" AS TEXT) FROM "{table}"'
        return dict(self.bounds.rows(self.connection.execute(query)))


def _columns(connection: sqlite3.Connection, bounds: "Bounds") -> dict[str, set[str]]:
    tables = bounds.rows(connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    return {
        str(name): {str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for (name,) in tables
    }


class Bounds:
    """Limits on rows, text and time for a database of a given size.

    A damaged or malicious database can yield far more than its size, or never end: its pages may point to one another
    in circles, its columns may have long defaults, and its rows may share their texts.
    """

    def __init__(self, size_bytes: int) -> None:
        self.exceeded: str | None = None
        self._text_bytes = max(_LEAST_TEXTS, _TEXTS_RATIO * size_bytes)
        self._rows = max(_LEAST_ROWS, size_bytes // _SHORTEST_ROW)
        self._until = time.monotonic() + _LEAST_SECONDS + size_bytes / _BYTES_PER_SECOND

    def text(self, text: bytes) -> str:
        """Count and decode a text of the database; SQLite calls this for every text.

        Raises:
            sqlite3.DataError: there is more text than the file's bytes can hold.
        """
        kept = text[:_LONGEST_TEXT]
        self._text_bytes -= len(kept)
        if self._text_bytes < 0:
            self.exceeded = "it holds more text than its bytes can"
            raise sqlite3.DataError(self.exceeded)
        return kept.decode("utf-8", "replace")

    def rows(self, cursor: sqlite3.Cursor) -> list[Row]:
        """Return the rows of a query.

        Raises:
            sqlite3.DataError: there are more rows than the file's bytes can hold.
        """
        rows: list[Row] = []
        while more := cursor.fetchmany(_ROWS_AT_ONCE):
            rows += more
            if len(rows) > self._rows:
                self.exceeded = "it holds more rows than its bytes can"
                raise sqlite3.DataError(self.exceeded)
        return rows

    def stop(self) -> bool:
        """Return whether SQLite must give up, because reading takes too long for a file of this size."""
        late = time.monotonic() > self._until
        if late:
            self.exceeded = "reading it does not end in the time that its size can take"
        return late


def _size_of(content: Content) -> int:
    """Return the size of the database in bytes; note as damage if a program is still writing to it."""
    reader, source = whole(content.reader), content.source
    if not isinstance(reader, OpenedReader) or not reader.left_unread:
        return len(reader.content())
    source.size_bytes = source.path.stat().st_size
    log = source.path.with_name(f"{source.path.name}-wal")
    if log.is_file() and log.stat().st_size:
        source.damage = f"a program still writes it: what is in {log.name} is not read"
    return source.size_bytes


def _opened(content: Content, bounds: Bounds) -> sqlite3.Connection:
    reader = whole(content.reader)
    if isinstance(reader, OpenedReader) and reader.left_unread:
        # Immutable: nothing is locked, and no file is made beside it.
        place = content.source.path.absolute()
        connection = sqlite3.connect(f"file:{quote(str(place))}?mode=ro&immutable=1", uri=True)
    else:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(reader.content())
    # A database may be hostile: its schema may run no functions, and nothing is written.
    connection.text_factory = bounds.text
    connection.set_progress_handler(bounds.stop, _STEPS_BETWEEN)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    return connection
