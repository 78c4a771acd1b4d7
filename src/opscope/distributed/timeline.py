"""Some steps of all ranks as one trace, on one clock."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl
from msgspec.structs import replace

from opscope.analysis.part import Part, merged, read_part
from opscope.base.errors import UsageError
from opscope.distributed.clocks import RankClocks
from opscope.distributed.collectives import rows_of
from opscope.distributed.job import Job, matched_on_clocks
from opscope.distributed.one_rank import BASE_TIMES, base_of
from opscope.trace.columns import TABLES
from opscope.trace.model import DeviceProperties, Trace

_LAST: Final = 2  # steps, where none are named


def one_timeline(job: Job, steps: tuple[int, int] | None, max_bytes: int) -> tuple[Trace, list[int]]:
    """Return some steps of all ranks as one trace, with a device and a process for each rank.

    Args:
        job: the job.
        steps: the profiler's numbers of the first and the last step; None for the last two that all ranks have.
        max_bytes: as for `opscope.read`, of each trace.

    Returns:
        The trace, and the ranks whose clocks nothing ties to the others, which are shown by their own. Ranks that lack
        the last steps are left out, where none are named.

    Raises:
        UsageError: the ranks have no step in common, or a rank has none of those that are named.
        BadInputError, EnvironmentLacksError: as `opscope.read`.
    """
    wanted, ranks = (steps, list(job.ranks)) if steps else _last_common(job)
    _, clocks = matched_on_clocks(rows_of(job.ranks), job.world)
    traces = []
    for rank in ranks:
        summary = job.ranks[rank]
        trace = read_part(Path(summary.facts.path), Part(steps=wanted), max_bytes=max_bytes)
        traces.append(_of_rank(_on_clock(trace, rank, clocks), rank))
    begin = min((first for trace in traces if (first := _first(trace)) is not None), default=0)
    untied = [rank for rank in ranks if clocks is None or rank not in clocks.ranks]
    return merged([_moved(trace, lambda time: time - begin) for trace in traces]), untied


def _last_common(job: Job) -> tuple[tuple[int, int], list[int]]:
    """Return the last steps that most ranks have, and these ranks."""
    of_rank = {rank: set(one.steps["step"].drop_nulls().to_list()) for rank, one in job.ranks.items()}
    counts = Counter(number for numbers in of_rank.values() for number in numbers)
    common = sorted(number for number, count in counts.items() if count == max(counts.values()))
    if not common or counts[common[-1]] < min(2, len(job.ranks)):
        raise UsageError("the ranks have no marked step in common: nothing tells which parts of them belong together")
    wanted = common[-_LAST:]
    return (wanted[0], wanted[-1]), [rank for rank, numbers in of_rank.items() if numbers.issuperset(wanted)]


def _of_rank(trace: Trace, rank: int) -> Trace:
    """Name the devices and processes of a trace after its rank: other ranks have devices and processes of the same."""
    used = trace.activities["device"].drop_nulls().unique().sort().to_list()
    known = {device.index: device for device in trace.devices}
    devices = [known.get(number, DeviceProperties(number, "unknown device")) for number in used]
    # The first process is called as the rank; further ones, as of loaders, have their own numbers too.
    processes = sorted({process for process, _ in trace.threads})
    called = {process: f"rank {rank}, process {process}" for process in processes}
    called |= dict.fromkeys(processes[:1], f"rank {rank}")
    # Times are those of the common clock, and begin elsewhere.
    metadata = {name: text for name, text in trace.source.metadata.items() if name not in BASE_TIMES}
    return replace(
        trace,
        source=replace(trace.source, metadata=metadata),
        devices=tuple(replace(one, name=f"rank {rank}: {one.name}", uuid=f"{rank}/{one.index}") for one in devices),
        threads=tuple((json.dumps(called[process]), thread) for process, thread in trace.threads),
    )


def _on_clock(trace: Trace, rank: int, clocks: RankClocks | None) -> Trace:
    base = base_of(trace)
    if clocks is None or rank not in clocks.ranks:
        return _moved(trace, lambda time: time + base)
    place = clocks.ranks.tolist().index(rank)
    offset, drift = float(clocks.offset_ns[place]), float(clocks.drift[place])

    def true(time: pl.Expr) -> pl.Expr:
        # The difference before it becomes a float, which holds no nanoseconds since 1970.
        since = (time + (base - clocks.middle_ns)).cast(pl.Float64)
        return time + base - (offset + drift * since).round().cast(pl.Int64)

    return _moved(trace, true)


def _moved(trace: Trace, to: Callable[[pl.Expr], pl.Expr]) -> Trace:
    """Return a trace with other times; durations stay, as a drift of some millionths changes none."""
    tables = {}
    for name in TABLES:
        table: pl.DataFrame = getattr(trace, name)
        times = [column for column in ("start_ns", "time_ns") if column in table.columns]
        tables[name] = table.with_columns(to(pl.col(column)).alias(column) for column in times)
    return replace(trace, **tables)


def _first(trace: Trace) -> int | None:
    """Return when the first record of a trace begins; None of an empty one."""
    tables = (getattr(trace, name) for name in TABLES)
    firsts = [table["start_ns"].min() for table in tables if "start_ns" in table.columns and table.height]
    return min((first for first in firsts if isinstance(first, int)), default=None)
