"""The critical path: the moments and edges that make a step as long as it is. Steps without a profiler."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.structure.nesting import Ints
from opscope.knowledge.devices import Assumed

# ---------------------------------------------------------------- steps without a profiler


# The host's speed without a profiler, over what is left of the recorded one after the profiler's usual cost. It is
# fitted where the step follows the host (an elasticity of 0.4 and more); elsewhere a step does not tell it, and it was
# 0.64 to 1.02 in recorded programs whose steps do; without their work on the device, five took 0.35 to 0.65.
_FOLLOWS: Final = 0.4
_LEAST: Final = 0.2
# An unprofiled step takes no longer than the recorded one, but for the spread of steps: 3 % in a recorded program.
_SPREAD: Final = 1.05
_UNKNOWN_SPEEDS: Final = (1.02, 0.85, 0.5)
_MOST: Final = 4.0  # recording leaves at least a quarter of a pause
# A step that follows the host in part alone leaves the rest of its speed open. Eight recorded trainings follow by 0.3
# to 0.7; without most of their devices' work they took 0.5 to 1.3 of what the fitted speed makes of them.
_FOLLOWS_WELL: Final = 0.8
_FADES: Final = 0.15  # up to there
_SLOWER: Final = 0.5
_TRIED_COSTS: Final = 1.1  # for the elasticity: the host this much slower


def host_speed(steps: Steps, measured_ns: float | None) -> float | None:
    """Return the host's time without a profiler, as a multiple of what is left after the profiler's usual cost.

    Args:
        steps: the steps.
        measured_ns: the time of a step without a profiler; None where it is not known.

    Returns:
        The multiple with which the replay meets the measured step; None where the step does not tell it.
    """
    plain = Edit(steps)
    plain.without_profiler()
    if measured_ns is None or _elasticity(plain) < _FOLLOWS:
        return None
    if measured_ns > _SPREAD * steps.graph.step_ns:
        return None
    slow, fast = _MOST, _LEAST
    for _ in range(20):
        middle = (slow + fast) / 2
        slow, fast = (middle, fast) if _at(plain, middle).step_ns > measured_ns else (slow, middle)
    return slow


def unprofiled_steps(steps: Steps, measured_ns: float | None) -> tuple[Edit, Edit, Edit]:
    """Return the steps without a profiler, for low, likely and high assumptions: with a slow, a likely and a fast host.

    All are the same where a measured step follows the host well; the less it follows, the less it tells the speed.

    Args:
        steps: the steps.
        measured_ns: the time of a step without a profiler; None where it is not known.
    """
    plain = Edit(steps)
    plain.without_profiler()
    speed = host_speed(steps, measured_ns)
    speeds = _UNKNOWN_SPEEDS
    if speed is not None:
        follows = _elasticity(plain)
        untold = (1 - follows) * min(max((_FOLLOWS_WELL - follows) / _FADES, 0.0), 1.0)
        speeds = speed * (1 + _SLOWER * untold), speed, speed * (1 - untold)
    low, likely, high = (_at(plain, one) for one in speeds)
    return low, likely, high


def _elasticity(plain: Edit) -> float:
    """Return how much longer a step gets with a slower host, as a share of how much slower it is."""
    before = plain.step_ns
    return (_at(plain, _TRIED_COSTS).step_ns / before - 1) / (_TRIED_COSTS - 1) if before > 0 else 0.0


def unprofiled_step(steps: Steps, measured_ns: float | None) -> Edit:
    """Return the steps without a profiler, as they most likely were; see `unprofiled_steps`."""
    return unprofiled_steps(steps, measured_ns)[Assumed.LIKELY]


def _at(plain: Edit, speed: float) -> Edit:
    edit = plain.copy()
    edit.scale_host(speed)
    return edit


# ---------------------------------------------------------------- the critical path


_BETWEEN = "(between operators)"
UNEXPLAINED = "(what no record explains)"
ADDED = "(what a change adds)"
BEFORE = "(what was before the steps)"


class PathPart(Struct, frozen=True):
    """What a part of the critical path is about.

    Attributes:
        name: the operator, or the call or activity where no operator is around it.
        kind: what kept the step: ``host``, ``call``, ``activity``, ``launch``, ``stream``, ``wait``, ...
        ns: how much of a step it is, in nanoseconds.
    """

    name: str
    kind: str
    ns: float


def critical_path(edit: Edit) -> tuple[PathPart, ...]:
    """Return what the steps' time is spent on along their critical paths, the longest first; it adds up to the step."""
    names = _Names(edit)
    parts: dict[tuple[str, str], int] = defaultdict(int)
    for piece in _pieces(edit):
        parts[ADDED, "added"] += piece.added
        parts[UNEXPLAINED, "residual"] += piece.unexplained
        # A path that leads back to before the step belongs to it from its beginning on.
        parts[(BEFORE, "before") if piece.edge is None else names.of(piece.edge)] += piece.ns
    result = (PathPart(name, kind, ns / edit.graph.count) for (name, kind), ns in parts.items() if ns)
    return tuple(sorted(result, key=lambda part: (-part.ns, part.name, part.kind)))


