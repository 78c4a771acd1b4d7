"""The step events seen so far, and how they repeat."""

import time
import weakref
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from msgspec import Struct, field

from opscope.record.capture import AlsoSeen, ScriptRun, StepKind, StepsFound, Timed, WantedSteps

# ---------------------------------------------------------------- repetitions
# They also tell a model's first generation of tokens from later ones.


# At every token of the first generation, something is prepared once for that length (plans of cuDNN's attention,
# compiled kernels). On an H200, GPT-2's tokens took 43 ms in the first generation of 300 and 4 ms in all later ones,
# and that first generation lasted 13 s.
PATIENCE_S: Final = 20.0
_SHAPES: Final = 1  # the place of the arguments' shapes in a call's first key


class Generations:
    """Knows whether a loop of tokens is still in its first generation.

    A generation begins with a call for a whole prompt. The calls after it have the same shapes, except for one
    dimension of length 1.

    Args:
        calls: the first keys of the calls so far; the repeating ones are last.
        first: the index of the first repeating call.
    """

    def __init__(self, calls: Sequence[Hashable], first: int) -> None:
        self._token = calls[-1]  # the prompt is looked for in the first repeating call, and in the one before it
        self.is_first = any(is_prompt_of(call, self._token) for call in calls[max(0, first - 1) : first + 1])

    def call(self, key: Hashable) -> None:
        """Take the first key of the next call; a call for a whole prompt ends the first generation."""
        if self.is_first and is_prompt_of(key, self._token):
            self.is_first = False


def is_prompt_of(call: Hashable, token: Hashable) -> bool:
    """Tell whether one call has a whole prompt where another call of the same module has a single token.

    Args:
        call: the first key of a call: the module's number, the shapes of its arguments, and what follows.
        token: the first key of the call with a single token.
    """
    if not (isinstance(call, tuple) and isinstance(token, tuple)) or call[0] != token[0]:
        return False
    shapes, others = call[_SHAPES], token[_SHAPES]
    if not (isinstance(shapes, tuple) and isinstance(others, tuple)):
        return False
    return any(_is_shortened(shape, other) for shape, other in zip(shapes, others, strict=False))


def _is_shortened(shape: Sequence[int] | None, other: Sequence[int] | None) -> bool:
    """Tell whether two shapes differ in exactly one dimension, and that is 1 in ``other``."""
    if shape is None or other is None or len(shape) != len(other):
        return False
    different = [(size, shorter) for size, shorter in zip(shape, other, strict=True) if size != shorter]
    return len(different) == 1 and different[0][1] == 1


class Pattern(Struct, frozen=True):
    """A part of a sequence that repeats with a period: ``keys[first + i] == keys[first + i % period]``.

    Attributes:
        keys: the events of one cycle.
        first: the index of the first cycle's first event.
        period: how many events a cycle has.
        count: how many complete cycles there are.
        end: one past the index of the run's last event; a started, incomplete cycle is part of the run.
        covered: the time from the start of the first cycle to the end of the last complete one.
    """

    keys: tuple[Hashable, ...]
    first: int
    period: int
    count: int
    end: int
    covered: float


