"""Builds the timeline of a page: its tracks, curves, the critical path, and the idle time that findings are about.

Pictures stay small: slices and nodes refer to names by number, and a long curve has few points.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.analysis.pictures.live_memory import LiveMemory
from opscope.analysis.pictures.slices import Slices, Track, TrackKind
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.replay.path import OF_DEVICE, path_line
from opscope.analysis.structure.call_tree import numbered
from opscope.analysis.structure.modules import MODULE_FRAME
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.streams import NO_DEVICE, queues_of
from opscope.analysis.verdict.step_evidence import busiest
from opscope.documents.page import CurveEntry, MarkEntry, PagePlace, PathEntry, TimelineEntry, TrackEntry
from opscope.trace.model import Trace

_MOST_POINTS: Final = 20_000  # of a curve
_EDGE_NAMES: Final = {-1: "before", **{int(kind): kind.name.lower() for kind in EdgeKind}}
_MOST_PIECES: Final = 200  # of the idle time of a finding
_TITLES: Final[Mapping[TrackKind, str]] = {
    TrackKind.RANGE: "ranges",
    TrackKind.MODULE: "modules",
    TrackKind.OPERATOR: "operators",
    TrackKind.CALL: "API calls",
    TrackKind.PYTHON: "Python",
}
LONGEST_TEXT: Final = 2_000  # characters
_SHORTEST_CUT: Final = 60
_ALL_NAMES: Final = 4_000_000  # characters of all names of slices and nodes


def extremes(values: Ints, most: int) -> Ints:
    """Return the positions of the first and last value and of each stretch's lowest and highest; all if few enough."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2, dtype=np.int64)
    begins, lengths = bounds[:-1], np.diff(bounds)
    ends = np.array([0, len(values) - 1])
    return np.unique(np.concatenate([ends, *(_first(values, of, begins, lengths) for of in (np.minimum, np.maximum))]))


def _first(values: Ints, of: np.ufunc, begins: Ints, lengths: Ints) -> Ints:
    """Return where each stretch first has its lowest or highest value."""
    equal = np.flatnonzero(values == np.repeat(of.reduceat(values, begins), lengths))
    result: Ints = equal[np.searchsorted(equal, begins)]
    return result


class Names:
    """Numbers texts; each is kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def of(self, table: Sequence[str], used: Ints) -> list[int]:
        """Return the numbers of the texts at positions ``used`` of a table; -1 stays -1."""
        entries, place = np.unique(used, return_inverse=True)
        numbers = np.array([self.number(table[entry]) if entry >= 0 else -1 for entry in entries.tolist()], np.int64)
        return list(numbers[place].tolist())

    def cut(self, whole: frozenset[str]) -> tuple[str, ...]:
        """Return all texts in the order of their numbers, cut so that their total length stays within a limit.

        Args:
            whole: names by which tables are looked up; they are cut only as much as the tables' names are.
        """
        most = max(_SHORTEST_CUT, min(LONGEST_TEXT, _ALL_NAMES // max(len(self._numbers), 1)))
        return tuple(cut(name, LONGEST_TEXT if name in whole else most) for name in self._numbers)


def cut(text: str, most: int) -> str:
    """Return a text with at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short(text: str) -> str:
    """Return a text short enough for a label."""
    return cut(text, _SHORTEST_CUT)


class Drawn(Struct, frozen=True):
    """The timeline of a trace, and which slice each activity and call is.

    Attributes:
        entry: the timeline.
        slice_of_activity, slice_of_call: per row of the trace's table the number of the slice, counted through all
            tracks; -1 if it is not there by itself.
    """

    entry: TimelineEntry
    slice_of_activity: Ints
    slice_of_call: Ints


def drawn_timeline(analysis: Analysis, slices: Slices, memory: Sequence[LiveMemory], names: Names) -> Drawn:
    """Build the timeline of a part of a trace, without what depends on the findings.

    Args:
        analysis: the trace.
        slices: the part.
        memory: the memory of its devices; empty where it was not recorded.
        names: numbers names.
    """
    trace = analysis.trace
    places, place_of = _places(slices, analysis, names)
    of_activity, of_call, of_operator = _numbers(slices.tracks, trace)
    forward = _forward_of_nodes(analysis)
    operators = numbered(trace.operators["name"])
    tracks = []
    for track in slices.tracks:
        if track.kind is TrackKind.STREAM:
            link = _at(of_call, _at(analysis.links.activity_launch, track.record))
        elif track.kind is TrackKind.OPERATOR:
            link = _at(of_operator, _at(forward, track.record))
        else:
            link = np.full(len(track), -1, np.int64)
        tracks.append(_track(track, slices.start_ns, trace, operators, place_of, link, names))
    entry = TimelineEntry(
        start_ns=slices.start_ns,
        duration_ns=slices.end_ns - slices.start_ns,
        steps=slices.steps,
        all_steps=slices.all_steps,
        slice_count=slices.slice_count,
        merged_below_ns=slices.merged_below_ns,
        python_merged_below_ns=slices.python_merged_below_ns,
        tracks=tuple(tracks),
        places=places,
        curves=tuple(_curves(analysis, slices, memory)),
    )
    return Drawn(entry, of_activity, of_call)