class PathLine(Struct, frozen=True):
    """The critical paths of some steps as recorded, in order of time; arrays have one entry per edge.

    Attributes:
        start_ns, end_ns: the recorded times of the two moments, on the trace's clock.
        kind: the edge's `EdgeKind`; -1 where what was before the steps held a moment.
        row: what the edge is about, as in `StepGraph`; -1 where that is not known.
    """

    start_ns: Ints
    end_ns: Ints
    kind: Ints
    row: Ints


def path_line(edit: Edit) -> PathLine:
    """Return where the critical paths of the steps went, at the times at which that was recorded."""
    graph, pieces = edit.graph, list(_pieces(edit))
    source, target = (np.array([getattr(one, end) for one in pieces], np.int64) for end in ("source", "target"))
    edge = np.array([-1 if one.edge is None else one.edge for one in pieces], np.int64)
    known, at = edge >= 0, np.maximum(edge, 0)
    kind, row = (np.where(known, column[at], -1) if len(column) else edge for column in (graph.kind, graph.row))
    start, end = graph.time_ns[source], graph.time_ns[target]
    order = np.lexsort((end, start))
    return PathLine(start[order], end[order], kind[order], row[order])


class _Piece(Struct, frozen=True):
    """A piece of a path, from one moment back to the one that it waited for, in nanoseconds.

    Attributes:
        source, target: the moments.
        edge: why it waited; None if only what was before the steps held it.
        ns: how long.
        unexplained: by how much the moment came later than that, for no known reason.
        added: by how much a change made it come later.
    """

    source: int
    target: int
    edge: int | None
    ns: int
    unexplained: int
    added: int


def _pieces(edit: Edit) -> Iterator[_Piece]:
    """Go along the critical paths of all steps, from their ends back."""
    graph, times, late_by = edit.graph, edit.times, edit.late
    for span in graph.spans:
        begin, moment = int(times[span.start]), max(span.ends, key=lambda end: times[end])
        reached = int(times[moment])  # the path's time from here on is named
        while moment != span.start:
            arrival = int(times[moment] - late_by[moment])
            late = min(reached, int(times[moment])) - min(reached, max(arrival, begin))
            added = min(late, int(edit.added[moment]))
            reached -= late
            edge = _holding(edit, times, moment, arrival)
            source = span.start if edge is None else int(graph.source[edge])
            # Work may begin before the end of what it waits for.
            since = min(reached, max(int(times[source]), begin))
            before = source if times[source] > begin else span.start
            yield _Piece(before, moment, edge, reached - since, late - added, added)
            reached, moment = since, before


def _holding(edit: Edit, times: Ints, moment: int, arrival: int) -> int | None:
    """Return the first edge that let a moment come no earlier; None if only what was before the steps did."""
    graph = edit.graph
    edges = range(int(graph.begin[moment]), int(graph.begin[moment + 1]))
    return next((edge for edge in edges if times[graph.source[edge]] + edit.lag[edge] == arrival), None)


# Edges that are about an activity; the others are about a call.
OF_DEVICE: Final = frozenset(
    (EdgeKind.ACTIVITY, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.GRAPH, EdgeKind.ROOM)
)


class _Names:
    """Names what an edge is about."""

    def __init__(self, edit: Edit) -> None:
        trace, links = edit.steps.trace, edit.steps.links
        self._graph = edit.graph
        self._operators = trace.operators["name"].cast(pl.String).to_list()
        self._calls = trace.launches["name"].cast(pl.String).to_list()
        self._activities = trace.activities["name"].cast(pl.String).to_list()
        self._of_call, self._of_activity = links.launch_operator, links.activity_operator

    def of(self, edge: int) -> tuple[str, str]:
        kind, row = EdgeKind(int(self._graph.kind[edge])), int(self._graph.row[edge])
        word = kind.name.lower()
        if kind in OF_DEVICE:
            owner = int(self._of_activity[row])
            return (self._operators[owner] if owner >= 0 else self._activities[row]), word
        if row < 0:
            return _BETWEEN, word
        owner = int(self._of_call[row])
        if kind in (EdgeKind.HOST, EdgeKind.HANDOVER):
            return (self._operators[owner] if owner >= 0 else _BETWEEN), word
        return (self._operators[owner] if owner >= 0 else self._calls[row]), word


