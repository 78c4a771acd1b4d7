"""Finds, while a script runs, which of its events bound its steps, and follows them. What is done then, others decide.

A step lies between two boundaries: ends of an optimizer's outermost ``step()``, or beginnings of outermost module
calls, of replays of CUDA graphs, or of named ranges. Each kind is a separate stream, and kinds are ranked: while steps
of a better kind may still come, those of a lower kind are only counted.
"""

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from opscope.collect.script.found import Found, capturing, grad_enabled, profiler_running, shapes_of
from opscope.collect.script.step_events import ANCHOR, LEVELS, RANKED, Expected, Identities, Pattern, Stream, what
from opscope.record.capture import ScriptRun, StepKind

_CYCLES: Final = {StepKind.TRAINING: 3}  # how many must be seen before a repetition is believed
CYCLES_OF_OTHERS: Final = 6  # the same for kinds of steps that _CYCLES does not name
_MOST_CALLS: Final = 256  # module calls within a step that are compared
_ORDER_OF_UPDATE: Final = 2  # the index, in a call's first key, of whether parameters were updated before the call
_CALLS: Final = LEVELS.index("calls")
_OBJECT: Final = LEVELS.index("object")
_LONG: Final = 12  # cycles; a shorter run may be part of a longer cycle, and not an interrupted repetition


class CyclePlace(Enum):
    """Where an event lies in the repetition."""

    INSIDE = "within a cycle"
    CYCLE = "ends a whole cycle"
    START = "ends a cycle that is not whole; the next one begins here"
    LOST = "does not belong to the repetition"


class Follower:
    """Tells where each event lies in a repetition, which other events may interrupt.

    Args:
        pattern: the repetition, as far as it was seen.
        level: which of an event's keys repeats: an index into `opscope.collect.script.step_events.LEVELS`.
    """

    def __init__(self, pattern: Pattern, level: int) -> None:
        self._keys, self._level = pattern.keys, level
        self._place = (pattern.end - pattern.first) % pattern.period  # the index in the cycle of the next event
        # Whether the running cycle was seen from its start; an anchored pattern does not say where that was.
        self._whole = not self._place and level != ANCHOR
        self._lost = False
        self._run = self._longest = pattern.count

    @property
    def may_resume(self) -> bool:
        """Whether so many cycles came in a row that the repetition may resume after an interruption."""
        return self._longest >= _LONG

    @property
    def at_start(self) -> bool:
        """Whether a cycle begins with the next event, and will be seen from its start."""
        return self._whole and not self._place

    def event(self, keys: tuple[Hashable, ...], upcoming: Hashable = None) -> CyclePlace:
        """Take the next event.

        Args:
            keys: the keys of the event that ended, at every level but the anchor.
            upcoming: the object whose call begins here, if events end where the next one begins; None otherwise.

        Returns:
            Where the event lies in the repetition.
        """
        # keys[1] is the object's key. A call of the anchor begins a cycle, and so ends the one before.
        if self._level == ANCHOR:
            return self._anchored((keys[1] if upcoming is None else upcoming) == self._keys[0])
        key = keys[self._level]
        if self._lost or key != self._keys[self._place]:
            return self._missed(ends_cycle=key == self._keys[-1])
        self._place = (self._place + 1) % len(self._keys)
        return CyclePlace.INSIDE if self._place else self._ended()

    def renamed(self, keys: Sequence[Hashable], astray: int, is_new: Callable[[int, int], bool]) -> "Follower | None":
        """Return what follows the same cycle with new objects in the place of some; None where that is not so.

        Args:
            keys: of the events so far, at the level that is followed, the last one last.
            astray: how many of them came after the last whole cycle.
            is_new: tells of an object of the cycle and another one whether that may be a new one in its place.
        """
        period = len(self._keys)
        last = keys[-_LONG * period :]
        if len(last) < _LONG * period or self._level > _OBJECT:
            return None
        # Where the cycle could begin at several places, it begins right after the last one.
        by_place = {place: names for place in range(period) if (names := self._names_from(place, last, is_new))}
        place = next(iter(by_place)) if len(by_place) == 1 else (astray - len(last)) % period
        names = by_place.get(place)
        if names is None:
            return None
        cycle = tuple(_with_names(key, names) for key in self._keys)
        return Follower(Pattern(cycle, 0, period, _LONG, _LONG * period + place, 0.0), self._level)

    def _names_from(
        self, place: int, last: Sequence[Hashable], is_new: Callable[[int, int], bool]
    ) -> dict[int, int] | None:
        """Return the number of each object in some events by its number in the cycle; None where they do not match."""
        names: dict[int, int] = {}
        for index, key in enumerate(last):
            olds, news = _numbers(self._keys[(place + index) % len(self._keys)]), _numbers(key)
            if len(olds) != len(news):
                return None
            for old, new in zip(olds, news, strict=True):
                if names.setdefault(old, new) != new or not (old == new or is_new(old, new)):
                    return None
        return names if len(set(names.values())) == len(names) else None

    @property
    def optimizers(self) -> set[int]:
        """The numbers of the optimizers of a cycle."""
        return {_numbers(key)[0] for key in self._keys}

    @property
    def objects(self) -> set[int]:
        """The numbers of the optimizers of a cycle, and with calls those of the modules."""
        return {number for key in self._keys for number in _numbers(key)}

    def at_level(self, level: int) -> "Follower | None":
        """Return what follows the same cycle at a weaker level; None where its beginning could not be told there.

        Args:
            level: that of the objects alone.
        """
        if self._level != _CALLS or level != _OBJECT:
            return None
        cycle = tuple(_numbers(key)[0] for key in self._keys)
        turns = sum(cycle == cycle[place:] + cycle[:place] for place in range(len(cycle)))
        if turns != 1:
            return None
        end = _LONG * len(cycle) + self._place
        return Follower(Pattern(cycle, 0, len(cycle), _LONG, end, 0.0), level)

    def _anchored(self, ends_cycle: bool) -> CyclePlace:
        return self._ended() if ends_cycle else CyclePlace.INSIDE

    def _ended(self) -> CyclePlace:
        if not self._whole:
            self._whole = True
            return CyclePlace.START
        self._run += 1
        self._longest = max(self._longest, self._run)
        return CyclePlace.CYCLE

    def _missed(self, *, ends_cycle: bool) -> CyclePlace:
        # After another event, the repetition is found again only by the last event of a cycle.
        self._run, self._place = 0, 0
        self._lost = not ends_cycle
        self._whole = ends_cycle
        return CyclePlace.START if ends_cycle else CyclePlace.LOST


