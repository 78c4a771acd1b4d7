"""Whole numbers that add up exactly to what they are parts of."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor


def per_step(ns: int, steps: int) -> Fraction:
    """Return a time of one step, exactly."""
    return Fraction(int(ns), steps)


def apportioned(parts: Sequence[Fraction], whole: int) -> list[int]:
    """Round parts so that they add up to the whole, which is their sum rounded; each by less than 1.

    The largest remainders are rounded up, the earliest first where they are the same.
    """
    lower = [floor(part) for part in parts]
    missing = whole - sum(lower)
    by_remainder = sorted(range(len(parts)), key=lambda place: (lower[place] - parts[place], place))
    for place in by_remainder[:missing]:
        lower[place] += 1
    return lower