def with_findings(timeline: Drawn, measured: Measured) -> TimelineEntry:
    """Return a timeline with the critical path of its steps, and with the idle time that findings are about."""
    return replace(
        timeline.entry, path=_path(timeline, measured.analysis), marks=tuple(_marks(timeline.entry, measured))
    )


# ---------------------------------------------------------------- tracks


def _numbers(tracks: Sequence[Track], trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Return per activity, call and operator the number of its slice, or -1."""
    heights = {
        TrackKind.STREAM: trace.activities.height,
        TrackKind.CALL: trace.launches.height,
        TrackKind.OPERATOR: trace.operators.height,
    }
    results = {kind: np.full(height, -1, np.int64) for kind, height in heights.items()}
    first = 0
    for track in tracks:
        if track.kind in results:
            alone = np.flatnonzero(track.record >= 0)
            results[track.kind][track.record[alone]] = first + alone
        first += len(track)
    return results[TrackKind.STREAM], results[TrackKind.CALL], results[TrackKind.OPERATOR]


def _forward_of_nodes(analysis: Analysis) -> Ints:
    """Return per operator the forward operator that it is the backward node of, or -1."""
    backward, every = analysis.backward_pass, np.arange(analysis.trace.operators.height)
    nodes = np.flatnonzero(backward.node == every)
    forward = np.full(len(every), -1, np.int64)
    forward[nodes] = backward.through_forward(np.where(backward.inside, -1, every), nodes)
    return forward


def _places(slices: Slices, analysis: Analysis, names: Names) -> tuple[tuple[PagePlace, ...], Ints]:
    """Return the places of the shown operators, and for each operator of the trace the number of its place, or -1.

    The last entry is for slices without an operator, whose number is -1.
    """
    trace, origins = analysis.trace, analysis.origins
    number = np.full(trace.operators.height + 1, -1, np.int64)
    if not trace.frames.height:
        return (), number
    present = np.zeros(trace.operators.height + 1, np.bool_)
    for track in slices.tracks:
        present[track.operator] = True
    operators = np.flatnonzero(present[:-1])
    name, texts = numbered(trace.frames["name"])
    modules, frames = (_at(name, rows[operators]) for rows in (origins.module, origins.frame))
    # Module and frame as one number, with -1 (not recorded) as 0, so that equal pairs are one place.
    keys, place = np.unique((modules + 1) * (len(texts) + 1) + frames + 1, return_inverse=True)
    number[operators] = place
    pairs = (divmod(key, len(texts) + 1) for key in keys.tolist())
    return tuple(_place(module, frame, texts, names) for module, frame in pairs), number


def _place(module: int, frame: int, texts: Sequence[str], names: Names) -> PagePlace:
    """Return a place from the numbers of its names, which count from 1; 0 means not recorded."""
    return PagePlace(
        names.number(texts[module - 1].removeprefix(MODULE_FRAME)) if module else -1,
        names.number(texts[frame - 1]) if frame else -1,
    )


def _track(
    track: Track,
    begin: int,
    trace: Trace,
    operators: tuple[Ints, tuple[str, ...]],
    place_of: Ints,
    link: Ints,
    names: Names,
) -> TrackEntry:
    name, texts = operators
    # What an operator's own slice is, its name says.
    owner = np.full(len(track), -1, np.int64) if track.kind is TrackKind.OPERATOR else _at(name, track.operator)
    return TrackEntry(
        kind=str(track.kind),
        label=_label(track, trace),
        device=None if track.device == NO_DEVICE else track.device,
        rows=int(track.row.max()) + 1,
        row=track.row.tolist(),
        start=np.diff(track.start_ns - begin, prepend=0).tolist(),
        duration=(track.end_ns - track.start_ns).tolist(),
        name=names.of(track.texts, track.name),
        operator=_known(np.array(names.of(texts, owner), np.int64)),
        place=_known(place_of[track.operator]),
        count=track.count.tolist() if track.merges else [],
        covered=track.covered_ns.tolist() if track.merges else [],
        link=_known(link),
    )


def _known(numbers: Ints) -> list[int]:
    """Return the numbers; none if all are -1."""
    return numbers.tolist() if (numbers >= 0).any() else []


def _at(numbers: Ints, rows: Ints) -> Ints:
    """Return the numbers at some rows; row -1 gives -1."""
    if not len(numbers):
        return np.full(len(rows), -1, np.int64)
    result: Ints = np.where(rows < 0, -1, numbers[rows])
    return result


def _label(track: Track, trace: Trace) -> str:
    device = _device(track.device)
    if track.kind is TrackKind.IDLE:
        return f"{device}: idle"
    if track.kind is TrackKind.STREAM:
        return f"{device}: stream {'?' if track.stream == -1 else track.stream}"
    if track.kind is TrackKind.THREADS:
        return f"{track.folded:,} further threads, outermost slices"
    process, thread = trace.threads[track.thread or 0]
    several = len({process for process, _ in trace.threads}) > 1
    return f"thread {_plain(thread)}{f' of process {_plain(process)}' if several else ''}: {_TITLES[track.kind]}"


def _device(device: int | None) -> str:
    return "device" if device in (None, NO_DEVICE) else f"device {device}"


def _plain(identity: str) -> str:
    return short(identity.strip('"'))


# ---------------------------------------------------------------- curves, path and marks


def _curves(analysis: Analysis, slices: Slices, memory: Sequence[LiveMemory]) -> Iterator[CurveEntry]:
    for queue in queues_of(analysis.trace, analysis.links):
        label = f"{_device(queue.device)}: launched, not yet begun"
        yield from _curve("queue", label, queue.device, queue.time_ns, queue.waiting, slices)
    for one in memory:
        label = f"{'host' if one.device is None else _device(one.device)}: allocated memory"
        yield from _curve("memory", label, one.device, one.time_ns, one.allocated_bytes, slices)


def _curve(kind: str, label: str, device: int | None, time: Ints, value: Ints, slices: Slices) -> Iterator[CurveEntry]:
    # The last change before the part holds at its beginning.
    first = max(int(np.searchsorted(time, slices.start_ns, side="right")) - 1, 0)
    inside = slice(first, int(np.searchsorted(time, slices.end_ns, side="right")))
    moments, values = np.maximum(time[inside], slices.start_ns), value[inside]
    if not len(moments):
        return
    chosen = extremes(values, _MOST_POINTS)
    yield CurveEntry(
        kind=kind,
        label=label,
        device=None if device == NO_DEVICE else device,
        time=np.diff(moments[chosen] - slices.start_ns, prepend=0).tolist(),
        value=values[chosen].tolist(),
        change_count=len(moments),
    )


def _path(timeline: Drawn, analysis: Analysis) -> PathEntry | None:
    """Return the critical path of the steps that can be replayed, as far as they are shown."""
    steps, entry = analysis.replayable, timeline.entry
    if steps is None:
        return None
    line = path_line(Edit(steps))
    end = entry.start_ns + entry.duration_ns
    shown = np.flatnonzero((line.end_ns > entry.start_ns) & (line.start_ns < end) & (line.end_ns > line.start_ns))
    if not len(shown):
        return None
    kind, row = line.kind[shown], line.row[shown]
    of_device = np.isin(kind, list(OF_DEVICE))
    places = np.where(
        of_device,
        _at(timeline.slice_of_activity, np.where(of_device, row, -1)),
        _at(timeline.slice_of_call, np.where(of_device, -1, row)),
    )
    return PathEntry(
        steps=steps.graph.steps,
        start=(line.start_ns[shown] - entry.start_ns).tolist(),
        duration=(line.end_ns - line.start_ns)[shown].tolist(),
        kind=[_EDGE_NAMES[one] for one in kind.tolist()],
        slice=places.tolist(),
    )


def _marks(entry: TimelineEntry, measured: Measured) -> Iterator[MarkEntry]:
    """Yield the idle time of each finding that is about some, as far as it lies in the shown part."""
    if not measured.analysis.devices or not measured.findings:
        return
    timeline = busiest(measured.analysis.devices)
    pieces = timeline.idle.pieces
    end = entry.start_ns + entry.duration_ns
    for name, rows in measured.advice.pieces.items():
        start, stop = pieces.start[rows], pieces.end[rows]
        shown = np.flatnonzero((stop > entry.start_ns) & (start < end))
        if not len(shown):
            continue
        longest = shown[np.argsort(start[shown] - stop[shown], kind="stable")][:_MOST_PIECES]
        yield MarkEntry(
            finding=name,
            device=None if timeline.device == NO_DEVICE else timeline.device,
            start=(start[longest] - entry.start_ns).tolist(),
            duration=(stop[longest] - start[longest]).tolist(),
            piece_count=len(shown),
        )
