"""Reads Perfetto's binary traces as PyTorch 2.14 and newer write them (``.pftrace``): they become Kineto's events.

Only the messages that PyTorch writes are read: descriptors of tracks, interned names, slices of the host (a begin and
an end on a track), and stages of GPUs. Numbers of fields are those of Perfetto's protos (``protos/perfetto/trace``);
what each argument means is that of the JSON file of the same run. Three things are not in this format: a copy's
direction, a kernel's static shared memory, and the whole duration of an activity that overlaps the next one of its
lane, which PyTorch cuts off at its start.
"""

import functools
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from opscope.base.errors import BadInputError, NotATraceError
from opscope.base.text import lazy_pattern
from opscope.readers import kineto
from opscope.readers.content import Content, decoded
from opscope.readers.formats import EXPECTED, KINETO
from opscope.readers.unpacked import UNSUSPICIOUS_BYTES, whole
from opscope.trace.model import Trace

# ---------------------------------------------------------------- protocol buffers


class _BrokenError(Exception):
    """The bytes do not make a message."""


_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST_VARINT: Final = 70  # bits in steps of seven
_DEEPEST: Final = 20  # lists within lists of an argument

_Field = tuple[int, Any]  # its number; an integer, or bytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= _LONGEST_VARINT:
            raise _BrokenError


def _fields(data: bytes) -> Iterator[_Field]:
    """Yield the fields of a message: numbers of any width as integers without a sign, all others as bytes.

    Raises:
        _BrokenError: the message is cut off, or is something else.
    """
    at, end = 0, len(data)
    try:
        while at < end:
            key, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
            wire: int = key & 7
            value: Any = None
            if wire == _VARINT:
                value, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
            elif wire == _BYTES:
                size, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
                value, at = data[at : at + size], at + size
            elif wire in (_EIGHT, _FOUR):
                size = 8 if wire == _EIGHT else 4
                value, at = int.from_bytes(data[at : at + size], "little"), at + size
            if value is None or at > end:
                raise _BrokenError
            yield key >> 3, value
    except IndexError as error:
        raise _BrokenError from error


def _message(data: bytes) -> dict[int, Any]:
    """Return a message's fields by number; of a repeated one the last."""
    return dict(_fields(data))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# ---------------------------------------------------------------- what PyTorch writes
# Fields of TracePacket, TrackEvent, TrackDescriptor, InternedData and GpuRenderStageEvent.

_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _STAGE, _TRACK, _CLOCKS = 8, 10, 11, 12, 13, 53, 60, 6
_SAMPLE, _COUNTERS = 52, 47  # of TracePacket, and of InternedData
_CLEARED: Final = 1  # a flag: interned names of the sequence are void
_BEGIN, _END = 1, 2
# How PyTorch names stages, and its category of the same work in JSON.
_STAGES: Final[Mapping[str, str]] = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
_OF_STAGE: Final[Mapping[str, str]] = {"device id": "device", "context id": "context", "stream id": "stream"}
# Of the process, and not of a single stage.
_OF_PROCESS: Final = frozenset({"process_id", "process_name", "arch"})
_REGISTERS: Final = "registers_per_thread"
_ARGUMENT_NAMES: Final = 1001  # PyTorch's own field of InternedData
_INTERNED_TEXTS: Final[Mapping[int, str]] = {
    1: "categories",
    2: "names",
    3: "argument names",
    24: "stages",
    29: "texts",
    _ARGUMENT_NAMES: "launch arguments",
}


class _Sequence(Struct):
    """What packets of one sequence refer to by its number: names of each kind; a device and names of its counters."""

    texts: dict[str, dict[int, str]] = field(default_factory=dict)
    counters: dict[int, tuple[int, dict[int, str]]] = field(default_factory=dict)

    def learn(self, data: bytes) -> None:
        for number, entry in _fields(data):
            if (kind := _INTERNED_TEXTS.get(number)) is not None:
                parts = _message(entry)
                self.texts.setdefault(kind, {})[parts.get(1, 0)] = _text(parts.get(2, b""))
            elif number == _COUNTERS:
                parts = _message(entry)
                specs = [_message(spec) for part, spec in _fields(parts.get(2, b"")) if part == 1]
                names = {spec.get(1, 0): _text(spec.get(2, b"")) for spec in specs}
                self.counters[parts.get(1, 0)] = parts.get(3, 0), names

    def named(self, kind: str, number: int | None) -> str:
        return self.texts.get(kind, {}).get(number or 0, "")


