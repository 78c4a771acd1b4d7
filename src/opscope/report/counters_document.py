"""Joins Nsight Compute's counters with a run as a `CountersDocument`, and renders it as a table."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import fields, replace

from opscope.analysis.costs.counters import (
    Durations,
    Limit,
    counter_rows,
    durations_of,
    joined_launches,
    kernel_names,
    kernels_without,
    processes_of,
)
from opscope.analysis.costs.limits import peaks_of
from opscope.base.errors import UsageError
from opscope.base.text import or_unknown
from opscope.base.units import format_bytes, format_count, format_ns, percentage
from opscope.documents.limits import LimitedBy
from opscope.documents.stats import CountedWork, CounterRow, CountersDocument
from opscope.knowledge.counted_work import INTEGER_UNITS
from opscope.knowledge.devices import Device, Peaks, datasheet_peaks, peaks_called
from opscope.record.counters import UPPER_BOUND, KernelCounters
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, field_values, table_of
from opscope.report.limits_document import peaks_entry
from opscope.trace.model import Trace

R = TypeVar("R", CounterRow, CountedWork)
_TERA: Final = 1e12
_UNNAMED: Final = "unknown"  # what readers call a device whose name was not recorded


class RunProcess(Struct, frozen=True):
    """What counters are joined with: one process of a run.

    Attributes:
        path: the file of its trace.
        durations: of its kernels.
        devices: per device its name, its compute capability and its peaks; None where they are not known.
    """

    path: str
    durations: Durations
    devices: tuple[tuple[str, str | None, Peaks | None], ...]


def run_process(trace: Trace) -> RunProcess | None:
    """Return what counters need of a trace; None if it has no activity, so that nothing of it was counted."""
    if not trace.activities.height:
        return None
    peaks = peaks_of(trace.devices)
    devices = tuple((device.name, device.compute_capability, peaks.get(device.index)) for device in trace.devices)
    return RunProcess(trace.source.path, durations_of(trace), devices)


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
            f"processes that were measured: {measured}; processes of the run that used a device: {len(run)}. "
            "Name the files of the processes that were measured"
        )
    durations = [one.durations for one in run]
    names, limit = kernel_names(counters, durations), _limit(counters, run, gpu)
    launches = joined_launches(counters, durations, names)
    document = CountersDocument(
        files=tuple(files),
        trace=", ".join(one.path for one in run) or None,
        kernels=counter_rows(counters, launches, limit, names),
        launches=launches,
        unmatched_launches=sum(one.run_ns is None for one in launches) if run else 0,
        kernels_of_run_without=kernels_without(counters, durations, names),
        peaks=None if limit.peaks is None else peaks_entry(None, limit.peaks.device, limit.peaks),
    )
    return replace(document, notes=tuple(_notes(document)))


def _limit(counters: Sequence[KernelCounters], run: Sequence[RunProcess], gpu: Device | None) -> Limit:
    """Return the peaks that all devices share: the user's, the run's, or of the device that Nsight Compute recorded."""
    if gpu is not None:
        return Limit(datasheet_peaks(gpu), "", has_run=bool(run))
    called = {one.device: _multiprocessors(one) for one in counters if one.device is not None}
    devices = [device for one in run for device in one.devices]
    names = {name for name, _, _ in devices if name != _UNNAMED}
    ran_on = {capability for _, capability, _ in devices if capability is not None}
    counted_on = {one.compute_capability for one in counters if one.compute_capability is not None}
    if called and names and set(called) != names:
        reason = f"the counters are of {', '.join(called)}, and the run is of {', '.join(sorted(names))}"
        return Limit(None, reason, has_run=True)
    if len(counted_on | ran_on) > 1:
        reason = f"the devices have different compute capabilities: {', '.join(sorted(counted_on | ran_on))}"
        return Limit(None, reason, has_run=bool(run))
    results = [peaks for _, _, peaks in devices]
    if not names and called:
        results = [peaks_called(name, count) for name, count in called.items()]
    if not results or None in results:
        return Limit(None, "the peaks of the device are not known", has_run=bool(run))
    if any(one != results[0] for one in results):
        return Limit(None, "the devices have different peaks", has_run=bool(run))
    return Limit(results[0], "", has_run=bool(run))


def _multiprocessors(counters: KernelCounters) -> int | None:
    count = counters.metrics.get("device__attribute_multiprocessor_count")
    return None if count is None else int(count)


_TEXTS: Final = ("kernel", "grid", "block", "name_in_run", "summary")
_UNDER_NCU: Final = "Under ncu"
_COLUMNS: Final[tuple[Column[CounterRow], ...]] = (
    Column("Grid", lambda row: row.grid or "-", optional=True),
    Column("Block", lambda row: row.block or "-", optional=True),
    Column("Launches", lambda row: format_count(row.measured), numeric=True, optional=True),
    Column("In the run", lambda row: "-" if row.run_ns is None else format_ns(row.run_ns), numeric=True),
    Column(_UNDER_NCU, lambda row: "-" if row.ncu_ns is None else format_ns(row.ncu_ns), numeric=True),
    Column("SM %", lambda row: percentage(row.sm_percent), numeric=True, optional=True),
    Column("Memory %", lambda row: percentage(row.memory_percent), numeric=True, optional=True),
    Column("DRAM %", lambda row: percentage(row.dram_percent), numeric=True, optional=True),
    Column(
        "DRAM bytes",
        lambda row: "-" if row.dram_bytes is None else format_bytes(row.dram_bytes),
        numeric=True,
        optional=True,
    ),
    Column("Occupancy %", lambda row: percentage(row.occupancy_percent), numeric=True, optional=True),
    Column("TFLOP/s", lambda row: _of_work(row, _teraflops, "{:.2f}"), numeric=True),
    Column("FLOP/byte", lambda row: _of_work(row, lambda work: work.operations_per_byte, "{:.2f}"), numeric=True),
    Column("of limit", lambda row: _of_work(row, lambda work: work.share, "{:.1%}"), numeric=True),
    Column("Limited by", lambda row: _limited_by(row.work)),
)


def _of_work(row: CounterRow, figure: Callable[[CountedWork], float | None], spelling: str) -> str:
    value = None if row.work is None else figure(row.work)
    return "-" if value is None else spelling.format(value).replace("%", " %")


def _teraflops(work: CountedWork) -> float | None:
    return None if work.operations_per_s is None else work.operations_per_s / _TERA


def _limited_by(work: CountedWork | None) -> str:
    if work is None or work.limited_by is None:
        return "-"
    return f"{work.limited_by} ({work.unit})" if work.limited_by == LimitedBy.COMPUTE else work.limited_by


def counters_table(document: CountersDocument, top: int | None) -> Table:
    """Build the table for people, the kernels with the most time first.

    Args:
        document: the counters.
        top: the number of rows; None for all.
    """
    rows = document.kernels[:top]
    short = Counter(map(_short, rows))

    def name(row: CounterRow) -> Name:
        # Where a short name is that of several kernels, the long one tells them apart.
        alike = row.summary and short[_short(row)] > 1
        return Name(f"{row.summary}: {row.kernel}" if alike else row.summary or row.kernel)

    kernel = Column[CounterRow]("Kernel", name)
    # What ncu was not asked for has no column.
    shown = (column for column in _COLUMNS if any(column.text(row) != "-" for row in rows))
    # With the time in the run, that under Nsight Compute is of less interest.
    columns = [
        kernel,
        *(replace(one, optional=True) if one.heading == _UNDER_NCU and document.trace else one for one in shown),
    ]
    return table_of(columns, rows)


def _short(row: CounterRow) -> tuple[str, str | None, str | None]:
    return row.summary or row.kernel, row.grid, row.block


def counters_values(document: CountersDocument, top: int | None) -> Table:
    """Build the table for programs, with the document's field names and plain numbers; see `counters_table`."""
    # What each unit did is in the JSON document alone: there can be any number of units.
    of_row = [field.name for field in fields(CounterRow) if field.name not in ("work", "not_counted", "reason")]
    of_work = [field.name for field in fields(CountedWork) if field.name != "operations_by_unit"]
    rows = tuple(
        (*field_values(row, of_row), *(_none(of_work) if row.work is None else field_values(row.work, of_work)))
        for row in document.kernels[:top]
    )
    names = (*of_row, *(f"work_{name}" for name in of_work))
    return Table(names, rows, frozenset(at for at, name in enumerate(names) if name not in _TEXTS))


