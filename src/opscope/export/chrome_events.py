"""Encodes the rows of a trace's tables as Chrome trace events, column by column, without an object per event.

An event is a concatenation of pieces: fixed text, numbers, and the texts of a column's categories, each of which is
encoded only once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.links import link
from opscope.analysis.structure.nesting import Ints
from opscope.knowledge.categories import Classifier
from opscope.readers.events import COMMUNICATION_COUNTS, COMMUNICATION_LISTS, COMMUNICATION_NAMES, COMMUNICATION_PLACES
from opscope.readers.exported import DEVICE, HOST, OVERHEAD, UNIFIED_MEMORY
from opscope.trace.model import Trace

SEPARATOR: Final = ",\n"  # before every event
_DIMENSIONS = r"^-?\d+(,-?\d+)*$"
_ENDS = ('"s"', '"f", "bp": "e"')  # phases of an arrow's two ends
_DIGITS = 32  # no number has more characters
_THOUSANDTHS = pl.Series([f".{part:03}" for part in range(1_000)])

# Arguments of events -> columns: those that an analysis of the exported file needs, under Kineto's names.
_OPERATOR_NUMBERS = {
    "External id": "external_id",
    "Sequence number": "sequence_number",
    "Fwd thread id": "forward_thread",
    "bytes": "message_bytes",
}
_OPERATOR_LISTS = {  # as the JSON text that they were recorded as
    "Input Dims": "input_dims",
    "Input type": "input_types",
    "Input Strides": "input_strides",
    "Concrete Inputs": "concrete_inputs",
}
_LAUNCH_NUMBERS = {"correlation": "correlation", "External id": "external_id"}
_ACTIVITY_NUMBERS = {
    "context": "context",
    "correlation": "correlation",
    "External id": "external_id",
    "graph id": "graph_id",
    "graph node id": "graph_node_id",
    "bytes": "bytes",
    "registers per thread": "registers_per_thread",
    "shared memory": "shared_memory_bytes",
    "est. achieved occupancy %": "theoretical_occupancy_percent",
}
_ALLOCATION_NUMBERS = {
    "Device Type": "device_type",
    "Device Id": "device",
    "Bytes": "bytes",
    "Total Allocated": "total_allocated_bytes",
    "Total Reserved": "total_reserved_bytes",
    "Addr": "address",
}


class Tracks(Struct, frozen=True):
    """The thread ids under which each table's rows are drawn; ``device`` has activities' devices, -1 if unknown."""

    ranges: Ints
    frames: Ints
    annotations: Ints
    operators: Ints
    launches: Ints
    allocations: Ints
    device: Ints
    activities: Ints
    migrations: Ints


class _Text(Struct, frozen=True):
    """A piece of an event's text: an expression, null for events without the piece, and its most bytes."""

    of: pl.Expr
    longest: int


class Events(Struct, frozen=True):
    """The events of one table.

    Attributes:
        start: when each begins, in nanoseconds.
        longest: an upper bound of an event's bytes, separator included.
    """

    start: Ints
    longest: int
    _table: pl.DataFrame
    _text: pl.Expr

    @classmethod
    def of(cls, start: Ints, table: pl.DataFrame, pieces: Sequence[_Text]) -> "Events":
        """Define the events of a table by the pieces of their text; `encoded` makes the texts."""
        text = pl.concat_str([piece.of for piece in pieces], ignore_nulls=True)
        used = table.select(sorted(set(text.meta.root_names())))
        return cls(start, sum(piece.longest for piece in pieces), used, text)

    def encoded(self, rows: Ints) -> pl.Series:
        """Return the JSON text of events by their rows, each after a separator."""
        return self._table[rows].select(self._text).to_series()