class _Track(Struct):
    """Whose slices a track has: a process and a thread, as Kineto names them."""

    process: int = 0
    thread: int = 0
    process_name: str = ""


class _Slice(Struct):
    """One half of a slice on a track: a begin with what it says, or an end."""

    time: int
    track: int
    text: bytes | None = None  # the event up to its duration, as JSON; None for an end


class _Read(Struct):
    """Collects a file's packets.

    Attributes:
        slices: begins and ends of the host's slices, in the order of the file.
        events: Kineto's events, as JSON, of what is whole.
        base: the clock's zero, as PyTorch writes it.
        architectures: of devices, as PyTorch names them (``sm_90``).
        has_known: whether any event is of a kind that PyTorch writes.
        left: how many bytes of text may still follow.
    """

    sequences: dict[int, _Sequence] = field(default_factory=dict)
    tracks: dict[int, _Track] = field(default_factory=dict)
    slices: list[_Slice] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    base: int = 0
    architectures: dict[int, str] = field(default_factory=dict)
    has_known: bool = False
    left: int = 0

    def took(self, packet: Any) -> bool:
        """Take a packet; return False for other bytes."""
        try:
            self._packet(packet)
        except (_BrokenError, TypeError, AttributeError, ValueError, ArithmeticError, LookupError):
            return False  # also where a field is of another type than expected
        return True

    def _packet(self, data: bytes) -> None:
        parts = _message(data)
        sequence = self.sequences.setdefault(parts.get(_SEQUENCE, 0), _Sequence())
        if parts.get(_FLAGS, 0) & _CLEARED:
            sequence.texts.clear()
        if _INTERNED in parts:
            sequence.learn(parts[_INTERNED])
        if _CLOCKS in parts and not self.base and isinstance(parts.get(_TIMESTAMP), int):
            self.base = parts[_TIMESTAMP]
        if _TRACK in parts:
            self._track(parts[_TRACK])
        elif _EVENT in parts:
            self._event(sequence, _signed(parts.get(_TIMESTAMP, 0)), parts[_EVENT])
        elif _STAGE in parts:
            self._stage(sequence, _signed(parts.get(_TIMESTAMP, 0)), parts[_STAGE])
        elif _SAMPLE in parts:
            self._sample(sequence, _signed(parts.get(_TIMESTAMP, 0)), parts[_SAMPLE])

    def _track(self, data: bytes) -> None:
        parts = _message(data)
        parent = self.tracks.get(parts.get(5, 0))
        track = _Track(process_name=parent.process_name if parent else "")
        if 3 in parts:  # of a process
            process = _message(parts[3])
            track = _Track(_signed(process.get(1, 0)), 0, _text(process.get(6, b"")))
        elif 4 in parts:  # of a thread
            thread = _message(parts[4])
            track.process, track.thread = _signed(thread.get(1, 0)), _signed(thread.get(2, 0))
        self.tracks[parts.get(1, 0)] = track

    def _event(self, sequence: _Sequence, time: int, data: bytes) -> None:
        kind = track = name = category = 0
        arguments: list[bytes] = []
        own_name = own_category = None
        for number, value in _fields(data):
            if number == 4:
                arguments.append(value)
            elif number == 9:
                kind = value
            elif number == 10:
                name = value
            elif number == 11:
                track = value
            elif number == 3:
                category = value if isinstance(value, int) else _varint(value, 0)[0]
            elif number == 23:
                own_name = _text(value)
            elif number == 22:
                own_category = _text(value)
        if kind == _END:
            self.slices.append(_Slice(time, track))
        elif kind == _BEGIN:
            place = self.tracks.get(track, _Track())
            described = [_argument(argument) for argument in arguments]
            # Names and texts may be interned, which PyTorch does not do: then they are of their sequence.
            args = ", ".join(
                (f"{_quoted(sequence.named('argument names', of))}: {text}" if of else text) for of, text in described
            )
            shown = own_category if own_category is not None else sequence.named("categories", category)
            if not shown:
                shown = "cuda_sync" if '"cuda_sync_kind"' in args else _overhead_or_none(place)
            self.has_known |= shown in _OF_PYTORCH
            named = own_name if own_name is not None else sequence.named("names", name)
            event = f'{{"ph": "X", "cat": {_quoted(shown)}, "name": {_quoted(named)}, "pid": {place.process}, '
            text = f'{event}"tid": {place.thread}, "args": {{{args}}}, '
            encoded = text.encode("utf-8", "replace")
            self._count(encoded)
            self.slices.append(_Slice(time, track, encoded))

    def _stage(self, sequence: _Sequence, time: int, data: bytes) -> None:
        parts: dict[int, Any] = {}
        stated: dict[str, str] = {}
        for number, value in _fields(data):
            if number == 6:
                entry = _message(value)
                stated[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
            else:
                parts[number] = value
        stage, device = sequence.named("stages", parts.get(14)), int(parts.get(11, 0))
        category = _STAGES.get(stage, stage)
        self.has_known |= stage in _STAGES
        if "arch" in stated:
            self.architectures[device] = stated["arch"]
        args: dict[str, Any] = {"device": device}
        args |= {
            _OF_STAGE.get(name, name): _number_or_text(text) for name, text in stated.items() if name not in _OF_PROCESS
        }
        if 21 in parts:
            args |= _launch(sequence, parts[21])
        name = sequence.named("names", parts.get(20)) or stage
        if category == "graph_host_node":
            name = f"{name}: {stated['host fn']}" if "host fn" in stated else name
            args |= {"host process": _number_or_text(stated.get("process_id", "")), "host thread": 0}
        # The lane has a name and no number; its stream is an argument.
        event = {"ph": "X", "cat": category, "name": name, "pid": device, "tid": args.get("stream", 0), "args": args}
        begin = json.dumps(event).encode()[:-1] + b", "
        self._add(_timed(begin, time - self.base, int(parts.get(2, 0))))

    def _sample(self, sequence: _Sequence, time: int, data: bytes) -> None:
        fields = list(_fields(data))
        device, names = sequence.counters.get(dict(fields).get(4, 0), (0, {}))
        for counter in (_message(value) for number, value in fields if number == 2):
            value = _signed(counter[2]) if 2 in counter else _double(counter.get(3, 0))
            name = json.dumps(names.get(counter.get(1, 0), ""))
            text = f'{{"ph": "C", "name": {name}, "pid": "GPU {device} Counters", "args": {{"": {json.dumps(value)}}}, '
            self._add(b'%s"ts": %s}' % (text.encode("utf-8", "replace"), _microseconds(time - self.base)))

    def _add(self, event: bytes) -> None:
        self._count(event)
        self.events.append(event)

    def _count(self, event: bytes) -> None:
        self.left -= len(event)
        if self.left < 0:
            raise BadInputError("its names, written out for each event, take far more room than the file")

    def paired(self) -> None:
        """Make events of begins and ends: an end is that of the last begin of its track that is open."""
        opened: dict[int, list[_Slice]] = {}
        for piece in sorted(self.slices, key=lambda piece: piece.time):  # of one moment, the file's order
            stack = opened.setdefault(piece.track, [])
            if piece.text is not None:
                stack.append(piece)
            elif stack:
                begin = stack.pop()
                assert begin.text is not None
                self.events.append(_timed(begin.text, begin.time - self.base, piece.time - begin.time))
        # What has no end counts as an event with an impossible time.
        self.events += [
            b'%s"ts": null, "dur": null}' % piece.text for left in opened.values() for piece in left if piece.text
        ]

    def text(self) -> bytes:
        """Return the file as Kineto writes it in JSON."""
        self.paired()
        header: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": self.base} if self.has_known else {}
        if self.architectures:
            header["deviceProperties"] = [_device(*item) for item in sorted(self.architectures.items())]
        begin = json.dumps(header)[:-1] + (", " if header else "")
        return begin.encode() + b'"traceEvents": [\n' + b",\n".join(self.events) + b"\n]}"


_OF_PYTORCH: Final = frozenset(
    {"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "cuda_sync", "overhead"}
)


_short_quoted = functools.lru_cache(maxsize=1 << 15)(json.dumps)


def _quoted(text: str) -> str:
    return _short_quoted(text) if len(text) < _SHORT else json.dumps(text)


def _overhead_or_none(track: _Track) -> str:
    return "overhead" if track.process_name == "Overhead" else ""


def _timed(event: bytes, start_ns: int, duration_ns: int) -> bytes:
    return b'%s"ts": %s, "dur": %s}' % (event, _microseconds(start_ns), _microseconds(duration_ns))


def _microseconds(nanoseconds: int) -> bytes:
    whole_us, rest = divmod(abs(nanoseconds), 1000)
    return b"%s%d.%03d" % (b"-" if nanoseconds < 0 else b"", whole_us, rest)


_ARCHITECTURE: Final = lazy_pattern(r"sm_([0-9]{1,3})([0-9])")
_TEXT_RATIO: Final = 20


def _device(index: int, architecture: str) -> dict[str, Any]:
    """Return what the header says of a device: only its architecture is recorded."""
    match = _ARCHITECTURE.fullmatch(architecture)
    known = {"computeMajor": int(match[1]), "computeMinor": int(match[2])} if match else {}
    return {"id": index, "name": "", **known}


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _LONGEST_VARINT else text


def _launch(sequence: _Sequence, data: bytes) -> dict[str, Any]:
    """Return a kernel's geometry, as JSON has it."""
    results: dict[str, Any] = {}
    for number, value in _fields(data):
        if number in (1, 2):
            sizes = _message(value)
            results["grid" if number == 1 else "block"] = [sizes.get(axis, 1) for axis in (1, 2, 3)]
        elif number == 3:
            entry = _message(value)
            if sequence.named("launch arguments", entry.get(1)) == _REGISTERS:
                results["registers per thread"] = entry.get(4, 0)
    return results


def _argument(data: bytes) -> tuple[int, str]:
    """Return an argument as JSON: with its own name and 0, or without and the number of its interned name."""
    return _short_argument(data) if len(data) < _SHORT else _read_argument(data)


def _read_argument(data: bytes) -> tuple[int, str]:
    name, interned = None, 0
    for number, value in _fields(data):
        if number == 10:
            name = _text(value)
        elif number == 1:
            interned = value
    value = json.dumps(_value(data, _DEEPEST))
    return (interned, value) if name is None else (0, f"{_quoted(name)}: {value}")


# Lists of sizes and types are the same in each step; long ones are not kept.
_SHORT: Final = 1_024
_short_argument = functools.lru_cache(maxsize=1 << 15)(_read_argument)
_SCALARS: Final[Mapping[int, Callable[[Any], Any]]] = {
    2: bool,
    3: int,
    4: _signed,
    6: _text,
    9: _text,
}


def _value(data: bytes, depth: int) -> Any:
    if not depth:
        raise _BrokenError
    items, entries, scalar = [], {}, None
    for number, value in _fields(data):
        if number == 12:
            items.append(_value(value, depth - 1))
        elif number == 11:
            entry = _message(value)
            entries[_text(entry.get(10, b""))] = _value(value, depth - 1)
        elif number == 5:
            scalar = _double(value)
        elif number in _SCALARS:
            scalar = _SCALARS[number](value)
    if scalar is not None:
        return scalar
    return entries or items


def _double(bits: int) -> float | None:
    value = float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    return value if math.isfinite(value) else None  # JSON has no others


# ---------------------------------------------------------------- the file


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else 1


def parse(content: Content) -> Trace:
    """Turn a Perfetto file's content into a trace.

    Raises:
        NotATraceError: nothing in it is of a kind that PyTorch writes.
        BadInputError: it is damaged so that no event is left.
    """
    source, unreadable = content.source, 0
    packets = whole(content.reader).take()
    # PyTorch's JSON of a run has twice the bytes of its unpacked packets.
    read = _Read(left=max(UNSUSPICIOUS_BYTES, _TEXT_RATIO * len(packets)))
    try:
        for number, packet in _fields(packets):
            unreadable += 0 if number == _PACKET and read.took(packet) else _size(packet)
    except BadInputError as error:
        raise BadInputError(f"{source.path}: {error}") from error
    except _BrokenError:
        source.damage = source.damage or "it ends in the middle of a packet, or is damaged there"
    text = read.text()
    if not read.has_known:
        raise NotATraceError(
            f"{source.path} is a Perfetto trace, or like one, and no event in it is of a kind that PyTorch writes. "
            f"{EXPECTED}"
        )
    reader = KINETO.reader()
    texts = [*reader.feed(text), *reader.finish()]
    result = decoded(source, content.format, reader, texts)
    result.unreadable_bytes += unreadable
    return kineto.parse(result)
