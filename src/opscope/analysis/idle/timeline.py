"""When each device worked, and how its window divides: the figures of docs/metrics.md, "Times"."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.idle.causes import Causes
from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.idle import IdleTime, idle_time
from opscope.analysis.structure.api_masks import names_in, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import (
    Window,
    WindowKind,
    device_window,
    periods_of_device_work,
    step_of_activities,
    step_ranges,
    step_table,
    step_window,
)
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.knowledge.kernels.kinds import communicates, learn_communication
from opscope.trace.model import DeviceProperties, Trace

# Ranges of steps describe a device if no more than this share of its busy time lies outside of them.
TOLERATED_OUTSIDE: Final = 0.05


class DeviceTimeline(Struct, frozen=True):
    """One device's time, all in nanoseconds.

    ``sum_ns`` adds up all durations; ``busy_ns`` is the union of the intervals. The figures below refer to the window:
    compute + exposed communication + exposed memcpy + idle = window.

    Attributes:
        device: its number; `NO_DEVICE` for activities whose device was not recorded.
        window: what idle time and shares refer to.
        steps: when the device worked for each step, one period per recorded step: the step's range on the host, or
            where steps do not wait for their work, from its first activity to the next step's first.
        outside_window_ns: busy time before, after or between the spans of the window.
    """

    device: int
    name: str
    activities: int
    sum_ns: int
    busy_ns: int
    window: Window
    steps: Intervals
    outside_window_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_memcpy_ns: int
    idle_ns: int
    idle: IdleTime

    @property
    def busy_in_window_ns(self) -> int:
        """The part of the busy time that lies in the window."""
        return self.busy_ns - self.outside_window_ns


class Periods(Struct, frozen=True):
    """What a device's idle time refers to.

    Attributes:
        window: the window.
        steps: as in `DeviceTimeline`.
        whole: the window within which idle time has its causes: a wait may go on behind the end of a step.
    """

    window: Window
    steps: Intervals
    whole: Window

    @classmethod
    def of(cls, window: Window, steps: Intervals) -> "Periods":
        """Return those of a whole trace."""
        return cls(window, steps, window)


def device_timelines(
    trace: Trace,
    links: Links,
    host: HostTime,
    known: Mapping[int, Periods] | None = None,
    *,
    long_pauses: bool | None = None,
) -> tuple[DeviceTimeline, ...]:
    """Return the timeline of every device that worked, by device number.

    Args:
        trace: the trace.
        links: its links.
        host: what its threads did.
        known: what idle time refers to, by device, where that is decided already; these are the devices then.
        long_pauses: as for `Causes`.
    """
    by_device = _by_device(trace, links)
    if known is None:
        known = dict(zip(by_device, _windows(trace, links, host, by_device), strict=True))
    none = np.empty(0, np.int64)
    nothing = _Work(none, none, none.astype(np.bool_), none.astype(np.bool_), none)
    parts = [by_device[number][1] if number in by_device else nothing for number in known]
    causes = Causes(trace, host, long_pauses=long_pauses)
    return tuple(
        _timeline(number, device_name(trace.devices, number), part, periods, host, causes, _work_of(others))
        for (number, periods), part, others in zip(known.items(), parts, _all_but_one(parts), strict=True)
    )


def steps_of_devices(trace: Trace, links: Links) -> dict[int, Periods]:
    """Return what idle time of each device refers to in a trace with marked steps."""
    by_device = _by_device(trace, links)
    return dict(zip(by_device, _windows(trace, links, None, by_device), strict=True))


def _by_device(trace: Trace, links: Links) -> dict[int, tuple[Ints, "_Work"]]:
    """Return per device the rows of its activities, and these as arrays."""
    activities = trace.activities
    device = activities["device"].fill_null(NO_DEVICE).to_numpy()
    order = np.argsort(device, kind="stable")
    # Columns of the whole trace are computed once, however many devices there are.
    work = _Work(
        column(activities, "start_ns"),
        end_of(activities),
        moves=(activities["kind"] == "memcpy").to_numpy(),
        communicates=communication_mask(activities),
        launch=links.activity_launch,
    )
    groups = np.split(order, np.flatnonzero(np.diff(device[order])) + 1) if len(order) else []
    return {int(device[rows[0]]): (rows, work.of(rows)) for rows in groups}


def _all_but_one(parts: Sequence["_Work"]) -> Iterator[list["_Work"]]:
    """Yield for each part the others."""
    for own in parts:
        yield [part for part in parts if part is not own]


def _work_of(parts: Sequence["_Work"]) -> Intervals:
    """Return when any of some devices works, without collectives, which may only wait for other devices."""
    works = [~part.communicates for part in parts]
    none = [np.empty(0, np.int64)]
    start = np.concatenate(none + [part.start[mask] for part, mask in zip(parts, works, strict=True)])
    end = np.concatenate(none + [part.end[mask] for part, mask in zip(parts, works, strict=True)])
    return Intervals.union_of(start, end)


def _windows(
    trace: Trace, links: Links, host: HostTime | None, by_device: Mapping[int, tuple[Ints, "_Work"]]
) -> list[Periods]:
    """Return per device its window and the periods of the steps; without steps only ``host`` can tell.

    If steps wait for their work, nearly all of it lies within their ranges on the host, which then describe the device.
    Else the work that the steps launched does.
    """
    ranges, of_host, groups = step_ranges(trace), step_window(trace), by_device.values()
    if of_host is None:
        assert host is not None
        streams = column(trace.activities, "stream")
        return [Periods.of(_recorded_work(part, streams[rows], host), ranges) for rows, part in groups]
    busy = [Intervals.union_of(part.start, part.end) for _, part in groups]
    whole, inside = sum(b.length for b in busy), sum(b.within(of_host.spans).length for b in busy)
    if whole - inside <= TOLERATED_OUTSIDE * whole:
        return [Periods.of(of_host, ranges)] * len(by_device)
    step = step_of_activities(trace, links, step_table(trace))
    windows = []
    for rows, part in groups:
        if not (step[rows] >= 0).any():
            # The steps launched nothing on this device, so only their ranges say anything of it.
            windows.append(Periods.of(of_host, ranges))
            continue
        periods = periods_of_device_work(step[rows], part.start, part.end, ranges)
        window = Window(WindowKind.STEP_WORK, Intervals.union_of(periods.start, periods.end))
        windows.append(Periods.of(window, periods))
    return windows


_UNRECORDED_NS: Final = 1_000_000  # launching takes microseconds: only work queued behind earlier work takes this long
_MOSTLY: Final = 0.9
_LITTLE: Final = 0.1


def _recorded_work(part: "_Work", stream: Ints, host: HostTime) -> Window:
    """Return the window of a device without marked steps; it begins after work that was queued before the recording.

    Such work is there if the first activity of a stream begins long after its launch, while the host sits in a call
    that waits for the device and little else is recorded to run.
    """
    order = np.argsort(part.start, kind="stable")
    _, place = np.unique(stream[order], return_index=True)
    first = order[place]
    first = first[part.launch[first] >= 0]
    launched = host.end[part.launch[first]]
    late = part.start[first] - launched >= _UNRECORDED_NS
    first, launched = first[late], launched[late]
    waits = Intervals.union_of(host.start[host.drains], host.end[host.drains])
    # The latest of these activities first: the window begins with the last one that was held up.
    for row, begin in sorted(zip(first.tolist(), launched.tolist(), strict=True), key=lambda one: -part.start[one[0]]):
        start = int(part.start[row])
        latency = Intervals(np.array([begin], np.int64), np.array([start], np.int64))
        before = part.start < start
        busy = Intervals.union_of(part.start[before], np.minimum(part.end[before], start)).within(latency).length
        if waits.within(latency).length >= _MOSTLY * (start - begin) and busy <= _LITTLE * (start - begin):
            return device_window(np.array([start], np.int64), part.end.max(keepdims=True))
    return device_window(part.start, part.end)


class _Work(Struct, frozen=True):
    """Activities as arrays: start, end, whether they copy or communicate, and the rows of their launches (or -1)."""

    start: Ints
    end: Ints
    moves: Bools
    communicates: Bools
    launch: Ints

    def of(self, rows: Ints) -> "_Work":
        return _Work(self.start[rows], self.end[rows], self.moves[rows], self.communicates[rows], self.launch[rows])


class BusyParts(Struct, frozen=True):
    """When a device works, cut so that each part is what it does beyond the part before.

    Attributes:
        start, end: of its activities.
        communicates: per activity whether it moves data between devices.
        compute: when it computes or fills memory.
        without_memcpy: when it does that or communicates.
        busy: when it does anything.
    """

    start: Ints
    end: Ints
    communicates: Bools
    compute: Intervals
    without_memcpy: Intervals
    busy: Intervals

    @classmethod
    def of(cls, start: Ints, end: Ints, *, moves: Bools, communicates: Bools) -> "BusyParts":
        """Cut a device's work.

        Args:
            start: when its activities begin.
            end: when they end.
            moves: which of them copy memory.
            communicates: which of them move data between devices.
        """
        computes = ~moves & ~communicates
        return cls(
            start,
            end,
            communicates,
            compute=Intervals.union_of(start[computes], end[computes]),
            without_memcpy=Intervals.union_of(start[~moves], end[~moves]),
            busy=Intervals.union_of(start, end),
        )


def busy_parts(trace: Trace, device: int | None) -> BusyParts:
    """Return when a device works.

    Args:
        trace: the trace.
        device: the device's number, or `NO_DEVICE`; None for all devices as one.
    """
    activities = trace.activities
    if device is not None:
        activities = activities.filter(pl.col("device").fill_null(NO_DEVICE) == device)
    return BusyParts.of(
        column(activities, "start_ns"),
        end_of(activities),
        moves=(activities["kind"] == "memcpy").to_numpy(),
        communicates=communication_mask(activities),
    )


def device_name(devices: Sequence[DeviceProperties], index: int) -> str:
    """Return a device's name; if the trace does not give it, with how it is known."""
    own = next((item for item in devices if item.index == index and item.name.strip()), None)
    if own is None:
        return "unknown device"
    return own.name if own.known_by is None else f"{own.name}, {own.known_by}"