def _none(names: Sequence[str]) -> tuple[Name, ...]:
    return (Name(""),) * len(names)


def _notes(document: CountersDocument) -> Iterator[str]:
    """Yield how to read the figures, and why some are missing."""
    yield (
        "Durations are medians. Nsight Compute sets the clocks to their base and empties the caches before each "
        "kernel, unless it was told otherwise (--clock-control none --cache-control none)."
    )
    yield from _notes_on_work(document)
    if document.trace is None:
        return
    joined = len(document.launches) - document.unmatched_launches
    yield (
        f"{joined:,} of {len(document.launches):,} measured launches are those of {document.trace}: the n-th of a name "
        "and geometry is taken for the n-th there."
    )
    if without := document.kernels_of_run_without:
        yield f"{without:,} kernel{'s' * (without > 1)} of the run {'were' if without > 1 else 'was'} not measured."


def _notes_on_work(document: CountersDocument) -> Iterator[str]:
    for reason, rows in _by_reason(document.kernels):
        yield f"{_counted(rows)} without operations over bytes and time: {reason}."
    rows = [row for row in document.kernels if row.work is not None]
    if not rows:
        return
    yield (
        "TFLOP/s and FLOP/byte are of the operations that were executed, a multiply-add counted as two, and of the "
        f"bytes of the device's memory, over the time {'in the run' if document.trace else 'under Nsight Compute'}. "
        "Integer arithmetic, comparisons and special functions count none, nor do bytes that the caches keep."
    )
    if partly := [row for row in rows if row.not_counted]:
        yield f"{_counted(partly)}: all was counted of some launches only, and the sums are over those."
    works = [row.work for row in rows if row.work is not None]
    if half := [work for work in works if UPPER_BOUND in work.operations_by_unit]:
        yield (
            f"{_counted(half)} with half-precision instructions of the ordinary cores, which are left out: they also "
            "convert numbers and set constants. Where they may be more than all else, no sum is shown."
        )
    if any(work.operations_by_unit.keys() & INTEGER_UNITS for work in works):
        yield "Operations of Tensor Cores on integers are counted too."
    yield from _notes_on_limits(document, works)


