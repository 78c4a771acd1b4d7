"""Reads databases of rocmProfileData (``.rpd``): what a program did with HIP, its ranges, and PyTorch's operators.

The schema is that of rocpd (``rocpd_python/rocpd/schema_data/tableSchema.cmd``). Calls and work of devices are joined
by ``rocpd_api_ops``; a graph's launch has many rows there. Ranges are calls named ``UserMarker``, with their text as
arguments. Samples of clocks and power are not read.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from opscope.base.demangle import readable_names
from opscope.readers.database import Database
from opscope.readers.events import LATEST_NS, Rows, build_trace, integer, told_apart
from opscope.trace.model import DeviceProperties, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

OPERATIONS: Final = "rocpd_op"  # a table that no other profiler has
_CALLS: Final = "rocpd_api"
_MARKER: Final = "UserMarker"
# What only waits in the queue: it moves and computes nothing.
_NO_WORK: Final = frozenset({"Barrier", "BarrierAnd", "BarrierOr", "Marker"})
_INT32: Final = 31  # bits of a device's number
# These calls give the grid in threads (hip_runtime_api.h: globalWorkSizeX), others in blocks.
_IN_THREADS: Final = frozenset({"hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"})

_Names = Mapping[int, str]


def parsed(database: Database) -> Trace:
    """Turn a database into a trace.

    Raises:
        sqlite3.Error: the database cannot be read, or holds more than its size allows.
        OverflowError: it holds a number that no column holds.
    """
    return _Recording(database).trace()


class _Recording:
    def __init__(self, database: Database) -> None:
        self._database, self._rows = database, Rows()
        texts = database.texts("rocpd_string", "id", "string") if "rocpd_string" in database.columns else {}
        texts = {number: text for number, text in texts.items() if number is not None and text}
        full = readable_names(texts.values())
        self._texts: _Names = {number: full.get(text) or text for number, text in texts.items()}
        self._count = self._odd = 0

    def trace(self) -> Trace:
        names = self._calls()
        self._work(names)
        rows, database = self._rows, self._database
        annotations, marked = told_apart(rows.frame("annotations"))
        frames = {table: rows.frame(table) for table in SCHEMAS} | {
            "annotations": annotations,
            "operators": pl.concat([rows.frame("operators"), marked]),
        }
        frames = {table: rows.renumbered(frame) for table, frame in frames.items()}
        source = TraceSource(
            path=database.path,
            format="rocmProfileData",
            size_bytes=database.size_bytes,
            event_count=self._count,
            replaced_bytes=0,
            odd_events=self._odd,
            unreadable_bytes=0,
            damage=database.damage,
            metadata={},
        )
        return build_trace(source, tuple(_devices(frames["activities"])), rows.threads(), frames)

    def _calls(self) -> _Names:
        """Add calls, ranges and operators; return the names of calls by their ids."""
        sizes = dict(self._autograd())
        names: dict[int, str] = {}
        wanted = ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
        for number, process, thread, start, end, name_id, args in self._database.rows(_CALLS, wanted):
            times = self._times(start, end)
            if times is None:
                continue
            where = {"thread": self._rows.thread(str(process), str(thread)), **times}
            name = self._texts.get(name_id, "")
            if number in sizes:
                text, sequence, dims = sizes[number]
                operator = {"sequence_number": sequence, "input_dims": dims}
                self._rows.add("operators", name=self._texts.get(text, ""), **operator, **where)
            elif name == _MARKER:
                self._rows.add("annotations", name=self._texts.get(args, ""), **where)
            else:
                names[number] = name
                self._rows.add("launches", name=name, correlation=number, **where)
        return names

    def _autograd(self) -> Iterator[tuple[int, tuple[int, int | None, str | None]]]:
        """Yield what rocpd's table of PyTorch's operators says of calls: a text's number, a sequence and sizes."""
        table = "ext_autogradapi"
        texts = self._database.rows(table, ("seq", "sizes"), texts=True)
        numbers = self._database.rows(table, ("api_ptr_id", "autogradName_id"))
        for (call, name), (sequence, sizes) in zip(numbers, texts, strict=True):
            yield call, (name, integer(sequence or ""), sizes if str(sizes or "").startswith("[") else None)

    def _work(self, names: _Names) -> None:
        by_operation = dict(self._pairs("rocpd_api_ops", "op_id", "api_id"))
        geometry = {row[0]: row[1:] for row in self._database.rows("rocpd_kernelapi", _GEOMETRY)}
        sizes = dict(self._pairs("rocpd_copyapi", "api_ptr_id", "size"))
        wanted = ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
        for number, device, queue, start, end, description, kind in self._database.rows(OPERATIONS, wanted):
            times, operation = self._times(start, end), self._texts.get(kind, "")
            if times is None or operation in _NO_WORK:
                continue
            call = by_operation.get(number, -1)
            is_moved = operation.startswith(("Copy", "Fill"))
            self._rows.add(
                "activities",
                # Copies and fills are known by their names, as in Kineto's records.
                kind="kernel",
                name=operation if is_moved else self._texts.get(description) or operation,
                device=integer(device, _INT32),
                stream=queue,
                correlation=call if call >= 0 else None,
                bytes=sizes.get(call) if is_moved else None,
                **(_grid(geometry.get(call), blocks=names.get(call, "") not in _IN_THREADS) if not is_moved else {}),
                **times,
            )

    def _pairs(self, table: str, key: str, value: str) -> Iterator[tuple[int, int]]:
        return ((row[0], row[1]) for row in self._database.rows(table, (key, value)) if None not in row)

    def _times(self, start: int | None, end: int | None) -> dict[str, int] | None:
        """Return the columns of a start and a duration; None if the times are impossible, which is counted."""
        self._count += 1
        if start is None or end is None or not -LATEST_NS < start <= end < LATEST_NS:
            self._odd += 1
            return None
        return {"start_ns": start, "duration_ns": end - start}


_GEOMETRY: Final = ("api_ptr_id", "gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")


def _grid(sizes: tuple[Any, ...] | None, *, blocks: bool) -> dict[str, str]:
    if sizes is None or any(size is None for size in sizes):
        return {}
    block = {"block": ",".join(map(str, sizes[3:]))}
    return {"grid": ",".join(map(str, sizes[:3])), **block} if blocks else block


def _devices(activities: pl.DataFrame) -> Iterator[DeviceProperties]:
    """Yield the devices that did something: the database says nothing of them but their numbers."""
    for index in sorted(activities["device"].drop_nulls().unique().to_list()):
        yield DeviceProperties(
            index=index,
            name="",
            compute_capability=None,
            multiprocessors=None,
            memory_bytes=None,
            threads_per_multiprocessor=None,
            registers_per_multiprocessor=None,
            shared_memory_per_multiprocessor_bytes=None,
            vendor="amd",
        )
