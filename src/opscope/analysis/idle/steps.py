"""What each recorded step launched, and how long its devices were busy or waited."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.idle.host_time import PAUSE_NS, HostTime
from opscope.analysis.idle.idle import LAUNCH_BOUND_CAUSES, IdleTime
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, nesting_of, numbers_in
from opscope.analysis.structure.autograd import after_closures
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints, Nesting
from opscope.analysis.structure.step_work import Window, step_among, step_table
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.text import lazy_pattern
from opscope.documents.trace import Step
from opscope.documents.verdict import BoundKind, IdleCause, causes_of
from opscope.knowledge.api_calls import loads_code
from opscope.trace.model import Trace

# ---------------------------------------------------------------- what devices waited for


# The causes of idle time that make up each kind of the verdict; the profiler's own belongs to none.
CAUSES: Final[Mapping[BoundKind, tuple[IdleCause, ...]]] = {
    cause.bound: causes_of(cause.bound) for cause in IdleCause if cause.bound is not None
}

# What the host does other than launching and waiting.
PAUSES: Final[tuple[BoundKind, ...]] = tuple(kind for kind in BoundKind if kind.is_pause)


class Waits(Struct, frozen=True):
    """The idle time of a device in its window, by what it waited for. Times are nanoseconds.

    Attributes:
        idle: the pieces of idle time.
        kinds: per kind which of the pieces belong to it; those of the profiler belong to none.
        after: per piece of dispatch or host work the call that explains it, as a row of the launches, or -1: the last
            one before it in which its thread waited for the device. Without that wait the host would be ahead by as
            long as it waited, and at most that much of the idle time after the call would not be there.
        dense_ns: per kind of the host's other work and of loading data the part in which records follow one another, as
            operators on tensors of the host do: a profiler slows that as it slows dispatch.
        quiet_ns: the part of the host's other work and data loading without any record inside: no profiler slows it.
        after_waits_ns: idle time explained by an earlier wait, so that nothing was queued.
        work_after_waits_ns: the part of that in which the host does other work or loads data.
        quiet_after_waits_ns: the part of this without any record inside.
        profiler_ns: idle time due to the profiler itself.
        host_waits_ns: how long any thread sat in a call that waits, in the window.
    """

    idle: IdleTime
    kinds: Mapping[BoundKind, Bools]
    after: Ints
    profiler_ns: int
    host_waits_ns: int
    dense_ns: Mapping[BoundKind, int] = {}
    quiet_ns: int = 0
    after_waits_ns: int = 0
    work_after_waits_ns: int = 0
    quiet_after_waits_ns: int = 0

    @property
    def lengths(self) -> Ints:
        """The length of each piece."""
        lengths: Ints = self.idle.pieces.end - self.idle.pieces.start
        return lengths

    @property
    def by_kind(self) -> Mapping[BoundKind, int]:
        """The idle time per kind, without the profiler's own; kinds without any are left out."""
        lengths = self.lengths
        return {kind: total for kind, mask in self.kinds.items() if (total := int(lengths[mask].sum()))}

    @property
    def drained_ns(self) -> int:
        """The part of dispatch that a wait for the device explains."""
        return int(self.lengths[self.kinds[BoundKind.DISPATCH] & (self.after >= 0)].sum())


def waits_of(trace: Trace, host: HostTime, timeline: DeviceTimeline) -> Waits:
    """Return what a device waited for."""
    idle = timeline.idle
    length = idle.pieces.end - idle.pieces.start
    kinds = {kind: idle.is_any_of(causes) for kind, causes in CAUSES.items()}
    after = np.full(len(length), -1, np.int64)
    asked = np.flatnonzero(kinds[BoundKind.DISPATCH] | kinds[BoundKind.HOST_WORK])
    after[asked] = _waited_before(host, idle, asked)
    waits = Intervals.union_of(host.start[host.waits], host.end[host.waits])
    others = np.logical_or.reduce([kinds[kind] for kind in PAUSES])
    numbers = numbers_in(idle.thread[others]).tolist()
    quiet = {number: _quiet_stretches(trace, number) for number in numbers}
    pauses = {number: _quiet_stretches(trace, number, PAUSE_NS) for number in numbers}
    return Waits(
        idle=idle,
        kinds=kinds,
        after=after,
        profiler_ns=int(length[idle.is_any_of((IdleCause.PROFILER,))].sum()),
        host_waits_ns=waits.within(timeline.window.spans).length,
        dense_ns={kind: int(length[kinds[kind]].sum()) - _quiet(pauses, idle, kinds[kind]) for kind in PAUSES},
        quiet_ns=_quiet(quiet, idle, others),
        after_waits_ns=int(length[after >= 0].sum()),
        work_after_waits_ns=int(length[others & (after >= 0)].sum()),
        quiet_after_waits_ns=_quiet(quiet, idle, others & (after >= 0)),
    )


