"""How a time grows with a size: the exponent between two measured points."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Growth:
    """From one size to the next.

    Attributes:
        smaller, larger: the two sizes.
        ratio: time at the larger size over time at the smaller.
        exponent: ``log(ratio) / log(larger / smaller)``: 0 means the larger size costs nothing more (something else is
            the limit), 1 that time grows in proportion, 2 with the square.
    """

    smaller: int
    larger: int
    ratio: float
    exponent: float


def growth(times: Mapping[int, float]) -> Iterator[Growth]:
    """Yield the growth between neighbouring sizes; sizes without a positive time are left out."""
    sizes = sorted(size for size, time in times.items() if size > 0 and time > 0)
    for smaller, larger in itertools.pairwise(sizes):
        ratio = times[larger] / times[smaller]
        yield Growth(smaller, larger, ratio, math.log(ratio) / math.log(larger / smaller))
