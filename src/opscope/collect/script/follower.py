"""Follows a repetition event by event; needs no PyTorch."""

from collections.abc import Hashable
from enum import Enum
from typing import Final

from opscope.collect.script.period import Pattern
from opscope.collect.script.step_events import ANCHOR

_LONG: Final = 12  # cycles; a shorter run may be part of a longer cycle, and not an interrupted repetition


class Place(Enum):
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

    def event(self, keys: tuple[Hashable, ...], upcoming: Hashable = None) -> Place:
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
        return Place.INSIDE if self._place else self._ended()

    def _anchored(self, ends_cycle: bool) -> Place:
        return self._ended() if ends_cycle else Place.INSIDE

    def _ended(self) -> Place:
        if not self._whole:
            self._whole = True
            return Place.START
        self._run += 1
        self._longest = max(self._longest, self._run)
        return Place.CYCLE

    def _missed(self, *, ends_cycle: bool) -> Place:
        # After another event, the repetition is found again only by the last event of a cycle.
        self._run, self._place = 0, 0
        self._lost = not ends_cycle
        self._whole = ends_cycle
        return Place.START if ends_cycle else Place.LOST
