"""Turns a recording of opscope's CUDA collector (``opscope exec``), which is of one process, into a `Trace`.

``cupti_names.py`` has the meanings of CUPTI's numbers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from opscope.base.errors import BadInputError
from opscope.base.files import path_text
from opscope.base.text import lazy_pattern
from opscope.base.units import NS_PER_S
from opscope.readers.content import Content
from opscope.readers.cuda_file import CudaFile, RecordArray, read_cuda_file
from opscope.readers.cupti_names import (
    ACCESSES,
    DIRECTIONS,
    MAPPING_CAUSES,
    MEMORY,
    MIGRATION_CAUSES,
    MIGRATIONS,
    NOT_MEANT,
    OVERHEADS,
    RECORDS,
    SYNCHRONIZATIONS,
    call_name,
    cause,
    copy_name,
    fill_name,
    named,
)
from opscope.readers.events import LATEST_NS, build_trace, shaped, told_apart
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, InputFile, whole
from opscope.record.sweep import rank_and_size
from opscope.trace.model import DeviceProperties, Migration, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

_Ints = npt.NDArray[np.int64]

_NUMBER: Final = lazy_pattern(r"[0-9]{1,9}")
_DRIVER_CALL: Final = 0x8000  # the bit that marks a call of the driver; others are the runtime's
_SAME_CLOCK_NS: Final = 10_000  # reading two clocks one after the other takes less
_TRANSFERS: Final = (Migration.TO_DEVICE, Migration.TO_HOST, Migration.BETWEEN_DEVICES)
_CAUSES: Final = {
    **dict.fromkeys(_TRANSFERS, MIGRATION_CAUSES),
    Migration.GPU_FAULT: ACCESSES,
    Migration.REMOTE_MAPPING: MAPPING_CAUSES,
}
_FAILED_KIND: Final = lazy_pattern(r"activities of kind (\d{1,6}): (.*)", re.DOTALL)
_NOT_ALLOWED: Final = "INSUFFICIENT_PRIVILEGES"
# The numbers of `Happened` in collector.cpp.
_STARTED, _FINISHED, _FAILED, _STEPPED_ASIDE, _REFUSED, _HINDERED = range(1, 7)
_PUSH_POP: Final = 1  # of `Style` in nvtx.h
_RATIO: Final = 60  # of what a packed recording unpacks to; recordings of tests/data/exec have 3 to 5
_UNSUSPICIOUS: Final = 32 << 20  # bytes that a recording may unpack to, however small it is
_OBJECTS: Final[Mapping[int, str]] = {2: "thread", 3: "device", 5: "stream"}  # that NVTX names
# Libraries of other clients of CUPTI, by how their names begin.
_CLIENTS: Final = (
    ("libtorch", "torch.profiler"),
    ("libkineto", "torch.profiler"),
    ("libproton", "Triton's Proton"),
    ("libtriton", "Triton's Proton"),
    ("xla_extension", "XLA's profiler"),
    ("libtensorflow", "TensorFlow's profiler"),
)
_ENVIRONMENT: Final = "environment "  # how the names of facts about variables begin


def parse(content: Content) -> Trace:
    """Turn a collector's file into a trace.

    Raises:
        BadInputError: the file is empty, not a recording, has other columns, or unpacks suspiciously much.
    """
    source, path = content.source, path_text(content.source.path)
    _refuse_padded(source, path)
    try:
        file = read_cuda_file(whole(content.reader).take(), path)
        return _Reading(file).trace(path, source.size_bytes, source.damage or file.damage)
    except (KeyError, ValueError, IndexError, OverflowError, TypeError, pl.exceptions.PolarsError) as error:
        raise BadInputError(f"{path} does not hold what opscope exec writes: {error}") from error


def _refuse_padded(source: InputFile, path: str) -> None:
    """Refuse a file that unpacks to far more than its size, unless the user set the limit.

    Times and correlation ids grow from row to row, so honest recordings unpack to three to twenty times their size.
    Files of equal rows, made to exhaust memory, unpack to far more.
    """
    try:
        packed = source.path.stat().st_size if source.path.is_file() else source.size_bytes
    except OSError:
        return
    if source.max_bytes == MAX_UNPACKED_BYTES and source.size_bytes > max(_UNSUSPICIOUS, _RATIO * packed):
        raise BadInputError(
            f"{path} unpacks to more than {_RATIO} times its size, as recordings do not: set the limit with "
            "--max-input if it is what you expect"
        )


class _Reading:
    def __init__(self, file: CudaFile) -> None:
        self._file = file
        facts = file.tables["facts"]
        self._facts = dict(
            zip(map(file.text, facts["key"].tolist()), map(file.text, facts["value"].tolist()), strict=True)
        )
        self._process = self._facts.get("process", "0")
        pairs = {(self._process, self._process)}
        threads = file.tables["threads"]
        self._thread_ids = dict(zip(threads["number"].tolist(), map(str, threads["id"].tolist()), strict=True))
        pairs.update((self._process, thread) for thread in self._thread_ids.values())
        self._threads = tuple(sorted(pairs))
        self._shift_ns = self._clock_shift()
        self._odd = 0
        # Texts as categories: columns refer to them by number. The added last one stands for missing texts.
        self._texts = pl.Series([*file.texts, ""], dtype=pl.Categorical)

    def trace(self, path: str, size_bytes: int, damage: str | None) -> Trace:
        annotations, ranges, operators = self._named_ranges()
        frames = {
            **{name: pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()},
            "launches": self._launches(),
            "activities": pl.concat([self._kernels(), self._copies(), self._fills()]),
            "annotations": annotations,
            "ranges": ranges,
            "operators": operators,
            "synchronizations": self._synchronizations(),
            "migrations": self._migrations(),
            "overheads": self._overheads(),
        }
        source = TraceSource(
            path=path,
            format="opscope exec",
            size_bytes=size_bytes,
            event_count=sum(len(rows) for rows in self._file.tables.values()),
            replaced_bytes=0,
            odd_events=self._odd,
            unreadable_bytes=0,
            damage=damage,
            metadata=self._metadata(),
            not_recorded=tuple(self._not_recorded()),
            dropped_records=int(self._file.tables["dropped"]["records"].sum()),
        )
        return build_trace(source, tuple(self._devices()), self._threads, frames)

    # ------------------------------------------------------------ what is said of the recording

    def _metadata(self) -> dict[str, str]:
        facts = self._facts
        results = {
            "program": PurePath(facts.get("executable", "")).name,
            "process": facts.get("process", ""),
            "parent": facts.get("parent", ""),
            "host": facts.get("host", ""),
            "cupti_version": facts.get("cupti", ""),
        }
        if (rank := self._rank()) is not None:
            results["distributedInfo"] = json.dumps(rank)
        names = {f"thread {row['id']}": self._file.text(row["name"]) for row in self._file.tables["threads"]}
        names |= {
            f"{_OBJECTS[int(row['object_kind'])]} {row['object']}": self._file.text(row["name"])
            for row in self._file.tables["names"]
            if int(row["object_kind"]) in _OBJECTS
        }
        return {key: value for key, value in {**names, **results}.items() if value}

    def _rank(self) -> dict[str, int] | None:
        environment = {key.removeprefix(_ENVIRONMENT): value for key, value in self._facts.items()
                       if key.startswith(_ENVIRONMENT) and _NUMBER.fullmatch(value)}  # fmt: skip
        rank, world = rank_and_size(environment)
        if rank is None:
            return None
        return {"rank": rank} if world is None else {"rank": rank, "world_size": world}

    def _not_recorded(self) -> Iterator[str]:
        """Yield sentences on what the recording lacks, from the collector's events."""
        events = [(int(row["time_ns"]), int(row["event"]), row["text"]) for row in self._file.tables["events"]]
        began = next((time for time, event, _ in events if event == _STARTED), None)
        for time, event, number in events:
            text = self._file.text(number)
            if event == _FAILED:
                yield f"Not recorded: {_failure(text)}."
            elif event == _REFUSED:
                yield f"Another client of CUPTI was there before ({text}): no CUDA activity was recorded."
            elif event == _STEPPED_ASIDE:
                after = "" if began is None else f" {(time - began) / NS_PER_S:.3f} s after recording began"
                whole = "" if any(other == _HINDERED for _, other, _ in events) else " Its own results are whole."
                yield (
                    f"{_client(text)} began to use CUPTI{after}, which serves one client: nothing was recorded from "
                    f"then on.{whole}"
                )
            elif event == _HINDERED:
                library, _, code = text.rpartition(" ")
                yield f"{_client(library)} could not use CUPTI (error {code}): run it without opscope exec."
        if began is None and "cupti" in self._facts and not events:
            yield "The collector did not begin to record what CUDA did."
        if began is not None and not any(event in (_FINISHED, _STEPPED_ASIDE) for _, event, _ in events):
            yield self._cut_off(began)
        untimed = sum(int((self._file.tables[name]["start_ns"] == 0).sum()) for name in ("kernels", "nodes", "copies"))
        if untimed:
            yield f"CUPTI could collect no times of {untimed:,} activities: they are left out."

    def _cut_off(self, began: int) -> str:
        flushes = self._file.tables["flushes"]
        last = int(flushes["time_ns"][-1]) if len(flushes) else began
        kept = bool(len(flushes) and flushes["kept_buffers"][-1])
        return (
            "The process ended without a last flush: it crashed, was killed, called _exit or became another program, "
            "or its recording could not be written on. "
            f"What came later than {(last - began) / NS_PER_S:.3f} s after recording began is lost"
            + (", and what had not ended by then." if kept else ".")
        )

    def _clock_shift(self) -> int:
        """Return what to add to CUPTI's times to get those of the system's real-time clock.

        They are the same clock, and the result is 0, unless another client of CUPTI sets another.
        """
        clocks = self._file.tables["clocks"]
        known = clocks[clocks["cupti_ns"] > 0]
        if not len(known):
            return 0
        shift = int(known["realtime_ns"][0]) - int(known["cupti_ns"][0])
        return shift if abs(shift) > _SAME_CLOCK_NS else 0

    def _devices(self) -> Iterator[DeviceProperties]:
        for row in self._file.tables["devices"]:
            yield DeviceProperties(
                index=int(row["device"]),
                name=self._file.text(row["name"]),
                compute_capability=f"{row['major']}.{row['minor']}",
                multiprocessors=int(row["multiprocessors"]),
                memory_bytes=int(row["memory_bytes"]),
                threads_per_multiprocessor=int(row["warps_per_multiprocessor"]) * int(row["threads_per_warp"]),
                registers_per_multiprocessor=int(row["registers_per_multiprocessor"]),
                shared_memory_per_multiprocessor_bytes=int(row["shared_bytes_per_multiprocessor"]),
                uuid=self._file.text(row["uuid"]) or None,
            )

    # ------------------------------------------------------------ tables

    def _timed(self, name: str, end: str | None = None) -> tuple[RecordArray, _Ints, _Ints]:
        """Return a table's rows with possible times, their starts (shifted) and their durations, in nanoseconds."""
        rows = self._file.tables[name]
        start = rows["start_ns"].astype(np.int64)
        duration = (rows[end].astype(np.int64) - start) if end else rows["duration_ns"].astype(np.int64)
        untimed = start == 0  # CUPTI could collect no times; `_not_recorded` counts these
        possible = (start > 0) & (start < LATEST_NS) & (duration >= 0) & (duration < LATEST_NS)
        self._odd += int((~possible & ~untimed).sum())
        return rows[possible], start[possible] + self._shift_ns, duration[possible]

    def _text_of(self, numbers: npt.NDArray[Any]) -> pl.Series:
        return self._texts.gather(np.minimum(numbers.astype(np.int64), len(self._file.texts)))

    def _thread_of(self, numbers: npt.NDArray[Any]) -> _Ints:
        """Translate the collector's thread numbers into the trace's; unknown ones become the main thread."""
        places = {pair: number for number, pair in enumerate(self._threads)}
        main = places[self._process, self._process]
        different, place = np.unique(numbers, return_inverse=True)
        results = [
            places[self._process, self._thread_ids[number]] if number in self._thread_ids else main
            for number in different.tolist()
        ]
        return np.array(results, np.int64)[place]

    def _launches(self) -> pl.DataFrame:
        rows, start, duration = self._timed("api")
        names = {int(row["call"]): self._file.text(row["name"]) for row in self._file.tables["calls"]}
        short = {call: name if call & _DRIVER_CALL else call_name(name) for call, name in names.items()}
        # Only calls that failed are listed there; all others returned 0.
        failures = self._file.tables["failures"]
        failed = pl.DataFrame(
            {name: failures[name].astype(np.int64) for name in ("correlation", "call", "status")}
        ).unique(("correlation", "call"), keep="first")
        table = pl.DataFrame(
            {
                "thread": self._thread_of(rows["thread"]),
                "name": _mapped(rows["call"], lambda call: short.get(call, f"call {call}")),
                "start_ns": start,
                "duration_ns": duration,
                "correlation": rows["correlation"].astype(np.int64),
                "call": rows["call"].astype(np.int64),
            }
        ).join(failed, on=("correlation", "call"), how="left", maintain_order="left")
        return shaped("launches", table.with_columns(pl.col("status").fill_null(0)))

    def _kernels(self) -> pl.DataFrame:
        return pl.concat([self._kernels_of("kernels"), self._kernels_of("nodes")])

    def _kernels_of(self, name: str) -> pl.DataFrame:
        rows, start, duration = self._timed(name)
        # Rows refer to their launch configuration by number, which is its position in that table.
        ways = self._file.tables["launches"]
        if (ways["number"] != np.arange(len(ways))).any() or (len(rows) and int(rows["launch"].max()) >= len(ways)):
            raise ValueError("a kernel refers to no launch")
        of = rows["launch"].astype(np.int64)
        columns: dict[str, Any] = {
            "kind": _constant("kernel", len(rows)),
            "name": self._text_of(ways["name"]).gather(of) if len(rows) else [],
            "device": ways["device"][of],
            "stream": ways["stream"][of],
            "start_ns": start,
            "duration_ns": duration,
            "correlation": rows["correlation"],
            "grid": _dimensions(ways, "grid").gather(of) if len(rows) else [],
            "block": _dimensions(ways, "block").gather(of) if len(rows) else [],
            "registers_per_thread": ways["registers"][of],
            "shared_memory_bytes": (ways["static_shared_bytes"] + ways["dynamic_shared_bytes"])[of],
        }
        if name == "nodes":
            columns |= {"graph_id": rows["graph"], "graph_node_id": rows["node"]}
        return shaped("activities", pl.DataFrame(columns))

    def _copies(self) -> pl.DataFrame:
        rows, start, duration = self._timed("copies")
        # Direction and both kinds of memory as one number, so that each combination is named once.
        code = rows["direction"].astype(np.int64) << 16 | rows["source"].astype(np.int64) << 8 | rows["destination"]
        return self._transfers("memcpy", rows, start, duration, _mapped(code, _copy_name))

    def _fills(self) -> pl.DataFrame:
        rows, start, duration = self._timed("fills")
        names = _mapped(rows["memory"], lambda memory: fill_name(named(MEMORY, memory)))
        return self._transfers("memset", rows, start, duration, names)

    def _transfers(self, kind: str, rows: RecordArray, start: _Ints, duration: _Ints, names: pl.Series) -> pl.DataFrame:
        table = pl.DataFrame(
            {
                "kind": _constant(kind, len(rows)),
                "name": names,
                "device": rows["device"],
                "stream": rows["stream"],
                "start_ns": start,
                "duration_ns": duration,
                "correlation": rows["correlation"],
                "graph_id": rows["graph"].astype(np.int64),
                "graph_node_id": rows["node"].astype(np.int64),
                "bytes": np.minimum(rows["bytes"], np.uint64(LATEST_NS)),
            }
        )
        in_graph = pl.col("graph_node_id") != 0
        return shaped("activities", table.with_columns(pl.when(in_graph).then(pl.col("graph_id", "graph_node_id"))))

    def _synchronizations(self) -> pl.DataFrame:
        rows, start, duration = self._timed("synchronizations")
        contexts = self._file.tables["contexts"]
        devices = dict(zip(contexts["context"].tolist(), contexts["device"].tolist(), strict=True))
        table = pl.DataFrame(
            {
                "name": _mapped(rows["kind"], lambda kind: named(SYNCHRONIZATIONS, kind, SYNCHRONIZATIONS[0])),
                "device": pl.Series([devices.get(context) for context in rows["context"].tolist()], dtype=pl.Int32),
                "stream": rows["stream"].astype(np.int64),
                "event": rows["event"].astype(np.int64),
                "start_ns": start,
                "duration_ns": duration,
                "correlation": rows["correlation"],
            }
        )
        return shaped("synchronizations", table.with_columns(pl.col("stream", "event").replace(NOT_MEANT, None)))

    def _migrations(self) -> pl.DataFrame:
        rows = self._file.tables["unified_memory"]
        rows = rows[np.isin(rows["kind"], list(MIGRATIONS))]
        start, end = rows["start_ns"].astype(np.int64), rows["end_ns"].astype(np.int64)
        kind = rows["kind"].astype(np.int64)
        moved = _is(kind, *_TRANSFERS)
        # Only these kinds have a meaningful end; for others it may hold anything.
        lasts = (moved | _is(kind, Migration.GPU_FAULT, Migration.THROTTLING)) & (end >= start)
        # ``value`` is a number of bytes for some kinds, and of page faults for a fault of the GPU.
        sized = moved | _is(kind, Migration.THRASHING, Migration.REMOTE_MAPPING)
        fault = _is(kind, Migration.CPU_FAULT)
        value = np.minimum(rows["value"], np.uint64(LATEST_NS)).astype(np.int64)
        table = pl.DataFrame(
            {
                "name": _mapped(kind, lambda number: MIGRATIONS[number]),
                "thread": self._thread_of(np.full(len(rows), -1)),
                "device": _device_of(kind, rows),
                "start_ns": start + self._shift_ns,
                "duration_ns": np.where(lasts, end - start, 0),
                "address": np.minimum(rows["address"], np.uint64(LATEST_NS)),
                "bytes": pl.Series(value).set(pl.Series(~sized), None),
                "faults": pl.Series(np.where(fault, 1, value)).set(
                    pl.Series(~(fault | _is(kind, Migration.GPU_FAULT))), None
                ),
                "cause": _mapped(kind << 32 | rows["flags"], _cause),
            }
        )
        return shaped("migrations", table)

    def _overheads(self) -> pl.DataFrame:
        rows, start, duration = self._timed("overheads")
        names = _mapped(rows["kind"], lambda kind: OVERHEADS.get(kind, f"Overhead {kind}"))
        return shaped("overheads", pl.DataFrame({"name": names, "start_ns": start, "duration_ns": duration}))

    def _named_ranges(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return NVTX ranges that nest on their thread (push/pop), those that need not (start/end), and operators.

        Operators are ranges too, where PyTorch makes them (``emit_nvtx``).
        """
        begins, ends = self._file.tables["ranges"], self._file.tables["range_ends"]
        domains = [self._file.text(number) for number in begins["domain"].tolist()]
        names = [self._file.text(number) for number in begins["name"].tolist()]
        ended = dict(zip(ends["number"].tolist(), ends["time_ns"].tolist(), strict=True))
        # A range that never ended is taken to last until the latest time that the recording has.
        last = max(
            [0, *begins["time_ns"].tolist(), *ends["time_ns"].tolist(), *self._file.tables["clocks"]["realtime_ns"]]
        )
        start = begins["time_ns"].astype(np.int64)
        end = np.array([ended.get(number, last) for number in begins["number"].tolist()], np.int64)
        table = pl.DataFrame(
            {
                "thread": self._thread_of(begins["thread"]),
                "name": pl.Series(
                    [f"{domain}:{name}" if domain else name for domain, name in zip(domains, names, strict=True)],
                    dtype=pl.String,
                ),
                "start_ns": start,
                "duration_ns": np.maximum(end - start, 0),
                "style": begins["style"],
            }
        )
        nested = pl.col("style") == _PUSH_POP
        annotations, operators = told_apart(shaped("annotations", table.filter(nested)))
        return annotations, shaped("ranges", table.filter(~nested)), operators


def _is(kind: _Ints, *meant: Migration) -> npt.NDArray[np.bool_]:
    return np.isin(kind, [number for number, name in MIGRATIONS.items() if name in meant])


def _device_of(kind: _Ints, rows: RecordArray) -> pl.Series:
    """Return the device of each row, which is its source or destination by kind; null if none is recorded."""
    from_device = _is(kind, Migration.TO_HOST, Migration.GPU_FAULT, Migration.THROTTLING)
    devices = np.where(from_device, rows["source"], rows["destination"]).astype(np.int64)
    unknown = _is(kind, Migration.CPU_FAULT, Migration.THRASHING)
    return pl.Series(devices).set(pl.Series(unknown), None)


def _failure(text: str) -> str:
    """Describe what was not recorded, and what the user can do about it."""
    match = _FAILED_KIND.fullmatch(text)
    what = f"{RECORDS.get(int(match[1]), f'records of kind {match[1]}')} ({match[2]})" if match else text
    if _NOT_ALLOWED not in text:
        return what
    return f"{what}; the driver lets administrators alone profile here (its option NVreg_RestrictProfilingToAdminUsers)"


def _client(path: str) -> str:
    """Return the name of the CUPTI client that a library belongs to."""
    name = PurePath(path).name
    known = next((client for begin, client in _CLIENTS if name.startswith(begin)), None)
    return f"{known} ({name})" if known else name or "Another client"


def _copy_name(code: int) -> str:
    direction, source, destination = code >> 16, code >> 8 & 0xFF, code & 0xFF
    return copy_name(named(DIRECTIONS, direction), named(MEMORY, source), named(MEMORY, destination))


def _cause(code: int) -> str | None:
    kind, flags = code >> 32, code & 0xFFFFFFFF
    names = _CAUSES.get(MIGRATIONS[kind])
    return None if names is None else cause(names, flags)


def _mapped(codes: npt.NDArray[Any], name_of: Callable[[int], str | None]) -> pl.Series:
    """Map a column of numbers to names; each distinct number is named once."""
    result, places = np.unique(codes, return_inverse=True)
    names = pl.Series([name_of(int(code)) for code in result], dtype=pl.String)
    return names.gather(places) if len(codes) else pl.Series([], dtype=pl.String)


def _constant(value: str, count: int) -> pl.Series:
    return pl.repeat(value, count, dtype=pl.String, eager=True)


def _dimensions(ways: RecordArray, name: str) -> pl.Series:
    columns = [ways[f"{name}_{axis}"].tolist() for axis in "xyz"]
    return pl.Series([",".join(map(str, one)) for one in zip(*columns, strict=True)], dtype=pl.String)
