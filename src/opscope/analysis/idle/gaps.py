"""The longest gaps of the devices, each with its cause and with what the host was doing, as far as recorded."""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.idle.idle import IdleTime
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of, latest_around, nesting_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.modules import MODULE_FRAME, is_users_frame
from opscope.analysis.structure.nesting import Bools, Ints, Nesting
from opscope.analysis.structure.step_work import is_step, step_table
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.documents.trace import GapRow
from opscope.documents.verdict import IdleCause
from opscope.trace.model import Trace

LISTED: Final = 50
_SHORTLY_NS: Final = 50_000  # before the end of a gap: what ends then on another device may have been waited for
BEFORE, BETWEEN, AFTER = "before the first activity", "between activities", "after the last activity"


def longest_gaps(trace: Trace, places: "Places", timelines: Sequence[DeviceTimeline]) -> tuple[GapRow, ...]:
    """Return the longest gaps of all devices, the longest first.

    A gap is a stretch of the window in which a device did nothing, from one activity to the next. Its cause is the one
    to which most of it is due; ``causes`` has all.
    """
    lengths = [_lengths(timeline.idle) for timeline in timelines]
    # Positions are negated, so that of equally long gaps the first ones are taken.
    longest = heapq.nlargest(
        LISTED,
        (
            (int(length[gap]), -place, -int(gap))
            for place, length in enumerate(lengths)
            for gap in np.argsort(-length, kind="stable")[:LISTED]
            if length[gap]
        ),
    )
    gaps = [_Gap.of(timelines[-place], -gap) for _, place, gap in longest]
    return tuple(_rows(trace, places, gaps))


def _lengths(idle: IdleTime) -> Ints:
    """Return the length of each gap, by its number."""
    length = np.zeros(int(idle.gap.max(initial=-1)) + 1, np.int64)
    np.add.at(length, idle.gap, idle.pieces.end - idle.pieces.start)
    return length


class _Gap(Struct, frozen=True):
    """A gap with its causes, the largest first.

    ``shown`` is the position of the longest piece of the largest cause, ``moment`` the middle of that piece.
    """

    timeline: DeviceTimeline
    start: int
    end: int
    duration: int
    causes: dict[IdleCause, int]
    shown: int
    moment: int

    @classmethod
    def of(cls, timeline: DeviceTimeline, gap: int) -> "_Gap":
        idle = timeline.idle
        # Pieces are in order of time, and so are the numbers of their gaps.
        first, last = np.searchsorted(idle.gap, [gap, gap + 1]).tolist()
        start, end = (times[first:last].tolist() for times in (idle.pieces.start, idle.pieces.end))
        length = [high - low for low, high in zip(start, end, strict=True)]
        named = [idle.cause_of(piece) for piece in range(first, last)]
        causes: dict[IdleCause, int] = {}
        for cause, time in zip(named, length, strict=True):
            causes[cause] = causes.get(cause, 0) + time
        causes = dict(sorted(causes.items(), key=lambda item: -item[1]))
        largest = next(iter(causes))
        shown = max((place for place, cause in enumerate(named) if cause is largest), key=length.__getitem__)
        moment = (start[shown] + end[shown]) // 2
        return cls(timeline, start[0], end[-1], sum(length), causes, first + shown, moment)