def communication_mask(activities: pl.DataFrame) -> Bools:
    """Tell per activity whether it is a kernel that moves data between devices."""
    is_kernel = (activities["kind"] == "kernel").to_numpy()
    by_arguments = activities["collective"].is_not_null().to_numpy()
    learn_communication(names_in(activities))
    mask: Bools = is_kernel & (by_arguments | names_that(activities, communicates))
    return mask


def _timeline(
    device: int,
    name: str,
    work: _Work,
    periods: Periods,
    host: HostTime,
    causes: Causes,
    others: Intervals,
) -> DeviceTimeline:
    start, end, window, whole = work.start, work.end, periods.window, periods.whole
    parts = BusyParts.of(start, end, moves=work.moves, communicates=work.communicates)
    busy = parts.busy
    in_window = busy.within(window.spans).length
    not_memcpy = parts.without_memcpy.within(window.spans).length
    compute = parts.compute.within(window.spans).length
    gaps = busy.gaps(whole.start_ns, whole.end_ns)
    idle = causes.named(idle_time(host, work.launch, start, end, gaps).within(whole.spans), others)
    return DeviceTimeline(
        device=device,
        name=name,
        activities=len(start),
        sum_ns=int((end - start).sum()),
        busy_ns=busy.length,
        window=window,
        steps=periods.steps,
        outside_window_ns=busy.length - in_window,
        compute_ns=compute,
        # Each part is exposed: time in which nothing of the parts before it runs. So they add up to the busy time.
        exposed_communication_ns=not_memcpy - compute,
        exposed_memcpy_ns=in_window - not_memcpy,
        idle_ns=window.duration_ns - in_window,
        idle=idle if whole is window else idle.within(window.spans),
    )
