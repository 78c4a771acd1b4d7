"""What Kineto's events mean, one by one: the rules for every event, and for those that are not quite JSON.

The compiled reader applies the same rules to plain events. The fields are documented nowhere in full; their names,
categories and oddities were read off real traces. Times are microseconds with three decimals, and the producer's clock
may start anywhere.
"""

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from opscope.model import DeviceProperties
from opscope.readers.tables import Rows

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
KINDS: Final = ("kernel", "memcpy", "memset")  # by the compiled reader's number
_ANNOTATION: Final = "user_annotation"
_FRAME: Final = frozenset({"python_function", "python_func"})
_OVERHEAD: Final = frozenset({"overhead", "Overhead"})
_SLICES: Final = (*_OPERATOR, *_LAUNCH, *_ACTIVITY_KIND, _ANNOTATION, *_FRAME, *_OVERHEAD)
_STEP: Final = "ProfilerStep#"  # recorded as an operator by old versions
_MEMORY_EVENT: Final = "[memory]"

_NS_PER_US: Final = 1000
_LATEST_NS: Final = 1 << 62  # 146 years; start and end of everything stay within 64 bits
_INT32: Final = 31
_INT64: Final = 63
_AMD_NAME: Final = re.compile(r"AMD|Radeon|gfx", re.IGNORECASE)
_AMD_WAVEFRONT: Final = 64  # of the larger ones; others have 32, as NVIDIA's
_TRAILING_NUMBER: Final = re.compile(r"(-?\d{1,20})\s*$")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


def add_event(rows: Rows, event: Mapping[str, Any]) -> bool:
    """Add an event to its table, if it belongs to one; return False for one whose times cannot be true."""
    arguments = event.get("args")
    args = arguments if isinstance(arguments, dict) else {}
    ph, name = event.get("ph"), text_of(event.get("name", ""))
    is_allocation = ph == "i" and name == _MEMORY_EVENT
    is_slice = ph in ("X", "B", "E") and event.get("cat") in _SLICES
    if not (is_allocation or is_slice):
        return True
    start = _nanoseconds(event.get("ts"))
    if is_allocation:
        if start is not None:
            rows.allocations.append(_allocation(rows, event, start, args))
        return start is not None
    duration = _nanoseconds(event.get("dur")) if ph == "X" else None  # no profiler writes begin and end apart
    if start is None or duration is None or not -_LATEST_NS < start + duration < _LATEST_NS:
        return False
    _add_slice(rows, event, name, start, duration, args)
    return True


def _add_slice(
    rows: Rows, event: Mapping[str, Any], name: str, start: int, duration: int, args: Mapping[str, Any]
) -> None:
    category = event["cat"]
    if category == _ANNOTATION or (category in _OPERATOR and name.startswith(_STEP)):
        rows.annotations.append((_thread(rows, event), name, start, duration))
    elif category in _OPERATOR:
        rows.operators.append(
            (
                *(_thread(rows, event), name, start, duration),
                _integer(args.get("External id")),
                _integer(args.get("Sequence number")),
                _integer(args.get("Fwd thread id")),
                list_text(args.get("Input Dims", args.get("Input dims"))),
                list_text(args.get("Input type"), of_text=True),
                list_text(args.get("Input Strides")),
                list_text(args.get("Concrete Inputs"), of_text=True),
                text_of(file) if isinstance(file := args.get("kernel_file"), str) else None,
            )
        )
    elif (kind := _ACTIVITY_KIND.get(category)) is not None:
        rows.activities.append(_activity(kind, event, name, start, duration, args))
    elif category in _LAUNCH:
        rows.launches.append((_thread(rows, event), name, start, duration, *_ids(args)))
    elif category in _FRAME:
        rows.frames.append((_thread(rows, event), name, start, duration))
    elif category in _OVERHEAD:
        rows.overheads.append((name, start, duration))


def _thread(rows: Rows, event: Mapping[str, Any]) -> int:
    return rows.thread(identity(event.get("pid")), identity(event.get("tid")))


def identity(value: Any) -> str:
    """Return a process or thread as JSON writes it: 7 and "7" are two, 7 and 7.0 are one."""
    if (number := _finite(value)) is not None and number == number.to_integral_value() and abs(number) < 1 << _INT64:
        return str(int(number))
    return json.dumps(value, default=str)


