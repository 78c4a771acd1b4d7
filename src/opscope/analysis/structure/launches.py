"""How the host fed the devices: API time, launch latency, backlog, and what launches without an activity may hide.

The capture of graphs counts apart: there calls are noted, but nothing runs.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import calls_of, calls_that
from opscope.analysis.structure.arrays import Intervals, column, costliest_first, end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import Window
from opscope.documents.trace import Spread
from opscope.knowledge.api_calls import ApiKind
from opscope.trace.model import Trace

_MOST_PAIRS: Final = 10_000_000  # queues times missing calls that are looked at one by one
_NEVER: Final = np.iinfo(np.int64).min  # no known queue of the device
MOSTLY: Final = 0.5  # of the launches or the time: from here on, a recording is mostly one thing


class Captures(Struct, frozen=True):
    """The captures of a recording.

    Attributes:
        spans: when a stream was captured.
        launches: how many calls that enqueue work were captured.
        of_launches: how many calls that enqueue work there are in all.
    """

    spans: Intervals
    launches: int
    of_launches: int

    def is_mostly_one(self, window: Window) -> bool:
        """Tell whether most of a window was captured: of the calls that enqueue work, or of the time."""
        if not self.launches:
            return False
        whole = window.duration_ns
        return (
            self.launches >= MOSTLY * self.of_launches or self.spans.within(window.spans).length >= MOSTLY * whole > 0
        )


def captured_table(trace: Trace, links: Links) -> pl.DataFrame:
    """Return what was captured into graphs, the most launches first.

    Columns: ``name`` of the launching operator (null without one), ``input_dims`` and ``input_types`` of its inputs
    (null where not recorded), and ``launches``.
    """
    captured = calls_that(trace.launches, lambda call: call.enqueues) & captured_into_graph(trace.launches)
    operator = links.launch_operator[captured]
    keys = ["name", "input_dims", "input_types"]
    inputs = trace.operators.select(pl.col(keys).cast(pl.String)).with_row_index("operator")
    rows = pl.DataFrame({"operator": operator}).join(inputs, on=pl.col("operator").cast(pl.Int64), how="left")
    return rows.group_by(keys).agg(launches=pl.len()).sort("launches", *keys, descending=[True, False, False, False])


def captures_of(trace: Trace) -> Captures:
    """Return the captures: each lasts from its begin to the next end on its thread."""
    launches = trace.launches
    start, end, thread = column(launches, "start_ns"), end_of(launches), column(launches, "thread")
    begins, ends = calls_of(launches, ApiKind.CAPTURE_BEGIN), calls_of(launches, ApiKind.CAPTURE_END)
    enqueues = calls_that(launches, lambda call: call.enqueues)
    low, high = [], []
    for begin in np.flatnonzero(begins).tolist():
        own = thread == thread[begin]
        closing = end[own & ends & (start >= start[begin])]
        # A capture whose end was not recorded lasts to the last call of its thread.
        last = int(closing.min()) if len(closing) else int(end[own].max())
        low.append(int(start[begin]))
        high.append(last)
    spans = Intervals.union_of(np.array(low, np.int64), np.array(high, np.int64))
    return Captures(spans, int((enqueues & captured_into_graph(launches)).sum()), int(enqueues.sum()))


class _Queue(Struct, frozen=True):
    """What a thread enqueued on a stream: when its calls began, ascending, and when their activities began."""

    device: int
    thread: int
    called: Ints
    began: Ints


def hidden_ns(trace: Trace, links: Links, missing: Ints) -> int:
    """Return the most that missing activities can have kept devices busy while no recorded one did, in nanoseconds.

    What a call enqueued ran before the next recorded activity that its thread enqueued on the same stream. It is not
    known which of the thread's streams that was, so the one where this activity begins latest counts. If no stream of
    the thread is known, the work may have run on any device until the end. Devices are added up.

    Args:
        trace: the trace.
        links: its links.
        missing: rows of the launches whose activities are missing; at least one.
    """
    thread, start = column(trace.launches, "thread")[missing], column(trace.launches, "start_ns")[missing]
    order = np.lexsort((start, thread))
    thread, start = thread[order], start[order]
    last = max(int(end_of(table).max()) for table in (trace.launches, trace.activities) if table.height)
    queues = list(_queues(trace, links))
    devices = len({queue.device for queue in queues}) or 1
    if not queues or len(queues) * len(missing) > _MOST_PAIRS:
        # An upper bound of the same figure: every device may have worked from the first missing call to the end.
        return devices * (last - int(start.min()))
    ends = _ends(queues, thread, start, last)
    unknown = np.logical_and.reduce([end == _NEVER for end in ends.values()])
    return sum(
        _idle(trace, device, Intervals.union_of(start, np.where(unknown, last, end))) for device, end in ends.items()
    )


def _ends(queues: list[_Queue], thread: Ints, start: Ints, last: int) -> Mapping[int, Ints]:
    """Return per device and missing call when what it enqueued there had ended at the latest; `_NEVER` if nowhere."""
    ends: dict[int, Ints] = {}
    for queue in queues:
        own = slice(*np.searchsorted(thread, [queue.thread, queue.thread + 1]))
        # The first call of the queue after the missing one; without any, the work may have run until the end.
        following = np.searchsorted(queue.called, start[own], side="right")
        known = ends.setdefault(queue.device, np.full(len(start), _NEVER))
        known[own] = np.maximum(known[own], np.append(queue.began, last)[following])
    return ends


def _idle(trace: Trace, device: int, room: Intervals) -> int:
    own = column(trace.activities, "device") == device
    start, end = column(trace.activities, "start_ns")[own], end_of(trace.activities)[own]
    return room.length - Intervals.union_of(start, end).within(room).length


def _queues(trace: Trace, links: Links) -> Iterator[_Queue]:
    rows = np.flatnonzero(links.activity_launch >= 0)
    launch = links.activity_launch[rows]
    device, stream, began = (column(trace.activities, name)[rows] for name in ("device", "stream", "start_ns"))
    thread, called = (column(trace.launches, name)[launch] for name in ("thread", "start_ns"))
    order = np.lexsort((began, called, thread, stream, device))
    keys = np.stack([device, stream, thread])[:, order]
    bounds = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    for group in np.split(order, bounds) if len(order) else ():
        yield _Queue(int(device[group[0]]), int(thread[group[0]]), called[group], began[group])


class LaunchSummary(Struct, frozen=True):
    """The launches of a trace.

    The time from the end of a launch call to the start of its activity is *latency* where the stream had nothing left
    to do when the call returned, and *backlog* where earlier work was still running in it. Backlog is not overhead.

    Attributes:
        calls: one row per API call name: calls, total_ns, mean_ns.
        api: durations of the calls that launch work.
        latency: delays to an empty stream; negative delays (the activity began before the call returned) count as 0.
        backlog: delays behind earlier work in the stream.
        without_activity: launching calls, other than those captured into a graph, without a recorded activity; None
            where no activity carries a correlation id, as in early ROCm traces.
        moves_without_activity: those of them that copy or fill. Copies and fills of zero bytes launch nothing.
        moves_recorded: copying and filling calls with an activity.
        hidden_ns: the most that all missing activities together can have kept devices busy: idle time between a call
            and the next recorded activity of the streams that its thread is known to use, added up over devices.
    """

    calls: pl.DataFrame
    api: Spread | None
    latency: Spread | None
    backlog: Spread | None
    without_activity: int | None
    moves_without_activity: int = 0
    moves_recorded: int = 0
    hidden_ns: int = 0


def _spread(values: Ints) -> Spread | None:
    """Summarise durations; None where there are none."""
    if not len(values):
        return None
    median, p95 = np.percentile(values, [50, 95])
    return Spread(len(values), int(values.sum()), float(median), float(p95))


def summarise_launches(trace: Trace, links: Links) -> LaunchSummary:
    """Summarise the launch calls of a trace."""
    launches, duration = trace.launches, pl.col("duration_ns")
    launching = calls_that(launches, lambda call: call.enqueues)
    has_activity = np.zeros(launches.height, np.bool_)
    has_activity[links.activity_launch[links.activity_launch >= 0]] = True
    lonely = _lonely(trace, launching & ~has_activity)
    moves = calls_that(launches, lambda call: call.kind in (ApiKind.COPY, ApiKind.FILL))
    delays = delays_of(trace, links)
    delay, queued = delays.delay_ns, delays.queued
    calls = launches.group_by("name").agg(calls=pl.len(), total_ns=duration.sum(), mean_ns=duration.mean())
    return LaunchSummary(
        calls=costliest_first(calls.with_columns(pl.col("name").cast(pl.String)), ["total_ns"], ["name"]),
        api=_spread(launches["duration_ns"].to_numpy()[launching]),
        latency=_spread(np.maximum(delay[~queued], 0)),
        backlog=_spread(delay[queued]),
        without_activity=None if lonely is None else int(lonely.sum()),
        moves_without_activity=0 if lonely is None else int((lonely & moves).sum()),
        moves_recorded=int((has_activity & moves).sum()),
        hidden_ns=0 if lonely is None or not lonely.any() else hidden_ns(trace, links, np.flatnonzero(lonely)),
    )


def _lonely(trace: Trace, unmatched: Bools) -> Bools | None:
    """Tell per call whether its activity is missing; None where no activity has an id that could tell."""
    if trace.activities.height and trace.activities["correlation"].null_count() == trace.activities.height:
        return None
    matchable = trace.launches["correlation"].is_not_null().to_numpy()
    lonely: Bools = unmatched & matchable & ~captured_into_graph(trace.launches)
    return lonely


def captured_into_graph(launches: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Tell per call whether its thread was capturing a graph, so that the call launches nothing yet."""
    thread, start = column(launches, "thread"), column(launches, "start_ns")
    begins, ends = calls_of(launches, ApiKind.CAPTURE_BEGIN), calls_of(launches, ApiKind.CAPTURE_END)
    captured = np.zeros(launches.height, np.bool_)
    for number in np.unique(thread[begins]):
        own = thread == number
        before = np.searchsorted(np.sort(start[own & begins]), start, side="right")
        closed = np.searchsorted(np.sort(start[own & ends]), start, side="right")
        # More begins than ends so far: a capture is open.
        captured |= own & (before > closed)
    return captured


class Delays(Struct, frozen=True):
    """How long activities began after the calls that launched them; arrays have one entry per such activity.

    Attributes:
        rows: their rows in the trace's activities.
        delay_ns: from the end of the call to the start; negative where the activity began before the call returned.
        queued: whether earlier work of the stream still ran when the call returned.
    """

    rows: Ints
    delay_ns: Ints
    queued: Bools


def delays_of(trace: Trace, links: Links) -> Delays:
    """Return the delays of all activities whose call is known."""
    activities = trace.activities
    # The latest end of all earlier activities of the stream, which may not be that of the one directly before.
    stream_end = (
        activities.with_columns(end_ns=pl.Series(end_of(activities)))
        .select(previous=pl.col("end_ns").cum_max().shift(1).over("device", "stream", order_by="start_ns"))
        .get_column("previous")
        .fill_null(np.iinfo(np.int64).min)
        .to_numpy()
    )
    launched = np.flatnonzero(links.activity_launch >= 0)
    returned = end_of(trace.launches)[links.activity_launch[launched]]
    return Delays(launched, column(activities, "start_ns")[launched] - returned, stream_end[launched] > returned)
