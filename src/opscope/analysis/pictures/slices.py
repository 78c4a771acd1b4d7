"""Tracks, and the slices of streams and threads in a part of a trace: chosen by steps, and few enough to be drawn."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.call_tree import CallTree, numbered
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.modules import MODULE_FRAME
from opscope.analysis.structure.nesting import Bools, Ints, Nesting
from opscope.analysis.structure.step_work import step_of_activities, step_table
from opscope.analysis.structure.streams import NO_DEVICE, lanes_of
from opscope.base.errors import UsageError
from opscope.documents.verdict import IdleCause
from opscope.trace.model import Trace

# ---------------------------------------------------------------- tracks


_MOST_ROWS: Final = 64  # of a track: what lies deeper is drawn in the last one


class TrackKind(StrEnum):
    """What a track shows."""

    IDLE = "idle"
    STREAM = "stream"
    RANGE = "range"
    MODULE = "module"
    OPERATOR = "operator"
    CALL = "call"
    PYTHON = "python"
    THREADS = "threads"


class Track(Struct, frozen=True):
    """Slices in rows below each other. Arrays have one entry per slice, by row and start.

    Attributes:
        kind: what it shows.
        device: of a stream or of idle time; None for anything on the host.
        stream: the number of the stream; None for anything else.
        thread: the number of the thread in the trace; None for anything else, and for many threads together.
        texts: the distinct names of its slices.
        row: in which row of the track the slice lies, from 0. Slices of one row do not overlap, except in the last.
        start_ns, end_ns: when, on the trace's clock.
        name: the position of its name in ``texts``; of merged slices, of what takes most of their time.
        operator: the row of the operator that launched the slice, or that it is; -1 where there is none.
        record: of streams the slice's row in the trace's activities, of calls in its launches, of operators in its
            operators; of other kinds a number that says nothing. -1 for merged slices and for idle time.
        count: how many slices it stands for: more than one if neighbours too short to be seen were merged.
        covered_ns: how long these lasted together.
        folded: how many threads it stands for, if it shows the outermost slices of many; else 0.
    """

    kind: TrackKind
    device: int | None
    stream: int | None
    thread: int | None
    texts: tuple[str, ...]
    row: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    operator: Ints
    record: Ints
    count: Ints
    covered_ns: Ints
    folded: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def chosen(self, which: Bools | Ints) -> "Track":
        """Return some of its slices."""
        return replace(self, **{name: getattr(self, name)[which] for name in _ARRAYS})

    def within(self, start: int, end: int) -> "Track":
        """Return the slices that touch a range of time; those without length too that lie at its beginning."""
        return self.chosen(touching(self.start_ns, self.end_ns, start, end))

    def in_order(self) -> "Track":
        """Return it with its slices sorted by row, then by start."""
        return self.chosen(np.lexsort((self.start_ns, self.row)))

    @property
    def merges(self) -> bool:
        """Whether any of its slices stands for several."""
        return bool((self.count > 1).any())


def touching(start_ns: Ints, end_ns: Ints, start: int, end: int) -> Bools:
    """Tell which slices touch a range of time; those without length too that lie at its beginning."""
    touches: Bools = ((end_ns > start) | (start_ns >= start)) & (start_ns < end)
    return touches


_ARRAYS: Final = ("row", "start_ns", "end_ns", "name", "operator", "record", "count", "covered_ns")


def stacked_rows(track: Ints, start: Ints, end: Ints) -> Ints:
    """Return a row (from 0) per slice, such that the slices of a track and row do not overlap.

    A slice inside another one lies below it; slices that overlap without nesting have rows of their own, below all of
    those. What lies deeper than a timeline shows is in the last row, where slices may overlap.

    Args:
        track: per slice the number of its track, from 0.
        start: when it began.
        end: when it ended.
    """
    lane = lanes_of(track, start, end)
    lanes = int(lane.max(initial=0)) + 1
    group = track * lanes + lane
    depth = Nesting.of(group, start, end).depth()
    if lanes == 1:
        return np.minimum(depth, _MOST_ROWS - 1)
    # The rows of a lane begin below those of the lanes before it. Only lanes that have slices count: a table of all
    # lanes of all tracks could be large.
    present, which = np.unique(group, return_inverse=True)
    height = np.zeros(len(present), np.int64)
    np.maximum.at(height, which, depth + 1)
    before = np.cumsum(height) - height
    of_track = present // lanes
    first_lane = np.searchsorted(of_track, of_track)
    first = before - before[first_lane]
    rows: Ints = np.minimum(first[which] + depth, _MOST_ROWS - 1)
    return rows


def by_value(values: Ints, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each value of some rows, in order, with the rows that have it: one sort, however many values there are."""
    chosen = values[rows]
    order = np.argsort(chosen, kind="stable")
    result, first = np.unique(chosen[order], return_index=True)
    yield from zip(result.tolist(), np.split(rows[order], first[1:]), strict=False)