def _ids(args: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the correlation id and the id of the operator.

    Before PyTorch 1.13 the key of the latter was lower-case, and repeated the correlation id where there was none.
    """
    correlation = _integer(args.get("correlation"))
    if "External id" in args or "external id" not in args:
        return correlation, _integer(args.get("External id"))
    external = _integer(args["external id"])
    return correlation, None if external == correlation else external


def _activity(
    kind: str, event: Mapping[str, Any], name: str, start: int, duration: int, args: Mapping[str, Any]
) -> tuple[object, ...]:
    # Kineto repeats the device as the event's process and the stream as its thread; very old traces have only those.
    device = _integer(args.get("device"), _INT32)
    stream = _integer(args.get("stream"))
    collective = args.get("Collective name")
    return (
        kind,
        name,
        device if device is not None else _integer(event.get("pid"), _INT32),
        stream if stream is not None else _integer(event.get("tid")),
        start,
        duration,
        *_ids(args),
        _integer(args.get("graph id")),
        _integer(args.get("graph node id")),
        _integer(args.get("bytes")),
        dim3(args.get("grid")),
        dim3(args.get("block")),
        _integer(args.get("registers per thread"), _INT32),
        _integer(args.get("shared memory")),
        _float(args.get("est. achieved occupancy %")),
        text_of(collective) if isinstance(collective, str) else None,
    )


def _allocation(rows: Rows, event: Mapping[str, Any], start: int, args: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        _thread(rows, event),
        start,
        _integer(args.get("Device Type"), _INT32),
        _integer(args.get("Device Id"), _INT32),
        _integer(args.get("Bytes")),
        _integer(args.get("Total Allocated")),
    )


def text_of(value: Any) -> str:
    """Return a name; what is no text reads as JSON writes it, and half a surrogate pair as a question mark."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode("utf-8", "replace").decode()


def list_text(value: Any, *, of_text: bool = False) -> str | None:
    """Return a recorded list as its JSON text; None where it is absent or no list (of text)."""
    if not isinstance(value, list) or (of_text and not all(isinstance(item, str) for item in value)):
        return None
    try:
        return text_of(json.dumps(value, ensure_ascii=False, default=float))
    except RecursionError:
        return None


def dim3(value: Any) -> str | None:
    """Return a grid or a block as ``x,y,z``."""
    return ",".join(str(part) for part in value) if isinstance(value, list) else None


def _nanoseconds(value: Any) -> int | None:
    """Convert microseconds to integer nanoseconds without losing one to rounding; None if it is no time at all."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = _decimal(value.strip())
    number = _finite(value)
    if number is None or abs(number) > _LATEST_NS // _NS_PER_US:
        return None
    return 0 if number.adjusted() < -_NS_PER_US else int((number * _NS_PER_US).to_integral_value())


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except ArithmeticError:  # an exponent beyond all bounds
        return None


def _finite(value: Any) -> Decimal | None:
    """Return a finite number; None for anything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    return Decimal(value)


def _integer(value: Any, bits: int = _INT64) -> int | None:
    """Convert what stands for a number; None for anything else, and for what the column could not hold.

    Text counts by the number it ends with ("Stream 7"). Some producers write unset ids as 2**64-1.
    """
    number: int | None = None
    if isinstance(value, str):
        match = _TRAILING_NUMBER.search(value)
        number = int(match[1]) if match else None
    elif isinstance(value, int) and not isinstance(value, bool):
        number = int(value)
    elif (finite := _finite(value)) is not None and abs(finite) < 1 << bits and finite == finite.to_integral_value():
        number = int(finite)
    return number if number is not None and -(1 << bits) < number < (1 << bits) else None


def _float(value: Any) -> float | None:
    """Convert a finite number; None for anything else."""
    number = _finite(value)
    return None if number is None else float(number)


def device_of(entry: Mapping[str, Any]) -> DeviceProperties | None:
    """Read a device of the header; None for one without a number. Some keys had other names before PyTorch 1.10."""
    index = _integer(entry.get("id"))
    major = _integer(entry.get("computeMajor", entry.get("major")))
    minor = _integer(entry.get("computeMinor", entry.get("minor")))
    if index is None:
        return None
    name = text_of(entry.get("name", "unknown"))
    # AMD's architectures have numbers that look the same and mean something else: gfx90a is 9.0.
    is_amd = _AMD_NAME.match(name) or entry.get("warpSize") == _AMD_WAVEFRONT
    threads = entry.get("maxThreadsPerMultiprocessor", entry.get("maxThreadsPerMultiProcessor"))
    return DeviceProperties(
        index=index,
        name=name,
        compute_capability=None if major is None or minor is None or is_amd else f"{major}.{minor}",
        multiprocessors=_integer(entry.get("numSms", entry.get("multiProcessorCount"))),
        memory_bytes=_integer(entry.get("totalGlobalMem")),
        threads_per_multiprocessor=_integer(threads),
        registers_per_multiprocessor=_integer(entry.get("regsPerMultiprocessor")),
        shared_memory_per_multiprocessor_bytes=_integer(entry.get("sharedMemPerMultiprocessor")),
    )
