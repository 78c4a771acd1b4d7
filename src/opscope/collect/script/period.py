"""Repetitions in a sequence of events: pure functions, without PyTorch.

They also tell a model's first generation of tokens from later ones.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from msgspec import Struct

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