def merged_slices(track: Track, below: int, paint: Ints) -> Track:
    """Merge slices shorter than a limit that are neighbours in a row and begin in the same piece of that length.

    Args:
        track: with its slices in order.
        below: the limit in nanoseconds.
        paint: per slice a number of what it is drawn as; a merged slice is named by what takes most of its time.
    """
    short = track.end_ns - track.start_ns < below
    if not short.any():
        return track
    piece = np.where(short, track.start_ns // below, -1)
    # A new group begins where the row or the piece changes, and with every slice that is long enough.
    begins = np.ones(len(track), np.bool_)
    begins[1:] = (track.row[1:] != track.row[:-1]) | (piece[1:] != piece[:-1]) | ~short[1:]
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    alone = np.diff(np.append(first, len(track))) == 1
    one = track.chosen(_largest_share(group, paint, track.covered_ns))
    return replace(
        one,
        start_ns=track.start_ns[first],
        end_ns=np.maximum.reduceat(track.end_ns, first),
        operator=one.operator,
        record=np.where(alone, one.record, -1),
        count=np.add.reduceat(track.count, first),
        covered_ns=np.add.reduceat(track.covered_ns, first),
    )


def _largest_share(group: Ints, paint: Ints, time: Ints) -> Ints:
    """Return per group the position of the longest slice of the paint that takes most of the group's time."""
    keys = group * (int(paint.max(initial=0)) + 2) + paint + 1
    _, which = np.unique(keys, return_inverse=True)
    share = np.zeros(int(which.max(initial=-1)) + 1, np.int64)
    np.add.at(share, which, time)
    order = np.lexsort((time, share[which], group))
    last = np.flatnonzero(np.diff(group[order], append=-1))
    result: Ints = order[last]
    return result


# ---------------------------------------------------------------- slices


_ENOUGH: Final = 150_000  # slices of further steps; a single one may have more
# Python's frames are many, and the first to be merged: up to this share of what is shown.
_COARSE: Final = 1 / 4_000
_CAUSES: Final = tuple(str(cause) for cause in IdleCause)
_MOST_THREADS: Final = 200  # with tracks of their own; of the others, the outermost slices share one


class HostTable(Struct, frozen=True, dict=True):
    """The slices of one kind on all threads. Arrays have one entry per slice.

    Attributes:
        kind: which kind.
        thread: the numbers of their threads.
        start_ns, end_ns: when they began and ended.
        name: the positions of their names in ``texts``.
        texts: the distinct names.
        operator: the rows of the operators that they are or belong to; -1 without.
        record: their rows in the trace's table.
    """

    kind: TrackKind
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    texts: tuple[str, ...]
    operator: Ints
    record: Ints

    @classmethod
    def of(cls, kind: TrackKind, table: pl.DataFrame, operator: Ints | None = None) -> "HostTable":
        """Make it of a table of the trace, whose rows the slices are."""
        every = np.arange(table.height)
        name, texts = numbered(table["name"], rename=None)  # one looks for a step by its number
        none = np.full(table.height, -1, np.int64)
        times = column(table, "thread"), column(table, "start_ns"), end_of(table)
        return cls(kind, *times, name, texts, none if operator is None else operator, every)

    def chosen(self, rows: Ints, kind: TrackKind, prefix: str = "") -> "HostTable":
        """Return some of its slices, as slices of a kind, without a prefix of their names."""
        arrays = (self.thread, self.start_ns, self.end_ns, self.name)
        texts = tuple(text.removeprefix(prefix) for text in self.texts) if prefix else self.texts
        thread, start, end, name = (array[rows] for array in arrays)
        return HostTable(kind, thread, start, end, name, texts, self.operator[rows], self.record[rows])

    @cached_property
    def row(self) -> Ints:
        """Per slice in which row of its thread's track it lies."""
        return stacked_rows(self.thread, self.start_ns, self.end_ns)

    def track(self, rows: Ints, thread: int) -> Track:
        """Return the track of some slices of a thread."""
        start, end = self.start_ns[rows], self.end_ns[rows]
        return Track(
            self.kind, None, None, thread, self.texts, self.row[rows], start, end, self.name[rows],
            self.operator[rows], self.record[rows], np.ones_like(rows), end - start,
        ).in_order()  # fmt: skip


class HostTracks(Struct, frozen=True):
    """The slices of the host's threads: tracks are made of those alone that are shown.

    Attributes:
        tables: by kind, in the order of the tracks of a thread.
        threads: the threads with tracks of their own.
        further: the outermost slices of all further threads as one track; None without such threads.
    """

    tables: tuple[HostTable, ...]
    threads: tuple[int, ...]
    further: Track | None

    @classmethod
    def of(cls, trace: Trace, links: Links, tree: CallTree) -> "HostTracks":
        """Collect the slices of a trace's threads."""
        tables = tuple(table for table in _tables(trace, links) if len(table.record))
        threads = np.unique(np.concatenate([np.zeros(0, np.int64), *(table.thread for table in tables)])).tolist()
        nesting = tree.nesting
        outermost = np.flatnonzero(nesting.parent < 0)
        busy = np.zeros(max(threads, default=0) + 1, np.int64)
        np.add.at(busy, nesting.thread[outermost], (nesting.end - nesting.start)[outermost])
        # The busiest threads keep tracks of their own, in their order.
        shown = sorted(sorted(threads, key=lambda thread: -busy[thread])[:_MOST_THREADS])
        further = _further(tree, tables, shown, len(threads) - len(shown)) if len(threads) > len(shown) else None
        return cls(tables, tuple(shown), further)

    def extents(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield when the slices of each kind begin and end."""
        yield from ((table.start_ns, table.end_ns) for table in self.tables)

    def tracks(self, begin: int, end: int) -> Iterator[Track]:
        """Yield each thread's tracks with the slices that touch a range of time; threads of mere frames come last."""
        of_thread: dict[int, list[Track]] = {thread: [] for thread in self.threads}
        for table in self.tables:
            inside = np.flatnonzero(touching(table.start_ns, table.end_ns, begin, end))
            for thread, rows in by_value(table.thread, inside):
                if thread in of_thread:
                    of_thread[thread].append(table.track(rows, thread))
        for tracks in sorted(of_thread.values(), key=_of_frames_alone):
            yield from tracks
        if self.further is not None:
            yield self.further.within(begin, end)


def _of_frames_alone(tracks: Sequence[Track]) -> bool:
    """Tell whether a thread runs Python and nothing that was recorded: mostly it waits for others."""
    return all(track.kind is TrackKind.PYTHON for track in tracks)


def _further(tree: CallTree, tables: Sequence[HostTable], shown: Sequence[int], folded: int) -> Track:
    """Return the outermost slices of the threads that are not shown: of ranges, operators and calls, else of frames."""
    nesting = tree.nesting
    rows = np.flatnonzero((nesting.parent < 0) & ~np.isin(nesting.thread, shown))
    pieces = [(nesting.start[rows], nesting.end[rows], tree.name[rows])]
    texts = tree.names
    known = np.union1d(nesting.thread, np.array(shown, np.int64))
    for table in tables:
        if table.kind is not TrackKind.PYTHON:
            continue
        rows = np.flatnonzero((table.row == 0) & ~np.isin(table.thread, known))
        pieces.append((table.start_ns[rows], table.end_ns[rows], table.name[rows] + len(texts)))
        texts = (*texts, *table.texts)
    start, end, name = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    none, one = np.full(len(start), -1, np.int64), np.ones(len(start), np.int64)
    lanes = stacked_rows(np.zeros_like(start), start, end)
    return Track(
        TrackKind.THREADS, None, None, None, texts, lanes, start, end, name, none, none, one, end - start, folded
    ).in_order()


def _tables(trace: Trace, links: Links) -> Iterator[HostTable]:
    columns = ("thread", "name", "start_ns", "duration_ns")
    ranges = pl.concat([trace.annotations.select(columns), trace.ranges.select(columns)])
    yield HostTable.of(TrackKind.RANGE, ranges)
    frames = HostTable.of(TrackKind.PYTHON, trace.frames)
    of_module = np.array([text.startswith(MODULE_FRAME) for text in frames.texts], np.bool_)
    is_module = of_module[frames.name] if len(of_module) else np.zeros(0, np.bool_)
    yield frames.chosen(np.flatnonzero(is_module), TrackKind.MODULE, MODULE_FRAME)
    yield HostTable.of(TrackKind.OPERATOR, trace.operators, np.arange(trace.operators.height))
    yield HostTable.of(TrackKind.CALL, trace.launches, links.launch_operator)
    yield frames.chosen(np.flatnonzero(~is_module), TrackKind.PYTHON)


class Slices(Struct, frozen=True):
    """A part of a trace.

    Attributes:
        start_ns, end_ns: which part, on the trace's clock.
        steps: the profiler's numbers of the steps that were chosen; empty where none are marked.
        all_steps: the profiler's numbers of all steps.
        tracks: the tracks that have slices in it.
        merged_below_ns: neighbours shorter than this were merged; 0 if all slices are there.
        python_merged_below_ns: the same for Python's frames.
        slice_count: how many slices the part had before merging; of very many threads only the outermost count.
    """

    start_ns: int
    end_ns: int
    steps: tuple[int, ...]
    all_steps: tuple[int, ...]
    tracks: tuple[Track, ...]
    merged_below_ns: int
    python_merged_below_ns: int
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
    host = HostTracks.of(trace, links, tree)
    extents = [*((track.start_ns, track.end_ns) for track in tracks), *host.extents()]
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
    inside = [track.within(start, end) for track in tracks]
    inside = [track for track in (*inside, *host.tracks(start, end)) if len(track)]
    few = _few_enough(inside, numbered(trace.operators["name"])[0], most, end - start)
    shown = tuple(numbers[row] for row in chosen)
    return Slices(start, end, shown, numbers, tuple(few.tracks), few.below, few.python_below, sum(map(len, inside)))


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
    name, texts = numbered(activities["name"])
    for timeline in devices:
        idle = timeline.idle
        pieces, none = idle.pieces, np.full(len(idle.pieces), -1, np.int64)
        one = np.ones(len(pieces), np.int64)
        yield Track(
            TrackKind.IDLE, timeline.device, None, None, _CAUSES, 0 * one, pieces.start, pieces.end,
            idle.code.astype(np.int64), none, none, one, pieces.end - pieces.start,
        )  # fmt: skip
        own = np.flatnonzero(device == timeline.device)
        for number, rows in by_value(stream, own):
            begin, until = start[rows], end[rows]
            yield Track(
                TrackKind.STREAM, timeline.device, number, None, texts, stacked_rows(np.zeros_like(rows), begin, until),
                begin, until, name[rows], links.activity_operator[rows], rows, np.ones_like(rows), until - begin,
            ).in_order()  # fmt: skip


class _Few(Struct, frozen=True):
    """Tracks with few enough slices, and the lengths below which neighbours were merged."""

    tracks: list[Track]
    below: int
    python_below: int


def _few_enough(tracks: list[Track], operator_name: Ints, most: int, length: int) -> _Few:
    """Merge short neighbours until few enough slices are left: Python's frames alone, as far as that helps, then all.

    Args:
        tracks: the tracks.
        operator_name: per operator of the trace the number of its name.
        most: how many slices may be left.
        length: of the part of the trace, in nanoseconds.
    """
    paints = [_paint(track, operator_name) for track in tracks]
    shortest = max(length // (1 << 22), 1)
    below = python_below = 0
    result = tracks
    while sum(map(len, result)) > most and python_below < length:
        python_below = max(2 * python_below, shortest)
        if python_below > length * _COARSE:
            below = max(2 * below, shortest)
            python_below = max(python_below // 2, below)
        # Always from the original slices, so that none is merged twice.
        limits = (python_below if track.kind is TrackKind.PYTHON else below for track in tracks)
        every = zip(tracks, limits, paints, strict=True)
        result = [merged_slices(track, limit, paint) if limit else track for track, limit, paint in every]
    return _Few(result, below, python_below)


def _paint(track: Track, operator_name: Ints) -> Ints:
    """Return what a slice's colour depends on: work of devices takes that of its operator, all else of its name."""
    if track.kind is not TrackKind.STREAM or not len(operator_name):
        return track.name
    known = track.operator >= 0
    of_operator = len(track.texts) + operator_name[np.maximum(track.operator, 0)]
    return np.where(known, of_operator, track.name)
