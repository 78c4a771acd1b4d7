"""Order statistics and growth exponents."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.costs.growth_law import growth
from opscope.analysis.measured import summarise_samples


def test_summary_of_known_samples() -> None:
    summary = summarise_samples([50, 10, 40, 20, 30])
    assert summary is not None
    assert (summary.count, summary.median_ns, summary.min_ns, summary.max_ns) == (5, 30, 10, 50)
    assert (summary.p25_ns, summary.p75_ns) == (20, 40)


def test_five_samples_cannot_hold_the_median_with_95_percent_confidence() -> None:
    """All five lie on one side of it with probability 2 / 2**5 = 6.25 %, six with 3.1 %."""
    five, six = summarise_samples([1, 2, 3, 4, 5]), summarise_samples([1, 2, 3, 4, 5, 6])
    assert five is not None
    assert six is not None
    assert (five.median_low_ns, five.median_high_ns) == (None, None)
    assert (six.median_low_ns, six.median_high_ns) == (1, 6)


@pytest.mark.parametrize(("count", "rank"), [(10, 2), (20, 6), (100, 40)])
def test_interval_ranks_agree_with_published_tables(count: int, rank: int) -> None:
    """Sign-test tables: for n = 10, 20, 100 the 95 % interval of the median runs from x(2), x(6), x(40) (from 1)."""
    summary = summarise_samples(list(range(1, count + 1)))
    assert summary is not None
    assert (summary.median_low_ns, summary.median_high_ns) == (rank, count + 1 - rank)


def test_the_interval_holds_the_true_median_in_95_percent_of_experiments() -> None:
    generator = random.Random(1)
    held = 0
    for _ in range(2000):
        summary = summarise_samples([round(1000 * generator.lognormvariate(0, 1)) for _ in range(25)])
        assert summary is not None
        assert summary.median_low_ns is not None
        assert summary.median_high_ns is not None
        held += summary.median_low_ns <= 1000 <= summary.median_high_ns
    assert held / 2000 >= 0.94


def test_thousands_of_samples_have_an_interval_too() -> None:
    """For large n it is close to n/2 -+ 0.98 sqrt(n): 5,000 samples give about 2,431 .. 2,570."""
    summary = summarise_samples(list(range(5000)))
    assert summary is not None
    assert summary.median_low_ns == pytest.approx(2430, abs=2)
    assert summary.median_high_ns == pytest.approx(2569, abs=2)


def test_no_samples_give_no_summary() -> None:
    assert summarise_samples([]) is None


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_summary_is_in_order(samples: list[int]) -> None:
    summary = summarise_samples(samples)
    assert summary is not None
    assert summary.min_ns <= summary.p25_ns <= summary.median_ns <= summary.p75_ns <= summary.max_ns
    if summary.median_low_ns is not None and summary.median_high_ns is not None:
        assert summary.median_low_ns <= summary.median_ns <= summary.median_high_ns


def test_growth_between_neighbouring_sizes() -> None:
    first, second = growth({8: 4.0, 1: 4.0, 16: 8.0})
    assert (first.smaller, first.larger, first.ratio, first.exponent) == (1, 8, 1.0, 0.0)
    assert (second.smaller, second.larger, second.ratio) == (8, 16, 2.0)
    assert second.exponent == pytest.approx(1.0)


def test_quadratic_growth_has_exponent_two_and_unknown_times_are_left_out() -> None:
    (only,) = growth({128: 1.0, 256: 0.0, 512: 16.0})
    assert only.exponent == pytest.approx(2.0)
    assert list(growth({128: 1.0})) == []
    assert math.isclose(only.ratio, 16)


def test_of_very_many_samples_the_interval_of_the_median_is_hardly_wider() -> None:
    """And is found at once; the exact ranks take time that grows with the square of their number."""
    for count in (5_001, 20_000, 1_000_000):
        summary = summarise_samples(range(count))
        assert summary is not None
        assert summary.median_low_ns is not None
        assert summary.median_high_ns is not None
        width = 1.96 * count**0.5
        assert width <= summary.median_high_ns - summary.median_low_ns <= width + 4
