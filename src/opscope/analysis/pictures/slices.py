"""The slices of streams and threads in a part of a trace: chosen by steps, and few enough to be drawn."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.idle.timeline import NO_DEVICE, DeviceTimeline
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.call_tree import CallTree
from opscope.analysis.structure.lanes import lanes_of
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import step_of_activities
from opscope.analysis.structure.window import step_table
from opscope.base.errors import UsageError
from opscope.documents.bound import IdleCause
from opscope.trace.model import Trace

_ENOUGH: Final = 60_000  # slices of further steps; a single one may have more
_MOST_THREADS: Final = 200  # with a track of their own; of the others, the outermost slices share one
_MOST_DEPTH: Final = 64  # rows of a thread; deeper slices are drawn in the last one


class TrackKind(StrEnum):
    """What a track shows."""

    IDLE = "idle"
    STREAM = "stream"
    THREAD = "thread"


class Track(Struct, frozen=True):
    """The slices of a stream, a thread, or a device's idle time. Arrays have one entry per slice, by row and start.

    Attributes:
        kind: what it shows.
        device: of a stream or of idle time; None for a thread.
        stream: the number of the stream; None for anything else.
        thread: the number of the thread in the trace; None for anything else, and for many threads together.
        folded: how many threads it stands for, if it shows the outermost slices of many; else 0.
        row: in which row of the track the slice lies, from 0.
        start_ns, end_ns: when, on the trace's clock.
        name: what it is called by: for a thread's slice a position in `CallTree.names`, for a stream's the row of its
            activity, for idle time the position of its cause in `IdleCause`; -1 for merged slices.
        operator: the row of the operator that launched the slice, or that it is; -1 where there is none.
        count: how many slices it stands for: more than one if neighbours too short to be seen were merged.
    """

    kind: TrackKind
    device: int | None
    stream: int | None
    thread: int | None
    row: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    operator: Ints
    count: Ints
    folded: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def chosen(self, which: Bools | Ints) -> "Track":
        """Return some of its slices."""
        arrays = {name: getattr(self, name)[which] for name in _ARRAYS}
        return replace(self, **arrays)


_ARRAYS: Final = ("row", "start_ns", "end_ns", "name", "operator", "count")


class Slices(Struct, frozen=True):
    """A part of a trace.

    Attributes:
        start_ns, end_ns: which part, on the trace's clock.
        steps: the profiler's numbers of the steps that were chosen; empty where none are marked.
        all_steps: the profiler's numbers of all steps.
        tracks: the tracks that have slices in it.
        merged_below_ns: neighbours shorter than this were merged; 0 if all slices are there.
        slice_count: how many slices the part had before merging.
    """

    start_ns: int
    end_ns: int
    steps: tuple[int, ...]
    all_steps: tuple[int, ...]
    tracks: tuple[Track, ...]
    merged_below_ns: int
    slice_count: int


def slices_of(
    trace: Trace,
    links: Links,
    tree: CallTree,
    devices: Sequence[DeviceTimeline],
    *,
    most: int,
    steps: tuple[int, int] | None = None,
) -> Slices | None:
    """Choose steps and return their slices; None for a trace without slices.

    Args:
        trace: the trace.
        links: its links.
        tree: its calls.
        devices: its devices, whose idle time is shown.
        most: how many slices at most. Without ``steps`` as many whole steps are taken as fit, from the median one on.
        steps: the numbers of the first and the last step; None to choose them.

    Raises:
        UsageError: the trace does not mark these steps.
    """
    tracks = [track for track in _of_devices(trace, links, devices) if len(track)]
    threads = _Threads.of(tree)
    extents = [*((track.start_ns, track.end_ns) for track in tracks), *threads.extents()]
    if not extents:
        return None
    table = step_table(trace)
    numbers = tuple(table["step"].to_list())
    spans = _spans(trace, links, table)
    if steps is not None:
        chosen = _named(numbers, *steps)
    else:
        chosen = _fitting([starts for starts, _ in extents], spans, min(most, _ENOUGH))
    if len(chosen):
        start, end = int(spans[0][chosen].min()), int(spans[1][chosen].max())
    else:
        start, end = min(int(starts.min()) for starts, _ in extents), max(int(ends.max()) for _, ends in extents)
    inside = [track.chosen((track.end_ns > start) & (track.start_ns < end)) for track in tracks]
    inside = [track for track in (*inside, *threads.tracks(start, end)) if len(track)]
    count = sum(map(len, inside))
    inside, below = _few_enough(inside, most, end - start)
    return Slices(start, end, tuple(numbers[row] for row in chosen), numbers, tuple(inside), below, count)


def _spans(trace: Trace, links: Links, table: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return per step when it begins on the host, and when its range and its last work have ended."""
    start, end = column(table, "start_ns").copy(), column(table, "end_ns").copy()
    step = step_of_activities(trace, links, table)
    launched = step >= 0
    np.maximum.at(end, step[launched], end_of(trace.activities)[launched])
    return start, end


