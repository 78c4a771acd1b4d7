"""Fits the law by which a time grows with a size, and says how well the law predicts sizes that it was not shown.

A law is `Σ termᵢ · g(n)^powerᵢ`, none of them negative, where g(n) is the size itself, what exceeds the size at which
growth begins, or the number of stairs; stairs may slope. Every law is fitted once for each size between the smallest
and the largest, without that size, and judged by how far off its prediction there is: what a law explains after the
fact counts for nothing. At the smallest and the largest it is judged by how it fits. Beyond them nothing is promised:
the next regime may begin there.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from opscope.documents.comparison import Term

# A simpler law is taken if it predicts about as well as the best one: within twice its error, or within 4 %: where
# medians are off by 1 %, the right line errs by up to that at its worst left-out size in 19 of 20 sweeps (300 made
# sweeps of six sizes each).
_AS_GOOD, _NOISE = 2.0, 0.04
PREDICTS = 0.1  # the error up to which a prediction is worth planning with
# Stairs have a free width, which fits noise, so they must predict this many times better than what grows smoothly. Of
# 1,440 made sweeps that jump once, bend, or grow smoothly, off by 1 to 5 %, three were given stairs.
_STAIRS_BETTER = 3.0
_KNEES = 24  # sizes at which growth may begin that are tried between the first two and the last two measured ones
_MOST_POINTS = 32
_LARGEST = 2**53  # beyond it a float does not hold every integer: such a number is a seed or a hash, and no size
_MOST_STAIRS = 64  # widths of stairs that are tried


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


class Law(Struct, frozen=True):
    """How a time grows with a size.

    Attributes:
        terms: added up, by rising power.
        begins: the size at which growth begins; None if it grows from the start.
        stair: the size of one stair: only whole stairs count; None if it grows smoothly.
        slope_ns: what each size adds besides the stairs, as where the blocks of one wave share a limit; 0 without.
        off: the worst relative error: of predicting a size between the smallest and the largest without having seen it,
            and of fitting these two.
        off_at: the size of that error.
    """

    terms: tuple[Term, ...]
    begins: float | None = None
    stair: int | None = None
    slope_ns: float = 0.0
    off: float = 0.0
    off_at: int = 0

    def at(self, size: float) -> float:
        """Return the time in nanoseconds that the law predicts for a size."""
        seen = _seen(size, self)
        return sum(term.ns * seen**term.power for term in self.terms) + self.slope_ns * size

    def turns(self, smallest: float, largest: float) -> tuple[float, ...]:
        """Return the sizes between the two at which another term becomes the largest one, in rising order."""
        if self.begins is not None:
            return (self.begins,) if smallest < self.begins < largest else ()
        if self.stair is not None:
            return ()
        pairs = itertools.combinations(self.terms, 2)
        crossings = ((low.ns / high.ns) ** (1 / (high.power - low.power)) for low, high in pairs)
        return tuple(sorted(size for size in crossings if smallest < size < largest and self._meet_on_top(size)))

    def _meet_on_top(self, size: float) -> bool:
        values = sorted((term.ns * size**term.power for term in self.terms), reverse=True)
        return math.isclose(values[0], values[1], rel_tol=1e-9)


def growth_law(times: Mapping[int, float]) -> Law | None:
    """Return the simplest law that predicts a left-out size about as well as the best one.

    Args:
        times: nanoseconds by size, as `usable` leaves them. Of more than 32 sizes, 32 are looked at.

    Returns:
        None for fewer than three sizes: two are fitted by any line, which proves nothing.
    """
    points = _few(sorted(usable(times).items()))
    if len(points) < 3:
        return None
    smooth = [_judged(shape, points) for shape in _smooth(points)]
    best = min(law.off for law in smooth)
    enough = max(min(_AS_GOOD * best, PREDICTS), _NOISE, best)
    result = next(law for law in smooth if law.off <= enough)
    if result.off <= _NOISE:
        return result
    stair = min((_judged(shape, points) for shape in _stairs(points)), key=lambda law: law.off, default=result)
    return stair if _STAIRS_BETTER * stair.off < result.off else result


def usable(times: Mapping[int, float]) -> dict[int, float]:
    """Return the times that a law can be fitted to: positive and finite ones, of sizes that are sizes of something."""
    return {n: time for n, time in times.items() if 0 < n <= _LARGEST and 0 < time < math.inf}


def _few(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most so many points, both ends among them: more tell little more, and take long."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    return [points[round(at)] for at in np.linspace(0, len(points) - 1, _MOST_POINTS)]


class _Shape(Struct, frozen=True):
    powers: tuple[int, ...]
    knee: bool = False
    stair: int | None = None
    slope: bool = False


def _smooth(points: Sequence[tuple[int, float]]) -> Iterator[_Shape]:
    """Yield what may be fitted, the simplest first; each has fewer parameters than there are points to fit it to."""
    yield from (_Shape((power,)) for power in range(4))
    yield _Shape((0, 1))
    if len(points) >= 4:
        yield _Shape((0, 1, 2))
    if len(points) >= 5:
        yield _Shape((0, 1), knee=True)
        yield _Shape((0, 1, 2, 3))


def _stairs(points: Sequence[tuple[int, float]]) -> Iterator[_Shape]:
    """Yield stairs of all widths of which the sizes show two edges and two treads.

    One edge is a jump, which may have any cause. An edge lies between neighbouring sizes that are one stair apart, a
    tread between two on the same stair: sizes that double show neither.
    """
    if len(points) < 6:
        return
    for width in range(2, min(points[-1][0] // 2, _MOST_STAIRS) + 1):
        apart = np.diff([math.ceil(size / width) for size, _ in points])
        if np.count_nonzero(apart == 1) >= 2 <= np.count_nonzero(apart == 0):
            yield _Shape((0, 1), stair=width)
            if len(points) >= 8:
                yield _Shape((0, 1), stair=width, slope=True)


def _judged(shape: _Shape, points: Sequence[tuple[int, float]]) -> Law:
    whole = _fitted(shape, points)
    judges = [whole, *(_fitted(shape, [*points[:at], *points[at + 1 :]]) for at in range(1, len(points) - 1)), whole]
    errors = [abs(law.at(size) - time) / time for law, (size, time) in zip(judges, points, strict=True)]
    worst = max(range(len(points)), key=errors.__getitem__)
    return replace(whole, off=errors[worst], off_at=points[worst][0])


def _fitted(shape: _Shape, points: Sequence[tuple[int, float]]) -> Law:
    if not shape.knee:
        return _least(shape.powers, points, Law((), stair=shape.stair), slope=shape.slope)[0]
    sizes = [size for size, _ in points]
    # Two sizes at least must lie on each side, or the knee is wherever one point is off.
    knees = np.geomspace(sizes[1], sizes[-2], _KNEES) if len(sizes) > 3 else ()
    laws = [_least(shape.powers, points, Law((), begins=float(knee))) for knee in (*knees, *sizes[1:-1])]
    return min(laws, key=lambda result: result[1])[0]


def _least(
    powers: Sequence[int], points: Sequence[tuple[int, float]], law: Law, *, slope: bool = False
) -> tuple[Law, float]:
    """Return the law with the terms of the least relative squares, none negative, and their sum.

    There are at most four terms, so every subset is tried: the best one without a negative term is the answer.
    """
    times = np.array([time for _, time in points], np.float64)
    seen = np.array([_seen(size, law) for size, _ in points], np.float64)  # squares of integers would overflow
    columns = [seen**power / times for power in powers]
    if slope:
        columns.append(np.array([size for size, _ in points], np.float64) / times)
    best: tuple[Law, float] | None = None
    for count in range(1, len(columns) + 1):
        for chosen in itertools.combinations(range(len(columns)), count):
            result = _squares(np.stack([columns[index] for index in chosen], axis=1))
            if result is None or (best is not None and result[1] >= best[1] * (1 - 1e-9) - 1e-18):
                continue
            factors = dict(zip(chosen, result[0].tolist(), strict=True))
            terms = tuple(Term(power, factors[index]) for index, power in enumerate(powers) if index in factors)
            best = replace(law, terms=terms, slope_ns=factors.get(len(powers), 0.0)), result[1]
    assert best is not None, "a positive time has a positive constant"
    return best


def _squares(matrix: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float] | None:
    """Solve for factors that make each row's sum 1; None if one would not be positive."""
    scale = np.linalg.norm(matrix, axis=0)
    if not scale.all():
        return None
    factors = np.linalg.lstsq(matrix / scale, np.ones(len(matrix)), rcond=None)[0] / scale
    if (factors <= 0).any():
        return None
    return factors, float(np.sum((matrix @ factors - 1) ** 2))


def _seen(size: float, law: Law) -> float:
    if law.begins is not None:
        return max(0.0, size - law.begins)
    return math.ceil(size / law.stair) if law.stair is not None else size
