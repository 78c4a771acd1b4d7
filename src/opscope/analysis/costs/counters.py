"""What kernels did by the counters of Nsight Compute, and how far they are from the limit of their device.

With the operations and bytes that were counted, a kernel has its place below the roofs of its device: by what it did,
not by what a model says that it had to do.

Joins what Nsight Compute measured to the launches of a trace: by the kernel's name, its geometry, and their order.

Under Nsight Compute kernels run one after the other, and a program may launch different ones. So the n-th launch of a
name and geometry in a process counts as the n-th one in the trace; a launch without a counterpart stays alone.
Processes are paired in the order in which they begin. Nsight Compute writes names otherwise than the profiler that
recorded the run, so what both write is compared (`kernel_names`).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.base.demangle import readable_names
from opscope.documents.limits import LimitedBy
from opscope.documents.stats import CountedWork, CounterLaunch, CounterRow
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
from opscope.knowledge.kernels.names import canonical, common_spelling, namespaces
from opscope.record.counters import UPPER_BOUND, KernelCounters
from opscope.trace.model import Trace

# Names of one figure: on Nsight Compute's raw page, and on the page with spelled-out names.
_DURATION: Final = ("gpu__time_duration.sum", "Duration")
_SM: Final = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")
_MEMORY: Final = ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput")
_DRAM: Final = ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput")
_OCCUPANCY: Final = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_BYTES: Final = "bytes of the device's memory"
_MAY_BE_HALF: Final = "half-precision instructions, which also convert numbers and set constants, may limit them"
# The kernel's name, grid and block.
Key = tuple[str, str | None, str | None]
# The durations of a process's launches in order, in nanoseconds; by names as they were recorded.
Durations = Mapping[Key, Sequence[int]]


class KernelNames(Struct, frozen=True):
    """Which kernel of a run a measured one is.

    Attributes:
        readable: mangled names (``_ZN2at..``) -> what people write; names that cannot be read are left out.
        in_run: the process and a name, as they were measured -> the name in the run; without those that it does not
            have.
    """

    readable: Mapping[str, str]
    in_run: Mapping[tuple[str, str], str]

    def key(self, name: str, grid: str | None, block: str | None) -> Key:
        """Return what is the same for a kernel however its name is spelled."""
        return canonical(self.readable.get(name, name)), grid, block

    def key_of(self, one: KernelCounters) -> Key:
        """Return the key of a measured launch: that of its kernel in the run, if the run has it."""
        return self.key(self.in_run.get((one.process, one.kernel), one.kernel), one.grid, one.block)


def kernel_names(counters: Sequence[KernelCounters], run: Sequence[Durations]) -> KernelNames:
    """Return which kernels of a run were measured.

    Names that are the same in full are of one kernel. Nsight Compute leaves out parts, unless it was asked for mangled
    names; so the part that all profilers write is compared, and has to belong to one kernel alone in either process.

    Args:
        counters: the launches, in order.
        run: the processes of the run that ran kernels, in order: as many as were measured, or none.
    """
    measured: dict[str, set[str]] = {process: set() for process in processes_of(counters)}
    for one in counters:
        measured[one.process].add(one.kernel)
    of_run = [{name for name, _, _ in durations} for durations in run]
    names = KernelNames(readable_names(set().union(*measured.values(), *of_run)), {})
    # Without a run no process has counterparts.
    pairs = zip(measured.items(), of_run, strict=False)
    in_run = {
        (process, name): result
        for (process, own), others in pairs
        for name, result in _same_kernels(own, others, names.readable).items()
    }
    return KernelNames(names.readable, in_run)


def _same_kernels(measured: set[str], run: set[str], readable: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a process of the run by those that were measured, for kernels that are in both."""
    full = {canonical(readable.get(name, name)): name for name in sorted(run)}
    results = {name: full[text] for name in measured if (text := canonical(readable.get(name, name))) in full}
    others: dict[str, list[str]] = defaultdict(list)
    for name in run:
        others[common_spelling(readable.get(name, name))].append(name)
    shortened: dict[str, list[str]] = defaultdict(list)
    for name in measured:
        shortened[common_spelling(readable.get(name, name))].append(name)
    for part, names in shortened.items():
        if len(names) == len(others[part]) == 1 and not names[0].startswith("_Z"):
            (name,), (other,) = names, others[part]
            # What it leaves out are whole namespaces, so those that it names have to be there.
            if namespaces(name) <= namespaces(readable.get(other, other)):
                results.setdefault(name, other)
    return results


def joined_launches(
    counters: Sequence[KernelCounters], run: Sequence[Durations], names: KernelNames
) -> tuple[CounterLaunch, ...]:
    """Return every measured launch with its duration in the run; without one where the run has no counterpart.

    Args:
        counters: the launches, in order.
        run: the processes of the run that ran kernels, in order: as many as were measured, or none.
        names: which kernels both have.
    """
    # Without a run no process has durations.
    durations = dict(zip(processes_of(counters), run, strict=False))
    seen: dict[tuple[str, Key], int] = defaultdict(int)
    results = []
    for one in counters:
        key = names.key_of(one)
        number = seen[one.process, key]
        seen[one.process, key] += 1
        name = names.in_run.get((one.process, one.kernel))
        of_run = [] if name is None else durations[one.process].get((name, one.grid, one.block), [])
        run_ns = of_run[number] if number < len(of_run) else None
        results.append(CounterLaunch(names.readable.get(one.kernel, one.kernel), number, run_ns, one.metrics))
    return tuple(results)


def processes_of(counters: Sequence[KernelCounters]) -> tuple[str, ...]:
    """Return the processes that were measured, in the order in which they began to launch."""
    return tuple(dict.fromkeys(one.process for one in counters))


def kernels_without(counters: Sequence[KernelCounters], run: Sequence[Durations], names: KernelNames) -> int:
    """Return how many kernels of a run, by name and geometry, were not measured."""
    of_run = {names.key(*kernel) for durations in run for kernel in durations}
    return len(of_run - {names.key_of(one) for one in counters})


def durations_of(trace: Trace) -> Durations:
    """Return how long each launch of each kernel took in a process, in order."""
    kernels = trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel").sort("start_ns")
    text = kernels.select(pl.col("name", "grid", "block").cast(pl.String), "duration_ns")
    results: dict[Key, list[int]] = defaultdict(list)
    for name, grid, block, duration in text.iter_rows():
        results[name, grid, block].append(duration)
    return results


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