def _named(numbers: Sequence[int], first: int, last: int) -> Ints:
    chosen = np.array([row for row, number in enumerate(numbers) if first <= number <= last], np.int64)
    if not len(chosen):
        marked = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
        raise UsageError(f"the trace marks no steps {first} to {last}; it has {marked}")
    return chosen


def _fitting(starts: Sequence[Ints], spans: tuple[Ints, Ints], most: int) -> Ints:
    """Return the step of median length and as many of those after and before it as fit.

    Args:
        starts: when slices begin, in pieces.
        spans: per step when it begins and ends.
        most: how many slices fit.
    """
    start, end = spans
    if not len(start):
        return np.zeros(0, np.int64)
    begins = np.sort(np.concatenate(starts))
    middle = int(np.argsort(end - start, kind="stable")[(len(start) - 1) // 2])
    low = high = middle

    def fits(first: int, last: int) -> bool:
        return bool(np.searchsorted(begins, end[last]) - np.searchsorted(begins, start[first]) <= most)

    while True:
        if high + 1 < len(start) and fits(low, high + 1):
            high += 1
        elif low > 0 and fits(low - 1, high):
            low -= 1
        else:
            return np.arange(low, high + 1)


def _of_devices(trace: Trace, links: Links, devices: Sequence[DeviceTimeline]) -> Iterator[Track]:
    activities = trace.activities
    device = activities["device"].fill_null(NO_DEVICE).cast(pl.Int64).to_numpy()
    stream = column(activities, "stream")
    start, end = column(activities, "start_ns"), end_of(activities)
    for timeline in devices:
        idle = timeline.idle
        yield Track(
            TrackKind.IDLE, timeline.device, None, None, *_plain(idle.pieces.start, idle.pieces.end),
            idle.code.astype(np.int64), np.full(len(idle.pieces), -1), np.ones(len(idle.pieces), np.int64),
        )  # fmt: skip
        mine = np.flatnonzero(device == timeline.device)
        for number, rows in _by_value(stream, mine):
            # Activities of one stream may overlap; in one row they would hide each other.
            lane = lanes_of(np.zeros(len(rows), np.int64), start[rows], end[rows])
            track = Track(
                TrackKind.STREAM, timeline.device, number, None, lane, start[rows], end[rows], rows,
                links.activity_operator[rows], np.ones(len(rows), np.int64),
            )  # fmt: skip
            yield _in_order(track)


def _plain(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    return np.zeros(len(start), np.int64), start, end


class _Threads(Struct, frozen=True):
    """The slices of the host's threads, as rows of a call tree: tracks are made of those alone that are shown.

    Attributes:
        tree: the calls.
        depth: per slice in which row of its track it lies.
        operator: per slice the row of the operator that it is or belongs to; -1 without.
        shown: the threads with a track of their own, each with its rows.
        further: the outermost rows of all other threads together.
        folded: how many threads these are.
    """

    tree: CallTree
    depth: Ints
    operator: Ints
    shown: tuple[tuple[int, Ints], ...]
    further: Ints
    folded: int

    @classmethod
    def of(cls, tree: CallTree) -> "_Threads":
        nesting = tree.nesting
        depth = np.minimum(nesting.depth(), _MOST_DEPTH - 1)
        every = np.arange(len(depth))
        is_operator = (every >= tree.first_operator) & (every < tree.first_launch)
        operator = np.where(is_operator, every - tree.first_operator, -1)
        # An API call belongs to the slice directly around it, if that is an operator.
        above = nesting.parent
        if len(above):
            operator = np.where(is_operator | (above < 0), operator, operator[np.maximum(above, 0)])
        threads = list(_by_value(nesting.thread, every))
        shown, further = threads, [np.zeros(0, np.int64)]
        if len(threads) > _MOST_THREADS:
            outermost = np.where(nesting.parent < 0, nesting.end - nesting.start, 0)
            # The busiest threads keep tracks of their own, in their order.
            busy = [-int(outermost[rows].sum()) for _, rows in threads]
            order = np.argsort(busy, kind="stable").tolist()
            shown = [threads[number] for number in sorted(order[:_MOST_THREADS])]
            further = [threads[number][1] for number in sorted(order[_MOST_THREADS:])]
        rows = np.concatenate(further)
        return cls(tree, depth, operator, tuple(shown), rows[nesting.parent[rows] < 0], len(threads) - len(shown))

    def extents(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield when the slices of each track begin and end."""
        nesting = self.tree.nesting
        for rows in (*(rows for _, rows in self.shown), self.further):
            if len(rows):
                yield nesting.start[rows], nesting.end[rows]

    def tracks(self, begin: int, end: int) -> Iterator[Track]:
        """Yield the slices of each track that touch a range of time."""
        nesting = self.tree.nesting
        lane = lanes_of(np.zeros(len(self.further), np.int64), nesting.start[self.further], nesting.end[self.further])
        lanes = np.minimum(lane, _MOST_DEPTH - 1)
        touches = (nesting.end > begin) & (nesting.start < end)
        for thread, all_rows in self.shown:
            rows = all_rows[touches[all_rows]]
            yield self._track(thread, rows, self.depth[rows], 0)
        yield self._track(None, self.further[touches[self.further]], lanes[touches[self.further]], self.folded)

    def _track(self, thread: int | None, rows: Ints, row: Ints, folded: int) -> Track:
        tree = self.tree
        start, end = tree.nesting.start[rows], tree.nesting.end[rows]
        count = np.ones(len(rows), np.int64)
        track = Track(
            TrackKind.THREAD, None, None, thread, row, start, end, tree.name[rows], self.operator[rows], count, folded
        )
        return _in_order(track)


def _by_value(values: Ints, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each value of some rows, in order, with the rows that have it: one sort, however many values there are."""
    chosen = values[rows]
    order = np.argsort(chosen, kind="stable")
    found, first = np.unique(chosen[order], return_index=True)
    yield from zip(found.tolist(), np.split(rows[order], first[1:]), strict=False)


def _in_order(track: Track) -> Track:
    return track.chosen(np.lexsort((track.start_ns, track.row)))


def _few_enough(tracks: list[Track], most: int, length: int) -> tuple[list[Track], int]:
    """Merge short neighbours until few enough slices are left; return the tracks, and the length below which."""
    below, merged = 0, tracks
    while sum(map(len, merged)) > most and below < length:
        below = max(2 * below, length // (1 << 22), 1)
        # Always from the original slices, so that none is merged twice.
        merged = [_merged(track, below) for track in tracks]
    return merged, below


def _merged(track: Track, below: int) -> Track:
    """Merge slices shorter than a limit that are neighbours in a row and begin in the same piece of that length."""
    short = track.end_ns - track.start_ns < below
    if not short.any():
        return track
    piece = np.where(short, track.start_ns // below, -1)
    # A new group begins where the row or the piece changes, and with every slice that is long enough.
    begins = np.ones(len(track), np.bool_)
    begins[1:] = (track.row[1:] != track.row[:-1]) | (piece[1:] != piece[:-1]) | ~short[1:]
    first = np.flatnonzero(begins)
    alone = np.diff(np.append(first, len(track))) == 1
    one = track.chosen(first)
    return replace(
        one,
        end_ns=np.maximum.reduceat(track.end_ns, first),
        name=np.where(alone, one.name, -1),
        operator=np.where(alone, one.operator, -1),
        count=np.add.reduceat(track.count, first),
    )


CAUSES: Final = tuple(str(cause) for cause in IdleCause)
