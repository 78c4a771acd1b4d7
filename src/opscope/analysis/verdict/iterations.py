"""The iterations of a server, by kind and size: how long they take, how busy the device is, and what bounds them."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.idle.steps import Waits
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, nesting_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import periods_of_device_work
from opscope.analysis.verdict.bounds import BUSY_SHARE, is_larger
from opscope.analysis.verdict.step_evidence import busiest
from opscope.documents.trace import IterationRow
from opscope.documents.verdict import BoundKind
from opscope.knowledge.serving import Iteration, iteration_of
from opscope.trace.model import Trace


class _Ranges(Struct, frozen=True):
    """The ranges that are iterations, by start; one entry per iteration.

    Attributes:
        named: what the range's name says.
        host: when the range lasted on the host.
        periods: when the device worked for the iteration; the same as ``host`` where no device did.
        device_ns: durations of the activities that were launched in the range.
        idle_ns: idle time of the device within the period.
        waits_ns: idle time per kind; the profiler's own belongs to none.
    """

    named: list[Iteration]
    host: Intervals
    periods: Intervals
    device_ns: Ints
    idle_ns: Ints
    waits_ns: Mapping[BoundKind, Ints]


def iteration_table(trace: Trace, links: Links, devices: tuple[DeviceTimeline, ...], waits: Waits | None
                    ) -> tuple[IterationRow, ...]:  # fmt: skip
    """Return one row per kind of iteration, number of requests and tokens; the most time first.

    An activity belongs to the iteration in whose range it was launched. On the device an iteration lasts from its first
    activity to the first of the next one; figures are those of the busiest device. Empty where no range is an
    iteration.
    """
    rows = np.flatnonzero(names_that(trace.annotations, iteration_of))
    if not len(rows):
        return ()
    ranges = _one_each(trace.annotations[rows].sort("start_ns", maintain_order=True))
    named = [iteration for name in ranges["name"].cast(pl.String) if (iteration := iteration_of(name)) is not None]
    host = Intervals(column(ranges, "start_ns"), end_of(ranges))
    launch = links.activity_launch
    own = np.flatnonzero(launch >= 0)
    if devices:
        own = own[column(trace.activities, "device")[own] == busiest(devices).device]
    thread, start = (column(trace.launches, name)[launch[own]] for name in ("thread", "start_ns"))
    owner = nesting_of(ranges).innermost_at(thread, start)
    begun, ended = column(trace.activities, "start_ns")[own], end_of(trace.activities)[own]
    device_ns = np.zeros(len(named), np.int64)
    np.add.at(device_ns, owner[owner >= 0], (ended - begun)[owner >= 0])
    periods = host
    if devices and (owner >= 0).any():
        periods = periods_of_device_work(owner, begun, ended, host, apart=False)
        # What was queued before the recording is not part of the first iteration.
        window = busiest(devices).window
        periods = Intervals(*(np.clip(times, window.start_ns, window.end_ns) for times in (periods.start, periods.end)))
    idle_ns, waits_ns = _idle(waits, periods) if waits is not None else (np.zeros(len(named), np.int64), {})
    result = _Ranges(named, host, periods, device_ns, idle_ns, waits_ns)
    return tuple(sorted(_rows(result, devices, waits), key=lambda row: (-row.total_ns, row.kind, row.requests or 0)))


def _one_each(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return one range per iteration: servers name an iteration on several levels, and groups of several, too.

    Of nested ranges, the outermost with at most one range directly inside, at every level below it, is the iteration.
    """
    parent = nesting_of(ranges).parent
    inside = np.bincount(parent[parent >= 0], minlength=ranges.height)
    groups = inside > 1
    for row in range(ranges.height - 1, -1, -1):  # inner ranges come after the outer one, so from the end upwards
        if groups[row] and parent[row] >= 0:
            groups[parent[row]] = True
    within_one = np.zeros(ranges.height, np.bool_)
    for row in range(ranges.height):
        above = parent[row]
        within_one[row] = above >= 0 and (within_one[above] or not groups[above])
    return ranges.filter(~groups & ~within_one)


def _rows(ranges: _Ranges, devices: tuple[DeviceTimeline, ...], waits: Waits | None) -> Iterator[IterationRow]:
    groups: dict[Iteration, list[int]] = {}
    for place, iteration in enumerate(ranges.named):
        groups.setdefault(iteration, []).append(place)
    for iteration, places in groups.items():
        where = np.array(places)
        spans, period = (part.end[where] - part.start[where] for part in (ranges.host, ranges.periods))
        idle = int(ranges.idle_ns[where].sum())
        by_kind = {kind: int(times[where].sum()) for kind, times in ranges.waits_ns.items()}
        total = int(period.sum())
        yield IterationRow(
            kind=iteration.kind,
            requests=iteration.requests,
            tokens=iteration.tokens,
            detail=iteration.detail,
            iterations=len(places),
            total_ns=total,
            median_ns=float(np.median(period)),
            host_ns=float(np.median(spans)),
            device_sum_ns=int(ranges.device_ns[where].sum()),
            idle_ns=idle if devices else None,
            bound=None if waits is None else str(_bound(by_kind, total, idle)),
        )


def _idle(waits: Waits, periods: Intervals) -> tuple[Ints, dict[BoundKind, Ints]]:
    """Return how much idle time lies in each period, in all and per kind."""
    period, piece, start, end = periods.overlapping(waits.idle.pieces)

    def added(chosen: Bools) -> Ints:
        total = np.zeros(len(periods), np.int64)
        np.add.at(total, period[chosen], (end - start)[chosen])
        return total

    return added(np.ones(len(piece), np.bool_)), {kind: added(mask[piece]) for kind, mask in waits.kinds.items()}


def _bound(by_kind: Mapping[BoundKind, int], total: int, idle: int) -> BoundKind:
    """Return what bounds iterations as profiled: the device, or what it waits for most.

    Args:
        by_kind: idle time per kind.
        total: how long the iterations took.
        idle: all idle time, including the profiler's own, which is of no kind.
    """
    profiler = idle - sum(by_kind.values())  # of no kind
    if total <= profiler or idle - profiler <= (1 - BUSY_SHARE) * (total - profiler):
        return BoundKind.DEVICE
    largest = max(by_kind, key=lambda kind: by_kind[kind])
    return largest if is_larger(by_kind[largest], total - idle, total - profiler) else BoundKind.DEVICE
