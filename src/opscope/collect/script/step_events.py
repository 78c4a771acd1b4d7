"""The steps that were seen so far, and what of them repeats."""

import weakref
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Final

from opscope.collect.script.period import Pattern, find_pattern, runs_of
from opscope.record.step_kinds import AlsoSeen, StepKind


class Identities:
    """Numbers objects without keeping them alive; an address that is used again gets a new number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._next = 0

    def of(self, thing: Any) -> tuple[int, str]:
        """Return an object's number and the name of its type."""
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1], known[2]
        self._next += 1
        name = type(thing).__name__
        self._known[id(thing)] = (weakref.ref(thing), self._next, name)
        return self._next, name


# How much of an event must repeat, in the order tried: with the calls inside; the same object; the same kind.
# "anchor": no fixed cycle, but one object comes back again and again, with a varying number of others between.
LEVELS: Final = ("calls", "object", "type", "anchor")
ANCHOR: Final = 3
_WINDOW: Final = 240  # events that are looked at
_LONGEST: Final = 48  # events of a cycle
_KEPT: Final = 2_048  # events that are kept of a program that waits for long
_PATIENT: Final = 3  # how often a repetition of one level may turn out to be none
_PROFILABLE: Final = 12  # as many cycles as finding, settling and profiling take


class StepEvents:
    """The closed steps of one kind of event, with their keys at every level and the host time they ended."""

    def __init__(self) -> None:
        self.keys: tuple[list[Hashable], ...] = tuple([] for _ in LEVELS[:ANCHOR])
        self.ends: list[float] = []
        self.dropped = 0  # how many came before those that are kept
        self._next = 0
        self._broken: Counter[int] = Counter()

    @property
    def count(self) -> int:
        """How many there were."""
        return self.dropped + len(self.ends)

    def add(self, keys: tuple[Hashable, ...], end: float) -> None:
        """Add an event: its keys at every level, and when it ended."""
        for level, key in zip(self.keys, keys, strict=True):
            level.append(key)
        self.ends.append(end)
        if len(self.ends) >= 2 * _KEPT:
            for level in self.keys:
                del level[:_KEPT]
            del self.ends[:_KEPT]
            self.dropped += _KEPT
            self._next = 0

    def broke(self, level: int) -> None:
        """A repetition of a level was followed, and turned out to be none."""
        self._broken[level] += 1

    def repetition(self, repeats: int) -> tuple[int, Pattern] | None:
        """Return the repetition that the sequence ends with, after complete cycles, and its level."""
        size = len(self.ends)
        if size < self._next:
            return None  # looked for at every event at first, then now and then
        self._next = size + (1 if size < 64 else max(16, size // 8))
        base = max(0, size - _WINDOW)
        ends = self.ends[base:]
        for level, all_keys in enumerate(self.keys):
            if self._broken[level] >= _PATIENT:
                continue
            keys = all_keys[base:]
            if LEVELS[level] == "type" and len(set(self.keys[1][base:])) <= len(keys) // 2:
                continue  # kinds stand for objects only where every cycle makes new ones
            found = find_pattern(keys, ends, repeats=repeats * (1 + level), at_end=True, max_period=_LONGEST)
            if found is not None and not _is_inner_loop(keys, found):
                moved = Pattern(found.keys, found.first + base, found.period, found.count, size, found.covered)
                return level, moved
        return self._anchored(base, 2 * repeats)

    def _anchored(self, base: int, repeats: int) -> tuple[int, Pattern] | None:
        """Take the object that returns least often as what begins, or ends, a cycle; only after a long look."""
        keys = self.keys[1][base:]
        if len(keys) < 48:
            return None
        starts = [i for i, key in enumerate(keys) if not i or keys[i - 1] != key]
        counted = Counter(keys[i] for i in starts)
        often = [(times, key) for key, times in counted.items() if times >= repeats]
        if len(often) < 2:
            return None
        times, key = min(often, key=lambda item: item[0])
        first = next(i for i in starts if keys[i] == key)
        return ANCHOR, Pattern((key,), first + base, 1, times, len(self.ends), 0.0)


@dataclass(slots=True)
class Stream:
    """All events of one kind. What begins ends the one before it, except an optimizer's step, which ends itself.

    Attributes:
        kind: of the events.
        events: those that have ended.
        open: the keys and the name of the one that has begun; None where events end themselves.
    """

    kind: StepKind
    events: StepEvents = field(default_factory=StepEvents)
    open: tuple[tuple[Hashable, ...], str] | None = None

    def seen(self) -> AlsoSeen | None:
        """Return how often something of this kind was seen, and how long it took; None where that says nothing."""
        ends = self.events.ends
        if len(ends) < 2:
            return None
        apart = [round(after - before) for before, after in pairwise(ends)]
        return AlsoSeen(self.kind, self.events.count, round(median(apart)))


def _is_inner_loop(keys: Sequence[Hashable], found: Pattern) -> bool:
    """Say whether a repetition of the same cycle was broken off before after as many cycles: it may be again."""
    earlier = [
        count
        for first, end in runs_of(keys[: found.first], found.period, 2)
        if (count := (end - first) // found.period) and set(keys[first:end]) == set(found.keys)
    ]
    return bool(earlier) and max(earlier) < _PROFILABLE and found.count <= max(earlier) + 1
