"""Chrome traces written by Kineto (torch.profiler), from PyTorch 1.8 to now, NVIDIA and AMD.

The fields are documented nowhere in full. Their names, categories and oddities below were read off real traces:
times are microseconds with three decimals, the producer's clock may start anywhere, and one file is one process.
"""

import functools
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from opscope.errors import BadInputError
from opscope.model import DeviceProperties, Trace, TraceSource
from opscope.readers.repair import repaired
from opscope.readers.tables import Tables

# Old names (before PyTorch 1.13) stand beside today's.
_OPERATOR: Final = frozenset({"cpu_op", "Operator"})
_LAUNCH: Final = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"})
_ACTIVITY_KIND: Final[Mapping[str, str]] = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
_ANNOTATION: Final = "user_annotation"
_FRAME: Final = frozenset({"python_function", "python_func"})
_OVERHEAD: Final = frozenset({"overhead", "Overhead"})
_STEP: Final = "ProfilerStep#"  # recorded as an operator by old versions
_MEMORY_EVENT: Final = "[memory]"

# A double holds microseconds to the nanosecond up to 2**43 us (102 days of uptime); beyond, digits are read as text.
_EXACT_LIMIT_US: Final = float(1 << 43)
_NS_PER_US: Final = 1000
_LATEST_NS: Final = 1 << 62  # 146 years; start and end of everything stay within 64 bits
_INT32: Final = 31
_INT64: Final = 63
_TRAILING_NUMBER: Final = re.compile(r"(-?\d{1,20})\s*$")
# A file that unpacks to more is refused: it would not fit in the memory of most machines once it is decoded.
MAX_UNPACKED_BYTES = 4 << 30

_ABSENT: Final = msgspec.Raw()
T = TypeVar("T")


class _Args(msgspec.Struct, gc=False):
    """The arguments that opscope uses, of any category. Producers differ in types, so each is converted on its own."""

    external_id: Any = msgspec.field(default=None, name="External id")
    correlation: Any = None
    sequence_number: Any = msgspec.field(default=None, name="Sequence number")
    forward_thread: Any = msgspec.field(default=None, name="Fwd thread id")
    input_dims: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    input_types: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input type")
    input_strides: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Strides")
    device: Any = None
    stream: Any = None
    graph_id: Any = msgspec.field(default=None, name="graph id")
    graph_node_id: Any = msgspec.field(default=None, name="graph node id")
    bytes_: Any = msgspec.field(default=None, name="bytes")
    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(default=None, name="registers per thread")
    shared_memory: Any = msgspec.field(default=None, name="shared memory")
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")
    collective: Any = msgspec.field(default=None, name="Collective name")
    memory_bytes: Any = msgspec.field(default=None, name="Bytes")
    total_allocated: Any = msgspec.field(default=None, name="Total Allocated")
    device_id: Any = msgspec.field(default=None, name="Device Id")
    device_type: Any = msgspec.field(default=None, name="Device Type")


_NO_ARGS: Final = _Args()


class _Event(msgspec.Struct, Generic[T], gc=False):
    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: T | None = None
    dur: T | None = None
    args: _Args | None = None


class _File(msgspec.Struct, Generic[T]):
    trace_events: list[_Event[T]] = msgspec.field(name="traceEvents")


