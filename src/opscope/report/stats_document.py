"""Builds `Stats` from traces, and renders its tables with the headings of ``nsys stats``."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import polars as pl
from msgspec.structs import replace

from opscope.analysis.costs.cuda_stats import failed_calls, report_of, span_of
from opscope.analysis.structure.origin import process_name
from opscope.analysis.trust.checks import check_file, check_recording
from opscope.analysis.trust.plausible import plausible
from opscope.base.text import or_unknown
from opscope.base.units import NS_PER_S, format_count, format_ns
from opscope.documents.stats import (
    Distribution,
    ProcessEntry,
    Report,
    ReportEntry,
    SizeRow,
    Stats,
    TimeRow,
    UnifiedMemoryRow,
)
from opscope.documents.verdict import Verdict
from opscope.knowledge.kernels.kinds import short_name
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, table_of
from opscope.trace.columns import TABLES
from opscope.trace.model import Trace

T = TypeVar("T")
_TITLES = {
    Report.API: "CUDA API",
    Report.KERNELS: "CUDA GPU kernels",
    Report.MEMORY_TIME: "CUDA GPU memory operations, by time",
    Report.MEMORY_SIZE: "CUDA GPU memory operations, by size",
    Report.GPU: "CUDA GPU: kernels and memory operations",
    Report.UNIFIED_MEMORY: "Unified memory",
    Report.NVTX: "NVTX ranges",
}
# Headings of the column of counts and of the column of names, if not "Instances" and "Name".
_COUNTED = {Report.API: "Num Calls", Report.MEMORY_TIME: "Count", Report.MEMORY_SIZE: "Count"}
_NAMED = {
    Report.MEMORY_TIME: "Operation",
    Report.MEMORY_SIZE: "Operation",
    Report.GPU: "Operation",
    Report.NVTX: "Range",
}
_BYTES_PER_MB = 1e6
_LONG = 60  # characters of a name that has room beside numbers


def build_stats(traces: Sequence[Trace], reports: Sequence[Report]) -> Stats:
    """Build the document, with sums over all traces together.

    Args:
        traces: one per process.
        reports: the tables to build.
    """
    cleaned = [plausible(trace)[0] for trace in traces]
    return Stats(
        processes=tuple(_process(trace) for trace in cleaned),
        reports=tuple(report_of(report, cleaned) for report in reports),
    )


def _process(trace: Trace) -> ProcessEntry:
    spans = [span_of(getattr(trace, name)) for name in TABLES if getattr(trace, name).height]
    names = {device.index: device.name for device in trace.devices}
    used = sorted(number for number in trace.activities["device"].unique().to_list() if number is not None)
    checks = (check_file(trace.source), check_recording(trace.source))
    return ProcessEntry(
        name=process_name(trace.source),
        trace=trace.source.path,
        format=trace.source.format,
        devices=tuple(f"{number}: {names.get(number, 'unknown')}" for number in used),
        kernels=trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel").height,
        device_ns=int(trace.activities["duration_ns"].sum()),
        first_ns=min((first for first, _ in spans), default=None),
        last_ns=max((last for _, last in spans), default=None),
        checks=tuple(check.sentence for check in checks if check.verdict is not Verdict.PASS),
        failed_calls=tuple(failed_calls(trace)),
    )


# ---------------------------------------------------------------- text


def title_of(report: Report) -> str:
    """Return the title of a table."""
    return f"{_TITLES[report]} ({report})"


def stats_table(entry: ReportEntry, top: int | None, *, short_names: bool = False) -> Table:
    """Build a table for people.

    Args:
        entry: the table's rows.
        top: the number of rows; None for all.
        short_names: whether to shorten long names of kernels to what they mean.
    """
    if entry.name is Report.UNIFIED_MEMORY:
        return _unified_memory(entry.addresses[:top])
    if entry.name is Report.MEMORY_SIZE:
        return _sizes(entry.name, entry.sizes[:top])
    return _times(entry.name, entry.times[:top], short_names=short_names)


def plain(table: Table) -> Table:
    """Return a table without thousands separators in its numbers, for programs."""
    rows = tuple(
        tuple(cell.replace(",", "") if at in table.numeric else cell for at, cell in enumerate(row))
        for row in table.rows
    )
    return replace(table, rows=rows)


def _times(report: Report, rows: Sequence[TimeRow], *, short_names: bool) -> Table:
    def name(row: TimeRow) -> str:
        return Name(short_name(row.name) if short_names and len(row.name) > _LONG else row.name)

    further = {Report.GPU: "Category", Report.NVTX: "Style"}
    columns: tuple[Column[TimeRow], ...] = (
        Column("Time (%)", lambda row: f"{row.time_percent:.1f}", numeric=True),
        *_distribution(
            lambda row: row.duration_ns,
            ("Total Time (ns)", _COUNTED.get(report, "Instances"), "(ns)"),
            lambda value: f"{value:,.0f}",
            lambda value: f"{value:,.1f}",
        ),
        *([Column[TimeRow](further[report], lambda row: row.category or row.style or "")] if report in further else ()),
        Column(_NAMED.get(report, "Name"), name),
    )
    return table_of(columns, rows)


def _sizes(report: Report, rows: Sequence[SizeRow]) -> Table:
    headings = ("Total (MB)", _COUNTED[report], "(MB)")
    columns: tuple[Column[SizeRow], ...] = (
        *_distribution(lambda row: row.bytes, headings, _megabytes, _megabytes),
        Column(_NAMED[report], lambda row: Name(row.name)),
    )
    return table_of(columns, rows)


def _distribution(
    of: Callable[[T], Distribution],
    headings: tuple[str, str, str],
    whole: Callable[[float], str],
    fraction: Callable[[float], str],
) -> tuple[Column[T], ...]:
    """Return the columns of a distribution, in the order of NVIDIA's ``nsys stats``.

    Args:
        of: returns the distribution of a row.
        headings: of the total, of the count, and the unit in the headings of the other columns.
        whole: formats recorded values.
        fraction: formats computed values (mean, median, deviation).
    """
    total, count, unit = headings
    return (
        Column(total, lambda row: whole(of(row).total), numeric=True),
        Column(count, lambda row: format_count(of(row).count), numeric=True),
        Column(f"Avg {unit}", lambda row: fraction(of(row).mean), numeric=True, optional=True),
        Column(f"Med {unit}", lambda row: fraction(of(row).median), numeric=True),
        Column(f"Min {unit}", lambda row: whole(of(row).min), numeric=True, optional=True),
        Column(f"Max {unit}", lambda row: whole(of(row).max), numeric=True, optional=True),
        Column(f"StdDev {unit}", lambda row: fraction(of(row).stddev), numeric=True, optional=True),
    )


def _megabytes(value: float) -> str:
    return f"{value / _BYTES_PER_MB:,.3f}"


def _unified_memory(rows: Sequence[UnifiedMemoryRow]) -> Table:
    columns: tuple[Column[UnifiedMemoryRow], ...] = (
        Column("Virtual Address", lambda row: f"{row.address:#x}"),
        Column("HtoD Migration size (MB)", lambda row: _megabytes(row.to_device_bytes), numeric=True),
        Column("DtoH Migration size (MB)", lambda row: _megabytes(row.to_host_bytes), numeric=True),
        Column("CPU Page Faults", lambda row: format_count(row.cpu_faults), numeric=True),
        Column("GPU Page Faults", lambda row: format_count(row.gpu_faults), numeric=True),
        Column("Migration Throughput (MBps)", _throughput, numeric=True, optional=True),
    )
    return table_of(columns, rows)


def _throughput(row: UnifiedMemoryRow) -> str:
    return "" if row.bytes_per_s is None else f"{row.bytes_per_s / _BYTES_PER_MB:,.0f}"


def after_table(entry: ReportEntry, top: int | None) -> Iterator[str]:
    """Yield the lines below a table: how many rows are not shown, and totals of unified memory."""
    if top is not None and len(entry.rows) > top:
        yield f"({len(entry.rows) - top:,} more rows: --top 0 shows all)"
    if entry.totals is not None:
        totals = entry.totals
        yield (
            f"In all: {_megabytes(totals.to_device_bytes)} MB to devices, {_megabytes(totals.to_host_bytes)} MB to the "
            f"host; {totals.cpu_faults:,} page faults of the CPU, {totals.gpu_faults:,} of GPUs."
        )


def process_lines(stats: Stats) -> Iterator[str]:
    """Yield a line per process with its warnings; for a single process, only its warnings."""
    if not stats.processes:
        return
    begin = min((one.first_ns for one in stats.processes if one.first_ns is not None), default=0)
    for one in stats.processes:
        if len(stats.processes) > 1:
            since = "" if one.first_ns is None else f", from {(one.first_ns - begin) / NS_PER_S:.3f} s on"
            devices = f" on {', '.join(one.devices)}" if one.devices else ""
            kernels = "1 kernel" if one.kernels == 1 else f"{format_count(one.kernels)} kernels"
            yield f"{or_unknown(one.name)}: {kernels}, {format_ns(one.device_ns)} of device time{devices}{since}"
        named = "" if len(stats.processes) > 1 else f"{or_unknown(one.name)}: "
        yield from (f"  {named}{sentence}" for sentence in one.checks)
        for name, status, count in one.failed_calls:
            times = "once" if count == 1 else f"{count:,} times"
            yield f"  {named}{or_unknown(name)} failed {times} with error {status}."
