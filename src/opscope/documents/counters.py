"""Nsight Compute's counters of kernels, joined with the launches of a run: the schema ``opscope.counters/1``."""

from typing import Literal

from msgspec import Struct

from opscope.documents.limits import PeaksEntry


class CountedWork(Struct, frozen=True, kw_only=True):
    """What launches of a kernel did: means of a launch, over the launches for which all of it is known.

    Attributes:
        launches: their number. With a run they are joined ones alone.
        ns: duration: in the run, or under Nsight Compute if there is no run.
        dram_bytes: read from and written to the device's memory, with caches empty at the start.
        operations: arithmetic operations, a multiply-add counted as two, without those of ``fp16_vector``.
        operations_by_unit: the same by the unit that did them, named as peaks are (``fp32``, ``bf16``), with
            ``fp16_vector``: half-precision instructions, which also convert numbers and set constants.
        operations_per_byte: ``operations`` over ``dram_bytes``; null if no bytes were moved.
        operations_per_s: ``operations`` over ``ns``. It and ``operations_per_byte`` are null where half-precision
            instructions may have done more than all others.
        unit: the unit that needs longest for its operations at its peak; null without operations or peaks.
        unit_peak_per_s: that peak: the highest at which the unit may have worked.
        ideal_ns: the least time at the device's peaks, the longest of bytes and each unit's operations; null with the
            reason beside it.
        limited_by: what determines ``ideal_ns``: ``memory`` or ``compute``.
        share: ``ideal_ns`` over ``ns``; null without a run, because peaks are at full clocks and Nsight Compute sets
            others.
        reason: why there is no least time; null if there is one.
    """

    launches: int
    ns: float
    dram_bytes: float
    operations: float
    operations_by_unit: dict[str, float]
    operations_per_byte: float | None
    operations_per_s: float | None
    unit: str | None = None
    unit_peak_per_s: float | None = None
    ideal_ns: float | None = None
    limited_by: str | None = None
    share: float | None = None
    reason: str | None = None


class CounterRow(Struct, frozen=True):
    """All launches of one kernel with one geometry. Figures are medians over the launches that have them, else None.

    Attributes:
        kernel: the name, as Nsight Compute spells it; a mangled one as people write it.
        grid, block: thread blocks and threads of a block, ``x,y,z``.
        measured: launches that Nsight Compute measured.
        joined: how many of these were found in the run: the n-th launch of a name and geometry is taken for the n-th
            one there.
        run_ns: duration of the joined launches in the run.
        ncu_ns: duration under Nsight Compute, which sets clocks and empties caches unless told otherwise.
        sm_percent, memory_percent, dram_percent: throughput of the multiprocessors, the memory system and the device's
            memory, in percent of their peaks.
        dram_bytes: read from and written to the device's memory.
        occupancy_percent: achieved occupancy.
        work: operations and bytes together, and how far they are from the limit; null if they are not known together
            for any launch.
        reason: why there is no ``work``; null if there is, or if no operations were asked for.
        not_counted: which operations, or bytes, were not counted for at least one launch; empty if no operations were
            asked for.
        name_in_run: the name in the run, which is often longer; null if no launch was found there.
        summary: a short name, from the name in the run; null without one, or if it says nothing.
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
    work: CountedWork | None = None
    reason: str | None = None
    not_counted: tuple[str, ...] = ()
    name_in_run: str | None = None
    summary: str | None = None


class CounterLaunch(Struct, frozen=True):
    """One measured launch.

    Attributes:
        kernel: as in `CounterRow`.
        number: its position among the launches of its name and geometry, from 0.
        run_ns: how long the same launch took in the run; None if the run has no such launch.
        metrics: all metrics by name; times in nanoseconds, sizes in bytes, rates of either per second.
    """

    kernel: str
    number: int
    run_ns: int | None
    metrics: dict[str, float]


class CountersDocument(Struct, frozen=True, kw_only=True):
    """Counters, joined with a run if there is one.

    Attributes:
        files: the files of the counters.
        trace: the run's traces; None without a run.
        kernels: sorted by time in the run, then those that it does not have by time under Nsight Compute.
        launches: every measured launch, in order.
        unmatched_launches: number of measured launches that the run does not have.
        kernels_of_run_without: number of the run's kernels that were not measured.
        peaks: of the devices that ran the kernels; null if these are unknown, or differ.
        notes: how to read the figures, and why some are missing.
    """

    schema: Literal["opscope.counters/1"] = "opscope.counters/1"
    files: tuple[str, ...]
    trace: str | None
    kernels: tuple[CounterRow, ...]
    launches: tuple[CounterLaunch, ...]
    unmatched_launches: int
    kernels_of_run_without: int
    peaks: PeaksEntry | None = None
    notes: tuple[str, ...] = ()