def path_by_kind(parts: tuple[PathPart, ...]) -> dict[str, float]:
    """Return how much of a step each kind of edge is on the critical path, in nanoseconds."""
    sums: dict[str, float] = defaultdict(float)
    for part in parts:
        sums[part.kind] += part.ns
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def residual_share(edit: Edit) -> float:
    """Return the share of the step that no edge explains, along its critical path."""
    whole = edit.step_ns * edit.graph.count
    ns = sum(piece.unexplained for piece in _pieces(edit))
    return float(np.clip(ns / whole, 0, 1)) if whole else 0.0


_UNBOUND: Final = 1 << 61


def slack(edit: Edit) -> Ints:
    """Return per edge how much longer it could be, alone, before a step ends later, in nanoseconds; never negative.

    It is `_UNBOUND` at least where no step's end waits for it.
    """
    graph, times = edit.graph, edit.times.tolist()
    begin, source, lag = graph.begin.tolist(), graph.source.tolist(), edit.lag.tolist()
    residual = edit.late.tolist()
    latest = [_UNBOUND * 2] * len(times)
    for span in graph.spans:
        over = max(times[end] for end in span.ends)
        for end in span.ends:
            latest[end] = over
    result = [0] * len(source)
    for moment in range(len(times) - 1, -1, -1):
        until = latest[moment] - residual[moment]
        for edge in range(begin[moment], begin[moment + 1]):
            at = source[edge]
            result[edge] = until - lag[edge] - times[at]
            latest[at] = min(latest[at], until - lag[edge])
    return np.array(result, np.int64)


_TRIED: Final = 0.9  # of the time of an operator's work, to see what of that a step saves
_MOST_TRIED: Final = 40  # operators, those with most work first


def critical_operators(steps: Steps) -> pl.DataFrame:
    """Return per operator how much of a step's critical path is about it, without what recording cost the host.

    Returns:
        ``name``; ``on_path_ns`` a step, of the host and of devices; ``device_ns``: its device work a step; ``saves``:
        how much of a microsecond saved of that work a step saves, by replay with a tenth less of it; null for operators
        without device work, and for those that have little; ``slack_ns``: how much longer any one piece of that work
        could be before a step ends later, the least of all pieces; null without device work, or if no step waits for
        it. The longest part of the path first; it adds up to the step.
    """
    edit = unprofiled_step(steps, None)
    path: dict[str, float] = defaultdict(float)
    for part in critical_path(edit):
        path[part.name] += part.ns
    base, count = edit.step_ns, steps.graph.count
    names = _Names(edit)
    work: dict[str, list[int]] = defaultdict(list)
    edges = np.flatnonzero(steps.graph.kind == EdgeKind.ACTIVITY)
    for edge in edges.tolist():
        work[names.of(edge)[0]].append(edge)
    device = {name: float(edit.lag[of].sum()) / count for name, of in work.items()}
    saves: dict[str, float] = {}
    for name in sorted(device, key=lambda one: -device[one])[:_MOST_TRIED]:
        if device[name] > 0:
            tried = edit.copy()
            tried.scale(steps.graph.row[work[name]], _TRIED)
            saves[name] = max(0.0, min((base - tried.step_ns) / ((1 - _TRIED) * device[name]), 1.0))
    spare = slack(edit)
    least = {name: longer for name, of in work.items() if (longer := int(spare[of].min())) < _UNBOUND}
    rows = sorted({*path, *device}, key=lambda one: (-path.get(one, 0.0), -device.get(one, 0.0), one))
    return pl.DataFrame(
        {
            "name": rows,
            "on_path_ns": [round(path.get(name, 0.0)) for name in rows],
            "device_ns": [round(device.get(name, 0.0)) for name in rows],
            "saves": [saves.get(name) for name in rows],
            "slack_ns": [least.get(name) for name in rows],
        },
        schema={
            **{"name": pl.String, "on_path_ns": pl.Int64, "device_ns": pl.Int64},
            **{"saves": pl.Float64, "slack_ns": pl.Int64},
        },
    )