def find_pattern(
    keys: Sequence[Hashable],
    ends: Sequence[float],
    *,
    repeats: int = 3,
    at_end: bool = False,
    max_period: int | None = None,
    periods: Sequence[int] | None = None,
) -> Pattern | None:
    """Find the repetition that covers most of the time.

    Args:
        keys: what happened, in order.
        ends: when each event ended, ascending; the first event counts as starting at its end.
        repeats: how many complete cycles there must be, at least 2.
        at_end: whether only a repetition counts that lasts to the end of the sequence.
        max_period: the longest period to try; None for the longest that can repeat often enough.
        periods: the only periods to try; None for all up to ``max_period``.

    Returns:
        The repetition; among equals, the one with the shortest period. None if nothing repeats often enough.

    Raises:
        ValueError: ``repeats`` is less than 2, or keys and ends are not equally many.
    """
    if repeats < 2:
        raise ValueError("a repetition is seen twice at least")
    if len(keys) != len(ends):
        raise ValueError(f"{len(keys)} keys, but {len(ends)} times")
    longest = min(len(keys) // repeats, max_period or len(keys))
    best: Pattern | None = None
    for period in periods if periods is not None else range(1, longest + 1):
        for first, end in runs_of(keys, period, repeats):
            if at_end and end != len(keys):
                continue
            result = _pattern(keys, ends, first, end, period)
            # Time decides before the number of events. Periods ascend and only a better one replaces the best, so a
            # cycle is never taken for two.
            if best is None or (result.covered, result.end - result.first) > (best.covered, best.end - best.first):
                best = result
    return best


def runs_of(keys: Sequence[Hashable], period: int, repeats: int) -> Iterator[tuple[int, int]]:
    """Yield the maximal stretches [first, end) that repeat with a period and hold at least ``repeats`` cycles."""
    if period < 1:
        return
    first = 0
    for index in range(period, len(keys) + 1):
        if index == len(keys) or keys[index] != keys[index - period]:
            if index - first >= repeats * period:
                yield first, index
            # keys[index] differs from its predecessor of a period ago: no stretch may hold both.
            first = index - period + 1


def _pattern(keys: Sequence[Hashable], ends: Sequence[float], first: int, end: int, period: int) -> Pattern:
    count = (end - first) // period
    # Only ends are known: an event starts where the one before it ended.
    begin = ends[first - 1] if first else ends[0]
    return Pattern(
        tuple(keys[first : first + period]), first, period, count, end, ends[first + count * period - 1] - begin
    )


def candidate_periods(keys: Sequence[Hashable], *, repeats: int = 3, limit: int = 24) -> list[int]:
    """Return likely periods of a long sequence: the distances between occurrences of its rarest repeated keys.

    Args:
        keys: the sequence.
        repeats: how often a key must occur to be looked at.
        limit: how many periods to return at most.
    """
    # A rare key occurs once or a few times in a cycle, so its occurrences are whole cycles apart.
    counted = Counter(keys)
    rare = [key for key, times in sorted(counted.items(), key=lambda item: item[1]) if times >= repeats][:6]
    distances: Counter[int] = Counter()
    for key in rare:
        places = [index for index, other in enumerate(keys) if other == key]
        for span in range(1, 9):  # a key can occur several times in a cycle
            distances.update(later - earlier for earlier, later in zip(places, places[span:], strict=False))
    return sorted(period for period, _ in distances.most_common(limit))


def settled(durations: Sequence[float], *, needed: int = 3, spread: float = 1.3, enough: int = 12) -> bool | None:
    """Tell whether the durations of cycles have settled.

    Args:
        durations: of the cycles so far, in any unit.
        needed: how many of the last ones must be alike.
        spread: by what factor these may differ.
        enough: after how many cycles waiting for more would not help.

    Returns:
        True if the last ones are alike; False if they are not after ``enough`` cycles; None to wait for more.
    """
    if len(durations) < needed:
        return None
    last = durations[-needed:]
    if max(last) <= spread * min(last):
        return True
    return False if len(durations) >= enough else None


# ---------------------------------------------------------------- events


class Identities:
    """Numbers objects without keeping them alive; a new object at a used address gets a new number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._types: list[str] = []  # by number, from 1 on

    def of(self, thing: Any) -> tuple[int, str]:
        """Return an object's number and the name of its type."""
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1], known[2]
        name = type(thing).__name__
        self._types.append(name)
        number = len(self._types)
        self._known[id(thing)] = (weakref.ref(thing), number, name)
        return number, name

    def are_alike(self, number: int, other: int) -> bool:
        """Tell whether two objects are of types with the same name."""
        return self._types[number - 1] == self._types[other - 1]

    def are_gone(self, numbers: Collection[int]) -> bool:
        """Tell whether none of the objects with these numbers exists any more."""
        known = list(self._known.values())  # other threads may add to them
        return not any(number in numbers and thing() is not None for thing, number, _ in known)

    @property
    def newest(self) -> int:
        """The highest number so far."""
        return len(self._types)


