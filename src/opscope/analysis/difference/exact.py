"""Whole numbers that add up exactly to what they are parts of."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor


def per_step(ns: int, steps: int) -> Fraction:
    """Return the exact time of one step, in nanoseconds.

    Args:
        ns: the time of all steps.
        steps: how many there are; at least 1.
    """
    return Fraction(int(ns), steps)


def apportioned(parts: Sequence[Fraction], whole: int) -> list[int]:
    """Round parts, each by less than 1, so that they add up to the whole.

    The largest remainders are rounded up; of equal ones, the earliest.

    Args:
        parts: exact values.
        whole: their sum, rounded to an integer.
    """
    lower = [floor(part) for part in parts]
    # Each part lost less than 1, so at most one per part is missing.
    missing = whole - sum(lower)
    by_remainder = sorted(range(len(parts)), key=lambda place: (lower[place] - parts[place], place))
    for place in by_remainder[:missing]:
        lower[place] += 1
    return lower
