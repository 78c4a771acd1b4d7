"""The meaning of Kineto's events: the rules for all of them, including values that are not quite JSON.

The compiled reader applies the same rules to plain events. The fields are documented nowhere in full; their names,
categories and oddities were read off real traces. Times are microseconds with three decimals, and the producer's clock
may start anywhere.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import polars as pl

from opscope.base.text import lazy_pattern
from opscope.readers.cupti_names import NOT_MEANT
from opscope.trace.model import DeviceProperties, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

# ---------------------------------------------------------------- rows of tables


_Row = tuple[object, ...]


class Rows:
    """Collects rows per table, with the columns of the table's schema."""

    def __init__(self, threads: Iterable[tuple[str, str]] = ()) -> None:
        self._rows: dict[str, list[_Row]] = {name: [] for name in SCHEMAS}
        self._threads = {pair: number for number, pair in enumerate(threads)}

    def add(self, table: str, **values: object) -> None:
        """Add a row by the names of its columns; other columns of the table are unknown in it.

        Raises:
            KeyError: the table has no such column.
        """
        row = tuple(values.pop(name, None) for name in SCHEMAS[table])
        if values:
            raise KeyError(f"{table} has no column {', '.join(values)}")
        self._rows[table].append(row)

    def thread(self, process: str, thread: str) -> int:
        """Return a preliminary number for a (process, thread) pair; `renumbered` makes it final."""
        return self._threads.setdefault((process, thread), len(self._threads))

    def frame(self, table: str) -> pl.DataFrame:
        """Return a table's rows as a frame, with preliminary thread numbers."""
        return pl.DataFrame(self._rows[table], schema=SCHEMAS[table], orient="row")

    def threads(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs in the order of their final numbers."""
        return tuple(sorted(self._threads))

    def renumbered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace a frame's preliminary thread numbers by final ones, which do not depend on the file's order."""
        # Preliminary numbers follow the order of appearance, which may be the final order already.
        if "thread" not in frame.columns or list(self._threads) == sorted(self._threads):
            return frame
        ordered = {pair: number for number, pair in enumerate(sorted(self._threads))}
        numbers = pl.Series([ordered[pair] for pair in self._threads], dtype=pl.Int32)
        return frame.with_columns(thread=numbers.gather(frame["thread"]))


def build_trace(
    source: TraceSource,
    devices: tuple[DeviceProperties, ...],
    threads: tuple[tuple[str, str], ...],
    frames: Mapping[str, pl.DataFrame],
) -> Trace:
    """Build the trace. File order is not time order, so every table is sorted by time."""
    tables = {name: sorted_by_start(name, frame) for name, frame in frames.items()}
    tables["activities"] = _with_kinds_by_name(tables["activities"])
    return Trace(source=source, devices=devices, threads=threads, around=None, **tables)


# HIP copies and fills by kernels of its own (clr/rocclr/device/blit.hpp); roctracer calls copies by engines kernels.
_COPYING: Final = lazy_pattern(r"^(Copy(Host|Device|Peer)|MEMORY_COPY_|__amd_rocclr_copy)")
_FILLING: Final = lazy_pattern(r"^(FillBuffer|__amd_rocclr_fill)")


def _moving_kernel(name: str) -> str | None:
    """Return ``memcpy`` or ``memset`` for what does a copy or a fill and is recorded as a kernel; None for others."""
    if _COPYING.search(name):
        return "memcpy"
    return "memset" if _FILLING.search(name) else None


def _with_kinds_by_name(activities: pl.DataFrame) -> pl.DataFrame:
    """Return activities with copies and fills told by their names, and the bytes of a graph's copies once.

    ROCm records copies as kernels at times. Of a copy in a graph that two engines did in turns, CUPTI writes two
    records with all of its bytes each.
    """
    names = [
        (str(name), kind) for name in activities["name"].unique() if (kind := _moving_kernel(str(name))) is not None
    ]
    if names:
        texts, kinds = zip(*names, strict=True)
        by_name = pl.col("name").cast(pl.String).replace_strict(texts, kinds, default=None, return_dtype=pl.String)
        is_kernel = pl.col("kind").cast(pl.String) == "kernel"
        column = pl.when(is_kernel).then(pl.coalesce(by_name, "kind")).otherwise("kind")
        activities = activities.with_columns(column.cast(pl.Categorical).alias("kind"))
    # Some versions of Kineto write 0 for what is in no graph.
    nodes = ("graph_id", "graph_node_id")
    if any((activities[name] == 0).any() for name in nodes):
        activities = activities.with_columns(pl.col(*nodes).replace(0, None))
    numbered = pl.col("graph_node_id").is_not_null() & pl.col("correlation").is_not_null()
    copied = (pl.col("kind").cast(pl.String) == "memcpy") & numbered
    if not activities.select(copied.any()).item():
        return activities
    again = copied & (pl.int_range(pl.len()).over("correlation", "graph_node_id", "bytes") > 0)
    twin = copied & _is_twin()
    return activities.with_columns(bytes=pl.when(again | twin.fill_null(value=False)).then(None).otherwise("bytes"))


# A copy within a device reads and writes: this is the 8 TB/s of the fastest memory in devices.toml.
_FASTEST_COPY: Final = 4_000  # bytes per nanosecond
_TIMES_AS_FAST: Final = 3  # as the copy before it, of as many bytes


def _is_twin() -> pl.Expr:
    """Tell per copy of a graph whether it repeats the one before it: of the same bytes, faster than memory allows."""
    replay = ("correlation", "device", "stream")
    size, took, name = (pl.col(column).shift(1).over(replay) for column in ("bytes", "duration_ns", "name"))
    same = (pl.col("bytes") == size) & (pl.col("name") == name)
    too_fast = pl.col("bytes") > _FASTEST_COPY * pl.col("duration_ns")
    return same & too_fast & (took > _TIMES_AS_FAST * pl.col("duration_ns"))


def shaped(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with exactly a table's columns and types; missing columns and numbers too large become null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype, strict=False).alias(name)
        for name, dtype in SCHEMAS[table].items()
    )


def sorted_by_start(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Sort a table by time; rows with equal times keep their order."""
    by = "time_ns" if "time_ns" in SCHEMAS[name] else "start_ns"
    return frame if frame[by].is_sorted() else frame.sort(by, maintain_order=True)


def empty_trace() -> Trace:
    """Return a trace without records; its tables have all columns."""
    source = TraceSource("", "none", 0, 0, 0, 0, 0, None, {})
    return build_trace(source, (), (), {name: pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()})


# ---------------------------------------------------------------- metadata
# Programs add their own metadata to traces (`add_metadata_json`), such as whole environments with access tokens. No
# analysis needs those, so they are dropped here.


HOST_NAME: Final = "host_name"  # tells the ranks of a job apart; what is passed on to others leaves it out
_LONGEST: Final = 200  # characters; what is longer is not a version or name
# Written by Kineto and torch.profiler.
_SCALARS: Final = frozenset(
    {
        *("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "baseTimeNanosecond", "trace_id"),
        *("cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version"),
        *("roctracer_version", "rocprofiler_version", "profiler_version", "CUPTI_VERSION"),
        *("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops", HOST_NAME),
    }
)
_TORCH_VERSION: Final = lazy_pattern(r"(py)?torch[ _.-]?version", re.IGNORECASE)
_VERSION: Final = lazy_pattern(r"[\w.+-]{1,60}")
# Entries that are objects, with the keys that are kept: of opscope's own captures, and of torch.distributed.
_OBJECTS: Final[Mapping[str, frozenset[str]]] = {
    "opscope": frozenset({"opscope", "torch", "torch_git", "device"}),
    "distributedInfo": frozenset({"backend", "rank", "world_size", "nccl_version"}),
}


def known_metadata(header: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of a file's header that are known to be harmless, as text; objects as JSON."""
    results: dict[str, str] = {}
    for key, value in header.items():
        if key in _SCALARS:
            text = _scalar(value)
        elif _TORCH_VERSION.fullmatch(key):
            text = _version(value)
        else:
            text = _kept(value, _OBJECTS[key]) if key in _OBJECTS else None
        if text is not None:
            results[key] = text
    return results


def _version(value: Any) -> str | None:
    text = str(value).strip().strip('"')
    return text if _VERSION.fullmatch(text) else None


def _kept(value: Any, names: frozenset[str]) -> str | None:
    """Return the listed keys of an object as JSON; None if the value is not an object."""
    parts = _object(value)
    if parts is None:
        return None
    return json.dumps({name: part for name, part in parts.items() if name in names and _scalar(part) is not None})


def _object(value: Any) -> Mapping[str, Any] | None:
    """Return an object, decoded if `add_metadata_json` wrote it as text; None if it is not an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _scalar(value: Any) -> str | None:
    if not isinstance(value, str | int | float | bool) or len(str(value)) > _LONGEST:
        return None
    return str(value).encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- events


# Old names (before PyTorch 1.13) stand beside today's.
_OPERATOR: Final = frozenset({"cpu_op", "Operator"})
_LAUNCH: Final = frozenset(
    {"Runtime"} | {f"{of}_{part}" for of in ("cuda", "hip", "xpu", "privateuse1") for part in ("runtime", "driver")}
)
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
_RANGE: Final = "nvtx_range"  # of opscope's exports: one that need not nest
_HOST_NODE: Final = "graph_host_node"  # a function of the host that a graph calls (PyTorch 2.14 and newer)
_FRAME: Final = frozenset({"python_function", "python_func"})
_OVERHEAD: Final = frozenset({"overhead", "Overhead"})
_SYNCHRONIZATION: Final = "cuda_sync"
_SLICES: Final = (
    *_OPERATOR, *_LAUNCH, *_ACTIVITY_KIND, _ANNOTATION, _RANGE, _HOST_NODE, *_FRAME, *_OVERHEAD, _SYNCHRONIZATION
)  # fmt: skip
# Known categories that are not work or repeat other slices; they are left out.
_LEFT_OUT: Final = frozenset(
    {"gpu_user_annotation", "Trace", "fwdbwd", "forward_backward", "ac2g", "async_cpu_to_gpu", "async_gpu"}
    | {"unified_memory"}  # of opscope's exports, for viewers
    | {"graph_event_node"}  # an event that a graph records: a moment, and no work
    | {"cuda_profiler_range", "cpu_instant_event", "collective_comm", "gpu_pm_counter", "external_correlation"}
)
_STEP: Final = "ProfilerStep#"  # recorded as an operator by old versions
_MEMORY_EVENT: Final = "[memory]"

# PyTorch's keys of what it says of communication, by the column that keeps them.
COMMUNICATION_NAMES: Final[Mapping[str, str]] = {
    "collective": "Collective name",
    "group": "Process Group Name",
    "group_description": "Process Group Description",
    "element_type": "dtype",
}
COMMUNICATION_LISTS: Final[Mapping[str, str]] = {
    "group_ranks": "Process Group Ranks",
    "splits_in": "In split size",
    "splits_out": "Out split size",
}
COMMUNICATION_PLACES: Final[Mapping[str, str]] = {
    "group_size": "Group size",
    "first_rank": "Global rank start",
    "rank_stride": "Global rank stride",
    "group_rank": "Rank",
    "source": "Src Rank",
    "destination": "Dst Rank",
}
COMMUNICATION_COUNTS: Final[Mapping[str, str]] = {
    "sequence": "Seq",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
}

_NS_PER_US: Final = 1000
LATEST_NS: Final = 1 << 62  # 146 years; start and end of everything stay within 64 bits
_INT32: Final = 31
_INT64: Final = 63
_AMD_NAME: Final = lazy_pattern(r"AMD|Radeon|gfx", re.IGNORECASE)
_AMD_WAVEFRONT: Final = 64  # of the larger ones; others have 32, as NVIDIA's
_TRAILING_NUMBER: Final = lazy_pattern(r"(-?\d{1,20})\s*$")
_NUMBER: Final = lazy_pattern(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


def add_event(rows: Rows, event: Mapping[str, Any]) -> bool:
    """Add an event to its table if it belongs to one; return False only if its times are impossible."""
    arguments = event.get("args")
    args = arguments if isinstance(arguments, dict) else {}
    ph, name = event.get("ph"), text_of(event.get("name", ""))
    if ph == "C":
        return _add_counter(rows, event, name, args)
    is_allocation = ph == "i" and name == _MEMORY_EVENT
    is_slice = ph in ("X", "B", "E") and event.get("cat") in _SLICES
    if not (is_allocation or is_slice):
        return True
    start = time_ns_of(event.get("ts"))
    if is_allocation:
        if start is not None:
            _add_allocation(rows, event, start, args)
        return start is not None
    duration = time_ns_of(event.get("dur")) if ph == "X" else None  # the others have found no partner
    if start is None or duration is None or not -LATEST_NS < start + duration < LATEST_NS:
        return False
    _add_slice(rows, event, name, start, duration, args)
    return True


def paired(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return events in which a begin (``B``) and its end (``E``) are one slice, as tools that rewrite traces have them.

    An end belongs to the last begin of its thread that is open, and of its name where it has one. What finds no partner
    stays as it is.
    """
    events = list(events)
    apart = [event for event in events if event.get("ph") in ("B", "E") and time_ns_of(event.get("ts")) is not None]
    if not apart:
        return events
    result: list[Mapping[str, Any]] = [event for event in events if event.get("ph") not in ("B", "E")]
    opened: dict[str, _Opened] = {}
    for event in sorted(apart, key=lambda event: time_ns_of(event["ts"]) or 0):  # of one moment, the file's order
        thread = opened.setdefault(repr((event.get("pid"), event.get("tid"))), _Opened())
        if event["ph"] == "B":
            thread.begin(event)
        else:
            begin = thread.end(event.get("name") or None)
            result.append(event if begin is None else _joined(begin, event))
    left = [event for thread in opened.values() for event in thread.left()]
    lost = [event for event in events if event.get("ph") in ("B", "E") and time_ns_of(event.get("ts")) is None]
    return [*result, *left, *lost]


class _Opened:
    """What has begun on a thread, and not ended: by order, and by name."""

    def __init__(self) -> None:
        self._order: list[Mapping[str, Any] | None] = []
        self._by_name: dict[str, list[int]] = {}

    def begin(self, event: Mapping[str, Any]) -> None:
        self._by_name.setdefault(text_of(event.get("name", "")), []).append(len(self._order))
        self._order.append(event)

    def end(self, name: Any) -> Mapping[str, Any] | None:
        """Take out the last one of a name, or of any; None without one."""
        places = self._by_name.get(text_of(name)) if name is not None else None
        if name is None:
            while self._order and self._order[-1] is None:
                self._order.pop()
            if not self._order:
                return None
            places = self._by_name[text_of((self._order[-1] or {}).get("name", ""))]
        if not places:
            return None
        place = places.pop()
        event, self._order[place] = self._order[place], None
        return event

    def left(self) -> Iterator[Mapping[str, Any]]:
        return (event for event in self._order if event is not None)


def _joined(begin: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = [event["args"] for event in (begin, end) if isinstance(event.get("args"), dict)]
    args = {name: value for part in arguments for name, value in part.items()}
    duration = (time_ns_of(end["ts"]) or 0) - (time_ns_of(begin["ts"]) or 0)
    return {**begin, "ph": "X", "dur": Decimal(duration) / 1_000, "args": args}


# What PyTorch's emit_nvtx appends to the names of its ranges, in this order: the call's numbers, sizes of its inputs.
_SUFFIXES: Final = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
_OPERATORS_NAME: Final = lazy_pattern(r"^(aten|autograd|torch|c10d)::|^record_param_comms$")
_BACKWARD_NAME: Final = lazy_pattern(r"Backward[0-9]*$")
_SHORT_NUMBER: Final = lazy_pattern(r"-?[0-9]{1,18}")


def told_apart(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Part the ranges that PyTorch makes for NVTX and roctx (``emit_nvtx``) into annotations and operators.

    Args:
        ranges: a table with the columns of annotations.

    Returns:
        The annotations, and the operators with their sequence numbers and sizes; names without the call's numbers.
    """
    names = ranges["name"].cast(pl.String)
    schema = {"full": pl.String, "name": pl.String, "is_call": pl.Boolean, "sequence": pl.Int64, "sizes": pl.String}
    known = pl.DataFrame([(name, *_marked(name)) for name in names.unique()], schema=schema, orient="row")
    rows = (
        ranges.rename({"name": "full"})
        .with_columns(full=names)
        .join(known, on="full", how="left", nulls_equal=True, maintain_order="left")
    )
    operators = rows.filter("is_call").with_columns(sequence_number="sequence", input_dims="sizes")
    return shaped("annotations", rows.filter(~pl.col("is_call"))), shaped("operators", operators)


def _marked(full: str) -> tuple[str, bool, int | None, str | None]:
    """Return the name in a range's text, whether it is an operator, its sequence number, and sizes of its inputs."""
    places = sorted((at, key) for key in _SUFFIXES if (at := full.rfind(key)) >= 0)
    name = full[: places[0][0]] if places else full
    ends = [*(at for at, _ in places), len(full)][1:]
    parts = {key: full[at + len(key) : end] for (at, key), end in zip(places, ends, strict=bool(places))}
    sequence, sizes = parts.get(_SUFFIXES[0], ""), parts.get(_SUFFIXES[2])
    number = int(sequence) if _SHORT_NUMBER.fullmatch(sequence) else None
    # Only operators have a sequence number; other ranges of PyTorch have an id.
    backward = bool(parts) and _BACKWARD_NAME.search(name) is not None
    is_operator = number is not None or backward or _OPERATORS_NAME.search(name) is not None
    return (name, True, number, sizes) if is_operator else (name, False, None, None)


def not_understood(category: Any) -> bool:
    """Tell whether a slice's category is unknown to every rule here."""
    return isinstance(category, str) and category not in _SLICES and category not in _LEFT_OUT


def _add_slice(
    rows: Rows, event: Mapping[str, Any], name: str, start: int, duration: int, args: Mapping[str, Any]
) -> None:
    category = event["cat"]
    times = {"name": name, "start_ns": start, "duration_ns": duration}
    if category == _ANNOTATION or (category in _OPERATOR and name.startswith(_STEP)):
        rows.add("annotations", thread=_thread(rows, event), **times)
    elif category == _RANGE:
        rows.add("ranges", thread=_thread(rows, event), **times)
    elif category == _HOST_NODE:
        process, thread = (
            args.get(f"host {part}", event.get(key)) for part, key in (("process", "pid"), ("thread", "tid"))
        )
        rows.add("ranges", thread=rows.thread(identity(process), identity(thread)), **times)
    elif category in _OPERATOR:
        file = args.get("kernel_file")
        rows.add(
            "operators",
            thread=_thread(rows, event),
            **times,
            external_id=integer(args.get("External id")),
            sequence_number=integer(args.get("Sequence number")),
            forward_thread=integer(args.get("Fwd thread id")),
            input_dims=list_text(args.get("Input Dims", args.get("Input dims"))),
            input_types=list_text(args.get("Input type"), of_text=True),
            input_strides=list_text(args.get("Input Strides")),
            concrete_inputs=list_text(args.get("Concrete Inputs"), of_text=True),
            kernel_file=text_of(file) if isinstance(file, str) else None,
            message_bytes=_moved(args),
        )
        _add_communication(rows, times, args)
    elif (kind := _ACTIVITY_KIND.get(category)) is not None:
        _add_activity(rows, kind, event, times, args)
    elif category in _LAUNCH:
        rows.add("launches", thread=_thread(rows, event), **times, **_ids(args))
    elif category in _FRAME:
        rows.add("frames", thread=_thread(rows, event), **times)
    elif category in _OVERHEAD:
        rows.add("overheads", **times)
    elif category == _SYNCHRONIZATION:
        rows.add(
            "synchronizations",
            **times,
            device=integer(args.get("device"), _INT32),
            stream=_meant(args.get("stream")),
            event=_meant(args.get("wait_on_cuda_event_id")),
            correlation=integer(args.get("correlation")),
            awaited_stream=_meant(args.get("wait_on_stream")),
            recorded_by=integer(args.get("wait_on_cuda_event_record_corr_id")),
        )


def _meant(value: Any) -> int | None:
    """Return the number of a stream or an event; None for the numbers that stand for none, CUPTI's and Kineto's."""
    number = integer(value)
    return None if number is None or number < 0 or number == NOT_MEANT else number


def _thread(rows: Rows, event: Mapping[str, Any]) -> int:
    return rows.thread(identity(event.get("pid")), identity(event.get("tid")))


def identity(value: Any) -> str:
    """Return a process or thread as JSON text; 7 and "7" differ, 7 and 7.0 are the same."""
    if (number := _finite(value)) is not None and number == number.to_integral_value() and abs(number) < 1 << _INT64:
        return str(int(number))
    return json.dumps(value, default=str)


def _ids(args: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the columns ``correlation`` and ``external_id`` (the operator's id) of an event.

    Before PyTorch 1.13 the key of the latter was lower-case, and repeated the correlation id if there was no operator.
    """
    correlation = integer(args.get("correlation"))
    if "External id" in args or "external id" not in args:
        return {"correlation": correlation, "external_id": integer(args.get("External id"))}
    external = integer(args["external id"])
    return {"correlation": correlation, "external_id": None if external == correlation else external}


# Bytes of an element of a collective, by PyTorch's name of the type.
_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float"), 4),
    **dict.fromkeys(("Long", "Double"), 8),
}
_MOST_ELEMENTS: Final = 1 << 48  # so that their bytes fit into 64 bits


def _moved(args: Mapping[str, Any]) -> int | None:
    """Return the bytes that a copy or fill moved, or those of a collective's larger message; None if unknown."""
    if "bytes" in args:
        return integer(args["bytes"])
    counts = (integer(args.get("In msg nelems")), integer(args.get("Out msg nelems")))
    elements = max((count for count in counts if count is not None), default=-1)
    kind = args.get("dtype")
    size = _ELEMENT_BYTES.get(kind) if isinstance(kind, str) else None
    return elements * size if size is not None and 0 <= elements <= _MOST_ELEMENTS else None


def _add_activity(
    rows: Rows, kind: str, event: Mapping[str, Any], times: Mapping[str, object], args: Mapping[str, Any]
) -> None:
    # Kineto repeats the device as the event's process and the stream as its thread; very old traces have only those.
    collective, original = args.get("Collective name"), integer(args.get("original_stream"))
    rows.add(
        "activities",
        kind=kind,
        **{**times, "name": _name_of_copy(str(times["name"]), args) if kind == "memcpy" else times["name"]},
        device=integer(args.get("device", event.get("pid")), _INT32),
        # Since PyTorch 2.14, kernels of a graph stand on lanes of their own, and the stream beside them.
        stream=integer(args.get("stream", event.get("tid")) if original is None else original),
        context=integer(args.get("context")),
        **_ids(args),
        graph_id=integer(args.get("graph id")),
        graph_node_id=integer(args.get("graph node id")),
        bytes=_moved(args),
        grid=dim3(args.get("grid")),
        block=dim3(args.get("block")),
        registers_per_thread=integer(args.get("registers per thread"), _INT32),
        shared_memory_bytes=integer(args.get("shared memory")),
        theoretical_occupancy_percent=_float(args.get("est. achieved occupancy %")),
        collective=text_of(collective) if isinstance(collective, str) else None,
    )
    if kind == "kernel":
        _add_communication(rows, times, args)


def _name_of_copy(name: str, args: Mapping[str, Any]) -> str:
    """Return a copy's name with its direction; PyTorch 2.15 has that in the arguments, older versions in the name."""
    kind, *memories = (args.get(f"{part} kind") for part in ("copy", "src", "dst"))
    if name != "Memcpy" or not isinstance(kind, str):
        return name
    known = [str(memory).replace("_", " ").title() for memory in memories if isinstance(memory, str)]
    return text_of(f"Memcpy {kind} ({' -> '.join(known)})" if len(known) == 2 else f"Memcpy {kind}")


def _add_communication(rows: Rows, times: Mapping[str, object], args: Mapping[str, Any]) -> None:
    if not isinstance(args.get("Collective name"), str):
        return
    rows.add(
        "communications",
        start_ns=times["start_ns"],
        duration_ns=times["duration_ns"],
        **_ids(args),
        **{name: _name(args.get(key)) for name, key in COMMUNICATION_NAMES.items()},
        **{name: text_or_list(args.get(key)) for name, key in COMMUNICATION_LISTS.items()},
        **{name: integer(args.get(key), _INT32) for name, key in COMMUNICATION_PLACES.items()},
        **{name: integer(args.get(key)) for name, key in COMMUNICATION_COUNTS.items()},
    )


def _name(value: Any) -> str | None:
    return text_of(value) if isinstance(value, str) else None


def _add_allocation(rows: Rows, event: Mapping[str, Any], start: int, args: Mapping[str, Any]) -> None:
    rows.add(
        "allocations",
        thread=_thread(rows, event),
        time_ns=start,
        device_type=integer(args.get("Device Type"), _INT32),
        device=integer(args.get("Device Id"), _INT32),
        bytes=integer(args.get("Bytes")),
        total_allocated_bytes=integer(args.get("Total Allocated")),
        total_reserved_bytes=integer(args.get("Total Reserved")),
        address=integer(args.get("Addr")),
    )


_OF_DEVICE: Final = lazy_pattern(r"GPU ([0-9]{1,9}) Counters")


def _add_counter(rows: Rows, event: Mapping[str, Any], name: str, args: Mapping[str, Any]) -> bool:
    """Add the sample of a counter that has one number; return False if its time is impossible.

    Events of several numbers are other programs' and are left out.
    """
    time = time_ns_of(event.get("ts"))
    if time is None:
        return False
    process, (value,) = event.get("pid"), map(_float, args.values()) if len(args) == 1 else (None,)
    match = _OF_DEVICE.fullmatch(process) if isinstance(process, str) else None
    device = integer(match[1], _INT32) if match else None
    if value is not None:
        rows.add("counters", time_ns=time, device=device, name=name, value=value)
    return True


def text_of(value: Any) -> str:
    """Return a value as text: other types as JSON, and half a surrogate pair as a question mark."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode("utf-8", "replace").decode()


def list_text(value: Any, *, of_text: bool = False) -> str | None:
    """Return a recorded list as JSON text; None if it is absent or not a list.

    Args:
        value: the recorded value.
        of_text: whether every item must be text.
    """
    if not isinstance(value, list) or (of_text and not all(isinstance(item, str) for item in value)):
        return None
    try:
        return text_of(json.dumps(value, ensure_ascii=False, default=float, allow_nan=False))
    except (RecursionError, ValueError):  # nested too deeply; NaN or infinity
        return None


def text_or_list(value: Any) -> str | None:
    """Return a list that may be written as text, as PyTorch writes ranks, as text; None if it is neither."""
    return text_of(value) if isinstance(value, str) else list_text(value)


def dim3(value: Any) -> str | None:
    """Return a grid or a block as ``x,y,z``; None if it is not a list of numbers."""
    if not isinstance(value, list) or not value or any(integer(part) is None for part in value):
        return None
    return ",".join(str(integer(part)) for part in value)


def time_ns_of(value: Any) -> int | None:
    """Convert microseconds to integer nanoseconds without losing one to rounding; None if it is not a time."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = _decimal(value.strip())
    number = _finite(value)
    if number is None or abs(number) > LATEST_NS // _NS_PER_US:
        return None
    # Numbers with huge negative exponents are 0; rounding them would take digits beyond all bounds.
    return 0 if number.adjusted() < -_NS_PER_US else int((number * _NS_PER_US).to_integral_value())


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except ArithmeticError:  # an exponent beyond all bounds
        return None


_LARGEST: Final = 400  # digits of a number beyond which arithmetic overflows; a float has up to 309


def _finite(value: Any) -> Decimal | None:
    """Return a finite number; None for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(value)  # and not as a float: an integer may be larger than any
    return number if number.is_finite() and (not number or number.adjusted() <= _LARGEST) else None


def integer(value: Any, bits: int = _INT64) -> int | None:
    """Convert a value to an integer; None if it is not one, or needs more than ``bits`` bits besides the sign.

    Of text, the number at its end counts ("Stream 7"). Some producers write unset ids as 2**64-1.
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
    """Convert a finite number to a float; None for anything else."""
    number = _finite(value)
    return None if number is None or math.isinf(float(number)) else float(number)


def device_of(entry: Mapping[str, Any]) -> DeviceProperties | None:
    """Read a device of the header; None if it has no number. Some keys had other names before PyTorch 1.10."""
    index = integer(entry.get("id"))
    major = integer(entry.get("computeMajor", entry.get("major")))
    minor = integer(entry.get("computeMinor", entry.get("minor")))
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
        multiprocessors=integer(entry.get("numSms", entry.get("multiProcessorCount"))),
        memory_bytes=integer(entry.get("totalGlobalMem")),
        threads_per_multiprocessor=integer(threads),
        registers_per_multiprocessor=integer(entry.get("regsPerMultiprocessor")),
        shared_memory_per_multiprocessor_bytes=integer(entry.get("sharedMemPerMultiprocessor")),
        vendor="amd" if is_amd else None,
    )