# How much of an event must repeat, in the order tried: the object, with an optimizer's module calls or a call's shapes;
# the object; its type.
# "anchor": no fixed cycle, but one object comes back again and again, with a varying number of others between.
# A level is an index into this tuple; an event has a key for each level but the anchor.
LEVELS: Final = ("calls", "object", "type", "anchor")
ANCHOR: Final = 3
_WINDOW: Final = 240  # the last events, which are searched for a repetition
_LONGEST: Final = 48  # events of a cycle
_KEPT: Final = 2_048  # events that are kept in a program in which steps are waited for long
_PATIENT: Final = 3  # after so many false repetitions, a level is not tried any more
_PROFILABLE: Final = 12  # as many cycles as finding, settling and profiling take


class StepEvents:
    """The events of one kind that have ended, with their keys at every level and the host time of their end.

    Attributes:
        keys: one list of keys per level but the anchor.
        ends: when each event ended, in nanoseconds of the host's clock.
        dropped: how many events came before those that are kept.
    """

    def __init__(self) -> None:
        self.keys: tuple[list[Hashable], ...] = tuple([] for _ in LEVELS[:ANCHOR])
        self.ends: list[float] = []
        self.dropped = 0
        self._first: tuple[list[Hashable], ...] = tuple([] for _ in LEVELS[:ANCHOR])  # keys of the first events of all
        self._next = 0  # how many kept events there must be before the next search
        self._broken: Counter[int] = Counter()

    @property
    def count(self) -> int:
        """How many events there were, dropped ones included."""
        return self.dropped + len(self.ends)

    def add(self, keys: tuple[Hashable, ...], end: float) -> None:
        """Add an event: its keys at every level but the anchor, and when it ended."""
        for level, key in zip(self.keys, keys, strict=True):
            level.append(key)
        if len(self._first[0]) < _LONGEST:
            for level, key in zip(self._first, keys, strict=True):
                level.append(key)
        self.ends.append(end)
        if len(self.ends) >= 2 * _KEPT:
            for level in self.keys:
                del level[:_KEPT]
            del self.ends[:_KEPT]
            self.dropped += _KEPT
            self._next = 0

    def broke(self, level: int) -> None:
        """Note that a repetition at a level was followed and did not go on."""
        self._broken[level] += 1

    def repetition(self, repeats: int) -> tuple[int, Pattern] | None:
        """Search the last events for a repetition that goes on at their end.

        Args:
            repeats: how many complete cycles there must be, at the strictest level; weaker levels need more.

        Returns:
            The level and the repetition; None if there is none, or no search is due yet.
        """
        size = len(self.ends)
        if size < self._next:
            return None  # a search is due at every event at first, later only now and then
        self._next = size + (1 if size < 64 else max(16, size // 8))
        base = max(0, size - _WINDOW)
        ends = self.ends[base:]
        for level, all_keys in enumerate(self.keys):
            if self._broken[level] >= _PATIENT:
                continue
            keys = all_keys[base:]
            if LEVELS[level] == "type" and len(set(self.keys[1][base:])) <= len(keys) // 2:
                continue  # types stand for objects only where most events have a new object
            result = find_pattern(keys, ends, repeats=repeats * (1 + level), at_end=True, max_period=_LONGEST)
            if result is not None and not _is_inner_loop(keys, result):
                # Indices of the window become indices of the kept events.
                moved = Pattern(result.keys, result.first + base, result.period, result.count, size, result.covered)
                turned = self._as_begun(level, moved)
                # A turned one may lack a cycle, which is waited for.
                return (level, turned) if turned.count >= repeats * (1 + level) else None
        return self._anchored(base, 2 * repeats)

    def _as_begun(self, level: int, result: Pattern) -> Pattern:
        """Return a repetition with cycles that begin as the script did, where one of them can.

        A repetition is found from wherever it was first undisturbed: of a GAN, that may be between the steps of its two
        optimizers. Only objects are compared: the first events may have other calls.
        """
        objects = max(level, 1)
        if self._first[level][0] not in result.keys:  # the script began with something else
            return result
        wanted = self._first[objects][: result.period]
        for shift in range(result.period):
            first = result.first + shift
            if self.keys[objects][first : first + result.period] == wanted:
                count = (result.end - first) // result.period
                keys = result.keys[shift:] + result.keys[:shift]
                return Pattern(keys, first, result.period, count, result.end, result.covered)
        return result

    def _anchored(self, base: int, repeats: int) -> tuple[int, Pattern] | None:
        """Take the object that returns least often as the one that begins, or ends, a cycle; needs 48 events."""
        keys = self.keys[1][base:]
        if len(keys) < 48:
            return None
        # An object may be called several times in a row: only the first of these counts.
        starts = [i for i, key in enumerate(keys) if not i or keys[i - 1] != key]
        counted = Counter(keys[i] for i in starts)
        often = [(times, key) for key, times in counted.items() if times >= repeats]
        if len(often) < 2:
            return None
        times, key = min(often, key=lambda item: item[0])
        first = next(i for i in starts if keys[i] == key)
        return ANCHOR, Pattern((key,), first + base, 1, times, len(self.ends), 0.0)


class Stream(Struct):
    """All events of one kind. An event ends where the next one begins, except an optimizer's step, which ends itself.

    Attributes:
        kind: of the events.
        events: the events that have ended.
        open: the keys and the name of the event that has begun; None before the first, and if events end themselves.
    """

    kind: StepKind
    events: StepEvents = field(default_factory=StepEvents)
    open: tuple[tuple[Hashable, ...], str] | None = None

    def seen(self) -> AlsoSeen | None:
        """Return how often events of this kind were seen and how far apart; None for fewer than two kept events."""
        ends = self.events.ends
        if len(ends) < 2:
            return None
        apart = [round(after - before) for before, after in pairwise(ends)]
        return AlsoSeen(self.kind, self.events.count, round(median(apart)))


def _is_inner_loop(keys: Sequence[Hashable], result: Pattern) -> bool:
    """Tell whether the same cycle has repeated before and broken off after about as many cycles: it may again."""
    # Only an earlier run that was too short to be profiled counts, and only until this one is longer than that.
    earlier = [
        count
        for first, end in runs_of(keys[: result.first], result.period, 2)
        if (count := (end - first) // result.period) and set(keys[first:end]) == set(result.keys)
    ]
    return bool(earlier) and max(earlier) < _PROFILABLE and result.count <= max(earlier) + 1


# ---------------------------------------------------------------- which repetition is the step


# The best first. Training ends with an optimizer's step. Module calls that record gradients are training whose updates
# are not observed, or inference without no_grad. A graph is replayed for work that is done again and again. Evaluations
# come before, between and after steps of training.
RANKED: Final = (
    StepKind.TRAINING,
    StepKind.CALLS,
    StepKind.REPLAYS,
    StepKind.EVALUATION,
    StepKind.ANNOTATION,  # only where it is asked for
)
_WHAT: Final = {
    StepKind.TRAINING: "optimizer steps",
    StepKind.CALLS: "module calls",
    StepKind.REPLAYS: "graph replays",
    StepKind.EVALUATION: "module calls without gradients",
    StepKind.ANNOTATION: "ranges",
    StepKind.OPERATORS: "operators",
}
_REPEATS: Final = 3  # this many events are a repetition, and not just a few calls
_CYCLES_OF_A_RUN: Final = 40  # finding, settling and profiling fit into these, with room for interruptions
_TIMED: Final = 3  # the fewest timed cycles that are worth keeping from a run that ended too soon


def what(kind: StepKind) -> str:
    """Return what bounds the steps of a kind, in the plural."""
    return _WHAT[kind]


def stream_of(steps: StepsFound) -> StepKind:
    """Return the kind of the events that bound steps.

    It differs from the steps' kind for training without an observed optimizer, whose updates are seen at module calls.
    """
    return next((kind for kind, name in _WHAT.items() if name == steps.boundary), steps.kind)


class Expected:
    """Knows whether steps of a better kind may still come.

    Args:
        run: which steps are wanted, and how long to wait for better ones.
        streams: the events seen so far, by kind; kept up to date by the caller.
    """

    def __init__(self, run: ScriptRun, streams: Mapping[StepKind, Stream]) -> None:
        self.began = time.monotonic()
        self._run, self._streams = run, streams
        self._optimizers: list[weakref.ref[Any]] = []

    @property
    def optimizers(self) -> int:
        """How many optimizers are alive."""
        self._optimizers = [one for one in self._optimizers if one() is not None]
        return len(self._optimizers)

    def optimizer_made(self, optimizer: Any) -> None:
        """Note an optimizer that was set up; PyTorch makes none without parameters, so it is there to step."""
        self._optimizers.append(weakref.ref(optimizer))

    def wants(self, kind: StepKind) -> bool:
        """Tell whether steps of a kind may be taken at all."""
        asked = self._run.wanted.kind
        if asked is not None:
            return kind is asked
        return kind is not StepKind.ANNOTATION

    def better_than(self, kind: StepKind) -> bool:
        """Tell whether steps of a better kind may still come.

        An optimizer is there to step, but a script may prepare, evaluate and load for any length of time before that.
        So training is expected until the script ends, or until the run's patience (`ScriptRun.patience_s`) is over.
        """
        if self._run.wanted.kind is not None or kind is StepKind.TRAINING:
            return False
        if self._run.patience_s is not None and time.monotonic() - self.began > self._run.patience_s:
            return False
        return bool(self._streams[StepKind.TRAINING].events.count) or bool(self.optimizers)


def next_run(
    run: ScriptRun, streams: Mapping[StepKind, Stream], timed: Timed, ended_after_s: float | None = None
) -> ScriptRun:
    """Describe another run that makes up for one that ended without a profile.

    Args:
        run: the run that ended.
        streams: the events seen in it, by kind.
        timed: the times of the steps that it timed without a profiler.
        ended_after_s: when it ended by itself, after it had imported PyTorch; None if it did not.
    """
    kind = run.wanted.kind or _best(streams)
    wanted = WantedSteps(kind, run.wanted.annotation)
    times = timed if len(timed.wall_ns) >= _TIMED else Timed()
    cycles = 0 if kind is None or kind not in streams else _cycles(streams[kind])
    enough = cycles >= _CYCLES_OF_A_RUN
    if enough:
        reason = "The script was run twice: the first run ended before the steps could be profiled"
    elif kind is None:
        reason = "The script was run twice: the first run showed no boundaries of steps, so the second was recorded"
    else:
        reason = "The script was run twice: the first run was too short, so the second was recorded from its beginning"
    return ScriptRun(
        wanted=wanted,
        records=not enough,
        ended_after_s=None if enough else ended_after_s,
        may_repeat=False,
        times=times,
        most_timed=cycles // 2,
        reason=reason,
    )


# A kind that repeats comes before a better one that was seen only once or twice.
def _best(streams: Mapping[StepKind, Stream]) -> StepKind | None:
    for least in (_REPEATS, 1):
        for kind in RANKED:
            if streams[kind].events.count >= least and kind is not StepKind.ANNOTATION:
                return kind
    return None


def _cycles(stream: Stream) -> int:
    # An estimate: each object (keys[1]) is taken to occur once in a cycle.
    objects = len(set(stream.events.keys[1]))
    return stream.events.count // max(1, objects)
