"""Recorded steps that are unlike the others: which they are, what each takes beyond them, and why.

A step that saves a checkpoint, or in which kernels are tuned, takes many times as long as the one that a user asks
about. Averages over both describe neither, so the others are described, and these stand apart.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec.structs import replace

from opscope.analysis.idle.gaps import Places
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Floats, Ints
from opscope.analysis.structure.step_work import WindowKind, step_of_activities, step_table
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.text import or_unknown
from opscope.base.units import format_ns
from opscope.documents.trace import MEDIAN_DIFFERS, OddStep, Step
from opscope.documents.verdict import IdleCause
from opscope.knowledge.kernels.kinds import short_name
from opscope.trace.model import Trace

_LEAST: Final = 3  # steps: of two, neither is the typical one
_LONGER: Final = 2.0  # times the median, as for unprofiled steps (trust/step_time.py)
_MOST: Final = 0.1  # of the steps, and one in any case: what is more frequent belongs to what a step takes
_REGULAR: Final = 3  # odd steps from which on equal distances show that they recur
_BACKLOG: Final = 0.05  # of a device's work, as for windows (idle/timeline.py)
WORK: Final = "device work"


def odd_steps(
    trace: Trace, links: Links, timelines: Sequence[DeviceTimeline], steps: Sequence[Step]
) -> tuple[OddStep, ...]:
    """Return the few steps that take far longer than the others.

    Empty where they change the mean little, recur, or wait for data: such waits come in bursts, and belong to what a
    step takes. Empty too where they cannot be parted from the others: steps overlap, work of the others runs within
    them, or devices work long for another step than the one in which the host takes long.

    Args:
        trace: the trace.
        links: its links.
        timelines: those of its devices, with all steps.
        steps: the recorded steps.
    """
    line = max(timelines, key=lambda one: one.busy_in_window_ns) if timelines else None
    own = [step for step in steps if line is None or step.device == line.device]
    table = step_table(trace)
    start, end = column(table, "start_ns"), column(table, "end_ns")
    if len(own) < _LEAST or len(own) != table.height or (start[1:] < end[:-1]).any():
        return ()
    spans = np.array([step.span_ns for step in own], np.float64)
    odd = spans > _LONGER * np.median(spans)
    if not _stands_apart(spans, odd) or not _can_be_parted(trace, links, line, table, odd):
        return ()
    results = [_odd_step(trace, links, line, own, row, ~odd) for row in np.flatnonzero(odd).tolist()]
    return () if any(one.cause == IdleCause.INPUT for one in results) else tuple(results)


def _stands_apart(spans: Floats, odd: Bools) -> bool:
    """Tell whether long steps are few, come without a rhythm, and change the mean."""
    distances = np.diff(np.flatnonzero(odd))
    recur = odd.sum() >= _REGULAR and distances.max() - distances.min() <= 1
    few = 0 < odd.sum() <= max(1.0, _MOST * len(spans))
    return few and not recur and bool(spans.mean() > (1 + MEDIAN_DIFFERS) * spans[~odd].mean())


def _can_be_parted(trace: Trace, links: Links, line: DeviceTimeline | None, table: pl.DataFrame, odd: Bools) -> bool:
    """Tell whether what belongs to odd steps is theirs on the host and on the device."""
    if line is None:
        return True
    lengths = column(table, "end_ns") - column(table, "start_ns")
    if line.window.kind is WindowKind.STEP_WORK and ((lengths > _LONGER * np.median(lengths)) != odd).any():
        return False
    step = np.append(odd, True)[step_of_activities(trace, links, table)]  # no step, -1, counts as odd
    others = np.flatnonzero(~step)
    work = Intervals.union_of(column(trace.activities, "start_ns")[others], end_of(trace.activities)[others])
    within = work.within(Intervals(line.steps.start[odd], line.steps.end[odd])).length
    return within <= _BACKLOG * work.length


def in_short(odd: Sequence[OddStep], steps: int) -> str | None:
    """Say which steps are left out, in a sentence; None without any.

    Args:
        odd: the steps.
        steps: how many there are beside them.
    """
    if len(odd) <= 1:
        return odd[0].sentence if odd else None
    longest = max(odd, key=lambda one: one.span_ns)
    count, whole = f"{len(odd)} of {len(odd) + steps:,} steps", format_ns(sum(one.span_ns for one in odd))
    return f"{count} are left out, {whole} in all; the longest is step {longest.number}: {_length(longest)}."


def _length(step: OddStep) -> str:
    """Say how long a step takes, and what it has more of than the others."""
    place = "" if step.where is None else f", in {or_unknown(step.where)}"
    why = "" if step.cause is None else f", {format_ns(step.beyond_ns)} more {step.cause} than the others{place}"
    return f"{format_ns(step.span_ns)}{why}"


def _odd_step(
    trace: Trace, links: Links, line: DeviceTimeline | None, steps: Sequence[Step], row: int, typical: Bools
) -> OddStep:
    step = steps[row]
    usual = float(np.mean([one.span_ns for one, like in zip(steps, typical, strict=True) if like]))
    cause, beyond, where = (None, step.span_ns - usual, None)
    if line is not None:
        cause, beyond, where = _largest(trace, links, line, row, typical)
    again = sum(one.number == step.number for one in steps) > 1  # numbers restart in every cycle
    which = f"{step.number} (number {row + 1} in the file)" if again else f"{step.number}"
    odd = OddStep(
        index=row,
        number=step.number,
        span_ns=step.span_ns,
        typical_ns=usual,
        cause=cause,
        beyond_ns=beyond,
        where=where,
        sentence="",
    )
    return replace(odd, sentence=f"Step {which} is left out: {_length(odd)}.")


def _largest(
    trace: Trace, links: Links, line: DeviceTimeline, row: int, typical: Bools
) -> tuple[str, float, str | None]:
    """Return what a step has most of beyond the others: its name, how much, and where that is."""
    begin, end = int(line.steps.start[row]), int(line.steps.end[row])
    of_step = Intervals(np.array([begin], np.int64), np.array([end], np.int64))
    others = Intervals(line.steps.start[typical], line.steps.end[typical])
    count = int(typical.sum())
    here, there = line.idle.within(of_step), line.idle.within(others).by_cause()
    idle: dict[IdleCause, float] = {}
    for cause, ns in here.by_cause().items():
        idle[cause.counted_as] = idle.get(cause.counted_as, 0.0) + ns - there[cause] / count
    worked = (end - begin) - others.length / count - sum(idle.values())
    cause = max(idle, key=lambda one: idle[one])
    places = Places(trace, links)
    if worked >= idle[cause]:
        return WORK, worked, _where_of_work(trace, links, line, row, places)
    pieces = np.flatnonzero(here.is_any_of(tuple(one for one in IdleCause if one.counted_as is cause)))
    longest = pieces[[np.argmax(here.pieces.end[pieces] - here.pieces.start[pieces])]]
    moment = (here.pieces.start[longest] + here.pieces.end[longest]) // 2
    return str(cause), idle[cause], next(_named(places, here.thread[longest], moment), None)


def _where_of_work(trace: Trace, links: Links, line: DeviceTimeline, row: int, places: Places) -> str | None:
    """Return the range or line from which the kernel that takes most of a step is launched; without one, its name."""
    device = trace.activities["device"].fill_null(NO_DEVICE).to_numpy()
    rows = np.flatnonzero((step_of_activities(trace, links, step_table(trace)) == row) & (device == line.device))
    if not len(rows):
        return None
    own = trace.activities[rows].select(pl.col("name").cast(pl.String), "duration_ns")
    sums = own.group_by("name").agg(pl.col("duration_ns").sum()).sort(["duration_ns", "name"], descending=[True, False])
    name = str(sums["name"][0])
    launch: Ints = links.activity_launch[rows[(own["name"] == name).to_numpy()]]
    launch = launch[launch >= 0][:1]
    thread, start = (column(trace.launches, one)[launch] for one in ("thread", "start_ns"))
    return next(_named(places, thread, start), None) or short_name(name)


def _named(places: Places, thread: Ints, moment: Ints) -> Iterator[str]:
    """Yield the range, line, module or operator around each moment, as far as one was recorded."""
    for place in places.at(thread, moment):
        if (name := place.annotation or place.python or place.module or place.operator) is not None:
            yield name
