"""The schema ``opscope.counters/1``: what Nsight Compute measured of kernels, beside the launches of a run."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CounterRow:
    """All launches of one kernel with one geometry. Medians over the launches that have a figure; None without any.

    Attributes:
        kernel: the name, as Nsight Compute spells it.
        grid, block: thread blocks and threads of a block, x,y,z.
        measured: how many launches Nsight Compute measured.
        joined: how many of these are launches of the run: the n-th of a name and geometry is the n-th of it there.
        run_ns: duration in the run, of the joined launches.
        ncu_ns: duration under Nsight Compute, which sets clocks and empties caches unless told otherwise.
        sm_percent, memory_percent, dram_percent: throughput of the multiprocessors, of the memory system and of the
            device's memory, of their peaks.
        dram_bytes: read from and written to the device's memory.
        occupancy_percent: achieved.
    """

    kernel: str
    grid: str | None
    block: str | None
    measured: int
    joined: int
    run_ns: float | None
    ncu_ns: float | None
    sm_percent: float | None
    memory_percent: float | None
    dram_percent: float | None
    dram_bytes: float | None
    occupancy_percent: float | None


@dataclass(frozen=True, slots=True)
class CounterLaunch:
    """One measured launch.

    Attributes:
        kernel: as Nsight Compute spells it.
        number: which one of those with its name and geometry, from 0.
        run_ns: how long the same launch took in the run; None where that has no such launch.
        metrics: all that was measured; times in nanoseconds, sizes in bytes.
    """

    kernel: str
    number: int
    run_ns: int | None
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersDocument:
    """Counters, joined with a run where one is given.

    Attributes:
        files: where the counters are from.
        trace: the run; None without.
        kernels: by time in the run, or under Nsight Compute without one.
        launches: every measured launch, in order.
        unmatched_launches: measured, and not in the run.
        kernels_of_run_without: kernels of the run that were not measured.
    """

    schema: Literal["opscope.counters/1"] = "opscope.counters/1"
    files: tuple[str, ...]
    trace: str | None
    kernels: tuple[CounterRow, ...]
    launches: tuple[CounterLaunch, ...]
    unmatched_launches: int
    kernels_of_run_without: int