def _notes_on_limits(document: CountersDocument, works: Sequence[CountedWork]) -> Iterator[str]:
    for reason, kernels in _by_reason(works):
        yield f"{_counted(kernels)} without a limit: {reason}."
    limited = [work for work in works if work.ideal_ns is not None]
    above = [work for work in limited if (work.ideal_ns or 0) > work.ns]
    if any(work.limited_by == LimitedBy.COMPUTE for work in above):
        yield "Where compute limits a kernel that took less time than the least, a peak or a count is wrong."
    if document.peaks is None or not limited:
        return
    if document.trace is None:
        yield (
            "To tell how far a kernel is from the limit, its time in a run is needed, at full clocks: name the run's "
            "trace as well."
        )
        return
    yield (
        f"The limit is the least time in which {or_unknown(document.peaks.name)} could do these operations and "
        f"move these bytes (peaks: {document.peaks.origin})."
    )
    if any(work.limited_by == LimitedBy.MEMORY for work in above):
        yield (
            "Above 100 % where memory limits: in the run, caches held bytes that were moved under Nsight Compute, "
            "which empties them."
        )


def _by_reason(rows: Sequence[R]) -> Iterator[tuple[str, list[R]]]:
    """Yield each reason with the kernels that have it."""
    for reason in dict.fromkeys(row.reason for row in rows if row.reason is not None):
        yield reason, [row for row in rows if row.reason == reason]


def _counted(kernels: Sequence[object]) -> str:
    return f"{len(kernels):,} kernel{'s' * (len(kernels) > 1)}"