def read_bytes(path: Path) -> bytes:
    """Return the file's content, unpacked where it is gzip.

    Raises:
        BadInputError: it cannot be opened, the packed data are damaged, or it unpacks to more than
            ``MAX_UNPACKED_BYTES``.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if not packed:
            return path.read_bytes()
        with gzip.open(path) as unpacked:
            raw = unpacked.read(MAX_UNPACKED_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInputError(f"{path} is damaged gzip data ({error}): copy or capture it again") from error
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error
    if len(raw) > MAX_UNPACKED_BYTES:
        raise BadInputError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB: record fewer steps")
    return raw


def sniff(raw: bytes) -> bool:
    """Tell whether the content looks like a Kineto trace."""
    return b'"traceEvents"' in raw


def parse(raw: bytes, path: Path) -> Trace:
    """Parse the content of a Kineto trace file.

    Raises:
        BadInputError: it is not valid JSON, or its ``traceEvents`` are not trace events.
    """
    raw, events, replaced = _decode(raw, path)
    header = _header(raw, path)
    tables = Tables()
    odd = sum(not _add(tables, event) for event in events)
    return tables.build(
        source=TraceSource(
            path=str(path),
            format="kineto",
            size_bytes=len(raw),
            event_count=len(events),
            replaced_bytes=replaced,
            odd_events=odd,
            metadata={key: text for key, value in header.items() if (text := _scalar_text(value)) is not None},
        ),
        devices=tuple(_devices(header.get("deviceProperties"))),
    )


def _decode(raw: bytes, path: Path) -> tuple[bytes, list[_Event[Any]], int]:
    """Decode the events; return them with the content they came from and how many of its bytes were replaced."""
    replaced = 0
    try:
        try:
            return raw, _events(raw), replaced
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            clean, replaced = repaired(raw)
            if clean == raw:
                raise
            return clean, _events(clean), replaced
    except msgspec.ValidationError as error:
        raise BadInputError(f"{path} is JSON but not a Kineto trace: {error}") from error
    except RecursionError as error:
        raise BadInputError(f"{path} is no Kineto trace: its JSON is nested without end") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path} is not valid JSON ({error}); it has {len(raw):,} bytes. "
            "A file cut short (full disk, killed job) has to be captured again."
        ) from error


def _events(raw: bytes) -> list[_Event[Any]]:
    events: list[_Event[Any]] = msgspec.json.decode(raw, type=_File[float]).trace_events
    if any(event.ts is not None and abs(event.ts) >= _EXACT_LIMIT_US for event in events):
        events = msgspec.json.decode(raw, type=_File[Decimal]).trace_events
    return events


def _header(raw: bytes, path: Path) -> dict[str, Any]:
    """Decode everything but the events; their list is skipped without being built."""
    try:
        decoded = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return {key: msgspec.json.decode(value) for key, value in decoded.items() if key != "traceEvents"}
    except RecursionError as error:
        raise BadInputError(f"{path} is no Kineto trace: its header is nested without end") from error


def _scalar_text(value: Any) -> str | None:
    if isinstance(value, str | int | float | bool):
        return str(value)
    if isinstance(value, dict):  # what `add_metadata_json` wrote
        return json.dumps(value)
    return None


def _devices(entries: Any) -> Iterable[DeviceProperties]:
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        index = _integer(entry.get("id"))
        major, minor = _integer(entry.get("computeMajor")), _integer(entry.get("computeMinor"))
        if index is None:
            continue
        yield DeviceProperties(
            index=index,
            name=str(entry.get("name", "unknown")),
            compute_capability=None if major is None or minor is None else f"{major}.{minor}",
            multiprocessors=_integer(entry.get("numSms")),
            memory_bytes=_integer(entry.get("totalGlobalMem")),
        )


def _add(tables: Tables, event: _Event[Any]) -> bool:
    """Add an event to its table, if it belongs to one; return False for one whose times cannot be true."""
    category, name, args = _text(event.cat), _text(event.name), event.args or _NO_ARGS
    if event.ts is None or event.ph not in ("X", "i"):
        return True
    start = _nanoseconds(event.ts)
    if event.ph == "i":
        if start is not None and name == _MEMORY_EVENT:
            tables.allocations.append(_allocation(tables, event, start, args))
        return start is not None
    if event.dur is None:
        return True
    duration = _nanoseconds(event.dur)
    if start is None or duration is None or not -_LATEST_NS < start + duration < _LATEST_NS:
        return False
    _add_slice(tables, event, category, name, start, duration, args)
    return True


def _allocation(tables: Tables, event: _Event[Any], start: int, args: _Args) -> tuple[object, ...]:
    return (
        tables.thread(event.pid, event.tid),
        start,
        _integer(args.device_type, _INT32),
        _integer(args.device_id, _INT32),
        _integer(args.memory_bytes),
        _integer(args.total_allocated),
    )


def _add_slice(
    tables: Tables, event: _Event[Any], category: str, name: str, start: int, duration: int, args: _Args
) -> None:
    if category == _ANNOTATION or (category in _OPERATOR and name.startswith(_STEP)):
        tables.annotations.append((tables.thread(event.pid, event.tid), name, start, duration))
    elif category in _OPERATOR:
        tables.operators.append(
            (
                *(tables.thread(event.pid, event.tid), name, start, duration),
                _integer(args.external_id),
                _integer(args.sequence_number),
                _integer(args.forward_thread),
                _list_text(bytes(args.input_dims)),
                _list_text(bytes(args.input_types), of_text=True),
                _list_text(bytes(args.input_strides)),
            )
        )
    elif (kind := _ACTIVITY_KIND.get(category)) is not None:
        tables.activities.append(_activity(kind, event, name, start, duration, args))
    elif category in _LAUNCH:
        tables.launches.append(
            (
                *(tables.thread(event.pid, event.tid), name, start, duration),
                _integer(args.correlation),
                _integer(args.external_id),
            )
        )
    elif category in _FRAME:
        tables.frames.append((tables.thread(event.pid, event.tid), name, start, duration))
    elif category in _OVERHEAD:
        tables.overheads.append((name, start, duration))


def _activity(kind: str, event: _Event[Any], name: str, start: int, duration: int, args: _Args) -> tuple[object, ...]:
    # Kineto repeats the device as the event's process and the stream as its thread; very old traces have only those.
    device = _integer(args.device, _INT32)
    stream = _integer(args.stream)
    return (
        kind,
        name,
        device if device is not None else _integer(event.pid, _INT32),
        stream if stream is not None else _integer(event.tid),
        start,
        duration,
        _integer(args.correlation),
        _integer(args.external_id),
        _integer(args.graph_id),
        _integer(args.graph_node_id),
        _integer(args.bytes_),
        _dim3(args.grid),
        _dim3(args.block),
        _integer(args.registers, _INT32),
        _integer(args.shared_memory),
        _float(args.occupancy),
        args.collective if isinstance(args.collective, str) else None,
    )


def _nanoseconds(value: float | Decimal) -> int | None:
    """Convert microseconds to integer nanoseconds without losing one to rounding; None if it is no time at all."""
    if not math.isfinite(value) or abs(float(value)) > _LATEST_NS / _NS_PER_US:
        return None
    if isinstance(value, Decimal):
        return int((value * _NS_PER_US).to_integral_value())
    whole = math.floor(value)
    part = round((value - whole) * _NS_PER_US)
    return whole * _NS_PER_US + part


def _integer(value: Any, bits: int = _INT64) -> int | None:
    """Convert what stands for a number; None for anything else, and for what the column could not hold.

    Text counts by the number it ends with ("Stream 7"). Some producers write unset ids as 2**64-1.
    """
    number: int | None = None
    if isinstance(value, str):
        match = _TRAILING_NUMBER.search(value)
        number = int(match[1]) if match else None
    elif isinstance(value, int):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    return number if number is not None and -(1 << bits) <= number < (1 << bits) else None


def _float(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dim3(value: Any) -> str | None:
    return ",".join(str(part) for part in value) if isinstance(value, list) else None


@functools.lru_cache(maxsize=1 << 16)
def _list_text(value: bytes, *, of_text: bool = False) -> str | None:
    """Return a recorded list as its JSON text; None where it is absent or no list (of text)."""
    try:
        items = msgspec.json.decode(value, type=list[str] if of_text else list[Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    return json.dumps(items, ensure_ascii=False)
