"""What kernels did by the counters of Nsight Compute, and how far they are from the limit of their device.

With the operations and bytes that were counted, a kernel has its place below the roofs of its device: by what it did,
not by what a model says that it had to do.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.costs.counted_launches import KernelNames, Key
from opscope.documents.counters import CountedWork, CounterLaunch, CounterRow
from opscope.documents.limits import LimitedBy
from opscope.knowledge.counted_work import (
    WITHOUT_BYTES,
    CountedOperations,
    counted_bytes,
    counted_operations,
    fastest_rate,
    first_of,
)
from opscope.knowledge.devices import Peaks
from opscope.knowledge.kernels.decode import decode_name
from opscope.record.counters import UPPER_BOUND, KernelCounters

# Names of one figure: on Nsight Compute's raw page, and on the page with spelled-out names.
_DURATION: Final = ("gpu__time_duration.sum", "Duration")
_SM: Final = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")
_MEMORY: Final = ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput")
_DRAM: Final = ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput")
_OCCUPANCY: Final = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_BYTES: Final = "bytes of the device's memory"
_MAY_BE_HALF: Final = "half-precision instructions, which also convert numbers and set constants, may limit them"


class Limit(Struct, frozen=True):
    """What kernels are compared with.

    Attributes:
        peaks: of the device that ran them; None if not known.
        reason: why they are not known; empty if they are.
        has_run: whether durations are those of a run, at full clocks.
    """

    peaks: Peaks | None
    reason: str
    has_run: bool


def counter_rows(
    counters: Sequence[KernelCounters], launches: Sequence[CounterLaunch], limit: Limit, names: KernelNames
) -> tuple[CounterRow, ...]:
    """Return one row per kernel and geometry, the longest first; those that the run does not have come last.

    Args:
        counters: the launches, in order.
        launches: the same, joined with the run.
        limit: what they are compared with.
        names: which kernels of the run they are.
    """
    groups: dict[Key, list[int]] = defaultdict(list)
    for at, one in enumerate(counters):
        groups[names.key_of(one)].append(at)
    rows = [
        _row([counters[at] for at in places], [launches[at] for at in places], limit, names)
        for places in groups.values()
    ]
    # Times under Nsight Compute are longer than those of the run, so the two do not mix.
    return tuple(sorted(rows, key=lambda row: (row.run_ns is None, -_time(row))))


def _time(row: CounterRow) -> float:
    return row.measured * (row.ncu_ns or 0) if row.run_ns is None else row.joined * row.run_ns


def _row(
    counters: Sequence[KernelCounters], launches: Sequence[CounterLaunch], limit: Limit, names: KernelNames
) -> CounterRow:
    in_run = [one.run_ns for one in launches if one.run_ns is not None]
    name = names.in_run.get((counters[0].process, counters[0].kernel)) if in_run else None
    name_in_run = None if name is None else names.readable.get(name, name)

    def figure(names: Sequence[str]) -> float | None:
        values = [one.metrics[name] for one in counters for name in names if name in one.metrics]
        return median(values) if values else None

    operations = [counted_operations(one.metrics, one.compute_capability) for one in counters]
    moved = [result for one in counters if (result := counted_bytes(one.metrics)) is not None]
    no_bytes = (_BYTES,) if len(moved) < len(counters) else ()
    missing = (*dict.fromkeys(what for one in operations for what in one.not_counted), *no_bytes)
    work = _work(counters, launches, operations, limit)
    asked = any(one.any_counted for one in operations)
    return CounterRow(
        kernel=launches[0].kernel,
        grid=counters[0].grid,
        block=counters[0].block,
        measured=len(counters),
        joined=len(in_run),
        run_ns=median(in_run) if in_run else None,
        ncu_ns=figure(_DURATION),
        sm_percent=figure(_SM),
        memory_percent=figure(_MEMORY),
        dram_percent=figure(_DRAM),
        dram_bytes=median(moved) if moved else None,
        occupancy_percent=figure(_OCCUPANCY),
        work=work,
        reason=_why_none(counters, in_run, missing, limit) if asked and work is None else None,
        not_counted=missing if asked else (),
        name_in_run=name_in_run,
        summary=None if name_in_run is None else decode_name(name_in_run).summary or None,
    )


def _why_none(counters: Sequence[KernelCounters], in_run: Sequence[int], missing: Sequence[str], limit: Limit) -> str:
    """Return why operations, bytes and duration are not known together for any launch."""
    capability = counters[0].compute_capability
    if missing and capability in WITHOUT_BYTES:
        return f"devices of compute capability {capability} do not count the bytes of their memory"
    if missing:
        return f"not counted: {', '.join(missing)}"
    if limit.has_run and not in_run:
        return "the run has none of their launches"
    return "their durations are not known"


def _work(
    counters: Sequence[KernelCounters],
    launches: Sequence[CounterLaunch],
    operations: Sequence[CountedOperations],
    limit: Limit,
) -> CountedWork | None:
    """Return the means over the launches whose operations, bytes and duration are all known."""
    known: list[tuple[float, float, CountedOperations]] = []
    for one, launch, work in zip(counters, launches, operations, strict=True):
        # With a run, times under Nsight Compute are not times of the same kind.
        ns = launch.run_ns if limit.has_run else first_of(one.metrics, _DURATION)
        moved = counted_bytes(one.metrics)
        if ns and moved is not None and not work.not_counted:
            known.append((ns, moved, work))
    if not known:
        return None
    count = len(known)
    ns, moved = sum(ns for ns, _, _ in known) / count, sum(moved for _, moved, _ in known) / count
    total = sum(work.total for _, _, work in known) / count
    units = sorted({unit for _, _, work in known for unit in work.by_unit})
    by_unit = {unit: sum(work.by_unit.get(unit, 0) for _, _, work in known) / count for unit in units}
    is_most = total >= by_unit.get(UPPER_BOUND, 0)
    result = CountedWork(
        launches=count,
        ns=ns,
        dram_bytes=moved,
        operations=total,
        operations_by_unit=by_unit,
        operations_per_byte=total / moved if moved and is_most else None,
        operations_per_s=1e9 * total / ns if is_most else None,
    )
    if any(work.sparse for _, _, work in known):
        return replace(result, reason="it multiplies sparse matrices, and peaks are those of dense ones")
    return _limited(result, limit)


def _limited(work: CountedWork, limit: Limit) -> CountedWork:
    """Return the work with its least time: units and memory work side by side, so the longest of them counts."""
    peaks = limit.peaks
    if peaks is None:
        return replace(work, reason=limit.reason)
    if not peaks.memory_bytes_per_s:
        return replace(work, reason="the peak of the device's memory is not known")
    rates = {unit: fastest_rate(unit, peaks.rates) for unit in work.operations_by_unit if unit != UPPER_BOUND}
    if unknown := [unit for unit, rate in rates.items() if not rate]:
        return replace(work, reason=f"peaks that are not known: {', '.join(unknown)}")
    times = {unit: 1e9 * work.operations_by_unit[unit] / rate for unit, rate in rates.items() if rate}
    unit = max(times, key=times.__getitem__, default=None)
    compute_ns = 0 if unit is None else times[unit]
    memory_ns = 1e9 * work.dram_bytes / peaks.memory_bytes_per_s
    ideal_ns = max(compute_ns, memory_ns)
    if not ideal_ns:
        return replace(work, reason="no arithmetic, and no bytes of the device's memory")
    if _half_ns(work, peaks) > ideal_ns:
        return replace(work, reason=_MAY_BE_HALF)
    return replace(
        work,
        unit=unit,
        unit_peak_per_s=None if unit is None else rates[unit],
        ideal_ns=ideal_ns,
        limited_by=(LimitedBy.COMPUTE if compute_ns > memory_ns else LimitedBy.MEMORY).value,
        share=ideal_ns / work.ns if limit.has_run else None,
    )


def _half_ns(work: CountedWork, peaks: Peaks) -> float:
    """Return how long half-precision instructions take at most, at their peak or the lower one of single precision."""
    count, rate = work.operations_by_unit.get(UPPER_BOUND, 0), peaks.rates.get(UPPER_BOUND) or peaks.rates.get("fp32")
    return 1e9 * count / rate if rate else math.inf if count else 0
