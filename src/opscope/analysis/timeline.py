"""When each device worked, and how its window divides: the figures of docs/metrics.md, "Times"."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from opscope.analysis.api import names_that
from opscope.analysis.columns import column, end_of
from opscope.analysis.host_time import HostTime
from opscope.analysis.idle import IdleTime, idle_time
from opscope.analysis.intervals import Intervals
from opscope.analysis.links import Links
from opscope.analysis.nesting import Bools, Ints
from opscope.analysis.window import Window, device_window, step_window
from opscope.knowledge.kernels.communication import communicates
from opscope.model import DeviceProperties, Trace

NO_DEVICE = -1


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """One device's time, all in nanoseconds.

    ``sum_ns`` adds up all durations; ``busy_ns`` is the union of the intervals. The figures below refer to the window:
    compute + exposed communication + exposed memcpy + idle = window.

    Attributes:
        device: its number; `NO_DEVICE` for activities whose device was not recorded.
        outside_window_ns: busy time before, after or between the spans of the window.
    """

    device: int
    name: str
    activities: int
    sum_ns: int
    busy_ns: int
    window: Window
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


def device_timelines(trace: Trace, links: Links) -> tuple[DeviceTimeline, ...]:
    """Return the timeline of every device that worked, by device number."""
    activities = trace.activities
    device = activities["device"].fill_null(NO_DEVICE).to_numpy()
    order = np.argsort(device, kind="stable")
    # What is of the whole trace is computed once, however many devices there are.
    work = _Work(
        column(activities, "start_ns"),
        end_of(activities),
        moves=(activities["kind"] == "memcpy").to_numpy(),
        communicates=communication_mask(activities),
        launch=links.activity_launch,
    )
    groups = np.split(order, np.flatnonzero(np.diff(device[order])) + 1) if len(order) else []
    steps, host = step_window(trace), HostTime(trace, links)
    numbers = [int(device[rows[0]]) for rows in groups]
    return tuple(
        _timeline(number, device_name(trace.devices, number), work.of(rows), steps, host)
        for number, rows in zip(numbers, groups, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """Activities as arrays: when, what kind, and the rows of their launches."""

    start: Ints
    end: Ints
    moves: Bools
    communicates: Bools
    launch: Ints

    def of(self, rows: Ints) -> "_Work":
        return _Work(self.start[rows], self.end[rows], self.moves[rows], self.communicates[rows], self.launch[rows])


def device_name(devices: Sequence[DeviceProperties], index: int) -> str:
    """Return a device's name; where the file has none for its number but one for all others, that one."""
    own = next((item.name for item in devices if item.index == index and item.name.strip()), None)
    if own is not None:
        return own
    others = {item.name for item in devices if item.name.strip()}
    return f"{others.pop()}, by the other devices" if len(others) == 1 and index != NO_DEVICE else "unknown device"


def communication_mask(activities: pl.DataFrame) -> Bools:
    """Tell per activity whether it moves data between devices."""
    is_kernel = (activities["kind"] == "kernel").to_numpy()
    by_arguments = activities["collective"].is_not_null().to_numpy()
    mask: Bools = is_kernel & (by_arguments | names_that(activities["name"], communicates))
    return mask


def _timeline(device: int, name: str, work: _Work, steps: Window | None, host: HostTime) -> DeviceTimeline:
    start, end, moves = work.start, work.end, work.moves
    window = steps or device_window(start, end)
    computes = ~moves & ~work.communicates
    busy = Intervals.union_of(start, end)
    in_window = busy.within(window.spans).length
    not_memcpy = Intervals.union_of(start[~moves], end[~moves]).within(window.spans).length
    compute = Intervals.union_of(start[computes], end[computes]).within(window.spans).length
    gaps = busy.gaps(window.start_ns, window.end_ns)
    return DeviceTimeline(
        device=device,
        name=name,
        activities=len(start),
        sum_ns=int((end - start).sum()),
        busy_ns=busy.length,
        window=window,
        outside_window_ns=busy.length - in_window,
        compute_ns=compute,
        exposed_communication_ns=not_memcpy - compute,
        exposed_memcpy_ns=in_window - not_memcpy,
        idle_ns=window.duration_ns - in_window,
        idle=idle_time(host, work.launch, start, end, gaps).within(window.spans),
    )