def _rows(trace: Trace, where: "Places", gaps: Sequence[_Gap]) -> Iterator[GapRow]:
    idle = [(gap.timeline.idle, gap.shown) for gap in gaps]
    thread = np.array([pieces.thread[shown] for pieces, shown in idle], np.int64)
    moment = np.array([gap.moment for gap in gaps], np.int64)
    places, numbers = where.at(thread, moment), step_table(trace)["step"].to_list()
    steps = _steps_at(gaps)
    several = trace.activities["device"].n_unique() > 1
    neighbours = {device: _Neighbours.of(trace, device) for device in {gap.timeline.device for gap in gaps}}
    for gap, (pieces, shown), place, step in zip(gaps, idle, places, steps, strict=True):
        before, after = neighbours[gap.timeline.device].around(gap.start, gap.end)
        yield GapRow(
            device=None if gap.timeline.device == NO_DEVICE else gap.timeline.device,
            start_ns=gap.start,
            duration_ns=gap.duration,
            step=None if step is None else numbers[step],
            position=_position(before, after),
            cause=str(next(iter(gap.causes))),
            causes={str(cause): time for cause, time in gap.causes.items()},
            call=_call(trace, int(pieces.call[shown]), int(pieces.record[shown])),
            operator=place.operator,
            annotation=place.annotation,
            module=place.module,
            python=place.python,
            before=before,
            after=after,
            stream=neighbours[gap.timeline.device].stream_at(gap.end),
            waited_for=_ended_elsewhere(trace, gap) if several and IdleCause.DEPENDENCY in gap.causes else None,
        )


def _position(before: str | None, after: str | None) -> str:
    if before is None:
        return BEFORE
    return AFTER if after is None else BETWEEN


def _ended_elsewhere(trace: Trace, gap: _Gap) -> str | None:
    """Return the activity of another device that ended last, and shortly before the gap did; None without any."""
    device, end = trace.activities["device"].fill_null(NO_DEVICE).to_numpy(), end_of(trace.activities)
    near = (device != gap.timeline.device) & (end <= gap.end) & (end > max(gap.end - _SHORTLY_NS, gap.start))
    if not near.any():
        return None
    row = int(np.flatnonzero(near)[np.argmax(end[near])])
    return f"device {device[row]}, stream {trace.activities['stream'][row]}: {trace.activities['name'][row]}"


class Place(Struct, frozen=True):
    """Where a thread was: the innermost operator, range, module and Python frame of the user's program."""

    operator: str | None
    annotation: str | None
    module: str | None
    python: str | None


class Places:
    """Tells where threads are at any time."""

    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace, self._links = trace, links
        # The range of a step is around everything, and so tells nothing.
        self._ranges = trace.annotations.filter(~is_step(trace.annotations))
        self._of_ranges, self._of_frames = nesting_of(self._ranges), nesting_of(trace.frames)
        self._users = names_that(trace.frames, is_users_frame)
        self._modules = names_that(trace.frames, lambda name: name.startswith(MODULE_FRAME))

    def at(self, thread: Ints, moment: Ints) -> list[Place]:
        """Return where threads were at some moments.

        Args:
            thread: the number of a thread per moment.
            moment: times on the trace's clock, in nanoseconds.
        """
        frames, nesting = self._trace.frames["name"], self._of_frames
        return [
            Place(operator, annotation, None if module is None else module.removeprefix(MODULE_FRAME), python)
            for operator, annotation, module, python in zip(
                _innermost(self._trace.operators["name"], self._links.operators, thread, moment),
                _innermost(self._ranges["name"], self._of_ranges, thread, moment),
                _innermost(frames, nesting, thread, moment, self._modules),
                _innermost(frames, nesting, thread, moment, self._users),
                strict=True,
            )
        ]

    def mostly(self, thread: Ints, moment: Ints, weight: Ints) -> Place:
        """Return what is around most of some moments: the innermost module, line of Python and range of each.

        A name counts for all moments that it is around, and at least half of their weight is needed.

        Args:
            thread: the number of a thread per moment.
            moment: times on the trace's clock, in nanoseconds.
            weight: how much each moment counts.
        """
        frames, nesting = self._trace.frames["name"], self._of_frames
        module = _mostly_around(frames, nesting, thread, moment, weight, self._modules)
        return Place(
            operator=None,
            annotation=_mostly_around(self._ranges["name"], self._of_ranges, thread, moment, weight),
            module=None if module is None else module.removeprefix(MODULE_FRAME),
            python=_mostly_around(frames, nesting, thread, moment, weight, self._users),
        )


