"""Chrome traces written by Kineto (torch.profiler), from PyTorch 1.8 to now, NVIDIA and AMD.

The fields are documented nowhere in full. Their names, categories and oddities below were read off real traces:
times are microseconds with three decimals, the producer's clock may start anywhere, and one file is one process.
"""

import gzip
import json
import math
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

_ABSENT: Final = msgspec.Raw()
_Number = int | float | str | None
T = TypeVar("T")


class _Args(msgspec.Struct, gc=False):
    """The arguments that opscope uses, of any category."""

    external_id: _Number = msgspec.field(default=None, name="External id")
    correlation: _Number = None
    sequence_number: _Number = msgspec.field(default=None, name="Sequence number")
    forward_thread: _Number = msgspec.field(default=None, name="Fwd thread id")
    input_dims: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    input_types: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input type")
    input_strides: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Strides")
    device: _Number = None
    stream: _Number = None
    graph_id: _Number = msgspec.field(default=None, name="graph id")
    graph_node_id: _Number = msgspec.field(default=None, name="graph node id")
    bytes_: _Number = msgspec.field(default=None, name="bytes")
    grid: list[_Number] | None = None
    block: list[_Number] | None = None
    registers: _Number = msgspec.field(default=None, name="registers per thread")
    shared_memory: _Number = msgspec.field(default=None, name="shared memory")
    occupancy: _Number = msgspec.field(default=None, name="est. achieved occupancy %")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    memory_bytes: _Number = msgspec.field(default=None, name="Bytes")
    total_allocated: _Number = msgspec.field(default=None, name="Total Allocated")
    device_id: _Number = msgspec.field(default=None, name="Device Id")
    device_type: _Number = msgspec.field(default=None, name="Device Type")


_NO_ARGS: Final = _Args()


class _Event(msgspec.Struct, Generic[T], gc=False):
    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: T | None = None
    dur: T | None = None
    args: _Args | None = None


class _File(msgspec.Struct, Generic[T]):
    trace_events: list[_Event[T]] = msgspec.field(name="traceEvents")


def read_bytes(path: Path) -> bytes:
    """Return the file's content, unpacked where it is gzip.

    Raises:
        BadInputError: it cannot be opened or the packed data are damaged.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInputError(f"{path} is damaged gzip data ({error}): copy or capture it again") from error


def sniff(raw: bytes) -> bool:
    """Tell whether the content looks like a Kineto trace."""
    return b'"traceEvents"' in raw


def parse(raw: bytes, path: Path) -> Trace:
    """Parse the content of a Kineto trace file.

    Raises:
        BadInputError: it is not valid JSON, or its ``traceEvents`` are not trace events.
    """
    raw, events, replaced = _decode(raw, path)
    header = _header(raw)
    tables = Tables()
    for event in events:
        _add(tables, event)
    return tables.build(
        source=TraceSource(
            path=str(path),
            format="kineto",
            size_bytes=len(raw),
            event_count=len(events),
            replaced_bytes=replaced,
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
            raw, replaced = repaired(raw)
            if not replaced:
                raise
            return raw, _events(raw), replaced
    except msgspec.ValidationError as error:
        raise BadInputError(f"{path} is JSON but not a Kineto trace: {error}") from error
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


def _header(raw: bytes) -> dict[str, Any]:
    """Decode everything but the events; their list is skipped without being built."""
    decoded = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return {key: msgspec.json.decode(value) for key, value in decoded.items() if key != "traceEvents"}


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
            max_threads_per_multiprocessor=_integer(entry.get("maxThreadsPerMultiprocessor")),
            registers_per_multiprocessor=_integer(entry.get("regsPerMultiprocessor")),
            shared_memory_per_multiprocessor_bytes=_integer(entry.get("sharedMemPerMultiprocessor")),
        )


def _add(tables: Tables, event: _Event[Any]) -> None:
    start = _nanoseconds(event.ts)
    if start is None:
        return
    category, name, args = event.cat or "", event.name or "", event.args or _NO_ARGS
    if event.ph == "X":
        duration = _nanoseconds(event.dur)
        if duration is not None:
            _add_slice(tables, event, category, name, start, duration, args)
    elif event.ph == "i" and name == _MEMORY_EVENT:
        tables.allocations.append(
            (
                tables.thread(event.pid, event.tid),
                start,
                _integer(args.device_type),
                _integer(args.device_id),
                _integer(args.memory_bytes),
                _integer(args.total_allocated),
            )
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
                _raw_text(args.input_dims),
                _raw_text(args.input_types),
                _raw_text(args.input_strides),
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
    device = _integer(args.device)
    stream = _integer(args.stream)
    return (
        kind,
        name,
        device if device is not None else _integer(event.pid),
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
        _integer(args.registers),
        _integer(args.shared_memory),
        _float(args.occupancy),
        args.collective,
    )


def _nanoseconds(value: float | Decimal | None) -> int | None:
    """Convert microseconds to integer nanoseconds without losing one to rounding."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return int((value * _NS_PER_US).to_integral_value())
    whole = math.floor(value)
    return whole * _NS_PER_US + round((value - whole) * _NS_PER_US)


def _integer(value: _Number) -> int | None:
    if isinstance(value, int):
        number = value
    elif isinstance(value, float):
        if not value.is_integer():
            return None
        number = int(value)
    else:
        try:
            number = int(value or "")
        except ValueError:
            return None
    # Some producers write unset ids as 2**64-1.
    return number if -(1 << 63) <= number < (1 << 63) else None


def _float(value: _Number) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _dim3(value: list[_Number] | None) -> str | None:
    return None if value is None else ",".join(str(part) for part in value)


def _raw_text(value: msgspec.Raw) -> str | None:
    return bytes(value).decode("utf-8", "replace") or None
