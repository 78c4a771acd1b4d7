"""What the threads of the host did, as tracks: named ranges, modules, operators, API calls and Python's frames."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.pictures.tracks import Track, TrackKind, by_value, rows_of, touching
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.call_tree import CallTree, numbered
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.modules import MODULE_FRAME
from opscope.analysis.structure.nesting import Ints
from opscope.trace.model import Trace

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
        return rows_of(self.thread, self.start_ns, self.end_ns)

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
    lanes = rows_of(np.zeros_like(start), start, end)
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
