"""When each device worked, for whom it waited, and in which window: the figures of METRICS' "Times"."""

import enum
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from opscope.analysis.intervals import Intervals
from opscope.analysis.links import Links, column, end_of
from opscope.analysis.nesting import Ints
from opscope.model import Trace

# Kernels that move data between devices, for records that carry no collective arguments. Names from the libraries'
# public sources: NCCL and RCCL, NVSHMEM, vLLM's and TensorRT-LLM's custom all-reduce, DeepEP, PyTorch's own.
COMMUNICATION_KERNEL = re.compile(
    r"^nccl(Dev)?Kernel|^rccl|nvshmem|cross_device_reduce|custom_?all_?reduce|all_?reduce_kernel|one_shot_all_reduce"
    r"|two_shot_all_reduce|multimem_all|deep_ep::|oneShotAllReduce|twoShotAllReduce",
    re.IGNORECASE,
)
_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_BLOCKING_CALL = r"(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|Peer)?(_|$)"


class WindowKind(enum.StrEnum):
    """What an idle or percentage figure refers to."""

    STEPS = "step window"
    DEVICE = "device window"
    HOST = "host window"


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the trace's clock.

    ``STEPS``: from the first to the last ``ProfilerStep`` range. ``DEVICE``: from the first activity's start to the
    last one's end; idle time before and after cannot be seen in it. ``HOST``: the recorded operators, where no device
    worked.
    """

    kind: WindowKind
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """The length in nanoseconds."""
        return self.end_ns - self.start_ns


class IdleCause(enum.StrEnum):
    """Why a device had nothing to do, judged by the activity that ended the gap."""

    HOST = "host late"
    SYNC = "synchronisation"
    LATENCY = "launch latency"
    DEPENDENCY = "dependency"
    UNKNOWN = "launch not recorded"
    TAIL = "after the last activity"


LAUNCH_BOUND_CAUSES = (IdleCause.HOST, IdleCause.LATENCY)


@dataclass(frozen=True, slots=True)
class IdleTime:
    """The idle intervals of one device in its window, each with its cause (a position in `IdleCause`)."""

    start: Ints
    end: Ints
    cause: npt.NDArray[np.str_]

    def by_cause(self, low: int | None = None, high: int | None = None) -> dict[IdleCause, int]:
        """Return the nanoseconds per cause, of the whole window or between two times."""
        start = self.start if low is None else np.maximum(self.start, low)
        end = self.end if high is None else np.minimum(self.end, high)
        length = np.maximum(end - start, 0)
        return {cause: int(length[self.cause == cause].sum()) for cause in IdleCause}


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """One device's time, all in nanoseconds.

    ``sum_ns`` adds up all durations; ``busy_ns`` is the union of the intervals. The other figures refer to the window:
    compute + exposed communication + exposed memcpy + idle = window.

    Attributes:
        outside_window_ns: busy time before or after the window.
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


def step_table(trace: Trace) -> pl.DataFrame:
    """Return the recorded steps in order: ``step`` (its number), ``start_ns`` and ``end_ns`` of its host range."""
    named = trace.annotations.with_columns(
        step=pl.col("name").cast(pl.String).str.extract(_STEP.pattern).cast(pl.Int64),
        end_ns=pl.col("start_ns") + pl.col("duration_ns"),
    )
    return named.drop_nulls("step").select("step", "start_ns", "end_ns").sort("start_ns")


def window_of(trace: Trace, device: int | None) -> Window:
    """Return the window that a device's figures refer to; for ``None`` that of the host's figures."""
    steps = step_table(trace)
    if steps.height:
        return Window(WindowKind.STEPS, _minimum(steps["start_ns"]), _maximum(steps["end_ns"]))
    table, kind = trace.operators, WindowKind.HOST
    if device is not None:
        table, kind = trace.activities.filter(pl.col("device") == device), WindowKind.DEVICE
    if not table.height:
        return Window(kind, 0, 0)
    return Window(kind, int(column(table, "start_ns").min()), int(end_of(table).max()))


def device_timelines(trace: Trace, links: Links) -> tuple[DeviceTimeline, ...]:
    """Return the timeline of every device that worked, by device number."""
    devices = trace.activities["device"].unique().sort()
    return tuple(_timeline(trace, links, device) for device in devices if device is not None)


