"""Reads SQLite exports of Nsight Systems (``nsys export --type sqlite``), versions 2021 to now, into a `Trace`.

The schema is that of NVIDIA's Nsight Systems User Guide, "SQLite Schema Reference". It changes from version to version,
and tables without rows are left out. So any table or column may be missing, and its values are then unknown. A file may
hold several processes; correlation ids are unique only within a process, so they are made unique here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from opscope.base.demangle import readable_names
from opscope.base.errors import NotATraceError
from opscope.readers import rpd
from opscope.readers.content import Content
from opscope.readers.cupti_names import (
    ACCESSES,
    DIRECTIONS,
    MEMORY,
    MIGRATION_CAUSES,
    NOT_MEANT,
    SYNCHRONIZATIONS,
    call_name,
    cause,
    copy_name,
    fill_name,
    named,
)
from opscope.readers.database import Database, Row, opened
from opscope.readers.events import LATEST_NS, build_trace, shaped, told_apart
from opscope.trace.model import DeviceProperties, Migration, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

_KERNELS, _COPIES, _FILLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
_CALLS, _WAITS, _GRAPHS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE"))
_CPU_FAULTS, _GPU_FAULTS = (f"CUDA_UM_{name}_PAGE_FAULT_EVENTS" for name in ("CPU", "GPU"))
_RANGES: Final = "NVTX_EVENTS"
_USED: Final = (_KERNELS, _COPIES, _FILLS, _CALLS, _WAITS, _GRAPHS, _CPU_FAULTS, _GPU_FAULTS, _RANGES)
_OF_CUDA: Final = frozenset(_USED) - {_RANGES}
_API_CLASSES: Final = (0, 1)  # of the runtime and of the driver; others in the table repeat calls, with their stacks
# Kinds of copies that are migrations of unified memory: they are in the table of copies here.
_UNIFIED: Final = {11: Migration.TO_DEVICE, 12: Migration.TO_HOST, 13: Migration.BETWEEN_DEVICES}
# Its own numbers for kinds of memory: one less than CUPTI's; other numbers are unknown.
_MEMORY: Final = MEMORY[1:]
_PUSH_POP, _START_END, _DOMAIN = (59, 70), (60, 71), 75  # eventType of NVTX_EVENTS
_NO_NAME: Final = 255  # beyond the numbers that have one
_WARNING: Final = 2
_SHOWN_WARNINGS: Final = 5


def parse(content: Content) -> Trace:
    """Turn a database of Nsight Systems, or of another profiler that writes one, into a trace.

    Raises:
        NotATraceError: it is an SQLite database of another program.
        BadInputError: the database cannot be read, or holds more than its size allows.
    """
    with opened(content) as database:
        if any(name.startswith("rocpd_") for name in database.columns) and rpd.OPERATIONS not in database.columns:
            raise NotATraceError(
                f"{database.path} is a database of ROCm's profilers without the table {rpd.OPERATIONS}: opscope reads "
                "those of rocmProfileData"
            )
        return rpd.parsed(database) if rpd.OPERATIONS in database.columns else _Export(database).trace()


class _Export:
    def __init__(self, database: Database) -> None:
        self._database, self._columns = database, database.columns
        if not {"id", "value"} <= self._columns.get("StringIds", set()) or not any(
            name in self._columns for name in (*_USED, "TARGET_INFO_GPU")
        ):
            raise NotATraceError(
                f"{database.path} is an SQLite database, and none that Nsight Systems exported: it has no table "
                "StringIds, or none of CUDA or NVTX"
            )
        self._texts = database.texts("StringIds", "id", "value")
        self._begin_ns = self._one("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0
        self._pairs: dict[tuple[str, str], int] = {}
        self._processes: dict[int, int] = {}
        self._odd = self._count = 0

    def trace(self) -> Trace:
        annotations, ranges, operators = self._named_ranges()
        frames = {
            **{name: pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()},
            "launches": self._launches(),
            "activities": pl.concat([self._kernels(), self._copies(), self._fills(), self._graphs()]),
            "annotations": annotations,
            "ranges": ranges,
            "operators": operators,
            "synchronizations": self._synchronizations(),
            "migrations": self._migrations(),
        }
        ordered = {pair: number for number, pair in enumerate(sorted(self._pairs))}
        numbers = pl.Series([ordered[pair] for pair in self._pairs], dtype=pl.Int32)
        frames = {
            name: frame.with_columns(thread=numbers.gather(frame["thread"])) if _has_threads(frame) else frame
            for name, frame in frames.items()
        }
        source = TraceSource(
            path=self._database.path,
            format="Nsight Systems",
            size_bytes=self._database.size_bytes,
            event_count=self._count,
            replaced_bytes=0,
            odd_events=self._odd,
            unreadable_bytes=0,
            damage=self._database.damage,
            metadata=self._metadata(),
            not_recorded=tuple(self._warnings()),
        )
        return build_trace(source, tuple(self._devices()), tuple(ordered), frames)

    # ------------------------------------------------------------ what is said of the recording

    def _metadata(self) -> dict[str, str]:
        rows = self._rows("META_DATA_EXPORT", ("name", "value"), texts=True)
        results = {str(name): str(value) for name, value in rows if value is not None}
        version = results.get("EXPORT_PRODUCT_VERSION") or results.get("EXPORT_SCHEMA_VERSION")
        return {} if version is None else {"profiler_version": version[:60]}

    def _warnings(self) -> Iterator[str]:
        rows = self._rows("DIAGNOSTIC_EVENT", ("severity", "text"), texts=True)
        texts = list(dict.fromkeys(str(text) for severity, text in rows if _whole(severity) >= _WARNING and text))
        yield from (f"Nsight Systems says: {text.strip()}" for text in texts[:_SHOWN_WARNINGS])
        if len(texts) > _SHOWN_WARNINGS:
            yield f"It has {len(texts) - _SHOWN_WARNINGS} more warnings."
        if not self._columns.keys() & _OF_CUDA:
            yield "It has no table of CUDA, as nsys profile records without --trace=cuda, or where nothing used CUDA."
        if _GRAPHS in self._columns:
            yield (
                "CUDA graphs were recorded as wholes: their kernels are unknown (nsys profile --cuda-graph-trace=node "
                "records them)."
            )

    def _devices(self) -> Iterator[DeviceProperties]:
        wanted = ("id", "computeMajor", "computeMinor", "smCount", "totalMemory", "maxWarpsPerSm", "threadsPerWarp",
                  "maxRegistersPerSm", "maxShmemPerSm")  # fmt: skip
        # As texts, ids too: so numbers and names are two queries, joined by the id's text.
        names: dict[Any, Any] = dict(self._rows("TARGET_INFO_GPU", ("id", "name"), texts=True))
        for index, major, minor, count, memory, warps, threads, registers, shared in self._rows(
            "TARGET_INFO_GPU", wanted
        ):
            if index is not None:
                yield DeviceProperties(
                    index=index,
                    name=str(names.get(str(index)) or "unknown"),
                    compute_capability=None if major is None else f"{major}.{minor or 0}",
                    multiprocessors=count,
                    memory_bytes=memory,
                    threads_per_multiprocessor=warps * threads if warps and threads else None,
                    registers_per_multiprocessor=registers,
                    shared_memory_per_multiprocessor_bytes=shared,
                )

    # ------------------------------------------------------------ tables

    def _launches(self) -> pl.DataFrame:
        wanted = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue")
        kind = pl.col("eventClass")
        frame = self._timed(_CALLS, wanted, kind.is_null() | kind.is_in(_API_CLASSES))
        columns = {
            "thread": self._threads_of(frame["globalTid"]),
            "name": _mapped(frame["nameId"], lambda number: call_name(self._text(number))),
            "correlation": self._correlations(frame, "globalTid"),
            "status": frame["returnValue"],
        }
        return shaped("launches", frame.select("start_ns", "duration_ns").with_columns(**columns))

    def _kernels(self) -> pl.DataFrame:
        wanted = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid",
                  "mangledName", "demangledName", "shortName", "registersPerThread", "gridX", "gridY", "gridZ",
                  "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId",
                  "graphId")  # fmt: skip
        frame = self._timed(_KERNELS, wanted)
        shown = _mapped(frame.select(pl.coalesce("demangledName", "shortName")).to_series(), self._text)
        # Names for display have T1 in place of types of parameters.
        full = readable_names(self._text(number) for number in frame["mangledName"].unique())
        in_full = _mapped(frame["mangledName"], lambda number: full.get(self._text(number)))
        names = pl.DataFrame([in_full.alias("full"), shown.alias("shown")])
        return self._activities(
            frame,
            "kernel",
            names.select(pl.coalesce("full", "shown")).to_series(),
            grid=pl.concat_str("gridX", "gridY", "gridZ", separator=","),
            block=pl.concat_str("blockX", "blockY", "blockZ", separator=","),
            registers_per_thread=pl.col("registersPerThread"),
            shared_memory_bytes=pl.col("staticSharedMemory") + pl.col("dynamicSharedMemory"),
        )

    def _copies(self) -> pl.DataFrame:
        wanted = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes",
                  "copyKind", "srcKind", "dstKind", "graphNodeId")  # fmt: skip
        kind = pl.col("copyKind")
        frame = self._timed(_COPIES, wanted, kind.is_null() | ~kind.is_in(list(_UNIFIED)))
        # Three small numbers as one. Unknown ones become 255, which has no name.
        parts = [pl.col(name).fill_null(_NO_NAME).clip(0, _NO_NAME) for name in ("copyKind", "srcKind", "dstKind")]
        code = frame.select((parts[0] * 256 + parts[1]) * 256 + parts[2]).to_series()
        return self._activities(frame, "memcpy", _mapped(code, _copy_name), bytes=pl.col("bytes"))

    def _fills(self) -> pl.DataFrame:
        wanted = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "memKind",
                  "graphNodeId")  # fmt: skip
        frame = self._timed(_FILLS, wanted)
        names = _mapped(frame["memKind"], lambda memory: fill_name(named(_MEMORY, memory)))
        return self._activities(frame, "memset", names, bytes=pl.col("bytes"))

    def _graphs(self) -> pl.DataFrame:
        """Return launches of graphs that were recorded as a whole, as one activity each, under a name that says so."""
        wanted = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId")
        frame = self._timed(_GRAPHS, wanted)
        names = pl.repeat("(a CUDA graph as a whole)", frame.height, dtype=pl.String, eager=True)
        return self._activities(frame, "kernel", names)

    def _activities(self, frame: pl.DataFrame, kind: str, names: pl.Series, **own: pl.Expr) -> pl.DataFrame:
        """Build rows of ``activities``.

        Args:
            frame: columns of the export, from `_timed`.
            kind: kernel, memcpy or memset.
            names: of the activities.
            own: further columns, which only this kind has.
        """
        numbers = {"graph_id": "graphId", "graph_node_id": "graphNodeId"}
        graph = {to: pl.col(of).replace(0, None) for to, of in numbers.items() if of in frame.columns}
        columns = frame.select(
            "start_ns",
            "duration_ns",
            device=pl.col("deviceId"),
            stream=pl.col("streamId"),
            context=pl.col("contextId"),
            **graph,
            **own,
        )
        correlation = self._correlations(frame, "globalPid")
        return shaped("activities", columns.with_columns(kind=pl.lit(kind), name=names, correlation=correlation))

    def _synchronizations(self) -> pl.DataFrame:
        wanted = ("start", "end", "deviceId", "streamId", "eventId", "syncType", "correlationId", "globalPid")
        frame = self._timed(_WAITS, wanted)
        columns = frame.select(
            "start_ns",
            "duration_ns",
            device=pl.col("deviceId"),
            stream=pl.col("streamId").replace(NOT_MEANT, None),
            event=pl.col("eventId").replace(NOT_MEANT, None),
        )
        names = _mapped(frame["syncType"], lambda kind: named(SYNCHRONIZATIONS, kind, SYNCHRONIZATIONS[0]))
        correlation = self._correlations(frame, "globalPid")
        return shaped("synchronizations", columns.with_columns(name=names, correlation=correlation))

    def _migrations(self) -> pl.DataFrame:
        return self._frame("migrations", (*self._moved(), *self._faults_of_cpu(), *self._faults_of_gpu()))

    def _moved(self) -> Iterator[Mapping[str, object]]:
        wanted = ("start", "end", "deviceId", "globalPid", "bytes", "copyKind", "virtualAddress", "migrationCause")
        for start, end, device, process, size, kind, address, why in self._rows(_COPIES, wanted):
            times = self._times(start, end) if kind in _UNIFIED else None
            if times:
                yield {
                    "name": str(_UNIFIED[kind]),
                    "thread": self._thread(process, main=True),
                    "device": device,
                    "address": _bounded(address),
                    "bytes": size,
                    "cause": cause(MIGRATION_CAUSES, why),
                    **times,
                }

    def _faults_of_cpu(self) -> Iterator[Mapping[str, object]]:
        for start, process, address in self._rows(_CPU_FAULTS, ("start", "globalPid", "address")):
            if times := self._times(start, start):
                thread = self._thread(process, main=True)
                yield {
                    "name": str(Migration.CPU_FAULT),
                    "thread": thread,
                    "address": _bounded(address),
                    "faults": 1,
                    **times,
                }

    def _faults_of_gpu(self) -> Iterator[Mapping[str, object]]:
        wanted = ("start", "end", "globalPid", "deviceId", "address", "numberOfPageFaults", "faultAccessType")
        for start, end, process, device, address, faults, access in self._rows(_GPU_FAULTS, wanted):
            if times := self._times(start, end):
                yield {
                    "name": str(Migration.GPU_FAULT),
                    "thread": self._thread(process, main=True),
                    "device": device,
                    "address": _bounded(address),
                    "faults": faults,
                    "cause": cause(ACCESSES, access),
                    **times,
                }

    def _named_ranges(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return NVTX ranges that nest on their thread (push/pop), those that need not (start/end), and operators.

        Operators are ranges too, where PyTorch makes them (``emit_nvtx``).
        """
        wanted = ("start", "end", "eventType", "globalTid", "textId", "domainId")
        numbers = self._rows(_RANGES, wanted)
        texts = [row[0] for row in self._rows(_RANGES, ("text",), texts=True)]
        known = [time for row in numbers for time in row[:2] if time is not None]
        last = max(known, default=0)  # a range that never ended is taken to last until then

        def name_of(text_id: int | None, text: object) -> str:
            return self._text(text_id) if text_id is not None else str(text or "")

        domains = {
            (domain, _process_of(thread)): name_of(text_id, text)
            for (_, _, kind, thread, text_id, domain), text in zip(numbers, texts, strict=True)
            if kind == _DOMAIN
        }
        results: dict[tuple[int, ...], list[Mapping[str, object]]] = {_PUSH_POP: [], _START_END: []}
        for (start, end, kind, thread, text_id, domain), text in zip(numbers, texts, strict=True):
            kinds = next((kinds for kinds in results if kind in kinds), None)
            times = self._times(start, last if end is None else end) if kinds else None
            if kinds and times:
                named = domains.get((domain, _process_of(thread)), "")
                name = name_of(text_id, text)
                full = f"{named}:{name}" if named else name
                results[kinds].append({"thread": self._thread(thread), "name": full, **times})
        annotations, operators = told_apart(self._frame("annotations", results[_PUSH_POP]))
        return annotations, self._frame("ranges", results[_START_END]), operators

    # ------------------------------------------------------------ values

    def _rows(self, table: str, wanted: Sequence[str], *, texts: bool = False) -> list[Row]:
        return self._database.rows(table, wanted, texts=texts)

    def _timed(self, table: str, wanted: Sequence[str], only: pl.Expr | None = None) -> pl.DataFrame:
        """Return columns of the rows with possible times, and add ``start_ns`` and ``duration_ns``.

        Args:
            table: the table.
            wanted: its columns; ``start`` and ``end`` must be among them.
            only: which rows; None takes all.
        """
        schema = dict.fromkeys(wanted, pl.Int64)
        result = pl.DataFrame(self._rows(table, wanted), schema=schema, orient="row")
        result = result if only is None else result.filter(only)
        begin, end, most = pl.col("start"), pl.col("end"), LATEST_NS - self._begin_ns
        possible = begin.is_between(-LATEST_NS, most, closed="none") & end.is_between(begin, most, closed="left")
        kept = result.filter(possible)
        self._count += result.height
        self._odd += result.height - kept.height
        return kept.with_columns(start_ns=begin + self._begin_ns, duration_ns=end - begin)

    def _threads_of(self, numbers: pl.Series) -> pl.Series:
        return _mapped(numbers, self._thread, pl.Int32)

    def _correlations(self, frame: pl.DataFrame, process: str) -> pl.Series:
        """Return correlation ids that are unique over all processes: the process's number is in the upper 32 bits."""
        own = frame["correlationId"]
        numbers = _mapped(frame[process], lambda number: self._process_number(_process_of(number)), pl.Int64)
        known = own.is_between(0, NOT_MEANT)
        return (numbers * (1 << 32) + own).set(~known.fill_null(value=False), None)

    def _process_number(self, process: int) -> int:
        return self._processes.setdefault(process, len(self._processes))

    def _one(self, table: str, column: str) -> int | None:
        rows = self._rows(table, (column,))
        value = rows[0][0] if rows else None
        return value if isinstance(value, int) and 0 <= value < LATEST_NS else None

    def _times(self, start: int | None, end: int | None) -> dict[str, int] | None:
        """Return the columns of a start and a duration; None if the times are impossible, which is counted."""
        self._count += 1
        if start is None or end is None or not -LATEST_NS < start + self._begin_ns <= end + self._begin_ns < LATEST_NS:
            self._odd += 1
            return None
        return {"start_ns": start + self._begin_ns, "duration_ns": end - start}

    def _text(self, number: int | None) -> str:
        return str(self._texts.get(number) or "") if number is not None else ""

    def _thread(self, number: int | None, *, main: bool = False) -> int:
        """Return a preliminary number for the thread (or the process's main thread) in a global id; see `trace`."""
        process = _process_of(number)
        thread = process if main or number is None else number & 0xFFFFFF
        return self._pairs.setdefault((str(process), str(thread)), len(self._pairs))

    def _frame(self, table: str, rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
        schema = SCHEMAS[table]
        columns: dict[str, list[object]] = {name: [] for name in schema}
        for row in rows:
            for name, values in columns.items():
                values.append(row.get(name))
        return pl.DataFrame(
            {name: pl.Series(name, _fitting(columns[name], dtype), dtype=dtype) for name, dtype in schema.items()}
        )


def _copy_name(code: int | None) -> str:
    code = 0xFFFFFF if code is None else code
    return copy_name(named(DIRECTIONS, code >> 16), named(_MEMORY, code >> 8 & 0xFF), named(_MEMORY, code & 0xFF))


def _mapped(codes: pl.Series, value_of: Callable[[int | None], Any], dtype: Any = pl.String) -> pl.Series:
    """Map a column of numbers to values; each distinct number is looked up once."""
    result = codes.unique()
    values = pl.Series([value_of(code) for code in result], dtype=dtype)
    table = pl.DataFrame({"code": result, "value": values})
    joined = pl.DataFrame({"code": codes}).join(table, on="code", how="left", nulls_equal=True, maintain_order="left")
    return joined["value"]


def _has_threads(frame: pl.DataFrame) -> bool:
    return "thread" in frame.columns and frame.height > 0


def _process_of(number: int | None) -> int:
    """Return the process in a global id, which has 8 bits each for hardware and VM, 24 each for process and thread."""
    return 0 if number is None else number >> 24 & 0xFFFFFF


def _whole(value: object) -> int:
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else 0


def _bounded(address: int | None) -> int | None:
    return None if address is None else min(address & 0xFFFFFFFFFFFFFFFF, LATEST_NS)


def _fitting(values: list[object], dtype: Any) -> list[object]:
    """Replace numbers that the column cannot hold by None."""
    if dtype not in (pl.Int32, pl.Int64):
        return values
    most = (1 << 31) - 1 if dtype == pl.Int32 else LATEST_NS
    return [value if isinstance(value, int) and -most <= value <= most else None for value in values]
