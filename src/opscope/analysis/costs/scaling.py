"""How a quantity grows with a size: the exponent between two measured points."""

import itertools
import math
from collections.abc import Iterator, Mapping

from msgspec import Struct


class Growth(Struct, frozen=True):
    """How a quantity grows from one size to the next.

    Attributes:
        smaller, larger: the two sizes.
        ratio: the value at the larger size over that at the smaller.
        exponent: ``log(ratio) / log(larger / smaller)``: 0 means no growth (of a time: something else is the limit),
            1 growth in proportion, 2 growth with the square.
    """

    smaller: int
    larger: int
    ratio: float
    exponent: float


def growth(values: Mapping[int, float]) -> Iterator[Growth]:
    """Yield the growth between neighbouring sizes; sizes without a positive value are left out."""
    sizes = sorted(size for size, value in values.items() if size > 0 and value > 0)
    for smaller, larger in itertools.pairwise(sizes):
        ratio = values[larger] / values[smaller]
        yield Growth(smaller, larger, ratio, math.log(ratio) / math.log(larger / smaller))
