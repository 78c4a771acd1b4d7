"""Joins Nsight Compute's counters with a run as a `CountersDocument`, and renders it as a table."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import fields

from opscope.analysis.costs.counters import counter_rows, joined_launches, kernels_without
from opscope.base.units import format_bytes, format_count, format_ns
from opscope.documents.counters import CounterRow, CountersDocument
from opscope.record.counters import KernelCounters
from opscope.render.blocks import Name, Table
from opscope.render.figures import percent
from opscope.render.table_columns import Column, field_values, table_of
from opscope.trace.model import Trace


def build_counters(
    files: Sequence[str], counters: Sequence[KernelCounters], traces: Sequence[Trace]
) -> CountersDocument:
    """Build the document.

    Args:
        files: the files that the counters are from.
        counters: all measured launches, in order.
        traces: of the run, one per process; empty for the counters alone.
    """
    launches = joined_launches(counters, traces)
    return CountersDocument(
        files=tuple(files),
        trace=", ".join(trace.source.path for trace in traces) or None,
        kernels=counter_rows(counters, launches),
        launches=launches,
        unmatched_launches=sum(one.run_ns is None for one in launches) if traces else 0,
        kernels_of_run_without=kernels_without(counters, traces),
    )


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
)


def counters_table(document: CountersDocument, top: int | None) -> Table:
    """Build the table for people, the kernels with the most time first.

    Args:
        document: the counters.
        top: the number of rows; None for all.
    """
    return table_of(_COLUMNS, document.kernels[:top])


def counters_values(document: CountersDocument, top: int | None) -> Table:
    """Build the table for programs, with the document's field names and plain numbers; see `counters_table`."""
    names = tuple(field.name for field in fields(CounterRow))
    rows = tuple(field_values(row, names) for row in document.kernels[:top])
    return Table(names, rows, frozenset(range(3, len(names))))


def counters_lines(document: CountersDocument) -> Iterator[str]:
    """Yield notes on how to read the table."""
    yield (
        "Durations are medians. Nsight Compute sets the clocks to their base and empties the caches before each "
        "kernel, unless it was told otherwise (--clock-control none --cache-control none)."
    )
    if document.trace is None:
        return
    joined = len(document.launches) - document.unmatched_launches
    yield (
        f"{joined:,} of {len(document.launches):,} measured launches are those of {document.trace}: the n-th of a name "
        "and geometry is taken for the n-th there."
    )
    if document.kernels_of_run_without:
        yield f"{document.kernels_of_run_without:,} kernels of the run were not measured."
