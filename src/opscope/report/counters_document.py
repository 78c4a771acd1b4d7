"""Joins Nsight Compute's counters with a run as a `CountersDocument`, and renders it as a table."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import fields

from opscope.analysis.costs.counters import (
    Durations,
    counter_rows,
    durations_of,
    joined_launches,
    kernels_without,
    operations_of,
    processes_of,
)
from opscope.analysis.costs.limits import peaks_of
from opscope.base.errors import UsageError
from opscope.base.units import format_bytes, format_count, format_ns, format_share
from opscope.documents.counters import CounterRow, CountersDocument
from opscope.knowledge.counted_operations import INTEGER_UNITS, OPERATION_METRICS
from opscope.knowledge.devices import Device, Peaks, datasheet_peaks
from opscope.knowledge.measured_peaks import peaks_called
from opscope.record.counters import KernelCounters
from opscope.render.blocks import Name, Table
from opscope.render.figures import percent
from opscope.render.table_columns import Column, field_values, table_of
from opscope.report.limits_document import peaks_entry
from opscope.trace.model import Trace

_TERA: Final = 1e12


class RunProcess(Struct, frozen=True):
    """What counters are joined with: one process of a run.

    Attributes:
        path: the file of its trace.
        durations: of its kernels.
        peaks: of its devices with known peaks.
    """

    path: str
    durations: Durations
    peaks: tuple[Peaks, ...]


def run_process(trace: Trace, gpu: Device | None = None) -> RunProcess | None:
    """Return what counters need of a trace; None if it has no activity, so that nothing of it was counted.

    Args:
        trace: one process of the run.
        gpu: the model of its devices, from the user; None takes what the trace says.
    """
    if not trace.activities.height:
        return None
    peaks = peaks_of(trace.devices).values() if gpu is None else (datasheet_peaks(gpu),)
    return RunProcess(trace.source.path, durations_of(trace), tuple(peaks))


def build_counters(
    files: Sequence[str],
    counters: Sequence[KernelCounters],
    run: Sequence[RunProcess] = (),
    gpu: Device | None = None,
) -> CountersDocument:
    """Build the document.

    Args:
        files: the files that the counters are from.
        counters: all measured launches, in order.
        run: the processes that used a device, in order; empty for the counters alone.
        gpu: the model of the devices, from the user; None takes what the files say.

    Raises:
        UsageError: the run has another number of processes than were measured.
    """
    measured = len(processes_of(counters))
    if len(run) > 1 and len(run) != measured:
        raise UsageError(
            f"the counters are of {measured} processes, and {len(run)} of the run used a device: name the files of "
            "those"
        )
    durations = [one.durations for one in run]
    launches, operations = joined_launches(counters, durations), operations_of(counters)
    peaks = _peaks(counters, run, gpu)
    return CountersDocument(
        files=tuple(files),
        trace=", ".join(one.path for one in run) or None,
        kernels=counter_rows(counters, launches, operations, peaks),
        launches=launches,
        unmatched_launches=sum(one.run_ns is None for one in launches) if run else 0,
        kernels_of_run_without=kernels_without(counters, durations),
        peaks=None if peaks is None else peaks_entry(None, peaks.device, peaks),
        not_counted=tuple(dict.fromkeys(unit for one in operations for unit in one.not_counted)),
    )


def _peaks(counters: Sequence[KernelCounters], run: Sequence[RunProcess], gpu: Device | None) -> Peaks | None:
    """Return the peaks that all devices share: by the run, else by the name that Nsight Compute recorded."""
    if gpu is not None:
        return datasheet_peaks(gpu)
    found = [peaks for one in run for peaks in one.peaks]
    if not run:
        called = {(one.device, _multiprocessors(one)) for one in counters}
        known = [None if name is None else peaks_called(name, count) for name, count in called]
        found = [peaks for peaks in known if peaks is not None] if None not in known else []
    return found[0] if found and all(one == found[0] for one in found) else None


def _multiprocessors(counters: KernelCounters) -> int | None:
    count = counters.metrics.get("device__attribute_multiprocessor_count")
    return None if count is None else int(count)


_COLUMNS: Final[tuple[Column[CounterRow], ...]] = (
    Column("Kernel", lambda row: Name(row.kernel)),
    Column("Grid", lambda row: row.grid or "-", optional=True),
    Column("Block", lambda row: row.block or "-", optional=True),
    Column("Launches", lambda row: format_count(row.measured), numeric=True),
    Column("In the run", lambda row: "-" if row.run_ns is None else format_ns(row.run_ns), numeric=True),
    Column("Under ncu", lambda row: "-" if row.ncu_ns is None else format_ns(row.ncu_ns), numeric=True),
    Column("SM %", lambda row: percent(row.sm_percent), numeric=True),
    Column("Memory %", lambda row: percent(row.memory_percent), numeric=True),
    Column("DRAM %", lambda row: percent(row.dram_percent), numeric=True),
    Column(
        "DRAM bytes",
        lambda row: "-" if row.dram_bytes is None else format_bytes(row.dram_bytes),
        numeric=True,
        optional=True,
    ),
    Column("Occupancy %", lambda row: percent(row.occupancy_percent), numeric=True),
    Column(
        "TFLOP/s",
        lambda row: "-" if row.operations_per_s is None else f"{row.operations_per_s / _TERA:.2f}",
        numeric=True,
    ),
    Column(
        "FLOP/byte",
        lambda row: "-" if row.operations_per_byte is None else f"{row.operations_per_byte:.2f}",
        numeric=True,
    ),
    Column("of limit", lambda row: "-" if row.share is None else format_share(row.share, 1), numeric=True),
    Column("Limited by", lambda row: row.limited_by or "-"),
)


def counters_table(document: CountersDocument, top: int | None) -> Table:
    """Build the table for people, the kernels with the most time first.

    Args:
        document: the counters.
        top: the number of rows; None for all.
    """
    rows = document.kernels[:top]
    # What ncu was not asked for has no column.
    columns = [column for column in _COLUMNS if any(column.text(row) != "-" for row in rows)]
    return table_of(columns, rows)


def counters_values(document: CountersDocument, top: int | None) -> Table:
    """Build the table for programs, with the document's field names and plain numbers; see `counters_table`."""
    # What each unit did is in the JSON document alone: there can be any number of units.
    names = tuple(field.name for field in fields(CounterRow) if field.name != "operations_by_unit")
    rows = tuple(field_values(row, names) for row in document.kernels[:top])
    return Table(names, rows, frozenset(range(3, len(names))))