def _numbers(key: Hashable) -> tuple[int, ...]:
    """Return the numbers of the objects in an optimizer's key: its own, and with calls those of the modules."""
    if isinstance(key, tuple):
        number, calls = key
        return (number, *calls)
    return (key,)  # type: ignore[return-value]


def _with_names(key: Hashable, names: Mapping[int, int]) -> Hashable:
    """Return an optimizer's key with other numbers."""
    number, *calls = (names[one] for one in _numbers(key))
    return (number, tuple(calls)) if isinstance(key, tuple) else number


class Updates:
    """Knows the last version of one parameter of each module."""

    def __init__(self) -> None:
        # By the module's number; None for a module without trainable parameters.
        self._watched: dict[int, tuple[weakref.ref[Any], int] | None] = {}

    def since_last(self, number: int, module: Any) -> bool:
        """Tell whether a module's parameters have changed since the last time this was asked; False the first time.

        Args:
            number: the module's number; see `opscope.collect.script.step_events.Identities`.
            module: the module.
        """
        known = self._watched.get(number, False)
        if known is False:
            parameter = next((one for one in module.parameters() if one.requires_grad), None)
            self._watched[number] = None if parameter is None else (weakref.ref(parameter), _version(parameter))
            return False
        if not known:
            return False
        parameter = known[0]()  # type: ignore[index]
        if parameter is None:  # it was replaced by another: watch one anew at the next call
            self._watched.pop(number)
            return False
        version = _version(parameter)
        self._watched[number] = (known[0], version)  # type: ignore[index]
        return version != known[1]  # type: ignore[index]


def _version(parameter: Any) -> int:
    try:
        return int(parameter._version)
    except RuntimeError:  # tensors made in inference mode have no version
        return 0


