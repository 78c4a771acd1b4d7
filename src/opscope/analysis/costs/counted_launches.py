"""Joins what Nsight Compute measured to the launches of a trace: by the kernel's name, its geometry, and their order.

Under Nsight Compute kernels run one after the other, and a program may launch different ones. So the n-th launch of a
name and geometry in a process counts as the n-th one in the trace; a launch without a counterpart stays alone.
Processes are paired in the order in which they begin. Nsight Compute writes names otherwise than the profiler that
recorded the run, so what both write is compared (`one_spelling`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.base.demangle import readable_name
from opscope.documents.counters import CounterLaunch
from opscope.knowledge.kernels.names import canonical, common_spelling
from opscope.record.counters import KernelCounters
from opscope.trace.model import Trace

# The kernel's name, grid and block.
Key = tuple[str, str | None, str | None]
# The durations of a process's launches in order, in nanoseconds; by names as they were recorded.
Durations = Mapping[Key, Sequence[int]]


class OneSpelling(Struct, frozen=True):
    """How names of kernels are compared.

    Attributes:
        of: names as they were recorded -> names that are the same for the same kernel.
        in_run: these -> the names in the run; without those of kernels that the run does not have.
    """

    of: Mapping[str, str]
    in_run: Mapping[str, str]

    def key(self, name: str, grid: str | None, block: str | None) -> Key:
        """Return what is the same for one kernel in a trace and in Nsight Compute."""
        return self.of[name], grid, block

    def key_of(self, one: KernelCounters) -> Key:
        """Return the key of a measured launch."""
        return self.key(one.kernel, one.grid, one.block)


def one_spelling(counters: Sequence[KernelCounters], run: Sequence[Durations]) -> OneSpelling:
    """Return how the names of measured kernels and those of a run are compared.

    The part of names that all profilers write is compared. Where several kernels of one process share that part, only
    names that agree in full are of one kernel.
    """
    measured: dict[str, set[str]] = defaultdict(set)
    for one in counters:
        measured[one.process].add(one.kernel)
    processes = [*measured.values(), *({name for name, _, _ in durations} for durations in run)]
    short, full = {}, {}
    for name in set().union(*processes):
        text = readable_name(name)
        short[name], full[name] = common_spelling(text), canonical(text)
    shared: set[str] = set()
    for names in processes:
        kernels: dict[str, set[str]] = defaultdict(set)
        for name in names:
            kernels[short[name]].add(full[name])
        shared.update(part for part, of_part in kernels.items() if len(of_part) > 1)
    of = {name: full[name] if short[name] in shared else short[name] for name in short}
    return OneSpelling(of, {of[name]: name for durations in run for name, _, _ in durations})


def readable(counters: Sequence[KernelCounters]) -> tuple[KernelCounters, ...]:
    """Return the launches with the names that people write in place of those of the linker (``_ZN2at..``)."""
    names = {name: readable_name(name) for name in {one.kernel for one in counters}}
    return tuple(one if names[one.kernel] == one.kernel else replace(one, kernel=names[one.kernel]) for one in counters)


def joined_launches(
    counters: Sequence[KernelCounters], run: Sequence[Durations], spelling: OneSpelling
) -> tuple[CounterLaunch, ...]:
    """Return every measured launch with its duration in the run; without one where the run has no counterpart.

    Args:
        counters: the launches, in order.
        run: the processes of the run that ran kernels, in order: as many as were measured, or none.
        spelling: how the names of both are compared.
    """
    processes = processes_of(counters)
    # Without a run no process has durations.
    durations = dict(zip(processes, (_by_key(one, spelling) for one in run), strict=False))
    seen: dict[tuple[str, Key], int] = defaultdict(int)
    found = []
    for one in counters:
        key = spelling.key_of(one)
        number = seen[one.process, key]
        seen[one.process, key] += 1
        of_run = durations.get(one.process, {}).get(key, [])
        run_ns = of_run[number] if number < len(of_run) else None
        found.append(CounterLaunch(one.kernel, number, run_ns, one.metrics))
    return tuple(found)


def processes_of(counters: Sequence[KernelCounters]) -> tuple[str, ...]:
    """Return the processes that were measured, in the order in which they began to launch."""
    return tuple(dict.fromkeys(one.process for one in counters))


def kernels_without(counters: Sequence[KernelCounters], run: Sequence[Durations], spelling: OneSpelling) -> int:
    """Return how many kernels of a run, by name and geometry, were not measured."""
    of_run = {spelling.key(*kernel) for durations in run for kernel in durations}
    return len(of_run - {spelling.key_of(one) for one in counters})


def _by_key(durations: Durations, spelling: OneSpelling) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = defaultdict(list)
    for kernel, of_kernel in durations.items():
        found[spelling.key(*kernel)].extend(of_kernel)
    return found


def durations_of(trace: Trace) -> Durations:
    """Return how long each launch of each kernel took in a process, in order."""
    kernels = trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel").sort("start_ns")
    text = kernels.select(pl.col("name", "grid", "block").cast(pl.String), "duration_ns")
    found: dict[Key, list[int]] = defaultdict(list)
    for name, grid, block, duration in text.iter_rows():
        found[name, grid, block].append(duration)
    return found