def counters_lines(document: CountersDocument) -> Iterator[str]:
    """Yield notes on how to read the table."""
    yield (
        "Durations are medians. Nsight Compute sets the clocks to their base and empties the caches before each "
        "kernel, unless it was told otherwise (--clock-control none --cache-control none)."
    )
    yield from _lines_of_operations(document)
    if document.trace is None:
        return
    joined = len(document.launches) - document.unmatched_launches
    yield (
        f"{joined:,} of {len(document.launches):,} measured launches are those of {document.trace}: the n-th of a name "
        "and geometry is taken for the n-th there."
    )
    if document.kernels_of_run_without:
        yield f"{document.kernels_of_run_without:,} kernels of the run were not measured."


def _lines_of_operations(document: CountersDocument) -> Iterator[str]:
    """Yield what the columns of operations mean, or why there are none."""
    rows = document.kernels
    if not any(row.operations_by_unit for row in rows):
        return
    if document.not_counted:
        yield (
            f"Operations of {', '.join(document.not_counted)} were not counted for every kernel, so there is no sum "
            f"over all units. ncu counts them with --metrics '{','.join(OPERATION_METRICS)}'."
        )
        return
    yield (
        "Operations are those that were executed: a multiply-add counts two, and addresses, comparisons and special "
        "functions count none. Bytes are those of the device's memory."
    )
    if any(row.operations_by_unit.keys() & INTEGER_UNITS for row in rows):
        yield "Those of Tensor Cores on integers are counted too."
    if document.peaks is None:
        yield "The peaks of the device are not known, so it is not known how far kernels are from them."
    elif document.trace is None:
        yield (
            "How far a kernel is from its limit takes its time at the clocks of a run: name the run's trace as well."
        )
    else:
        yield (
            f"The limit is what {document.peaks.name} needs for these operations and bytes ({document.peaks.origin}). "
            "More than 100 % of it is memory's: in the run, caches held what Nsight Compute, which empties them, "
            "counts as moved."
        )
