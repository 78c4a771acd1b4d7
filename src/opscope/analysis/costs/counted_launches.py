"""Joins what Nsight Compute measured to the launches of a trace: by the kernel's name, its geometry, and their order.

Under Nsight Compute kernels run one after the other, and a program may launch different ones. So the n-th launch of a
name and geometry in a process counts as the n-th one in the trace; a launch without a counterpart stays alone.
Processes are paired in the order in which they begin. Nsight Compute writes names otherwise than the profiler that
recorded the run, so what both write is compared (`kernel_names`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl
from msgspec import Struct

from opscope.base.demangle import readable_names
from opscope.documents.counters import CounterLaunch
from opscope.knowledge.kernels.names import canonical, common_spelling, namespaces
from opscope.record.counters import KernelCounters
from opscope.trace.model import Trace

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
