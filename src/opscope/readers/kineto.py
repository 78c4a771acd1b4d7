"""Reads Chrome traces of Kineto (torch.profiler), from PyTorch 1.8 to now, NVIDIA and AMD. One file is one process.

The intact part of a damaged file is read, and `TraceSource` says what is missing.
"""

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct, field

from opscope.base.errors import BadInputError, NotATraceError
from opscope.base.files import path_text
from opscope.base.processes import together
from opscope.base.text import lazy_pattern, or_unknown
from opscope.readers.content import Content, decode_event, repaired
from opscope.readers.events import (
    KINDS,
    Rows,
    add_event,
    build_trace,
    device_of,
    dim3,
    identity,
    integer,
    known_metadata,
    list_text,
    not_understood,
    paired,
    sorted_by_start,
    text_of,
    text_or_list,
    time_ns_of,
)
from opscope.readers.exported import restored
from opscope.readers.formats import EXPECTED, EventReader
from opscope.readers.native.library import CATEGORIES, IDENTITIES, NAMES, NULL, TEXTS, NativeReader
from opscope.readers.unpacked import InputFile
from opscope.trace.columns import TABLES, ColumnKind
from opscope.trace.model import DeviceProperties, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

# ---------------------------------------------------------------- columns of the compiled reader


Array: TypeAlias = npt.NDArray[Any]


def take(reader: NativeReader, table: str) -> dict[str, Array]:
    """Return copies of a table's columns by name, and free the originals. polars uses the copies without copying."""
    position = list(TABLES).index(table)
    height = reader.height(position)
    columns: dict[str, Array] = {
        column.name: np.empty(height, _type_of(column.kind)) for column in TABLES[table].columns
    }
    reader.copy(position, [column.ctypes.data for column in columns.values()])
    reader.release(position)
    return columns


def _type_of(kind: ColumnKind) -> type[np.number[Any]]:
    """Return the type in which the reader keeps a column. A code of -1 means that there is no text."""
    if kind.is_code:
        return np.int32
    return np.float64 if kind is ColumnKind.FLOAT64 else np.int64


# ---------------------------------------------------------------- events


_AT_ONCE: Final = 4_096  # lists are decoded together: one by one takes three times as long


def _file_or_name(value: Any) -> str | None:
    return text_of(value) if isinstance(value, str) else None


def _list_of_text(value: Any) -> str | None:
    return list_text(value, of_text=True)


_READINGS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    **dict.fromkeys(("input_dims", "input_strides"), list_text),
    **dict.fromkeys(("input_types", "concrete_inputs"), _list_of_text),
    **dict.fromkeys(("grid", "block"), dim3),
    **dict.fromkeys(("collective", "kernel_file", "cause"), _file_or_name),
    **dict.fromkeys(("group", "group_description", "element_type"), _file_or_name),
    **dict.fromkeys(("group_ranks", "splits_in", "splits_out"), text_or_list),
}


class TextColumn(Struct, frozen=True):
    """A decoded column, and how many bytes were replaced or unreadable, counted for every row that uses the text."""

    values: pl.Series
    replaced_bytes: int
    unreadable_bytes: int


def text_column(name: str, tokens: Sequence[bytes], codes: Array) -> TextColumn:
    """Decode a column.

    Args:
        name: the column, which decides how its texts are read.
        tokens: the JSON text of every string.
        codes: per row the index of its text in ``tokens``; -1 for none.
    """
    # The texts of all columns are in one pool; only those of this column are decoded.
    used = np.zeros(len(tokens) + 1, np.bool_)  # the last one is for -1
    used[codes] = True
    used[-1] = False
    numbers = np.flatnonzero(used)
    texts: list[str | None] = []
    damaged: dict[int, tuple[int, int]] = {}
    read = _READINGS[name]
    for number, (value, replaced, unreadable) in zip(numbers, _decoded(tokens, numbers), strict=True):
        texts.append(read(value))
        if replaced or unreadable:
            damaged[int(number)] = replaced, unreadable
    # From a text's number to its place among the decoded ones; the place after the last one is None.
    place = np.full(len(tokens) + 1, len(numbers), np.int64)
    place[numbers] = np.arange(len(numbers))
    values = pl.Series([*texts, None], dtype=pl.Categorical).gather(place[codes])
    return TextColumn(values, *_damage(damaged, codes))