def events_of(trace: Trace, tracks: Tracks, classifier: Classifier) -> list[Events]:
    """Return the events of all tables, outer slices before inner ones."""
    links = link(trace)
    launch, owner = links.activity_launch, pl.Series(links.activity_operator).replace(-1, None)
    del links  # the rest of it takes as much memory as the operators
    return [
        _slices(trace.ranges, tracks.ranges, "nvtx_range", []),
        _slices(trace.frames, tracks.frames, "python_function", []),
        _slices(trace.annotations, tracks.annotations, "user_annotation", []),
        _operators(trace, tracks.operators, classifier),
        _slices(trace.launches, tracks.launches, "cuda_runtime", _listed(_numbers(trace.launches, _LAUNCH_NUMBERS))),
        _overheads(trace),
        _migrations(trace, tracks.migrations),
        _allocations(trace, tracks.allocations),
        _counters(trace),
        _activities(trace, owner, tracks, classifier),
        _flows(trace, launch, tracks),
    ]


def _fixed(text: str) -> _Text:
    return _Text(pl.lit(text), len(text.encode()))


def _number(name: str) -> _Text:
    return _Text(pl.col(name).cast(pl.String), _DIGITS)


def _number_or_null(name: str) -> _Text:
    return _Text(pl.col(name).cast(pl.String).fill_null("null"), _DIGITS)