def _mostly_around(
    names: pl.Series, nesting: Nesting, thread: Ints, moment: Ints, weight: Ints, holds: Bools | None = None
) -> str | None:
    """Return the name of slices around at least half of the weight, the innermost of such names; None without one."""
    sums: Counter[str] = Counter()
    depths: dict[str, int] = {}
    for innermost, amount in zip(nesting.innermost_at(thread, moment).tolist(), weight.tolist(), strict=True):
        chain: list[str] = []
        row = innermost
        while row >= 0:
            if (holds is None or holds[row]) and (name := str(names[row])) not in chain:
                chain.append(name)
            row = int(nesting.parent[row])
        for depth, name in enumerate(reversed(chain)):
            sums[name] += amount
            depths[name] = max(depths.get(name, 0), depth)
    half = [name for name in sums if 2 * sums[name] >= int(weight.sum()) > 0]
    return max(half, key=lambda name: (depths[name], sums[name]), default=None)


def _innermost(
    names: pl.Series, nesting: Nesting, thread: Ints, moment: Ints, holds: Bools | None = None
) -> Iterator[str | None]:
    """Yield the name of the innermost slice around each moment, of those that ``holds`` marks; None without any."""
    for innermost in nesting.innermost_at(thread, moment).tolist():
        row = innermost
        while row >= 0 and holds is not None and not holds[row]:
            row = int(nesting.parent[row])
        yield None if row < 0 else str(names[row])


def _call(trace: Trace, row: int, record: int) -> str | None:
    """Return the name of a call, or of a record of loading code, which says more; None without either."""
    if record >= 0:
        return str(trace.overheads["name"][record])
    return None if row < 0 else str(trace.launches["name"][row])


def _steps_at(gaps: Sequence[_Gap]) -> list[int | None]:
    """Return per gap the row of the step whose period holds its moment; None where none does."""
    results: list[int | None] = [None] * len(gaps)
    for device, periods in {gap.timeline.device: gap.timeline.steps for gap in gaps}.items():
        if len(periods):
            own = [place for place, gap in enumerate(gaps) if gap.timeline.device == device]
            moments = np.array([gaps[place].moment for place in own], np.int64)
            for place, row in zip(own, latest_around(periods.start, periods.end, moments).tolist(), strict=True):
                results[place] = None if row < 0 else row
    return results


class _Neighbours(Struct, frozen=True):
    """The activities of a device, ordered by their ends and by their starts."""

    names: pl.Series
    streams: pl.Series
    by_end: Ints
    end: Ints
    by_start: Ints
    start: Ints

    @classmethod
    def of(cls, trace: Trace, device: int) -> "_Neighbours":
        own = np.flatnonzero(trace.activities["device"].fill_null(NO_DEVICE).to_numpy() == device)
        start, end = column(trace.activities, "start_ns")[own], end_of(trace.activities)[own]
        by_end, by_start = np.argsort(end, kind="stable"), np.argsort(start, kind="stable")
        return cls(
            trace.activities["name"],
            trace.activities["stream"],
            own[by_end],
            end[by_end],
            own[by_start],
            start[by_start],
        )

    def stream_at(self, moment: int) -> int | None:
        """Return the stream of the first activity that begins exactly at a moment; None where none does."""
        after = int(np.searchsorted(self.start, moment, side="left"))
        begins = after < len(self.start) and self.start[after] == moment
        return None if not begins else self.streams[int(self.by_start[after])]

    def around(self, begin: int, finish: int) -> tuple[str | None, str | None]:
        """Return the names of the last activity before a gap and of the first one after it; None without one."""
        # Ends are exclusive: an activity that ends where the gap begins is the one before it.
        before = int(np.searchsorted(self.end, begin, side="right")) - 1
        after = int(np.searchsorted(self.start, finish, side="left"))
        return (
            None if before < 0 else str(self.names[int(self.by_end[before])]),
            None if after == len(self.start) else str(self.names[int(self.by_start[after])]),
        )