def at_most(parts: Mapping[BoundKind, float], whole: float) -> dict[BoundKind, float]:
    """Return parts of a whole, scaled down in proportion where they add up to more than the whole."""
    total = sum(parts.values())
    scale = min(1.0, whole / total) if total > 0 else 1.0
    return {kind: time * scale for kind, time in parts.items()}


_QUIET_NS: Final = 1_000_000  # Python whose frames are recorded does not go this long without one


def _quiet_stretches(trace: Trace, number: int, longer_ns: int = _QUIET_NS) -> Intervals:
    """Return the stretches of a thread in which nothing begins or ends for long."""
    moments = [np.zeros(0, np.int64)]
    for table in (trace.frames, trace.operators, trace.launches):
        own = column(table, "thread") == number
        moments += [column(table, "start_ns")[own], end_of(table)[own]]
    times = np.sort(np.concatenate(moments), kind="stable")
    long = np.flatnonzero(np.diff(times) > longer_ns)
    return Intervals(times[long], times[long + 1])


def _quiet(stretches: Mapping[int, Intervals], idle: IdleTime, mask: Bools) -> int:
    """Return how much of some pieces of idle time lies in the quiet stretches of their threads."""
    return sum(
        quiet.within(idle.pieces.chosen(mask & (idle.thread == number))).length for number, quiet in stretches.items()
    )


def _waited_before(host: HostTime, idle: IdleTime, pieces: Ints) -> Ints:
    """Return per piece the call that waited for the device and explains it, or -1.

    Args:
        host: what the threads did.
        idle: the idle time.
        pieces: positions of the pieces that are asked for, ascending.
    """
    result = np.full(len(pieces), -1, np.int64)
    for number in numbers_in(idle.thread[pieces]).tolist():
        asked = np.flatnonzero(idle.thread[pieces] == number)
        waits = np.flatnonzero(host.drains & (host.thread == number))
        if not len(waits):
            continue
        # The first entry stands for no wait before a piece.
        waited = np.append(-1, waits[np.argsort(host.end[waits], kind="stable")])
        moment = idle.pieces.start[pieces[asked]]
        call = waited[np.searchsorted(host.end[waited[1:]], moment, side="right")]
        length = idle.pieces.end[pieces[asked]] - moment
        # A wait explains idle time up to its own length; `since` is what earlier pieces after the call used up.
        before = np.cumsum(length) - length
        first = np.r_[True, call[1:] != call[:-1]] if len(call) else np.zeros(0, np.bool_)
        since = before - np.repeat(before[first], np.diff(np.append(np.flatnonzero(first), len(call))))
        explained = (call >= 0) & (since < host.end[call] - host.start[call])
        result[asked[explained]] = call[explained]
    return result


# ---------------------------------------------------------------- steps


_ALL_ENTRIES = 65_536  # steps times devices: up to this many, every pair has an entry
LAUNCH_UNKNOWN = "launch not recorded"
_BACKWARD_RANGE = lazy_pattern("autograd::engine::evaluate_function")
_OPTIMIZER_RANGE = lazy_pattern(r"Optimizer\.(step|zero_grad)#")


def idle_steps(
    trace: Trace, links: Links, timelines: Sequence[DeviceTimeline], table: pl.DataFrame | None = None
) -> tuple[Step, ...]:
    """Return the recorded steps in order, one entry per device that worked in the trace.

    If these are very many, a step has entries only for devices that it launched work on. In a trace without device work
    a step has one entry, whose device is None.

    Args:
        trace: the trace.
        links: its links.
        timelines: those of its devices.
        table: the rows of `step_table` that the timelines have periods of; None for all.
    """
    table = step_table(trace) if table is None else table
    starts, ends = column(table, "start_ns"), column(table, "end_ns")
    loading = np.sort(column(module_loading(trace), "start_ns"))
    # A step is cold if the loading of any code began within it.
    cold = np.searchsorted(loading, ends) > np.searchsorted(loading, starts)
    numbers = table["step"].to_list()
    if not timelines:
        return tuple(
            Step(row, number, None, int(ends[row] - starts[row]), 0, None, None, None, None, None, bool(cold[row]))
            for row, number in enumerate(numbers)
        )
    every = len(timelines) * table.height <= _ALL_ENTRIES
    results: list[tuple[int, int, Step]] = []
    for place, (timeline, launched_in, duration) in enumerate(_launched_on(trace, links, table, timelines)):
        counts = np.bincount(launched_in, minlength=table.height)
        sums = np.zeros(table.height, np.int64)
        np.add.at(sums, launched_in, duration)
        idle, waiting = _idle_of_steps(timeline.idle, timeline.steps)
        spans = timeline.steps.end - timeline.steps.start
        for row in range(table.height) if every else np.flatnonzero(counts).tolist():
            span = int(spans[row])
            step = Step(
                index=row,
                number=numbers[row],
                device=timeline.device,
                span_ns=span,
                activities=int(counts[row]),
                device_sum_ns=int(sums[row]),
                busy_ns=span - int(idle[row]),
                idle_ns=int(idle[row]),
                launch_bound_ns=int(waiting[row]),
                launch_bound_share=int(waiting[row]) / span if span else None,
                cold=bool(cold[row]),
            )
            results.append((row, place, step))
    return tuple(step for *_, step in sorted(results, key=lambda item: item[:2]))


