"""PyTorch's memory snapshots -> `Snapshot`: pickles of ``torch.cuda.memory``, and the pages of ``memory_viz``.

A snapshot holds only dictionaries, lists, tuples, texts and numbers. So neither reader knows an opcode that names,
imports or calls anything: a file with one is refused, and nothing is run. ``native/snapshot.cpp`` has the rules of
`PythonReader` again, some thirty times faster.
"""

import ctypes
import json
import os
import struct
from array import array
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from opscope.base.compiled import load_library
from opscope.base.errors import BadInputError, EnvironmentLacksError, NotATraceError
from opscope.readers.formats import PICKLES
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, InputFile
from opscope.trace.snapshot import (
    UNKNOWN,
    Action,
    Annotation,
    Block,
    Context,
    DeviceMemory,
    Events,
    Frame,
    Segment,
    Snapshot,
    Stacks,
)

_LIBRARY: Final = Path(__file__).parent / "native" / "libsnapshot.so"
_VERSION: Final = 1  # of the interface
_PIECE: Final = 1 << 20
# What `torch.cuda._memory_viz` puts around a pickle.
_IN_PAGE: Final = b'"base64": "'


class _RefusedError(Exception):
    """Why a file is not read."""


class Tables(Struct):
    """What a reader holds in the end: arrays of numbers, and texts. Columns as in ``native/snapshot.cpp``."""

    events: Events
    streams: Sequence[int]
    contexts: NDArray[np.int64]
    frames: NDArray[np.int64]
    stacks: Stacks
    segments: NDArray[np.int64]
    segment_blocks: NDArray[np.int64]
    blocks: NDArray[np.int64]
    notes: NDArray[np.int64]
    runs: NDArray[np.int64]
    run_counts: NDArray[np.int64]
    texts: Sequence[str]
    settings: Mapping[str, Any]


class _Reader(Protocol):
    def feed(self, piece: bytes) -> list[bytes]: ...
    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]: ...
    def finish(self) -> Tables: ...


def is_snapshot(beginning: bytes) -> bool:
    """Tell whether a file that begins so, unpacked, is a pickle, as snapshots are."""
    return beginning.startswith(PICKLES)


