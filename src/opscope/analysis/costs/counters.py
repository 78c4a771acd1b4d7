"""Joins counters of Nsight Compute to the launches of a trace: by the kernel's name, its geometry, and their order.

Under Nsight Compute kernels run one after the other, and a program may launch different ones. So the n-th launch of a
name and geometry in a process counts as the n-th one in the trace; a launch without a counterpart stays alone.
Processes are paired in the order in which they begin.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

import polars as pl

from opscope.base.patterns import lazy_pattern
from opscope.documents.counters import CounterLaunch, CounterRow
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
_PARAMETERS: Final = lazy_pattern(r"\(.*\)(?: const)?$", re.DOTALL)

# The kernel's name in one spelling, grid and block.
Key = tuple[str, str | None, str | None]


def joined_launches(counters: Sequence[KernelCounters], traces: Sequence[Trace]) -> tuple[CounterLaunch, ...]:
    """Return every measured launch with its duration in the run; without one where the run has no counterpart.

    Args:
        counters: the launches, in order.
        traces: the processes of the run that ran kernels, in order: as many as were measured, or none.
    """
    processes = processes_of(counters)
    # Without traces no process has durations.
    durations = {process: _durations(trace) for process, trace in zip(processes, traces, strict=False)}
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


def counter_rows(counters: Sequence[KernelCounters], launches: Sequence[CounterLaunch]) -> tuple[CounterRow, ...]:
    """Return one row per kernel and geometry, the longest first."""
    groups: dict[Key, list[int]] = defaultdict(list)
    for at, one in enumerate(counters):
        groups[key_of(one.kernel, one.grid, one.block)].append(at)
    rows = [_row([counters[at] for at in places], [launches[at] for at in places]) for places in groups.values()]
    return tuple(sorted(rows, key=lambda row: -row.measured * (row.run_ns or row.ncu_ns or 0)))


def processes_of(counters: Sequence[KernelCounters]) -> tuple[str, ...]:
    """Return the processes that were measured, in the order in which they began to launch."""
    return tuple(dict.fromkeys(one.process for one in counters))


def kernels_without(counters: Sequence[KernelCounters], traces: Sequence[Trace]) -> int:
    """Return how many kernels of a run, by name and geometry, were not measured."""
    of_run = {key for trace in traces for key in _durations(trace)}
    return len(of_run - {key_of(one.kernel, one.grid, one.block) for one in counters})


def key_of(name: str, grid: str | None, block: str | None) -> Key:
    """Return what is the same for one kernel in a trace and in Nsight Compute, which spell parameters differently."""
    return canonical(_PARAMETERS.sub("", name)), grid, block


def _durations(trace: Trace) -> dict[Key, list[int]]:
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

    read, written = figure(_READ), figure(_WRITTEN)
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
        dram_bytes=None if read is None or written is None else read + written,
        occupancy_percent=figure(_OCCUPANCY),
    )