def _launched_on(
    trace: Trace, links: Links, table: pl.DataFrame, timelines: Sequence[DeviceTimeline]
) -> Iterator[tuple[DeviceTimeline, Ints, Ints]]:
    """Yield per device the step and the duration of each activity that a step launched on it."""
    launched_in = step_among(trace, links, table)
    device = trace.activities["device"].fill_null(NO_DEVICE).to_numpy()
    duration = column(trace.activities, "duration_ns")
    order = np.argsort(device, kind="stable")
    order = order[launched_in[order] >= 0]
    # Sorted by device, the activities of each device are one stretch.
    bounds = np.searchsorted(device[order], [[line.device, line.device + 1] for line in timelines])
    for timeline, (first, last) in zip(timelines, bounds, strict=True):
        rows = order[first:last]
        yield timeline, launched_in[rows], duration[rows]


def _idle_of_steps(idle: IdleTime, spans: Intervals) -> tuple[Ints, Ints]:
    """Return per step its idle time, and the part of it in which the device waited for the host to launch."""
    every, waiting = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    launch_bound = idle.is_any_of(LAUNCH_BOUND_CAUSES)
    for sums, pieces in ((every, idle.pieces), (waiting, idle.pieces.chosen(launch_bound))):
        step, start, end = spans.overlaps(pieces)
        np.add.at(sums, step, end - start)
    return every, waiting


def module_loading(trace: Trace) -> pl.DataFrame:
    """Return the records of code being loaded to the device: ``name``, ``start_ns``, ``duration_ns``.

    The driver's calls and the profiler's overhead records may describe the same loading; a call that begins within such
    a record is not listed again.
    """
    columns = ("name", "start_ns", "duration_ns")
    overheads, calls = (
        table.filter(names_that(table, loads_code)).select(columns) for table in (trace.overheads, trace.launches)
    )
    covered = Intervals.union_of(column(overheads, "start_ns"), end_of(overheads))
    position = np.searchsorted(covered.start, column(calls, "start_ns"), side="right") - 1
    inside = np.zeros(calls.height, np.bool_)
    result = position >= 0
    inside[result] = covered.end[position[result]] > column(calls, "start_ns")[result]
    return pl.concat([overheads, calls.filter(~inside)])


def phase_times(trace: Trace, links: Links) -> dict[str, int] | None:
    """Split the device sum into forward, backward and optimizer; None where the trace shows no training step.

    Work is backward if autograd's engine launched it, and optimizer if it was launched within an ``Optimizer.`` range,
    after its closure where it has one.

    Returns:
        Nanoseconds per phase; `LAUNCH_UNKNOWN` is the phase of work whose launch was not recorded, if there is any.
    """
    ranges = dict(_training_ranges(trace))
    if not trace.activities.height or all(len(nesting.start) == 0 for nesting in ranges.values()):
        return None
    launched = np.flatnonzero(links.activity_launch >= 0)
    rows = links.activity_launch[launched]
    thread, time = column(trace.launches, "thread")[rows], column(trace.launches, "start_ns")[rows]
    names = ("forward", *ranges, LAUNCH_UNKNOWN)
    phase = np.full(trace.activities.height, names.index(LAUNCH_UNKNOWN), np.int8)
    phase[launched] = names.index("forward")
    for name, nesting in ranges.items():
        # The optimizer comes last, and so takes what it launched within the backward pass.
        phase[launched[nesting.innermost_at(thread, time) >= 0]] = names.index(name)
    duration = trace.activities["duration_ns"].to_numpy()
    times = {name: int(duration[phase == number].sum()) for number, name in enumerate(names)}
    return {name: value for name, value in times.items() if value or name != LAUNCH_UNKNOWN}


def _training_ranges(trace: Trace) -> Iterator[tuple[str, Nesting]]:
    sources = (
        ("backward", trace.operators, _BACKWARD_RANGE.match),
        ("optimizer", trace.annotations, _OPTIMIZER_RANGE.match),
    )
    for name, table, match in sources:
        chosen = table.filter(names_that(table, match))
        yield name, nesting_of(chosen if name == "backward" else after_closures(trace, chosen))


def operator_time_on_host(links: Links, window: Window) -> int:
    """Return how long any operator was running on the host within a window, over all threads (union of the slices)."""
    operators = links.operators
    outermost = np.flatnonzero(operators.parent < 0)  # they hold all others
    return Intervals.union_of(operators.start[outermost], operators.end[outermost]).within(window.spans).length
