"""Checks SQL before it is run: one query, which can read nothing but the tables of the traces.

The query is parsed, and every table in it must belong to the traces or be defined earlier in the query. Only the parsed
words are run, without comments, so that nothing is hidden from the check.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from sqlglot import errors, exp, parse, tokenize

from opscope.base.errors import UsageError
from opscope.base.patterns import lazy_pattern

if TYPE_CHECKING:  # the module's name differs between versions
    from sqlglot.tokenizer_core import Token

_DIALECT: Final = "duckdb"
_MOST_WORDS: Final = 2_000  # planning takes time with the square of a query's terms
_MOST_CHARACTERS: Final = 100_000
# Functions of DuckDB that read files or load extensions, by how their names begin.
_READS: Final = lazy_pattern(r"(read|scan|glob|load|copy|attach|httpfs|parquet|csv|sniff)_?\w*", re.IGNORECASE)


def checked(query: str, tables: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return the query in the form that may be run, and the tables that it reads.

    Args:
        query: the user's query.
        tables: the names of all tables.

    Raises:
        UsageError: it is not a single query, is too long, may never end, or reads anything but these tables.
    """
    words = _words(query)
    tree = _parsed(query)
    for function in tree.find_all(exp.Func):
        _refuse_readers(function.name if isinstance(function, exp.Anonymous) else function.sql_name())
    for name in _called(words):  # also by the words as written, whatever the parser made of them
        _refuse_readers(name)
    for scope in tree.find_all(exp.With):
        if scope.args.get("recursive"):
            raise UsageError("a query that refers to itself (WITH RECURSIVE) may never end, and is not run")
        _refuse_circles(scope)
    defined = {expression.alias_or_name for expression in tree.find_all(exp.CTE)}
    wanted = dict.fromkeys(name for name in _tables(tree) if name not in defined)
    for name in wanted:
        if name not in tables:
            raise UsageError(f"there is no table {name!r}; there are {', '.join(tables)}")
    if not wanted:
        raise UsageError(f"the query reads no table; there are {', '.join(tables)}")
    return " ".join(query[word.start : word.end + 1] for word in words), tuple(wanted)


def _words(query: str) -> "Sequence[Token]":
    if len(query) > _MOST_CHARACTERS:
        raise UsageError(f"a query has at most {_MOST_CHARACTERS:,} characters, and this one {len(query):,}")
    try:
        words = tokenize(query, read=_DIALECT)
    except errors.SqlglotError as error:
        raise UsageError(f"the query cannot be read: {_in_one_line(error)}") from error
    if len(words) > _MOST_WORDS:
        raise UsageError(f"a query has at most {_MOST_WORDS:,} words, and this one {len(words):,}")
    _refuse_unusual_text(words)
    return words


def _refuse_unusual_text(words: "Sequence[Token]") -> None:
    """Refuse strings with escapes or with delimiters of their own: parsers disagree about where these end."""
    # The end of a name, which makes a prefix of a string that begins right there.
    previous = -1
    for word in words:
        kind = word.token_type.name
        if kind.endswith("STRING") and (kind != "STRING" or previous == word.start):
            raise UsageError("text is written between single quotes, without letters before it")
        previous = word.end + 1 if kind == "VAR" else -1


def _parsed(query: str) -> exp.Query:
    try:
        statements = parse(query, read=_DIALECT)
    except (errors.SqlglotError, RecursionError) as error:
        raise UsageError(f"the query cannot be read: {_in_one_line(error)}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UsageError("one query is run, and nothing else: it begins with SELECT or WITH")
    return statements[0]


def _in_one_line(error: Exception) -> str:
    """Describe where a query cannot be read by quoting it; the parser's own messages do not help users."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    details = getattr(error, "errors", None)
    near = str(details[0].get("highlight") or "") if details else ""
    return f"near {near[:80]!r}" if near.strip() else "a quote or a bracket is not closed, or a word is missing"


def _tables(tree: exp.Query) -> Iterator[str]:
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or table.args.get("db") is not None:
            raise UsageError(f"a query reads the tables of its traces, and nothing else: {table.sql(_DIALECT)}")
        yield table.name


def _refuse_circles(scope: exp.With) -> None:
    """Refuse tables that are defined by themselves or by later ones; `_tables` would count those as known."""
    names = [expression.alias_or_name for expression in scope.expressions]
    for place, expression in enumerate(scope.expressions):
        for table in expression.this.find_all(exp.Table):
            if table.name in names[place:]:
                raise UsageError(f"{names[place]!r} is defined by {table.name!r}, which is not defined before it")


def _called(words: "Sequence[Token]") -> Iterator[str]:
    for word, following in itertools.pairwise(words):
        if following.token_type.name == "L_PAREN" and word.token_type.name != "STRING":
            yield word.text


def _refuse_readers(function: str) -> None:
    if _READS.fullmatch(function):
        raise UsageError(f"a query reads the tables of its traces, and no other files: {function}")