def read_snapshot(path: Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Snapshot:
    """Read a snapshot.

    Args:
        path: a pickle (gzip, xz and Zstandard are unpacked), or a page of ``memory_viz`` that holds one; ``-`` for
            standard input.
        max_bytes: refuse a file that unpacks to more than this.

    Raises:
        BadInputError: the file is missing, unreadable, too large, damaged, or no snapshot.
        EnvironmentLacksError: it does not fit in memory.
    """
    source = InputFile(path, max_bytes)
    reader: list[_Reader] = []

    def choose(beginning: bytes) -> _Reader:
        reader.append(_reader_for(beginning, path))
        return reader[0]

    try:
        for _ in source.feed(choose):
            pass
        if not reader:
            raise BadInputError(
                f"{path} is empty: PyTorch writes such a file if it is killed while it dumps a snapshot"
            )
        if source.damage is not None:
            raise _RefusedError(source.damage)
        tables = reader[0].finish()
        _refuse_sizes(tables)
    except _RefusedError as refused:
        raise BadInputError(f"{path} cannot be read as a memory snapshot: {refused}") from refused
    except MemoryError as error:
        raise EnvironmentLacksError(f"{path} does not fit in memory: read it on a larger machine") from error
    return _snapshot(str(path), tables, source.size_bytes)


def _reader_for(beginning: bytes, path: Path) -> _Reader:
    if is_snapshot(beginning):
        library = load_native()
        return PythonReader() if library is None else _NativeReader(library)
    if beginning.lstrip()[:1] == b"<":
        return _PageReader(path)
    raise NotATraceError(
        f"{path} is no memory snapshot: expected a pickle of torch.cuda.memory._dump_snapshot or _snapshot, or a page "
        "of PyTorch's memory_viz"
    )


class _PageReader:
    """Takes the pickle out of a page of ``memory_viz``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        self._pieces.append(piece)
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        return _read_into(self, file, piece)

    def finish(self) -> Tables:
        text = b"".join(self._pieces)
        self._pieces.clear()
        at = text.find(_IN_PAGE)
        end = text.find(b'"', at + len(_IN_PAGE))
        if at < 0 or end < 0:
            raise _RefusedError(
                "the page holds no snapshot: it loads one from elsewhere, which opscope does not follow"
            )
        try:
            content = b64decode(text[at + len(_IN_PAGE) : end], validate=True)
        except (Base64Error, ValueError) as error:
            raise _RefusedError(f"the snapshot in the page is damaged ({error})") from error
        if not is_snapshot(content):
            raise _RefusedError("the page holds something else than a snapshot")
        reader = _reader_for(content, self._path)
        for begin in range(0, len(content), _PIECE):
            reader.feed(content[begin : begin + _PIECE])
        return reader.finish()


def _read_into(reader: Any, file: int, piece: int) -> tuple[int, list[bytes]]:
    content = os.read(file, piece)
    return len(content), reader.feed(content)


# ---------------------------------------------------------------- the compiled reader

# Of each table: its name and the columns of a row; those of events have types of their own.
_EVENT_TYPES: Final = (np.uint8, np.int64, np.int64, np.uint16, np.int64, np.uint32, np.uint32)
_STREAMS, _CONTEXTS, _FRAMES, _STACK_FRAMES, _STACK_ENDS = range(1, 6)
_SEGMENTS, _SEGMENT_BLOCKS, _BLOCKS, _NOTES, _RUNS, _RUN_COUNTS, _TEXTS = range(6, 13)
_WIDTHS: Final = {
    _STREAMS: 1, _CONTEXTS: 4, _FRAMES: 3, _STACK_ENDS: 1, _SEGMENTS: 9, _SEGMENT_BLOCKS: 3, _BLOCKS: 5, _NOTES: 4,
    _RUNS: 4, _RUN_COUNTS: 1,
}  # fmt: skip


@cache
def load_native() -> ctypes.CDLL | None:
    """Return the compiled library; None if it was not built, or has another interface version."""
    library = load_library(_LIBRARY, "opscope_snapshot_version", _VERSION)
    if library is None:
        return None
    functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "new": (c_void_p, ()),
        "free": (None, (c_void_p,)),
        "feed": (c_int32, (c_void_p, c_void_p, c_size_t)),
        "finish": (c_int32, (c_void_p,)),
        "error": (c_char_p, (c_void_p,)),
        "settings": (c_char_p, (c_void_p,)),
        "height": (c_size_t, (c_void_p, c_int32)),
        "take": (None, (c_void_p, c_int32, c_int32, c_void_p)),
        "text": (c_size_t, (c_void_p, c_size_t, POINTER(c_void_p))),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"opscope_snapshot_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class _NativeReader:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._reader = c_void_p(library.opscope_snapshot_new())
        if self._reader.value is None:
            raise MemoryError

    def __del__(self) -> None:
        self._library.opscope_snapshot_free(self._reader)

    def feed(self, piece: bytes) -> list[bytes]:
        self._checked(self._library.opscope_snapshot_feed(self._reader, piece, len(piece)))
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        return _read_into(self, file, piece)

    def finish(self) -> Tables:
        self._checked(self._library.opscope_snapshot_finish(self._reader))
        heights = [int(self._library.opscope_snapshot_height(self._reader, table)) for table in range(_TEXTS + 1)]
        columns = [self._taken(0, at, heights[0], kind) for at, kind in enumerate(_EVENT_TYPES)]
        whole = {
            table: self._taken(table, 0, heights[table] * width, np.int64).reshape(-1, width)
            for table, width in _WIDTHS.items()
        }
        stack_frames = self._taken(_STACK_FRAMES, 0, heights[_STACK_FRAMES], np.int32)
        settings = self._library.opscope_snapshot_settings(self._reader).decode("utf-8", "replace")
        return Tables(
            events=Events(*columns),
            streams=[int(handle) for handle in whole[_STREAMS][:, 0]],
            contexts=whole[_CONTEXTS],
            frames=whole[_FRAMES],
            stacks=Stacks(stack_frames, whole[_STACK_ENDS][:, 0]),
            segments=whole[_SEGMENTS],
            segment_blocks=whole[_SEGMENT_BLOCKS],
            blocks=whole[_BLOCKS],
            notes=whole[_NOTES],
            runs=whole[_RUNS],
            run_counts=whole[_RUN_COUNTS][:, 0],
            texts=[self._text(at) for at in range(heights[_TEXTS])],
            settings=_mapping(json.loads(settings)),
        )

    def _checked(self, result: int) -> None:
        if result < 0:
            raise MemoryError
        if not result:
            raise _RefusedError(self._library.opscope_snapshot_error(self._reader).decode("utf-8", "replace"))

    def _taken(self, table: int, column: int, count: int, kind: Any) -> NDArray[Any]:
        values = np.empty(count, dtype=kind)
        self._library.opscope_snapshot_take(self._reader, table, column, values.ctypes.data)
        return values

    def _text(self, at: int) -> str:
        pointer = c_void_p()
        size = self._library.opscope_snapshot_text(self._reader, at, byref(pointer))
        return ctypes.string_at(pointer.value or 0, size).decode("utf-8", "replace") if size else ""


# ---------------------------------------------------------------- the same in Python

_MARK: Final = object()
_MOST_VALUES: Final = 1 << 25
_MOST_CONTAINERS: Final = 1 << 21
_MOST_TEXTS: Final = 1 << 22
_LONGEST_TEXT: Final = 1 << 30
_DEEPEST: Final = 8
_MOST_SETTINGS: Final = 4096
_KNOWN_ACTIONS: Final = {name.lower(): Action[name] for name in Action.__members__ if name not in ("FREED", "OTHER")}
_NONE, _EVENT, _SEGMENT, _BLOCK, _NOTE = 0, 8, 11, 12, 13  # kinds of runs, as in C++


class _Row(Struct, frozen=True):
    """A row that a dictionary became; ``frame`` and ``stack`` are kinds of their own."""

    kind: int | str
    index: int


class _Container:
    """A dictionary or a list that is being filled; ``row`` is what it became."""

    __slots__ = ("again", "count", "first", "items", "kind", "of", "row", "used")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.items: list[Any] = []
        self.row: _Row | _Run | None = None
        self.used = False
        self.of, self.first, self.count, self.again = _NONE, 0, 0, False


class _Run(Struct, frozen=True):
    of: int
    first: int
    count: int


def _resolved(value: Any) -> Any:
    return value.row if isinstance(value, _Container) and value.row is not None else value


def _number(value: Any, missing: int) -> int:
    held = _resolved(value)
    return int(held) if isinstance(held, int) else missing


class PythonReader:
    """Reads a pickle piece by piece; see `read_snapshot` for what becomes of it."""

    def __init__(self) -> None:
        self._rest = b""
        self._read = 0
        self._stopped = False
        self._values: list[Any] = []
        self._memo: list[Any] = []
        self._containers = 0
        self._texts: dict[str, int] = {}
        self._tuples: set[tuple[Any, ...]] = set()
        self._columns = tuple(array(code) for code in ("B", "q", "q", "H", "q", "L", "L"))
        self._streams: dict[int, int] = {}
        self._contexts: dict[tuple[int, ...], int] = {}
        self._frames: dict[tuple[int, ...], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}
        self._stack_frames, self._stack_ends = array("l"), array("q", [0])
        self._segments: list[tuple[int, ...]] = []
        self._segment_blocks: list[tuple[int, ...]] = []
        self._blocks: list[tuple[int, ...]] = []
        self._notes: list[tuple[int, ...]] = []
        self._runs: list[tuple[int, ...]] = []
        self._root: Any = None

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; nothing is handed back."""
        if self._stopped:
            return []
        self._read += len(piece)
        data = self._rest + piece
        at = 0
        while at < len(data) and not self._stopped:
            used = self._one(data, at)
            if not used:
                break
            at += used
        self._rest = data[at:]
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Take the next bytes of an open file."""
        return _read_into(self, file, piece)

    def finish(self) -> Tables:
        """End the content, and return the tables."""
        if not self._stopped:
            raise _RefusedError(f"it ends early, after {self._read} bytes")
        root = _resolved(self._root)
        settings: Any = {}
        if isinstance(root, _Run) and root.of == _SEGMENT:
            self._emit("segments", 0, root)
        elif not (isinstance(root, _Container) and root.kind == "dict"):
            raise _RefusedError("it holds no dictionary, as a snapshot does")
        else:
            for key, value in root.items:
                name, held = key if isinstance(key, str) else "", _resolved(value)
                if name == "allocator_settings":
                    settings = _plain(held, 0, [_MOST_SETTINGS])
                else:
                    self._emit_all(name, held)
            if not self._runs:
                raise _RefusedError("it has no segments and no device_traces, as a snapshot has")
        return self._tables(settings)

    # ---- opcodes

    def _one(self, data: bytes, at: int) -> int:
        code = data[at]
        if handler := _SIMPLE.get(code):
            handler(self)
            return 1
        if sized := _SIZED.get(code):
            size, take = sized
            if len(data) <= at + size:
                return 0
            take(self, data[at + 1 : at + 1 + size])
            return 1 + size
        if code in _TEXT_SIZES:
            return self._text_at(data, at, _TEXT_SIZES[code])
        if code == 0x8A:
            if len(data) <= at + 1 or len(data) <= at + 1 + data[at + 1]:
                return 0
            self._long(data[at + 2 : at + 2 + data[at + 1]])
            return 2 + data[at + 1]
        raise _RefusedError(f"it holds opcode 0x{code:02x}, which no snapshot needs; nothing was run")

    def _text_at(self, data: bytes, at: int, size: int) -> int:
        if len(data) <= at + size:
            return 0
        length = int.from_bytes(data[at + 1 : at + 1 + size], "little")
        if length > _LONGEST_TEXT:
            raise _RefusedError(f"it holds a text of {length} bytes")
        begin = at + 1 + size
        if len(data) - begin < length:
            return 0
        self._push(data[begin : begin + length].decode("utf-8", "replace"))
        self._text(self._values[-1])
        return 1 + size + length

    def _long(self, raw: bytes) -> None:
        if len(raw) > 8 and not (len(raw) == 9 and raw[8] == 0):
            raise _RefusedError("it holds a number of more than 64 bits")
        self._push(min(int.from_bytes(raw, "little", signed=True), (1 << 63) - 1))

    def _push(self, value: Any) -> None:
        if len(self._values) >= _MOST_VALUES:
            raise _RefusedError("it holds more values at once than a snapshot does")
        self._values.append(value)

    def _count(self, what: str) -> None:
        self._containers += 1
        if self._containers > _MOST_CONTAINERS:
            raise _RefusedError(f"it holds more {what} than a snapshot does")

    def _new(self, kind: str) -> None:
        self._count("dictionaries" if kind == "dict" else "lists")
        self._push(_Container(kind))

    def _to_mark(self) -> int:
        for at in range(len(self._values) - 1, -1, -1):
            if self._values[at] is _MARK:
                return at
        raise _RefusedError("an opcode lacks its mark")

    def _need(self, count: int) -> None:
        if len(self._values) < count or any(value is _MARK for value in self._values[-count:]):
            raise _RefusedError("an opcode lacks its values")

    def _memoize(self, slot: int) -> None:
        self._need(1)
        if slot != len(self._memo):
            raise _RefusedError("it numbers its objects as no snapshot does")
        self._memo.append(self._values[-1])

    def _recall(self, slot: int) -> None:
        if slot >= len(self._memo):
            raise _RefusedError("it refers to an object that is not there")
        self._push(_resolved(self._memo[slot]))

    def _tuple(self, first: int, mark: int = 0) -> None:
        items = tuple(_resolved(self._sealed(value)) for value in self._values[first:])
        plain = len(items) <= 2 and all(type(item) is int for item in items)
        if not (plain and items in self._tuples):
            self._count("tuples")
            if plain:
                self._tuples.add(items)
        del self._values[first - mark :]
        self._push(items)

    def _count_tuple(self, count: int) -> None:
        self._need(count)
        self._tuple(len(self._values) - count)

    def _marked_tuple(self) -> None:
        self._tuple(self._to_mark() + 1, 1)

    # ---- containers

    def _sealed(self, value: Any) -> Any:
        held = _resolved(value)
        if not isinstance(held, _Container):
            return held
        if held.kind == "list" and not held.used:
            if held.of != _NONE:
                held.row = _Run(held.of, held.first, held.count)
            elif not held.items or _is_frame(held.items[0]):
                if not all(_is_frame(item) for item in held.items):
                    raise _RefusedError("a list holds frames and something else")
                held.row = _Row("stack", self._stack(tuple(item.index for item in held.items)))
            if held.row is not None:
                self._containers -= 1
                held.items = []
                return held.row
        held.used = True
        return held

    def _append_one(self) -> None:
        self._need(2)
        self._append(len(self._values) - 1, len(self._values) - 1)

    def _append_marked(self) -> None:
        mark = self._to_mark()
        self._append(mark + 1, mark)

    def _append(self, first: int, below: int) -> None:
        if not below:
            raise _RefusedError("an opcode lacks its list")
        target = _resolved(self._values[below - 1])
        if not (isinstance(target, _Container) and target.kind == "list"):
            raise _RefusedError("it appends to what is no list, or to one that was complete")
        if target.used:
            raise _RefusedError("it appends to a list that was complete")
        for value in self._values[first:]:
            self._append_to(target, self._sealed(value))
        del self._values[below:]

    def _append_to(self, target: _Container, item: Any) -> None:
        if not (isinstance(item, _Row) and item.kind in (_EVENT, _SEGMENT, _BLOCK, _NOTE)):
            if target.of != _NONE:
                raise _RefusedError("a list holds rows and something else")
            target.items.append(item)
            return
        if target.of == _NONE:
            if target.items:
                raise _RefusedError("a list holds rows and something else")
            target.of, target.first = int(item.kind), item.index
        again = item.kind == _EVENT and target.count and item.index == target.first + target.count - 1
        if again and not target.again and self._columns[0][item.index] == Action.FREED:
            target.again = True
            return
        target.again = False
        if target.of != item.kind or item.index != target.first + target.count:
            raise _RefusedError("the entries of a list are not in the order in which they were written")
        target.count += 1

    def _set_one(self) -> None:
        self._need(3)
        self._set(len(self._values) - 2, len(self._values) - 2)

    def _set_marked(self) -> None:
        mark = self._to_mark()
        self._set(mark + 1, mark)

    def _set(self, first: int, below: int) -> None:
        if not below:
            raise _RefusedError("an opcode lacks its dictionary")
        if (len(self._values) - first) % 2:
            raise _RefusedError("a dictionary has a key without a value")
        target = _resolved(self._values[below - 1])
        if not (isinstance(target, _Container) and target.kind == "dict"):
            raise _RefusedError("it sets items of what is no dictionary, or of one that was complete")
        if target.used:
            raise _RefusedError("it changes a dictionary that was complete")
        for at in range(first, len(self._values), 2):
            target.items.append((_resolved(self._values[at]), self._sealed(self._values[at + 1])))
        del self._values[below:]
        row = self._row_of(target.items)
        if row is not None:
            self._containers -= 1
            target.row, target.items = row, []
            self._values[-1] = row

    def _protocol(self, protocol: int) -> None:
        if protocol not in range(2, 6):
            raise _RefusedError(f"its protocol is {protocol}, not 2 to 5")

    def _stop(self) -> None:
        self._need(1)
        self._root, self._stopped = self._values[-1], True

    # ---- rows

    def _row_of(self, items: Sequence[tuple[Any, Any]]) -> _Row | None:
        if not all(isinstance(key, str) for key, _ in items):
            return None
        at = dict(items)
        if "action" in at:
            return self._event(at) if "frames" in at or "size" in at else None
        if "filename" in at and "name" in at:
            frame = (self._text_id(at["name"]), self._text_id(at["filename"]), _number(at.get("line"), 0))
            return _Row("frame", self._frames.setdefault(frame, len(self._frames)))
        if "blocks" in at and "total_size" in at:
            return self._segment(at)
        return self._block_or_note(at)

    def _block_or_note(self, at: Mapping[str, Any]) -> _Row | None:
        if "state" in at and "size" in at:
            sizes = _number(at["size"], 0), _number(at.get("requested_size"), UNKNOWN)
            state = self._text_id(at["state"])
            self._blocks.append((_number(at.get("address"), UNKNOWN), *sizes, state, _stack_id(at.get("frames"))))
            return _Row(_BLOCK, len(self._blocks) - 1)
        if "stage" in at and "name" in at:
            note = (_number(at.get("device"), 0), self._text_id(at["stage"]), self._text_id(at["name"]))
            self._notes.append((*note, _number(at.get("time_us"), UNKNOWN)))
            return _Row(_NOTE, len(self._notes) - 1)
        return None

    def _event(self, at: Mapping[str, Any]) -> _Row:
        self._text_id(at["action"])
        action = _KNOWN_ACTIONS.get(at["action"] if isinstance(at["action"], str) else "", Action.OTHER)
        where = _number(at.get("device_free" if action == Action.OOM else "addr"), UNKNOWN)
        texts = self._text_id(at.get("compile_context")), self._text_id(at.get("user_metadata"))
        meant = (*texts, *_pool(at.get("pool_id")))
        stream = _number(at.get("stream"), 0)
        if stream not in self._streams and len(self._streams) >= 65535:
            raise _RefusedError("it has more streams than a snapshot does")
        row = (
            int(action), where, _number(at.get("size"), 0), self._streams.setdefault(stream, len(self._streams)),
            _number(at.get("time_us"), UNKNOWN), _stack_id(at.get("frames")),
            self._contexts.setdefault(meant, len(self._contexts)),
        )  # fmt: skip
        columns, last = self._columns, len(self._columns[0]) - 1
        completes = action == Action.FREE_COMPLETED and last >= 0 and columns[0][last] == Action.FREE_REQUESTED
        if completes and all(columns[at][last] == row[at] for at in (1, 2, 3, 5, 6)):
            columns[0][last] = int(Action.FREED)
            return _Row(_EVENT, last)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        return _Row(_EVENT, last + 1)

    def _segment(self, at: Mapping[str, Any]) -> _Row:
        run = _resolved(at["blocks"])
        if isinstance(run, _Row) and run == _Row("stack", 0):
            run = _Run(_BLOCK, 0, 0)  # an empty list
        if not isinstance(run, _Run) or run.of != _BLOCK:
            raise _RefusedError("a segment's blocks are none")
        self._segment_blocks.append((len(self._segments), run.first, run.count))
        is_large = _resolved(at.get("segment_type")) == "large"
        self._segments.append(
            (
                _number(at.get("device"), 0), _number(at.get("address"), UNKNOWN), _number(at["total_size"], 0),
                _number(at.get("stream"), 0), int(is_large), *_pool(at.get("segment_pool_id")),
                _number(at.get("is_expandable"), 0), _stack_id(at.get("frames")),
            )
        )  # fmt: skip
        return _Row(_SEGMENT, len(self._segments) - 1)

    def _stack(self, frames: tuple[int, ...]) -> int:
        known = self._stacks.get(frames)
        if known is None:
            self._stack_frames.extend(frames)
            self._stack_ends.append(len(self._stack_frames))
            known = self._stacks[frames] = len(self._stacks)
        return known

    def _text(self, content: str) -> int:
        if content not in self._texts and len(self._texts) >= _MOST_TEXTS:
            raise _RefusedError("it holds more texts than a snapshot does")
        return self._texts.setdefault(content, len(self._texts))

    def _text_id(self, value: Any) -> int:
        held = _resolved(value)
        return self._text(held if isinstance(held, str) else "")

    # ---- results

    def _emit_all(self, name: str, held: Any) -> None:
        if isinstance(held, _Container) and held.kind == "list":
            for position, item in enumerate(held.items):
                self._emit(name, position, _resolved(item))
        else:
            self._emit(name, 0, held)

    def _emit(self, name: str, position: int, held: Any) -> None:
        if held == _Row("stack", 0):
            held = _Run(_NONE, 0, 0)  # an empty list
        if isinstance(held, _Run):
            self._runs.append((self._text(name), position, held.of, held.first, held.count))

    def _tables(self, settings: Any) -> Tables:
        runs = _rows(self._runs, 5)
        return Tables(
            events=Events(
                *(np.array(column, dtype=kind) for column, kind in zip(self._columns, _EVENT_TYPES, strict=True))
            ),
            streams=list(self._streams),
            contexts=_rows(list(self._contexts), 4),
            frames=_rows(list(self._frames), 3),
            stacks=Stacks(np.array(self._stack_frames, dtype=np.int32), np.array(self._stack_ends, dtype=np.int64)),
            segments=_rows(self._segments, 9),
            segment_blocks=_rows(self._segment_blocks, 3),
            blocks=_rows(self._blocks, 5),
            notes=_rows(self._notes, 4),
            runs=runs[:, :4],
            run_counts=runs[:, 4],
            texts=list(self._texts),
            settings=_mapping(settings),
        )


def _rows(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def _mapping(settings: Any) -> Mapping[str, Any]:
    return settings if isinstance(settings, dict) else {}


def _is_frame(value: Any) -> bool:
    return isinstance(value, _Row) and value.kind == "frame"


def _stack_id(value: Any) -> int:
    held = _resolved(value)
    return held.index if isinstance(held, _Row) and held.kind == "stack" else 0


def _pool(value: Any) -> tuple[int, int]:
    if isinstance(value, tuple) and len(value) == 2:
        return _number(value[0], 0), _number(value[1], 0)
    return UNKNOWN, UNKNOWN


def _plain(value: Any, depth: int, room: list[int]) -> Any:
    """Return the settings as plain values; ``room`` holds how many more there may be."""
    held = _resolved(value)
    room[0] -= 1
    if depth > _DEEPEST or room[0] < 0:
        raise _RefusedError("its settings are larger than those of a snapshot")
    if isinstance(held, _Container) and held.kind == "dict":
        return {key: _plain(item, depth + 1, room) for key, item in held.items if isinstance(key, str)}
    if isinstance(held, float):
        return held if np.isfinite(held) else None
    return held if isinstance(held, bool | int | str) else None


_SIMPLE: Final[Mapping[int, Callable[[PythonReader], None]]] = {
    ord("}"): lambda reader: reader._new("dict"),
    ord("]"): lambda reader: reader._new("list"),
    ord(")"): lambda reader: reader._tuple(len(reader._values)),
    ord("("): lambda reader: reader._push(_MARK),
    ord("N"): lambda reader: reader._push(None),
    0x88: lambda reader: reader._push(True),
    0x89: lambda reader: reader._push(False),
    0x94: lambda reader: reader._memoize(len(reader._memo)),
    0x85: lambda reader: reader._count_tuple(1),
    0x86: lambda reader: reader._count_tuple(2),
    0x87: lambda reader: reader._count_tuple(3),
    ord("t"): lambda reader: reader._marked_tuple(),
    ord("a"): lambda reader: reader._append_one(),
    ord("e"): lambda reader: reader._append_marked(),
    ord("s"): lambda reader: reader._set_one(),
    ord("u"): lambda reader: reader._set_marked(),
    ord("."): lambda reader: reader._stop(),
}


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


_SIZED: Final[Mapping[int, tuple[int, Callable[[PythonReader, bytes], None]]]] = {
    0x80: (1, lambda reader, raw: reader._protocol(raw[0])),
    0x95: (8, lambda reader, raw: None),  # noqa: ARG005 - a frame's size means nothing here
    ord("K"): (1, lambda reader, raw: reader._push(raw[0])),
    ord("M"): (2, lambda reader, raw: reader._push(_unsigned(raw))),
    ord("J"): (4, lambda reader, raw: reader._push(int.from_bytes(raw, "little", signed=True))),
    ord("G"): (8, lambda reader, raw: reader._push(struct.unpack(">d", raw)[0])),
    ord("q"): (1, lambda reader, raw: reader._memoize(raw[0])),
    ord("r"): (4, lambda reader, raw: reader._memoize(_unsigned(raw))),
    ord("h"): (1, lambda reader, raw: reader._recall(raw[0])),
    ord("j"): (4, lambda reader, raw: reader._recall(_unsigned(raw))),
}
_TEXT_SIZES: Final = {0x8C: 1, ord("X"): 4, 0x8D: 8}


# ---------------------------------------------------------------- what they hold, as a snapshot


_MOST_BYTES: Final = 1 << 50  # of one block or segment: no device has as much


def _refuse_sizes(tables: Tables) -> None:
    """Refuse sizes that cannot be true, whose sums would not fit either."""
    sizes = (tables.events.bytes, tables.segments[:, 2], tables.blocks[:, 1])
    if any(len(column) and (column.min() < 0 or column.max() > _MOST_BYTES) for column in sizes):
        raise _RefusedError("it has sizes that cannot be true")


def _snapshot(path: str, tables: Tables, size: int) -> Snapshot:
    texts = tables.texts
    frames = tuple(Frame(texts[name], texts[file], int(line)) for name, file, line in tables.frames.tolist())
    contexts = tuple(
        Context(texts[compiled], texts[metadata], None if first == UNKNOWN else (first, second))
        for compiled, metadata, first, second in tables.contexts.tolist()
    )
    segments = _segments(tables)
    notes = [
        (device, texts[stage] == "START", texts[name], when) for device, stage, name, when in tables.notes.tolist()
    ]
    events: dict[int | None, Events] = {}
    held: dict[int | None, list[Segment]] = {}
    for (name_id, position, _, first), count in zip(tables.runs.tolist(), tables.run_counts.tolist(), strict=True):
        name = texts[name_id]
        if name in ("device_traces", "host_traces"):
            events[position if name == "device_traces" else None] = tables.events.of(slice(first, first + count))
        elif name in ("segments", "host_segments"):
            for device, segment in segments[first : first + count]:
                held.setdefault(device if name == "segments" else None, []).append(segment)
    known = [key for key in {*events, *held} if held.get(key) or len(events.get(key, ()))]
    none = tables.events.of(slice(0, 0))
    devices = tuple(
        DeviceMemory(
            device,
            events.get(device, none),
            tuple(sorted(held.get(device, ()), key=lambda one: one.address)),
            tuple(Annotation(name, begins, when) for on, begins, name, when in notes if on == device),
        )
        for device in sorted(known, key=lambda key: (key is None, key or 0))
    )
    return Snapshot(path, devices, frames, tables.stacks, tuple(tables.streams), contexts, dict(tables.settings), size)


def _segments(tables: Tables) -> list[tuple[int, Segment]]:
    texts = tables.texts
    blocks = [
        Block(address, size, None if requested == UNKNOWN else requested, texts[state], stack)
        for address, size, requested, state, stack in tables.blocks.tolist()
    ]
    return [
        (
            device,
            Segment(
                address, size, stream, bool(large), (0, 0) if first == UNKNOWN else (first, second), bool(expandable),
                tuple(_placed(address, blocks[begin : begin + count])),
            ),
        )
        for (device, address, size, stream, large, first, second, expandable, _), (_, begin, count) in zip(
            tables.segments.tolist(), tables.segment_blocks.tolist(), strict=True
        )
    ]  # fmt: skip


def _placed(address: int, blocks: Sequence[Block]) -> list[Block]:
    """Give blocks without an address theirs: they lie one after the other."""
    placed = []
    for block in blocks:
        placed.append(block if block.address != UNKNOWN else replace(block, address=address))
        address = placed[-1].address + block.bytes
    return placed