def _microseconds(nanoseconds: pl.Expr) -> list[_Text]:
    """Write nanoseconds as microseconds with three decimals, exactly."""
    size = nanoseconds.abs().reinterpret(signed=False)  # unsigned: the lowest integer has no positive counterpart
    return [
        _Text(pl.when(nanoseconds < 0).then(pl.lit("-")), 1),
        _Text((size // 1_000).cast(pl.String), _DIGITS),
        _Text(pl.lit(_THOUSANDTHS).gather((size % 1_000).cast(pl.UInt32)), 4),
    ]


def _texts(values: pl.Series, write: Callable[[pl.Series], pl.Series], missing: str | None) -> _Text:
    """Write a categorical column; each category is encoded once.

    Args:
        values: the column.
        write: returns the texts of distinct categories.
        missing: the text of null; None for no text.
    """
    distinct = values.drop_nulls().unique()
    codes = distinct.to_physical().to_numpy()
    known = pl.concat([write(distinct.cast(pl.String)).cast(pl.String), pl.Series([missing], dtype=pl.String)])
    # From a category's code to its text; the place after the largest code is for null.
    last = int(codes.max(initial=0)) + 1
    place = np.full(last + 1, len(codes))
    place[codes] = np.arange(len(codes))
    longest = known.str.len_bytes().max()
    text = pl.lit(known.gather(place)).gather(pl.col(values.name).to_physical().fill_null(last))
    return _Text(text, longest if isinstance(longest, int) else 0)


def _encoded(name: str) -> str:
    return json.dumps(name)  # escapes all but printable ASCII, and reads back as the same name


def _each(write: Callable[[str], str]) -> Callable[[pl.Series], pl.Series]:
    return lambda texts: pl.Series([write(text) for text in texts], dtype=pl.String)


def _names(values: pl.Series, before: str = "") -> _Text:
    return _texts(values, _each(lambda name: before + _encoded(name)), before + '""')


def _optional(values: pl.Series, key: str, write: Callable[[str], str | None]) -> _Text:
    """Write an argument for rows that have a value, unless ``write`` returns None for it."""

    def written(texts: pl.Series) -> pl.Series:
        encoded = pl.Series([write(text) for text in texts], dtype=pl.String)
        return pl.select(pl.concat_str(pl.lit(f', "{key}": '), encoded)).to_series()

    return _texts(values, written, None)


def _numbers(table: pl.DataFrame, keys: Mapping[str, str]) -> list[_Text]:
    """Return numeric arguments as JSON without separators, leaving out columns that are all null."""
    present = {key: name for key, name in keys.items() if table[name].null_count() < table.height}
    return [
        _Text(pl.concat_str(pl.lit(f'"{key}": '), pl.col(name).cast(pl.String)), len(key) + 4 + _DIGITS)
        for key, name in present.items()
    ]


def _listed(pieces: Sequence[_Text]) -> list[_Text]:
    """Join arguments with separators; any of them may be missing in a row."""
    if not pieces:
        return []
    text = pl.concat_str([piece.of for piece in pieces], separator=", ", ignore_nulls=True)
    return [_Text(text, sum(piece.longest + 2 for piece in pieces))]


def _after(pieces: Sequence[_Text]) -> list[_Text]:
    """Put a separator before each argument; any may be missing, and one that never is must precede them."""
    return [_Text(pl.concat_str(pl.lit(", "), piece.of), piece.longest + 2) for piece in pieces]


def _slices(
    table: pl.DataFrame,
    tids: Ints,
    category: str | _Text,
    arguments: Sequence[_Text],
    process: Sequence[_Text] = (_fixed(str(HOST)),),
) -> Events:
    table = table.with_columns(pl.Series("tid", tids), pl.col("start_ns", "duration_ns").fill_null(0))
    pieces = [
        _fixed(f'{SEPARATOR}{{"ph": "X", "cat": "'),
        _fixed(category) if isinstance(category, str) else category,
        _fixed('", "name": '),
        _names(table["name"]),
        _fixed(', "pid": '),
        *process,
        _fixed(', "tid": '),
        _number("tid"),
        _fixed(', "ts": '),
        *_microseconds(pl.col("start_ns")),
        _fixed(', "dur": '),
        *_microseconds(pl.col("duration_ns")),
        _fixed(', "args": {'),
        *arguments,
        _fixed("}}"),
    ]
    return Events.of(column(table, "start_ns"), table, pieces)


def _operators(trace: Trace, tids: Ints, classifier: Classifier) -> Events:
    calls = trace.communications.filter(pl.col("correlation").is_null())
    table, extra = _with_communication(trace.operators, calls, ["external_id", "start_ns"])

    def category(name: str) -> str:
        return f'"category": {json.dumps(str(classifier.classify(name).category))}'

    arguments = [
        _texts(table["name"], _each(category), category("")),
        *_after(_numbers(table, _OPERATOR_NUMBERS)),
        *(_optional(table[name], key, str) for key, name in _OPERATOR_LISTS.items()),
        _optional(table["kernel_file"], "kernel_file", _encoded),
        *extra,
    ]
    return _slices(table, tids, "cpu_op", arguments)


def _with_communication(
    table: pl.DataFrame, of: pl.DataFrame, keys: Sequence[str]
) -> tuple[pl.DataFrame, Sequence[_Text]]:
    """Add to calls or kernels what is known of the communication that they are, and return how it is written."""
    if not of.height:
        return table, ()
    names = {**COMMUNICATION_NAMES, **COMMUNICATION_LISTS}
    counts = {**COMMUNICATION_PLACES, **COMMUNICATION_COUNTS}
    columns = [pl.col(name).alias(f"of_{name}") for name in (*names, *counts)]
    of = of.unique(keys, keep="first").select(*keys, *columns)
    table = table.join(of, on=keys, how="left", maintain_order="left")
    if "collective" in table.columns:  # of kernels without a launch the table of communications says nothing
        table = table.with_columns(of_collective=pl.coalesce("of_collective", "collective"))
    texts = [_optional(table[f"of_{name}"], key, _encoded) for name, key in names.items()]
    return table, [*texts, *_after(_numbers(table, {key: f"of_{name}" for name, key in counts.items()}))]


def _overheads(trace: Trace) -> Events:
    """Return the profiler's own records, on one track, because they name no thread."""
    tids = np.zeros(trace.overheads.height, np.int64)
    return _slices(trace.overheads, tids, "overhead", [], [_fixed(str(OVERHEAD))])


def _migrations(trace: Trace, tids: Ints) -> Events:
    """Return unified memory's events, with a track for each kind."""
    numbers = _listed(_numbers(trace.migrations, {"device": "device", "bytes": "bytes", "faults": "faults"}))
    return _slices(trace.migrations, tids, "unified_memory", numbers, [_fixed(str(UNIFIED_MEMORY))])


def _allocations(trace: Trace, tids: Ints) -> Events:
    times = column(trace.allocations, "time_ns")
    table = trace.allocations.with_columns(pl.Series("tid", tids), pl.Series("time_ns", times))
    before = f'{SEPARATOR}{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": {HOST}, "tid": '
    pieces = [
        _fixed(before),
        _number("tid"),
        _fixed(', "ts": '),
        *_microseconds(pl.col("time_ns")),
        _fixed(', "args": {'),
        *_listed(_numbers(table, _ALLOCATION_NUMBERS)),
        _fixed("}}"),
    ]
    return Events.of(times, table, pieces)


def _counters(trace: Trace) -> Events:
    """Return samples of counters as PyTorch writes them: in a process of their own per device."""
    table = trace.counters
    numbered = pl.concat_str(pl.lit('"GPU '), pl.col("device"), pl.lit(' Counters"'))
    process = pl.when(pl.col("device").is_null()).then(pl.lit('"Counters"')).otherwise(numbered)
    pieces = [
        _fixed(f'{SEPARATOR}{{"ph": "C", "name": '),
        _names(table["name"]),
        _fixed(', "pid": '),
        _Text(process, _DIGITS),
        _fixed(', "ts": '),
        *_microseconds(pl.col("time_ns")),
        _fixed(', "args": {"": '),
        _number("value"),
        _fixed("}}"),
    ]
    return Events.of(column(table, "time_ns"), table, pieces)


def _activities(trace: Trace, owner: pl.Series, tracks: Tracks, classifier: Classifier) -> Events:
    kernels = trace.communications.filter(pl.col("correlation").is_not_null())
    table, extra = _with_communication(trace.activities, kernels, ["correlation", "start_ns"])
    table = table.with_columns(
        pl.Series("process", tracks.device + DEVICE),
        trace.operators["name"].gather(owner).alias("operator"),
        owner.is_not_null().alias("linked"),
    )

    def operator(name: str) -> str:
        category = json.dumps(str(classifier.classify(name).category))
        return f', "operator": {_encoded(name)}, "category": {category}'

    operators = _texts(table["operator"], _each(operator), operator(""))
    renamed = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
    arguments = [
        # Unknown values are written as null: if the key is missing, readers take the track's numbers instead.
        _fixed('"device": '),
        _number_or_null("device"),
        _fixed(', "stream": '),
        _number_or_null("stream"),
        *_after(_numbers(table, _ACTIVITY_NUMBERS)),
        _Text(pl.when("linked").then(operators.of), operators.longest),
        _geometry(table["grid"]),
        _geometry(table["block"]),
        *(extra or [_optional(table["collective"], "Collective name", _encoded)]),
    ]
    kind = _texts(table["kind"], lambda texts: texts.replace(renamed), "None")
    return _slices(table, tracks.activities, kind, arguments, [_number("process")])


def _geometry(values: pl.Series) -> _Text:
    """Write grids or blocks as JSON lists; leave out texts that are not lists of numbers."""

    def written(texts: pl.Series) -> pl.Series:
        known = pl.when(texts.str.contains(_DIMENSIONS)).then(pl.lit(texts))
        return pl.select(pl.concat_str(pl.lit(f', "{values.name}": ['), known, pl.lit("]"))).to_series()

    return _texts(values, written, None)


def _flows(trace: Trace, activity_launch: Ints, tracks: Tracks) -> Events:
    """Return an arrow from every launch to each of its activities, as two events in a row."""
    launched = np.flatnonzero(activity_launch >= 0)
    rows = activity_launch[launched]
    times = column(trace.launches, "start_ns")[rows], column(trace.activities, "start_ns")[launched]
    columns = {
        "end": (np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)),
        "id": (launched, launched),
        "pid": (np.full(len(rows), HOST), tracks.device[launched] + DEVICE),
        "tid": (tracks.launches[rows], tracks.activities[launched]),
        "ts": times,
    }
    # Interleaved: row 2i begins arrow i at the launch, row 2i + 1 ends it at the activity.
    table = pl.DataFrame({name: np.column_stack(pair).ravel() for name, pair in columns.items()})
    begin, end = (f'{SEPARATOR}{{"ph": {phase}, "cat": "ac2g", "name": "launch", "id": ' for phase in _ENDS)
    pieces = [
        _Text(pl.when("end").then(pl.lit(end)).otherwise(pl.lit(begin)), len(end)),
        _number("id"),
        _fixed(', "pid": '),
        _number("pid"),
        _fixed(', "tid": '),
        _number("tid"),
        _fixed(', "ts": '),
        *_microseconds(pl.col("ts")),
        _fixed("}"),
    ]
    return Events.of(column(table, "ts"), table, pieces)
