"""Joins counters of Nsight Compute to the launches of a trace: by the kernel's name, its geometry, and their order.

Under Nsight Compute kernels run one after the other, and a program may launch different ones. So the n-th launch of a
name and geometry in a process counts as the n-th one in the trace; a launch without a counterpart stays alone.
Processes are paired in the order in which they begin.

With the operations and bytes that were counted, a kernel has its place below the roofs of its device: by what it did,
not by what a model says that it had to do.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import polars as pl
from msgspec.structs import replace

from opscope.base.patterns import lazy_pattern
from opscope.documents.counters import CounterLaunch, CounterRow
from opscope.documents.limits import LimitedBy
from opscope.knowledge.counted_operations import CountedOperations, counted_operations, rate_of
from opscope.knowledge.devices import Peaks
from opscope.knowledge.kernels.names import canonical
from opscope.record.counters import KernelCounters
from opscope.trace.model import Trace

# Names of one figure: on Nsight Compute's raw page, and on the page with spelled-out names.
_DURATION: Final = ("gpu__time_duration.sum", "Duration")
_SM: Final = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")
_MEMORY: Final = ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput")
_DRAM: Final = ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput")
_OCCUPANCY: Final = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_READ, _WRITTEN = ("dram__bytes_read.sum",), ("dram__bytes_write.sum",)
_MOVED, _MOVED_PER_S = ("dram__bytes.sum",), ("dram__bytes.sum.per_second",)
_PARAMETERS: Final = lazy_pattern(r"\(.*\)(?: const)?$", re.DOTALL)

# The kernel's name in one spelling, grid and block.
Key = tuple[str, str | None, str | None]
# The durations of a process's launches in order, in nanoseconds.
Durations = Mapping[Key, Sequence[int]]


def joined_launches(counters: Sequence[KernelCounters], run: Sequence[Durations]) -> tuple[CounterLaunch, ...]:
    """Return every measured launch with its duration in the run; without one where the run has no counterpart.

    Args:
        counters: the launches, in order.
        run: the processes of the run that ran kernels, in order: as many as were measured, or none.
    """
    processes = processes_of(counters)
    # Without a run no process has durations.
    durations = dict(zip(processes, run, strict=False))
    seen: dict[tuple[str, Key], int] = defaultdict(int)
    found = []
    for one in counters:
        key = key_of(one.kernel, one.grid, one.block)
        number = seen[one.process, key]
        seen[one.process, key] += 1
        of_run = durations.get(one.process, {}).get(key, [])
        run_ns = of_run[number] if number < len(of_run) else None
        found.append(CounterLaunch(one.kernel, number, run_ns, one.metrics))
    return tuple(found)


def counter_rows(
    counters: Sequence[KernelCounters],
    launches: Sequence[CounterLaunch],
    operations: Sequence[CountedOperations],
    peaks: Peaks | None,
) -> tuple[CounterRow, ...]:
    """Return one row per kernel and geometry, the longest first.

    Args:
        counters: the launches, in order.
        launches: the same, joined with the run.
        operations: the operations of each.
        peaks: of the device that ran them; None if not known.
    """
    groups: dict[Key, list[int]] = defaultdict(list)
    for at, one in enumerate(counters):
        groups[key_of(one.kernel, one.grid, one.block)].append(at)
    rows = [
        _below_roofs(
            _row([counters[at] for at in places], [launches[at] for at in places]),
            [operations[at] for at in places],
            peaks,
        )
        for places in groups.values()
    ]
    return tuple(sorted(rows, key=lambda row: -row.measured * (row.run_ns or row.ncu_ns or 0)))


def operations_of(counters: Sequence[KernelCounters]) -> tuple[CountedOperations, ...]:
    """Return the operations of each launch."""
    return tuple(counted_operations(one.metrics, one.compute_capability) for one in counters)


def processes_of(counters: Sequence[KernelCounters]) -> tuple[str, ...]:
    """Return the processes that were measured, in the order in which they began to launch."""
    return tuple(dict.fromkeys(one.process for one in counters))


def kernels_without(counters: Sequence[KernelCounters], run: Sequence[Durations]) -> int:
    """Return how many kernels of a run, by name and geometry, were not measured."""
    of_run = {key for durations in run for key in durations}
    return len(of_run - {key_of(one.kernel, one.grid, one.block) for one in counters})


def key_of(name: str, grid: str | None, block: str | None) -> Key:
    """Return what is the same for one kernel in a trace and in Nsight Compute, which spell parameters differently."""
    return canonical(_PARAMETERS.sub("", name)), grid, block


def durations_of(trace: Trace) -> Durations:
    """Return how long each launch of each kernel took in a process, in order."""
    kernels = trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel").sort("start_ns")
    text = kernels.select(pl.col("name", "grid", "block").cast(pl.String), "duration_ns")
    keys: dict[Key, Key] = {}
    found: dict[Key, list[int]] = defaultdict(list)
    for name, grid, block, duration in text.iter_rows():
        # Bringing a name into one spelling is slow; there are few different ones among many launches.
        as_recorded = (name, grid, block)
        if as_recorded not in keys:
            keys[as_recorded] = key_of(name, grid, block)
        found[keys[as_recorded]].append(duration)
    return found


def _row(counters: Sequence[KernelCounters], launches: Sequence[CounterLaunch]) -> CounterRow:
    in_run = [one.run_ns for one in launches if one.run_ns is not None]

    def figure(names: Sequence[str]) -> float | None:
        values = [one.metrics[name] for one in counters for name in names if name in one.metrics]
        return median(values) if values else None

    def moved() -> float | None:
        read, written = figure(_READ), figure(_WRITTEN)
        if read is not None and written is not None:
            return read + written
        rate, duration_ns = figure(_MOVED_PER_S), figure(_DURATION)
        return figure(_MOVED) if rate is None or duration_ns is None else rate * duration_ns / 1e9

    return CounterRow(
        kernel=counters[0].kernel,
        grid=counters[0].grid,
        block=counters[0].block,
        measured=len(counters),
        joined=len(in_run),
        run_ns=median(in_run) if in_run else None,
        ncu_ns=figure(_DURATION),
        sm_percent=figure(_SM),
        memory_percent=figure(_MEMORY),
        dram_percent=figure(_DRAM),
        dram_bytes=moved(),
        occupancy_percent=figure(_OCCUPANCY),
    )


def _below_roofs(row: CounterRow, operations: Sequence[CountedOperations], peaks: Peaks | None) -> CounterRow:
    """Return a row with its operations, and how far it is from the peaks."""
    units = sorted({unit for one in operations for unit in one.by_unit})
    by_unit = {unit: median([one.by_unit.get(unit, 0) for one in operations]) for unit in units}
    row = replace(row, operations_by_unit=by_unit)
    if any(one.not_counted for one in operations):
        return row
    total, duration_ns = sum(by_unit.values()), row.run_ns or row.ncu_ns
    row = replace(
        row,
        operations=total,
        operations_per_byte=total / row.dram_bytes if row.dram_bytes else None,
        operations_per_s=1e9 * total / duration_ns if duration_ns else None,
    )
    times = _least_times(by_unit, row.dram_bytes, peaks)
    if times is None:
        return row
    limited_by = max(times, key=times.__getitem__)
    ideal_ns = times[limited_by]
    return replace(row, ideal_ns=ideal_ns, limited_by=limited_by, share=ideal_ns / row.run_ns if row.run_ns else None)


def _least_times(
    by_unit: Mapping[str, float], dram_bytes: float | None, peaks: Peaks | None
) -> dict[str, float] | None:
    """Return the nanoseconds that memory and each unit need at their peaks; None if a peak is not known.

    Units work side by side, so the longest of these is the least time of a launch.
    """
    if peaks is None or dram_bytes is None or not peaks.memory_bytes_per_s:
        return None
    times = {LimitedBy.MEMORY.value: 1e9 * dram_bytes / peaks.memory_bytes_per_s}
    for unit, count in by_unit.items():
        rate = rate_of(unit, peaks.rates)
        if not rate:
            return None
        times[unit] = 1e9 * count / rate
    return times
