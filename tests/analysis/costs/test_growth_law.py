"""Laws of growth: known ones are found, predict sizes they were not shown, and noise is given none."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.costs.growth_law import growth_law
from opscope.report.comparison import law_row

DOUBLING = (1, 2, 4, 8, 16, 32)


def times(law: Callable[[int], float], sizes: tuple[int, ...] = DOUBLING) -> dict[int, float]:
    return {size: law(size) for size in sizes}


@pytest.mark.parametrize(
    ("law", "powers"),
    [
        (lambda n: 100.0, [0]),
        (lambda n: 30.0 * n, [1]),
        (lambda n: 100.0 + 30 * n, [0, 1]),
        (lambda n: 0.5 * n**2, [2]),
        (lambda n: 10.0 + 3 * n + 0.5 * n**2, [0, 1, 2]),
        (lambda n: 50.0 + 0.01 * n**3, [0, 3]),
    ],
)
def test_a_law_without_noise_is_found_exactly(law: Callable[[int], float], powers: list[int]) -> None:
    found = growth_law(times(law))
    assert found is not None
    assert [term.power for term in found.terms] == powers
    assert found.off < 1e-6
    assert found.at(100) == pytest.approx(law(100))


def test_launching_hides_the_work_until_a_size() -> None:
    """1,000 ns of launching, 60 ns per sample: the work shows from 16.7 samples on."""
    found = growth_law(times(lambda n: max(1000.0, 60.0 * n), (1, 2, 4, 8, 16, 32, 64, 128)))
    assert found is not None
    assert found.begins == pytest.approx(16.7, rel=0.05)
    assert found.turns(1, 128) == (found.begins,)
    assert found.off < 0.05


def test_waves_of_blocks_climb_in_stairs() -> None:
    found = growth_law(times(lambda n: 10.0 + 50 * math.ceil(n / 8), tuple(range(2, 33, 2))))
    assert found is not None
    assert (found.stair, found.off < 1e-6) == (8, True)


def test_waves_of_blocks_on_an_h100() -> None:
    """Chains of dependent loads, 1,056 blocks of a warp for each size: 132 multiprocessors hold 32 each at once.

    Microseconds of a kernel written with Triton (PyTorch 2.11, 2026-11-26), by `opscope profile` at sizes 1 to 15. With
    more blocks at once each of them is slower, so the stairs slope.
    """
    measured = (87.9, 86.4, 89.8, 102.3, 173.4, 177.6, 182.8, 200.0, 263.9, 266.5, 275.5, 300.5, 352.6, 358.9, 369.2)
    by_size = {1 + at: 1_000 * time for at, time in enumerate(measured)}
    found = growth_law(by_size)
    assert found is not None
    assert (found.stair, found.off < 0.08) == (4, True)
    assert found.slope_ns == pytest.approx(5_700, rel=0.1)
    row = law_row("waves::chase", "batch_size", {}, by_size, is_operator=True)
    assert row is not None
    assert row.formula == "8.817 us + 68.42 us per stair of 4 + 5.730 us per n"
    assert (row.stair, row.slope_ns, row.predicts) == (4, found.slope_ns, True)


def test_a_law_in_words() -> None:
    begins = law_row(
        "a", "n", {}, times(lambda n: max(1000.0, 60.0 * n), (1, 2, 4, 8, 16, 32, 64, 128)), is_operator=True
    )
    assert begins is not None
    assert begins.formula.startswith("1.000 us + 59.8 ns per n beyond 16.5")
    square = law_row("a", "n", {}, times(lambda n: 10.0 + 3 * n + 0.5 * n**2), is_operator=True)
    assert square is not None
    assert square.formula == "10 ns + 3 ns per n + 0.5 ns per n²"
    none = law_row("a", "n", {}, {1: 5.0, 2: 900.0, 4: 3.0, 8: 700.0}, is_operator=True)
    assert none is not None
    assert (none.formula, none.predicts, none.turns) == ("", False, ())
    assert law_row("a", "n", {}, {1: 5.0, 2: 9.0}, is_operator=True) is None


def test_one_jump_is_no_staircase() -> None:
    """An algorithm that changes at one size may have any cause."""
    found = growth_law(times(lambda n: 100.0 if n <= 8 else 200.0, tuple(range(1, 17))))
    assert found is not None
    assert found.stair is None


def test_sizes_that_double_show_no_stairs() -> None:
    """Between 4, 8 and 16 no edge and no tread of a stair of 2 is seen: here the time is flat until 2, then linear."""
    found = growth_law(times(lambda n: max(100.0, 50.0 * n), (1, 2, 4, 8, 16, 32, 64, 128)))
    assert found is not None
    assert found.stair is None


def test_a_stair_that_predicts_little_better_is_none() -> None:
    """Of a linear time with a ripple, sloping stairs of 4 predict 2.6 times better: a free width may do that."""
    found = growth_law({n: (60 + 10 * n) * (1.06 - 0.04 * ((n - 1) % 4)) for n in range(1, 17)})
    assert found is not None
    assert found.stair is None


@given(seed=st.integers(0, 10_000), noise=st.sampled_from([0.01, 0.03]))
def test_noise_is_no_staircase(seed: int, noise: float) -> None:
    generator = random.Random(seed)
    fixed, slope, square = generator.uniform(5, 100), generator.uniform(0.5, 30), generator.choice([0.0, 0.1, 1.0])
    sizes = tuple(range(1, 13))
    found = growth_law({n: (fixed + slope * n + square * n**2) * generator.gauss(1, noise) for n in sizes})
    assert found is not None
    assert found.stair is None


def test_the_regime_turns_where_the_square_overtakes_the_line() -> None:
    """20 n = 0.1 n² at n = 200, and 100 = 20 n at n = 5."""
    found = growth_law(times(lambda n: 100 + 20 * n + 0.1 * n**2, (2, 8, 32, 128, 512, 1024)))
    assert found is not None
    assert found.turns(2, 1024) == pytest.approx((5, 200), rel=1e-3)
    assert found.turns(8, 1024) == pytest.approx((200,), rel=1e-3)


@pytest.mark.parametrize("sizes", [(), (4,), (4, 8)])
def test_two_sizes_prove_no_law(sizes: tuple[int, ...]) -> None:
    assert growth_law(times(lambda n: 3.0 * n, sizes)) is None


def test_times_that_follow_nothing_are_predicted_badly() -> None:
    generator = random.Random(5)
    for _ in range(50):
        found = growth_law({size: generator.lognormvariate(0, 1) for size in DOUBLING})
        assert found is not None
        assert found.off > 0.1


@given(
    fixed=st.floats(10, 1e6),
    slope=st.floats(1, 1e4),
    square=st.sampled_from([0.0, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
def test_a_size_that_was_left_out_is_predicted_within_ten_percent(
    fixed: float, slope: float, square: float, seed: int
) -> None:
    """With medians off by 1 %, as on a quiet machine. The size lies within the sweep, and the law never saw it."""
    generator = random.Random(seed)
    truth = lambda n: fixed + slope * n + square * n**2  # noqa: E731
    sizes = (1, 2, 4, 8, 16, 32, 64)
    shown = {size: truth(size) * generator.gauss(1, 0.01) for size in sizes if size != 16}
    found = growth_law(shown)
    assert found is not None
    if found.off <= 0.1:
        assert found.at(16) == pytest.approx(truth(16), rel=0.1)


def test_large_sizes_and_numbers_that_are_no_sizes() -> None:
    """Cubes of millions do not fit into 64 bits; seeds and hashes beyond 2**53 are not sizes."""
    cubic = growth_law({3_000_000 * n: 1e-12 * (3_000_000 * n) ** 3 for n in (1, 2, 3, 4, 6, 8)})
    assert cubic is not None
    assert [term.power for term in cubic.terms] == [3]
    assert growth_law({2**64 + n: 1e6 * n for n in (1, 2, 3)}) is None
    three = growth_law({64: 1e6, 128: 4e6, 256: 16e6})
    assert three is not None
    assert [(term.power, term.ns) for term in three.terms] == [(2, pytest.approx(1e6 / 64**2))]


@given(st.dictionaries(st.integers(-3, 5000), st.just(0.0) | st.floats(1e-3, 1e12), max_size=12))
def test_any_times_are_answered(values: dict[int, float]) -> None:
    found = growth_law(values)
    assert (found is None) == (sum(size > 0 and time > 0 for size, time in values.items()) < 3)
    if found is not None:
        assert all(term.ns > 0 for term in found.terms)
        assert math.isfinite(found.at(7))
