"""The tables that SQL sees: a trace's records and what was computed from them, with a meaning for each column.

SQL is checked before it is run: one query, which can read nothing but the tables of the traces. It is
parsed, and every table in it must belong to the traces or be defined earlier in the query. Only the parsed words are
run, without comments, so that nothing is hidden from the check.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec import Struct
from sqlglot import errors, exp, parse, tokenize

from opscope.analysis.analyzed import Analysis
from opscope.analysis.rows import gaps_table, iterations_table, steps_table
from opscope.analysis.structure.step_work import linked_activities
from opscope.base.errors import UsageError
from opscope.base.text import lazy_pattern
from opscope.render.blocks import Table
from opscope.trace.columns import TABLES

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


class _Computed(Struct, frozen=True):
    """A table of an analysis; ``own`` has the meanings of columns that differ from `_MEANINGS`."""

    meaning: str
    frame: Callable[[Analysis], pl.DataFrame]
    own: Mapping[str, str]


def _computed(meaning: str, frame: Callable[[Analysis], pl.DataFrame], **own: str) -> _Computed:
    return _Computed(meaning, frame, own)


COMPUTED: Final[Mapping[str, _Computed]] = {
    "linked_activities": _computed(
        "activities joined to operator, step and launch, one row each (a view)",
        lambda analysis: linked_activities(analysis.trace, analysis.links),
        operator="the operator that launched it",
    ),
    "operator_costs": _computed(
        "operators by name", lambda analysis: analysis.operators_and_unlinked, name="the operator, or (no operator)"
    ),
    "shape_costs": _computed(
        "operators by name and inputs",
        lambda analysis: analysis.shapes_and_unlinked,
        name="the operator, or (no operator)",
    ),
    "kernel_costs": _computed(
        "kernels, copies and fills by name and device",
        lambda analysis: analysis.kernels.with_columns(pl.col("name", "kind").cast(pl.String)),
        name="the kernel",
    ),
    "category_costs": _computed("operators by kind of work", lambda analysis: analysis.categories),
    "streams": _computed("streams of devices", lambda analysis: analysis.streams),
    "graph_nodes": _computed("nodes of replayed CUDA graphs", lambda analysis: analysis.graph_nodes, name="the kernel"),
    "captured": _computed(
        "what was captured into CUDA graphs", lambda analysis: analysis.captured, name="the operator"
    ),
    "backward_costs": _computed("nodes of the backward pass by forward operator", lambda analysis: analysis.backward),
    "annotation_costs": _computed(
        "named ranges of the program, nested", lambda analysis: analysis.annotations, name="the range's own name"
    ),
    "steps": _computed(
        "recorded steps by device",
        steps_table,
        index="place of the step, from 0",
        number="the profiler's number of the step",
        span_ns="from its first activity to the next step's first, or its length on the host",
        activities="how many activities it launched",
        device_sum_ns="their durations, added up",
        idle_ns="time in which the device did nothing",
        launch_bound_ns="the part of that in which it waited for launches",
        cold="whether it loaded code",
    ),
    "gaps": _computed(
        "the longest stretches in which a device did nothing",
        lambda analysis: gaps_table(analysis).rename({"where": "place"}),  # a word of SQL
        start_ns="when it began",
        duration_ns="how long it was, within the window",
        step="the profiler's number of the step in which most of it lies",
        position="before the first activity, between activities, or after the last",
        cause="what most of it is due to",
        call="the call that the host sat in, or that launched what came next",
        operator="the innermost operator that the host was in then",
        annotation="the innermost named range",
        module="the innermost nn.Module",
        python="the innermost Python frame of the user's",
        before="the activity before it",
        after="the activity after it",
        stream="the stream of the activity after it",
        waited_for="the activity of another device whose end ended the wait",
        place="the line of Python, the operator, the module or the range, what is known first",
        cause_ns="the part of it that is due to that cause",
    ),
    "iterations": _computed(
        "iterations of a server by kind and size",
        iterations_table,
        kind="prefill, decode, mixed, diffusion or capture",
        requests="requests of each",
        tokens="tokens of each",
        detail="what else the range's name says",
        iterations="how many",
        total_ns="their time on the device, added up: from the first activity to the next iteration's first",
        median_ns="of one",
        host_ns="median length of the range on the host",
        device_sum_ns="durations of all activities launched in them",
        idle_ns="the part of total_ns in which the device did nothing",
        bound="what bounds them in the profile",
    ),
}
# Meanings of columns that are the same in all computed tables.
_MEANINGS: Final[Mapping[str, str]] = {
    "trace": "the trace's path",
    "calls": "how many calls",
    "self_device_ns": "durations of what it launched itself, added up; may be added up over rows",
    "total_device_ns": "the same with what runs inside it; must not be added up over rows",
    "self_cpu_ns": "its own time on the host; may be added up over rows",
    "total_cpu_ns": "time on the host with what runs inside it",
    "activities": "how many activities it launched",
    "category": "the kind of work",
    "input_dims": "shapes of the inputs, as JSON",
    "input_types": "types of the inputs, as JSON",
    "input_strides": "strides of the inputs, as JSON; the most frequent ones of several calls; null if not recorded",
    "stride_kinds": "how many different strides the calls have",
    "kind": "kernel, memcpy or memset",
    "device": "the device",
    "stream": "the stream",
    "total_ns": "durations added up",
    "mean_ns": "mean duration",
    "min_ns": "shortest duration",
    "max_ns": "longest duration",
    "std_ns": "standard deviation of the durations (population)",
    "sum_ns": "durations added up",
    "busy_ns": "time in which anything ran (union)",
    "first_ns": "when the first activity began",
    "last_ns": "when the last activity ended",
    "graph": "number of the graph",
    "node": "number of the node",
    "known_by": "how graph and node are told apart",
    "replays": "how many replays recorded the node",
    "captured_operator": "the operator that launched it when the graph was captured",
    "captured_how": "how that is known, or why it is not",
    "launches": "how many launches were captured",
    "forward": "the forward operator; null where no sequence number leads to one",
    "backward": "the backward node",
    "forward_device_ns": "device time of the forward operators' own ranges",
    "backward_device_ns": "device time of what the node launched",
    "path": "names from the outermost range inwards",
    "depth": "how many ranges enclose it",
    "span_ns": "time on the host, added up",
    "step": "the profiler's number of the step that launched it",
    "launch": "the function that launched it",
    "launch_thread": "the thread that launched it",
    "launch_start_ns": "when that call began",
    "launch_duration_ns": "how long that call took",
    "queue_delay_ns": "from the end of that call to the activity's start: latency, or backlog behind earlier work",
}


def table_names() -> tuple[str, ...]:
    """Return the names of all tables."""
    return (*TABLES, *COMPUTED)


def frames_of(analysis: Analysis, wanted: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Return tables of a trace by their names. Impossible records are in none of them.

    Args:
        analysis: of the trace.
        wanted: names from `table_names`.
    """
    # Categories are numbered per trace; as strings, tables of several traces can be put together.
    as_strings = pl.col(pl.Categorical).cast(pl.String)
    return {
        name: COMPUTED[name].frame(analysis)
        if name in COMPUTED
        else getattr(analysis.trace, name).with_columns(as_strings)
        for name in wanted
    }


def schema_table(examples: Mapping[str, pl.DataFrame]) -> Table:
    """Build the list of all tables and columns, with types and meanings.

    Args:
        examples: every table by name, of any trace.
    """
    return Table(("table", "column", "type", "meaning"), tuple(_described(examples)))


def _described(examples: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, str, str, str]]:
    for name in table_names():
        meanings = _meanings_of(name)
        yield (name, "", "", TABLES[name].meaning if name in TABLES else COMPUTED[name].meaning)
        yield (name, "trace", "String", _MEANINGS["trace"])
        for column, dtype in examples[name].schema.items():
            yield (name, column, str(dtype), meanings[column])


def _meanings_of(name: str) -> Mapping[str, str]:
    if name in TABLES:
        return {column.name: column.meaning for column in TABLES[name].columns}
    records = _meanings_of("activities") if name == "linked_activities" else {}
    return {**_MEANINGS, **records, **COMPUTED[name].own}
