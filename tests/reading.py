"""What a reader made of a file, in a form that can be compared."""

from collections import Counter
from typing import Any

from opscope.readers.kineto import take
from opscope.readers.native import library as native
from opscope.readers.native.library import CATEGORIES, IDENTITIES, NAMES, TEXTS, NativeReader
from opscope.trace.columns import TABLES
from opscope.trace.model import Trace
from opscope.trace.schema import SCHEMAS


def everything(reader: NativeReader, odd: list[bytes]) -> dict[str, Any]:
    """Return all that a compiled reader holds after the end of a file; ``odd`` is what it has handed back before."""
    odd = [*odd, *reader.finish()]
    strings = {which: reader.strings(which) for which in (NAMES, TEXTS, IDENTITIES)}
    columns = {table: {name: values.tobytes() for name, values in take(reader, table).items()} for table in TABLES}
    ignored = {text: n for text, n in zip(reader.strings(CATEGORIES), reader.ignored(), strict=True) if n}
    return {
        "ignored": ignored,
        "odd": odd,
        "strings": strings,
        "columns": columns,
        "threads": reader.threads(),
        "header": reader.header,
        "footer": reader.footer,
        "footer_size": reader.footer_size,
        "truncated": reader.truncated,
        "found_events": reader.found_events,
        "plain_count": reader.plain_count,
    }


def fed(pieces: list[bytes], threads: int, block: int) -> dict[str, Any]:
    """Read some pieces with so many threads, in blocks of so many bytes."""
    library = native.load_kineto()
    assert library is not None
    reader = NativeReader(library, threads, block)
    return everything(reader, [odd for piece in pieces for odd in reader.feed(piece)])


def assert_nothing_lost_in_silence(one: Trace, other: Trace) -> None:
    """Who lacks a row of a damaged file that the other one reads says that something could not be read."""
    rows, others = rows_of(one), rows_of(other)
    for trace, missing in ((one, others - rows), (other, rows - others)):
        source = trace.source
        assert not missing or source.unreadable_bytes or source.odd_events or source.damage


def rows_of(trace: Trace) -> Counter[tuple[object, ...]]:
    """Return all rows of a trace, each with how often it is there."""
    return Counter((table, *row) for table in SCHEMAS for row in getattr(trace, table).rows())