def communication_mask(activities: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Tell per activity whether it moves data between devices."""
    names = activities["name"].cast(pl.String)
    known = {name: COMMUNICATION_KERNEL.search(name) is not None for name in names.unique()}
    by_name = names.replace_strict(known, return_dtype=pl.Boolean) if known else pl.Series([], dtype=pl.Boolean)
    is_kernel = activities["kind"].cast(pl.String) == "kernel"
    return (is_kernel & (activities["collective"].is_not_null() | by_name)).to_numpy()


def _timeline(trace: Trace, links: Links, device: int) -> DeviceTimeline:
    on_device = (trace.activities["device"] == device).fill_null(value=False)
    rows = np.flatnonzero(on_device.to_numpy())
    activities = trace.activities.filter(on_device)
    start, end = column(activities, "start_ns"), end_of(activities)
    window = window_of(trace, device)
    low, high = window.start_ns, window.end_ns
    moves = (activities["kind"].cast(pl.String) == "memcpy").to_numpy()
    communicates = communication_mask(activities)
    computes = ~moves & ~communicates
    busy = Intervals.union_of(start, end)
    not_memcpy = Intervals.union_of(start[~moves], end[~moves]).clipped(low, high).length
    compute = Intervals.union_of(start[computes], end[computes]).clipped(low, high).length
    in_window = busy.clipped(low, high)
    properties = next((item for item in trace.devices if item.index == device), None)
    return DeviceTimeline(
        device=device,
        name=properties.name if properties else "unknown device",
        activities=len(rows),
        sum_ns=int((end - start).sum()),
        busy_ns=busy.length,
        window=window,
        outside_window_ns=busy.length - in_window.length,
        compute_ns=compute,
        exposed_communication_ns=not_memcpy - compute,
        exposed_memcpy_ns=in_window.length - not_memcpy,
        idle_ns=window.duration_ns - in_window.length,
        idle=_idle(trace, links.activity_launch[rows], start, busy.gaps(low, high)),
    )


def _idle(trace: Trace, launch: Ints, start: Ints, gaps: Intervals) -> IdleTime:
    """Give every part of every gap its cause, from when the activity that ended it had been launched."""
    order = np.argsort(start, kind="stable")
    following = np.searchsorted(start[order], gaps.end, side="left")
    ended = following < len(start)
    # The window's end is not an activity: nothing follows it unless something starts there.
    position = order[np.minimum(following, len(start) - 1)]
    ended &= start[position] == gaps.end
    launch_row = np.where(ended, launch[position], -1)
    launch_start, launch_end = column(trace.launches, "start_ns"), end_of(trace.launches)
    known = launch_row >= 0
    began = np.where(known, launch_start[launch_row] if len(launch_start) else 0, gaps.end)
    returned = np.where(known, launch_end[launch_row] if len(launch_end) else 0, gaps.end)
    queued = known & (returned <= gaps.start)
    # A late launch splits its gap: until the call the host was late, from the call on it is latency.
    split = np.where(known & ~queued, np.clip(began, gaps.start, gaps.end), gaps.start)
    host = np.where(_inside_blocking_call(trace, launch_row, gaps.start), IdleCause.SYNC, IdleCause.HOST)
    rest = np.select(
        [~ended, ~known, queued],
        [IdleCause.TAIL, IdleCause.UNKNOWN, IdleCause.DEPENDENCY],
        default=IdleCause.LATENCY,
    )
    pieces = (
        np.concatenate([gaps.start, split]),
        np.concatenate([split, gaps.end]),
        np.concatenate([host, rest]).astype(np.str_),
    )
    real = pieces[1] > pieces[0]
    return IdleTime(pieces[0][real], pieces[1][real], pieces[2][real])


def _inside_blocking_call(trace: Trace, launch_row: Ints, time: Ints) -> npt.NDArray[np.bool_]:
    """Tell per gap whether the thread that launched next was inside a blocking call when the gap began.

    Such a host cannot run ahead: the device drains while it waits, and idles until it has launched again.
    """
    blocking = trace.launches["name"].cast(pl.String).str.contains(_BLOCKING_CALL).to_numpy()
    thread, start, end = (
        column(trace.launches, "thread"),
        column(trace.launches, "start_ns"),
        end_of(trace.launches),
    )
    inside = np.zeros(len(time), np.bool_)
    for number in np.unique(thread[blocking]):
        calls = Intervals.union_of(start[blocking & (thread == number)], end[blocking & (thread == number)])
        asked = np.flatnonzero((launch_row >= 0) & (thread[launch_row] == number))
        latest = np.searchsorted(calls.start, time[asked], side="right") - 1
        inside[asked] = (latest >= 0) & (calls.end[latest] > time[asked]) if len(calls) else False
    return inside


def _minimum(series: pl.Series) -> int:
    return int(series.to_numpy().min())


def _maximum(series: pl.Series) -> int:
    return int(series.to_numpy().max())
