"""Sums by name of API calls, kernels, memory operations, ranges and unified memory, as ``nsys stats`` has them.

Definitions are those of Nsight Systems' reports: shares are of the table's own rows, deviations are those of a sample,
rows are grouped by name as text. Every sum is over all traces passed in.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import polars as pl

from opscope.analysis.structure.arrays import end_of
from opscope.base.text import lazy_pattern
from opscope.base.units import NS_PER_S
from opscope.documents.stats import (
    Distribution,
    Report,
    ReportEntry,
    SizeRow,
    TimeRow,
    UnifiedMemoryRow,
    UnifiedMemoryTotals,
)
from opscope.knowledge.api_calls import returns_earlier_error
from opscope.knowledge.collectives import Direction, direction_of
from opscope.trace.model import Migration, Trace

_COPY: Final = lazy_pattern(r"\b([HDAP])to([HDAP])\b")
_PLACES: Final = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_DIRECTIONS: Final = {  # for names that are not spelled like "HtoD", such as HIP's
    Direction.TO_DEVICE: "Host-to-Device",
    Direction.TO_HOST: "Device-to-Host",
    Direction.WITHIN: "Device-to-Device",
    Direction.BETWEEN_DEVICES: "Peer-to-Peer",
}
_UNIFIED: Final = {
    Migration.TO_DEVICE: "[CUDA memcpy Unified Host-to-Device]",
    Migration.TO_HOST: "[CUDA memcpy Unified Device-to-Host]",
    Migration.BETWEEN_DEVICES: "[CUDA memcpy Unified Device-to-Device]",
}
KERNEL_CATEGORY, MEMORY_CATEGORY = "CUDA_KERNEL", "MEMORY_OPER"
_EMPTY: Final = {
    Report.API: "no call of CUDA's API was recorded",
    Report.KERNELS: "no kernel was recorded",
    Report.MEMORY_TIME: "no copy or fill was recorded",
    Report.MEMORY_SIZE: "no copy or fill was recorded",
    Report.GPU: "no work of a GPU was recorded",
    Report.UNIFIED_MEMORY: "no event of unified memory was recorded",
    Report.NVTX: "no range of NVTX was recorded",
}


def report_of(report: Report, traces: Sequence[Trace]) -> ReportEntry:
    """Return one of the tables over all traces; a sentence instead of rows where there are none."""
    entry = _REPORTS[report](traces)
    return entry if entry.rows else ReportEntry(report, empty=_EMPTY[report])


def span_of(table: pl.DataFrame) -> tuple[int, int]:
    """Return when the first row of a table began and its last one ended, in nanoseconds."""
    if "time_ns" in table.columns:
        return int(table["time_ns"].min()), int(table["time_ns"].max())  # type: ignore[arg-type]
    return int(table["start_ns"].min()), int(end_of(table).max())  # type: ignore[arg-type]


def failed_calls(trace: Trace) -> Iterator[tuple[str, int, int]]:
    """Yield function, status code and count of failed calls, without those that only report an earlier failure."""
    failed = (
        trace.launches.filter(pl.col("status") != 0)
        .group_by(pl.col("name").cast(pl.String), "status")
        .agg(count=pl.len())
        .sort("count", "name", "status", descending=[True, False, False])
    )
    for name, status, count in failed.iter_rows():
        if not returns_earlier_error(name, status):
            yield name, status, count


def _api(traces: Sequence[Trace]) -> ReportEntry:
    return ReportEntry(Report.API, _time_rows(_all(traces, lambda trace: _named(trace.launches))))


def _kernels(traces: Sequence[Trace]) -> ReportEntry:
    return ReportEntry(Report.KERNELS, _time_rows(_all(traces, _kernel_times)))


def _memory_time(traces: Sequence[Trace]) -> ReportEntry:
    return ReportEntry(Report.MEMORY_TIME, _time_rows(_all(traces, _memory_operations)))


def _memory_size(traces: Sequence[Trace]) -> ReportEntry:
    sizes = _all(traces, _memory_operations).filter(pl.col("bytes").is_not_null())
    rows = tuple(SizeRow(name, one) for (name, *_), one in _distributions(sizes, "bytes", ["name"]))
    return ReportEntry(Report.MEMORY_SIZE, sizes=rows)


def _gpu(traces: Sequence[Trace]) -> ReportEntry:
    kernels = _all(traces, _kernel_times).with_columns(category=pl.lit(KERNEL_CATEGORY))
    memory = _all(traces, _memory_operations).drop("bytes").with_columns(category=pl.lit(MEMORY_CATEGORY))
    return ReportEntry(Report.GPU, _time_rows(pl.concat([kernels, memory])))


def _nvtx(traces: Sequence[Trace]) -> ReportEntry:
    nested = _all(traces, lambda trace: _named(trace.annotations)).with_columns(style=pl.lit("PushPop"))
    free = _all(traces, lambda trace: _named(trace.ranges)).with_columns(style=pl.lit("StartEnd"))
    return ReportEntry(Report.NVTX, _time_rows(pl.concat([nested, free])))


def _unified_memory(traces: Sequence[Trace]) -> ReportEntry:
    events = _all(traces, lambda trace: trace.migrations.with_columns(pl.col("name").cast(pl.String)))
    named = pl.col("name")
    moves = named.is_in([Migration.TO_DEVICE, Migration.TO_HOST])
    table = (
        events.filter(pl.col("address").is_not_null())
        .filter(moves | named.is_in([Migration.CPU_FAULT, Migration.GPU_FAULT]))
        .group_by("address")
        .agg(
            to_device=pl.col("bytes").filter(named == Migration.TO_DEVICE).sum(),
            to_host=pl.col("bytes").filter(named == Migration.TO_HOST).sum(),
            # Faults of the CPU are counted one by one, those of a GPU in groups, as CUPTI reports them.
            cpu=pl.col("faults").filter(named == Migration.CPU_FAULT).sum(),
            gpu=pl.col("faults").filter(named == Migration.GPU_FAULT).sum(),
            moving=pl.col("duration_ns").filter(moves).sum(),
        )
        .sort(pl.col("to_device") + pl.col("to_host"), "cpu", "gpu", "address", descending=[True, True, True, False])
    )
    rows = tuple(
        UnifiedMemoryRow(
            address, to_device, to_host, cpu, gpu, (to_device + to_host) * NS_PER_S / moving if moving else None
        )
        for address, to_device, to_host, cpu, gpu, moving in table.iter_rows()
    )
    return ReportEntry(Report.UNIFIED_MEMORY, addresses=rows, totals=_totals(rows))


def _totals(rows: Sequence[UnifiedMemoryRow]) -> UnifiedMemoryTotals | None:
    if not rows:
        return None
    return UnifiedMemoryTotals(
        to_device_bytes=sum(row.to_device_bytes for row in rows),
        to_host_bytes=sum(row.to_host_bytes for row in rows),
        cpu_faults=sum(row.cpu_faults for row in rows),
        gpu_faults=sum(row.gpu_faults for row in rows),
        lowest_address=min(row.address for row in rows),
        highest_address=max(row.address for row in rows),
    )


_REPORTS: Final = {
    Report.API: _api,
    Report.KERNELS: _kernels,
    Report.MEMORY_TIME: _memory_time,
    Report.MEMORY_SIZE: _memory_size,
    Report.GPU: _gpu,
    Report.UNIFIED_MEMORY: _unified_memory,
    Report.NVTX: _nvtx,
}


# ---------------------------------------------------------------- what is added up


def _all(traces: Sequence[Trace], part: Callable[[Trace], pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([part(trace) for trace in traces])


def _named(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(pl.col("name").cast(pl.String), "duration_ns")


def _kernel_times(trace: Trace) -> pl.DataFrame:
    return _named(trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel"))


def _memory_operations(trace: Trace) -> pl.DataFrame:
    """Return copies, fills and transfers of unified memory, by the names that nsys gives them."""
    operations = trace.activities.filter(pl.col("kind").cast(pl.String) != "kernel")
    names = operations["name"].cast(pl.String)
    shown = pl.Series([_operation(name) for name in names.unique(maintain_order=True)], dtype=pl.String)
    explicit = operations.select(
        names.replace_strict(names.unique(maintain_order=True), shown, return_dtype=pl.String).alias("name"),
        "duration_ns",
        "bytes",
    )
    moved = trace.migrations.with_columns(pl.col("name").cast(pl.String)).filter(
        pl.col("name").is_in([str(kind) for kind in _UNIFIED])
    )
    unified = moved.select(
        pl.col("name").replace_strict({str(kind): name for kind, name in _UNIFIED.items()}, return_dtype=pl.String),
        "duration_ns",
        "bytes",
    )
    return pl.concat([explicit, unified])


def _operation(name: str) -> str:
    # CUDA's names say HtoD and the like; others are told by their direction.
    if name.startswith("Memcpy") and (match := _COPY.search(name)):
        return f"[CUDA memcpy {_PLACES[match[1]]}-to-{_PLACES[match[2]]}]"
    if (direction := direction_of(name)) is not None:
        return f"[CUDA memcpy {_DIRECTIONS[direction]}]"
    return "[CUDA memset]" if name.startswith("Memset") else f"[CUDA {name.partition(' (')[0]}]"


def _time_rows(table: pl.DataFrame) -> tuple[TimeRow, ...]:
    # Only some tables have these columns; `TimeRow` takes them by their names.
    further = [column for column in ("category", "style") if column in table.columns]
    result = _distributions(table, "duration_ns", ["name", *further])
    whole = sum(one.total for _, one in result)
    return tuple(
        TimeRow(name, 100 * one.total / whole if whole else 0.0, one, **dict(zip(further, rest, strict=True)))
        for (name, *rest), one in result
    )


def _distributions(table: pl.DataFrame, column: str, by: list[str]) -> list[tuple[tuple[str, ...], Distribution]]:
    """Return the distribution of a column per group, the largest total first."""
    value = pl.col(column)
    summed = (
        table.group_by(by)
        .agg(
            total=value.sum(),
            count=pl.len(),
            mean=value.mean(),
            median=value.median(),
            min=value.min(),
            max=value.max(),
            stddev=value.std(ddof=1).fill_null(0.0),
        )
        .sort("total", *by, descending=[True, *(False for _ in by)])
    )
    return [(row[: len(by)], Distribution(*row[len(by) :])) for row in summed.iter_rows()]