class StepFinder:
    """Finds steps by the events of the main thread; an `opscope.collect.script.signals.Listener`.

    Attributes:
        result: what was found so far.
        active: False where events are no longer those of the script, as in its forked children and after its end.
    """

    def __init__(self, run: ScriptRun) -> None:
        """Begin to look for steps.

        Args:
            run: which steps are wanted, and how long to wait for better ones.
        """
        self.result = Found()
        self.active = True
        self._run = run
        self._main = threading.main_thread().ident
        self._steps_elsewhere = 0  # of optimizers, on other threads
        self._labels: dict[tuple[StepKind, Hashable], str] = {}  # kind and key of any level -> name of the event
        self._names, self._updates = Identities(), Updates()
        self._streams = {kind: Stream(kind) for kind in RANKED}
        self._calls: list[int] = []  # numbers of the modules called since the last optimizer's step
        self._evaluations = 0  # outermost calls of modules without gradients, or in eval mode
        self._evaluating_ns = 0  # from the first to the last of each row of these calls
        self._evaluated_at = 0  # when the last one began, if nothing else came since
        self._expected = Expected(run, self._streams)
        self._stream: Stream | None = None  # the stream whose repetition is followed; None while none is
        self._level = 0  # of the repetition: an index into LEVELS
        self._follower: Follower | None = None
        self._astray = 0  # events since the last whole cycle
        self._newest = 0  # the highest number of an object at the end of that cycle
        self._cycle_began = 0  # 0 while the running cycle was not seen from its start
        self._busy = False  # whether the finder is at work, so that what it calls is not an event

    # ---------------------------------------------------------------- signals

    def optimizer_made(self, optimizer: Any) -> None:
        """Note that an optimizer was set up."""
        self._expected.optimizer_made(optimizer)

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Take the end of an outermost ``step()``, which is a boundary."""
        now = time.perf_counter_ns()
        if threading.get_ident() != self._main:
            self._steps_elsewhere += 1
        else:
            self._evaluated_at = 0
        if not self._listens(StepKind.TRAINING):
            return
        number, name = self._names.of(optimizer)
        keys = ((number, tuple(self._calls)), number, name)  # one per level
        self._calls.clear()
        self._close(self._streams[StepKind.TRAINING], keys, f"{name}.step", now)

    def module_called(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Take the beginning of an outermost module call, which is a boundary."""
        now = time.perf_counter_ns()
        if not self._busy and (self._stream is None or self._stream.kind is StepKind.TRAINING):
            number = self._names.of(module)[0]
            if len(self._calls) < _MOST_CALLS:
                self._calls.append(number)
        kind = StepKind.CALLS if module.training and grad_enabled() else StepKind.EVALUATION
        self._evaluates(now, is_evaluation=kind is StepKind.EVALUATION)
        if not self._listens(kind):
            return
        number, name = self._names.of(module)
        # Updates tell training whose optimizer is not observed. Where a kind of steps is asked for, they do not matter.
        counts = kind is StepKind.CALLS and self._run.wanted.kind is None
        updated = counts and self._updates.since_last(number, module)
        self._begins(kind, ((number, shapes_of(arguments, named), updated), (number, updated), name), name, now)

    def _evaluates(self, now: int, *, is_evaluation: bool) -> None:
        if is_evaluation:
            self._evaluations += 1
            self._evaluating_ns += now - self._evaluated_at if self._evaluated_at else 0
        self._evaluated_at = now if is_evaluation else 0

    def graph_replayed(self, graph: Any) -> None:
        """Take the beginning of a replay of a CUDA graph outside of any module's call, which is a boundary."""
        now = time.perf_counter_ns()
        if self._listens(StepKind.REPLAYS):
            number, name = self._names.of(graph)
            self._begins(StepKind.REPLAYS, (number, number, name), name, now)

    def range_begins(self, name: str) -> None:
        """Take the beginning of a named range, which is a boundary if steps are ranges of this name."""
        now = time.perf_counter_ns()
        if name == self._run.wanted.annotation and self._listens(StepKind.ANNOTATION):
            self._begins(StepKind.ANNOTATION, (name, name, name), name, now)

    @property
    def has_events(self) -> bool:
        """Whether anything was seen that may be a step; an optimizer that was made may still step."""
        return self.has_worked or bool(self._expected.optimizers)

    @property
    def events(self) -> int:
        """How many events were seen that may end a step."""
        return sum(stream.events.count for stream in self._streams.values())

    @property
    def is_at_work(self) -> bool:
        """Whether the script waits for what is done at a boundary, such as the writing of a trace."""
        return self._busy

    @property
    def has_worked(self) -> bool:
        """Whether anything was seen that may be a step."""
        return any(stream.events.count or stream.open for stream in self._streams.values())

    def profiler_prepares(self, profiler: Any) -> None:
        """Do nothing; a profiler of the script's own is about to start."""

    def trace_exported(self, profiler: Any, path: Any) -> None:
        """Do nothing; a profiler has written its trace."""

    # ---------------------------------------------------------------- boundaries

    def _listens(self, kind: StepKind) -> bool:
        """Tell whether events of a kind matter now: all kinds until steps are chosen, then theirs and better ones."""
        if not self.active or self._busy or self._is_over:
            return False
        if self._stream is not None and kind is not self._stream.kind:
            better = kind is StepKind.TRAINING and self._run.wanted.kind is None
            if not better or self._has_chosen:
                return False
        return threading.get_ident() == self._main and not capturing()

    def _begins(self, kind: StepKind, keys: tuple[Hashable, ...], name: str, now: int) -> None:
        """Take the beginning of an event, which ends the event of its kind that began before."""
        stream = self._streams[kind]
        before, stream.open = stream.open, (keys, name)
        if before is not None:
            self._close(stream, *before, now, upcoming=keys[1])
        else:
            self._first_begins()

    def _close(
        self, stream: Stream, keys: tuple[Hashable, ...], name: str, now: int, upcoming: Hashable = None
    ) -> None:
        self._busy = True
        try:
            if self._stream is not None and stream is not self._stream:  # never where a choice was made
                self._look_again()  # an optimizer steps after all, and its steps are the better ones
            stream.events.add(keys, now)
            if not self._only_counts:  # a repetition may be found among events that come while another is followed
                for key in keys:
                    self._labels.setdefault((stream.kind, key), name)
            if self._only_counts:
                pass
            elif self._stream is None:
                self._look(stream)
            else:
                self._follow(keys, upcoming, now)
            self._leave_out(now)
        finally:
            self._busy = False
        self._heard()

    # ---------------------------------------------------------------- finding

    def _look(self, stream: Stream) -> None:
        self._looks(stream)
        if not self._may_take(stream):
            return
        repetition = stream.events.repetition(_CYCLES.get(stream.kind, CYCLES_OF_OTHERS))
        if repetition is None or self._is_hindered():
            return
        self._take(stream, *repetition)

    def _may_take(self, stream: Stream) -> bool:
        if not self._expected.wants(stream.kind):
            return False
        if not self._expected.better_than(stream.kind):
            return True
        # The better steps may be these calls themselves: training whose optimizer's step is not observed.
        unheard = stream.kind is StepKind.CALLS and not self._streams[StepKind.TRAINING].events.count
        return unheard and self._updated_lately(stream)

    def _updated_lately(self, stream: Stream) -> bool:
        """Tell whether parameters change between calls without an observed step, as with a compiled optimizer."""
        calls = stream.events.keys[0]
        return sum(bool(key[_ORDER_OF_UPDATE]) for key in calls[-_MOST_CALLS:]) >= _CYCLES[StepKind.TRAINING]  # type: ignore[index]

    def _take(self, stream: Stream, level: int, pattern: Pattern) -> None:
        """Take a repetition as the steps of the script."""
        self._stream, self._level = stream, level
        self._follower, self._astray, self._newest = Follower(pattern, level), 0, self._names.newest
        result = self.result
        result.kind, result.source, result.level = stream.kind, what(stream.kind), LEVELS[level]
        if stream.kind is StepKind.CALLS and self._updated_lately(stream):
            result.kind = StepKind.TRAINING
        result.pattern = [self._labels[stream.kind, key] for key in pattern.keys]
        result.events = pattern.period
        result.first, result.seen = pattern.first + stream.events.dropped, pattern.count
        self._taken(stream, pattern)
        at_boundary = (pattern.end - pattern.first) % pattern.period == 0
        self._cycle_began = time.perf_counter_ns() if at_boundary else 0

    # ---------------------------------------------------------------- following

    def _follow(self, keys: tuple[Hashable, ...], upcoming: Hashable, now: int) -> None:
        """Compare an event with the one that the repetition predicts."""
        assert self._follower is not None
        self._follows(keys)
        place = self._follower.event(keys, upcoming)
        self._astray += 1
        if place is CyclePlace.CYCLE:
            self._astray, self._newest = 0, self._names.newest
        elif self._astray >= _LONG * self.result.events and self._goes_on_with_others():
            place = CyclePlace.START if self._follower.at_start else CyclePlace.INSIDE
        if place is CyclePlace.LOST:
            self._lost()
        elif place is CyclePlace.START:
            self._begin_cycle(now)
            self._cycle_began = time.perf_counter_ns()
        elif place is CyclePlace.CYCLE:
            self._end_cycle(now)
            self._cycle_began = time.perf_counter_ns()  # not `now`: what was done here belongs to no cycle

    def _goes_on_with_others(self) -> bool:
        """Follow the same training where it goes on with new objects; tell whether that is so.

        A loss that each epoch makes anew is another module each time, and a fold has another model and optimizer.
        """
        assert self._follower is not None
        assert self._stream is not None
        if self._stream.kind is not StepKind.TRAINING or not self._follower.may_resume or self._level > _OBJECT:
            return False
        renamed = self._follower.renamed(self._stream.events.keys[self._level], self._astray, self._is_new)
        if renamed is None or not self._may_go_on(self._follower, renamed):
            return False
        weaker = renamed.at_level(_OBJECT)  # the next loss need not be looked for again
        self._follower, self._level = (renamed, self._level) if weaker is None else (weaker, _OBJECT)
        self._astray, self._newest = 0, self._names.newest
        self.result.level = LEVELS[self._level]
        return True

    def _is_new(self, old: int, new: int) -> bool:
        return new > self._newest and self._names.are_alike(old, new)

    def _may_go_on(self, before: Follower, after: Follower) -> bool:  # noqa: ARG002 (others look at them)
        """Tell whether steps with new objects are the same steps still."""
        return False

    def _look_again(self) -> None:
        """Drop the repetition, and look for another."""
        self._stream, self._follower, self._astray = None, None, 0
        result = self.result
        result.pattern, result.kind, result.source = [], StepKind.RUN, None

    # ---------------------------------------------------------------- what others decide

    @property
    def _is_over(self) -> bool:
        """Whether no event matters any more."""
        return False

    @property
    def _only_counts(self) -> bool:
        """Whether boundaries are only counted any more."""
        return False

    @property
    def _has_chosen(self) -> bool:
        """Whether not even better steps change the choice."""
        return False

    def _is_hindered(self) -> bool:
        """Tell whether a repetition could not be used now: a profiler of the script's own runs."""
        return profiler_running()

    def _first_begins(self) -> None:
        """Act where the first event of a kind begins, before anything of it has ended."""

    def _looks(self, stream: Stream) -> None:
        """Act on an event that has ended while no repetition is known."""

    def _taken(self, stream: Stream, pattern: Pattern) -> None:
        """Act on a repetition that was taken as the steps; its last event has just ended."""

    def _follows(self, keys: tuple[Hashable, ...]) -> None:
        """Act on an event, before it is known where it lies in the repetition."""

    def _begin_cycle(self, now: int) -> None:
        """Act where a cycle begins after something other than a whole cycle."""

    def _end_cycle(self, now: int) -> None:
        """Act where a whole cycle has ended, and the next one begins."""

    def _lost(self) -> None:
        """Act on an event that was not predicted: something else comes in between, or this was not a repetition."""

    def _leave_out(self, since: int) -> None:
        """Leave the finder's own work, from ``since`` on, out of what is timed."""

    def _heard(self) -> None:
        """Act after an event was dealt with; what is called here may raise, and is heard again."""