def _decoded(tokens: Sequence[bytes], numbers: Array) -> Iterator[tuple[Any, int, int]]:
    """Yield the values of texts by their numbers, with how many bytes of each were replaced or unreadable."""
    for first in range(0, len(numbers), _AT_ONCE):
        chosen = [tokens[number] for number in numbers[first : first + _AT_ONCE]]
        try:
            values = json.loads((b"[" + b",".join(chosen) + b"]").decode())
        except (ValueError, RecursionError):
            values = ()
        if len(values) == len(chosen):
            yield from ((value, 0, 0) for value in values)
        else:
            yield from map(_one, chosen)


def _one(token: bytes) -> tuple[Any, int, int]:
    event, replaced = decode_event(b'{"value": ' + token + b"}")
    return (event.get("value"), replaced, 0) if event else (None, replaced, len(token))


def _damage(damaged: Mapping[int, tuple[int, int]], codes: Array) -> tuple[int, int]:
    rows = {number: int((codes == number).sum()) for number in damaged}
    return (
        sum(count * damaged[number][0] for number, count in rows.items()),
        sum(count * damaged[number][1] for number, count in rows.items()),
    )


class _Oddities(Struct):
    """Counts of what had to be replaced or left out; see `TraceSource`."""

    replaced_bytes: int = 0
    odd_events: int = 0
    unreadable_bytes: int = 0
    not_understood: Counter[str] = field(default_factory=Counter)

    def count_categories(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Count the slices whose category no rule knows."""
        result = (
            text_of(event.get("cat", ""))
            for event in events
            if event.get("ph") == "X" and not_understood(event.get("cat", ""))
        )
        self.not_understood.update(result)

    def count_ignored(self, reader: NativeReader) -> None:
        """Count the slices that the compiled reader left out."""
        # Tokens are JSON text: only those in quotes are names of categories.
        tokens = dict(zip(reader.strings(CATEGORIES), reader.ignored(), strict=True))
        counts = {token: count for token, count in tokens.items() if count and token.startswith(b'"')}
        for category, bad, count in zip(*_texts(list(counts)), counts.values(), strict=True):
            self.replaced_bytes += count * int(bad)
            if not_understood(category):
                self.not_understood[category] += count


def parse(content: Content) -> Trace:
    """Turn a Kineto file's content into a trace.

    Raises:
        NotATraceError: the file is intact, but not a trace.
        BadInputError: the file is empty, or damaged so that no event is left.
    """
    source, reader = content.source, _reader_of(content)
    if not reader.found_events or (content.unreadable_bytes and not content.event_count):
        whole = source.damage is None and source.size_bytes
        raise (NotATraceError if whole else BadInputError)(_no_trace(source, reader))
    oddities = _Oddities(replaced_bytes=content.replaced_bytes, unreadable_bytes=content.unreadable_bytes)
    if isinstance(reader, NativeReader):
        rows, frames = _frames(reader, content.events, oddities)
    else:
        rows, frames = _python_frames(content.events, oddities)
    header = _header(reader, oddities)
    recorded = any(frame.height for table, frame in frames.items() if table != "counters")
    is_kinetos = bool(header.keys() & _KINETOS) or any(map(_OF_DEVICES.search, oddities.not_understood))
    if oddities.not_understood and not recorded and not is_kinetos:
        raise NotATraceError(_of_another_tool(source.path, oddities.not_understood, reader))
    devices = tuple(_devices(header.get("deviceProperties", header.get("computeProperties"))))
    frames = _linked_by_flows(source, rows.threads(), frames)
    return restored(build_trace(_described(content, oddities, header), devices, rows.threads(), frames), header)


_UNCLOSED: Final = (
    "The list of events is not closed, which Chrome's format allows: whether events are missing cannot be told."
)


def _reader_of(content: Content) -> EventReader:
    return cast("EventReader", content.reader)  # the format has made it


def _described(content: Content, oddities: _Oddities, header: Mapping[str, Any]) -> TraceSource:
    source, reader, damage = content.source, _reader_of(content), content.source.damage
    # Chrome's format lets a list end without its bracket, as programs leave it that are killed while they write.
    is_open = reader.truncated and not reader.header.strip() and not content.unreadable_bytes
    if damage is None and reader.truncated and not is_open:
        damage = "it ends in the middle of its events"
    return TraceSource(
        path=path_text(source.path),
        format=content.format.name,
        size_bytes=source.size_bytes,
        event_count=content.event_count,
        replaced_bytes=oddities.replaced_bytes,
        odd_events=oddities.odd_events,
        unreadable_bytes=oddities.unreadable_bytes + source.trailing_bytes,
        damage=damage,
        not_recorded=(_UNCLOSED,) if is_open and damage is None else (),
        metadata=known_metadata(header),
        not_understood=dict(sorted(oddities.not_understood.items())),
    )


# ---------------------------------------------------------------- events -> frames


def _python_frames(events: Iterable[Mapping[str, Any]], oddities: _Oddities) -> tuple[Rows, dict[str, pl.DataFrame]]:
    rows, events = Rows(), paired(events)
    oddities.odd_events = sum(not add_event(rows, event) for event in events)
    oddities.count_categories(events)
    return rows, {table: rows.renumbered(rows.frame(table)) for table in SCHEMAS}


def _frames(
    reader: NativeReader, odd: Iterable[Mapping[str, Any]], oddities: _Oddities
) -> tuple[Rows, dict[str, pl.DataFrame]]:
    """Join the compiled reader's columns with the rows of the events that it handed back."""
    identities = [identity.decode("utf-8", "replace") for identity in reader.strings(IDENTITIES)]
    rows = Rows((identities[process], identities[thread]) for process, thread in reader.threads())
    odd = paired(odd)
    oddities.odd_events = sum(not add_event(rows, event) for event in odd)
    oddities.count_categories(odd)
    oddities.count_ignored(reader)
    names, replaced = _texts(reader.strings(NAMES))
    texts = reader.strings(TEXTS)

    def frame(table: str) -> tuple[pl.DataFrame, int, int]:
        columns = take(reader, table)
        decoded = {
            column.name: text_column(column.name, texts, columns[column.name])
            for column in TABLES[table].columns
            if column.kind is ColumnKind.TEXT
        }
        replaced_bytes = sum(column.replaced_bytes for column in decoded.values())
        if replaced.any() and "name" in columns:
            replaced_bytes += int(replaced[columns["name"]].sum())
        plain, more = _frame(columns, SCHEMAS[table], names, decoded), rows.frame(table)
        return (
            sorted_by_start(table, rows.renumbered(pl.concat([plain, more]) if more.height else plain)),
            replaced_bytes,
            sum(column.unreadable_bytes for column in decoded.values()),
        )

    works = [functools.partial(frame, table) for table in SCHEMAS]
    made = together(works, events=reader.plain_count)
    for _, replaced_bytes, unreadable_bytes in made:
        oddities.replaced_bytes += replaced_bytes
        oddities.unreadable_bytes += unreadable_bytes
    return rows, {table: frame for table, (frame, _, _) in zip(SCHEMAS, made, strict=True)}


def _frame(
    columns: Mapping[str, Array], schema: Any, names: pl.Series, decoded: Mapping[str, TextColumn]
) -> pl.DataFrame:
    made = {
        name: decoded[name].values if name in decoded else _column(name, columns[name], dtype, names)
        for name, dtype in schema.items()
    }
    return pl.DataFrame(made, schema=schema)


def _column(name: str, values: Array, dtype: Any, names: pl.Series) -> pl.Series:
    if name == "kind":
        return pl.Series(KINDS, dtype=dtype).gather(values)
    if name == "name":
        return names.gather(values) if len(values) else pl.Series(dtype=dtype)
    if values.dtype == np.float64:
        return pl.Series(values).fill_nan(None)
    if values.dtype != np.int64:
        return pl.Series(values).cast(dtype)
    unknown = values == NULL
    count = int(np.count_nonzero(unknown))
    if count and count == len(values):
        return pl.repeat(None, count, dtype=dtype, eager=True)
    series = pl.Series(_narrowed(values, unknown) if dtype == pl.Int32 else values)
    return series.set(pl.Series(unknown), None) if count else series


def _narrowed(values: Array, unknown: Array) -> Array:
    """Return values with half the width, before they are copied into a series; what is unknown becomes anything."""
    narrow = values.astype(np.int32)
    if not ((narrow == values) | unknown).all():
        raise OverflowError("the compiled reader kept a number that does not fit its column")
    return narrow


def _texts(tokens: list[bytes]) -> tuple[pl.Series, Array]:
    """Decode names; return them with the number of bytes that had to be replaced in each."""
    replaced = np.zeros(len(tokens), np.int64)
    # All at once if they are plain JSON; one by one only if any of them is not.
    try:
        # As text: json.loads would take bytes of half a surrogate pair for a character.
        decoded = json.loads((b"[" + b",".join(tokens) + b"]").decode())
        texts = [text_of(text) for text in decoded]
    except ValueError:
        texts = []
        for code, token in enumerate(tokens):
            event, replaced[code] = decode_event(b'{"name": ' + token + b"}")
            texts.append(text_of(event["name"]) if event else repaired(token)[0].decode())
    return pl.Series(texts, dtype=pl.Categorical), replaced


# ---------------------------------------------------------------- arrows
# Kineto draws an arrow from each launch to its work. Where neither carries an id in its arguments (tools that rewrite
# traces leave arguments out), the arrow's is taken. That takes a second look at the file, so nothing else reads arrows.


_FLOW: Final = lazy_pattern(rb'\{[^{}]{0,400}"(?:ac2g|async_cpu_to_gpu)"[^{}]{0,400}\}')
_LONGEST_FLOW: Final = 1_024  # bytes
_CORRELATED: Final = ("launches", "activities")


def _linked_by_flows(
    source: InputFile, threads: Sequence[tuple[str, str]], frames: dict[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """Give launches and activities the ids of the arrows between them, where the ones or the others have none."""
    have_ids = all(frames[table]["correlation"].is_not_null().any() for table in _CORRELATED)
    if have_ids or not all(frames[table].height for table in _CORRELATED) or not source.path.is_file():
        return frames
    begins, ends = _flows(source)
    numbers = {pair: number for number, pair in enumerate(threads)}
    of_threads = [(numbers.get((process, thread)), 0, time, flow) for process, thread, time, flow in begins]
    of_streams = [(integer(process), integer(thread), time, flow) for process, thread, time, flow in ends]
    launches = _with_ids(frames["launches"].with_columns(_lane=pl.lit(0)), of_threads, ("thread", "_lane"))
    activities = _with_ids(frames["activities"], of_streams, ("device", "stream"))
    return {**frames, "launches": launches.drop("_lane"), "activities": activities}


_Arrow: TypeAlias = tuple[str, str, int, int]  # process, thread, time in nanoseconds, id


def _flows(source: InputFile) -> tuple[list[_Arrow], list[_Arrow]]:
    """Return the begins and the ends of a file's arrows from launches to work."""
    arrows = _Arrows()
    for _ in InputFile(source.path, source.max_bytes).feed(lambda _: arrows):
        pass
    return arrows.kept["s"], arrows.kept["f"]


class _Arrows:
    """Keeps the arrows of a file that passes by in pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self.kept: dict[str, list[_Arrow]] = {"s": [], "f": []}

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; no text is handed back."""
        text, end = self._rest + piece, 0
        for match in _FLOW.finditer(text):
            self._keep(match[0])
            end = match.end()
        self._rest = text[max(end, len(text) - _LONGEST_FLOW) :]
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Take the next bytes of an open file."""
        content = os.read(file, piece)
        return len(content), self.feed(content)

    def _keep(self, raw: bytes) -> None:
        event, _ = decode_event(raw)
        if event is None or (arrows := self.kept.get(event.get("ph", ""))) is None:
            return
        time, flow = time_ns_of(event.get("ts")), integer(event.get("id"))
        if time is not None and flow is not None:
            arrows.append((identity(event.get("pid")), identity(event.get("tid")), time, flow))


def _with_ids(frame: pl.DataFrame, arrows: Sequence[tuple[Any, Any, int, int]], lane: tuple[str, str]) -> pl.DataFrame:
    """Return records with the ids of arrows as ``correlation``: each is of the record that runs at its time."""
    schema = {**dict.fromkeys(lane, pl.Int64), "start_ns": pl.Int64, "flow": pl.Int64}
    ends = pl.DataFrame(arrows, schema=schema, orient="row").drop_nulls().sort("start_ns")
    records = frame.select(
        *(pl.col(name).cast(pl.Int64) for name in lane), "start_ns", "duration_ns", _begin="start_ns"
    ).with_row_index("_row")
    met = ends.join_asof(records.sort("start_ns"), on="start_ns", by=list(lane), check_sortedness=False).filter(
        pl.col("start_ns") <= pl.col("_begin") + pl.col("duration_ns")
    )
    ids = met.group_by("_row").agg(pl.col("flow").first())
    rows = frame.with_row_index("_row").join(ids, on="_row", how="left", maintain_order="left")
    return rows.with_columns(correlation=pl.coalesce("flow", "correlation")).drop("_row", "flow")


# ---------------------------------------------------------------- header


def _header(reader: EventReader, oddities: _Oddities) -> dict[str, Any]:
    """Decode the text before and after the events; count what cannot be read."""
    before = reader.header.removeprefix(b"\xef\xbb\xbf")
    if not before.strip():  # a bare list of events; nothing but blanks may follow it
        oddities.unreadable_bytes += reader.footer_size - len(reader.footer) + len(reader.footer.strip())
        return {}
    whole, without_footer = before + b'"traceEvents": []' + reader.footer, before.rstrip(b" \r\n\t,") + b"}"
    header = _object(whole)
    if header is not None and not header["traceEvents"]:
        return header
    # A second list of events, another trace, or less than a whole object follows the first list.
    oddities.unreadable_bytes += 0 if reader.truncated else reader.footer_size
    header = _object(without_footer)
    if header is None:
        oddities.unreadable_bytes += len(before)
    return header or {}


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(repaired(text)[0])
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _devices(entries: Any) -> Iterator[DeviceProperties]:
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and (device := device_of(entry)) is not None:
            yield device


# How JSON of other tools is recognised: by its categories, or by a text before or behind its events.
_TOOLS: Final[tuple[tuple[str, frozenset[str], bytes], ...]] = (
    ("VizTracer", frozenset({"FEE", "PYTHON"}), b"viztracer_metadata"),
    ("TensorFlow", frozenset({"Op"}), b"run_metadata"),
    ("JAX or TensorFlow (XLA)", frozenset(), b"highres-ticks"),
)
_SHOWN_CATEGORIES: Final = 4
# What PyTorch calls work of devices that opscope does not know; a check says so.
_OF_DEVICES: Final = lazy_pattern(r"(?i)\b(privateuse|xpu|mtia|hpu|npu|mlu|musa)|_op$|_runtime$|_driver$")
_KINETOS: Final = frozenset({"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"})


def _of_another_tool(path: Path, categories: Counter[str], reader: EventReader) -> str:
    """Describe a list of events none of which torch.profiler writes."""
    around = reader.header + reader.footer
    likes = [name for name, own, text in _TOOLS if own & categories.keys() or text in around]
    if likes:
        like = f"like a trace of {likes[0]}"
    elif categories.keys() == {""}:
        like = (
            "like those of rpd2tracing (opscope reads the .rpd itself), of tools on CUPTI or of PyTorch's legacy "
            "profiler: they have no categories"
        )
    else:
        names = [or_unknown(name) for name, _ in categories.most_common(_SHOWN_CATEGORIES)]
        like = f"as of another tool: they are of the categories {', '.join(names)}"
    return (
        f"{path} is no trace that opscope knows: it has {categories.total():,} slices, none of a kind that "
        f"torch.profiler records. They look {like}. {EXPECTED}"
    )


def _no_trace(source: InputFile, reader: EventReader) -> str:
    """Describe a file that holds no trace events."""
    beginning = reader.header
    if source.damage is not None:
        return f"{source.path}: {source.damage}, and no event of a trace is whole. Copy or capture it again."
    if not source.size_bytes:
        return f"{source.path} is empty. {EXPECTED}"
    if reader.found_events:
        return f"{source.path} is not a trace that opscope knows: nothing in its list of events is an event. {EXPECTED}"
    # Its content is not quoted: it may be anything, and messages are passed on.
    kind = (
        "JSON without a list 'traceEvents', or cut off before it"
        if beginning.lstrip().startswith(b"{")
        else "no JSON object"
    )
    return f"{source.path} is not a trace that opscope knows: it is {kind}. {EXPECTED}"
