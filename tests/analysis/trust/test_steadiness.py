"""Whether steps are steady: by hand, and at the border of what chance explains."""

import random

import pytest

from opscope.analysis.trust.step_time import steadiness_of


def permutation(count: int, inversions: int) -> list[int]:
    """Return the numbers from 0 in an order in which so many pairs fall; all others rise."""
    left, order = list(range(count)), []
    for place in range(count):
        taken = min(inversions, count - 1 - place)
        inversions -= taken
        order.append(left.pop(taken))
    return order


def test_fewer_than_two_samples_in_each_of_eight_parts_say_nothing() -> None:
    assert steadiness_of([1000] * 15) is None
    steady = steadiness_of([1000] * 16)
    assert steady is not None
    assert (steady.low_ns, steady.high_ns, steady.wanders, steady.change) == (1000.0, 1000.0, 1.0, None)


def test_a_speed_that_wanders_is_that_of_its_fastest_and_slowest_part() -> None:
    # Eight parts of three; the median of each leaves out its slow step.
    samples = [step for level in (4, 1, 7, 2, 8, 3, 6, 5) for step in (100 * level, 100 * level, 9_999)]
    found = steadiness_of(samples)
    assert found is not None
    assert (found.low_ns, found.high_ns, found.wanders) == (100.0, 800.0, 8.0)
    assert found.change is None


@pytest.mark.parametrize(("by", "change"), [(10, 390 / 1195), (-10, -390 / 805)])
def test_a_trend_is_the_change_from_first_to_last_as_a_share_of_the_median(by: int, change: float) -> None:
    found = steadiness_of([1000 + by * number for number in range(40)])
    assert found is not None
    assert found.change == pytest.approx(change)


def test_of_many_samples_forty_medians_make_the_trend() -> None:
    found = steadiness_of([1000 + 10 * number for number in range(80)])
    assert found is not None
    assert found.change == pytest.approx(20 * 39 / 1395)


def test_single_slow_steps_make_no_trend_and_do_not_hide_one() -> None:
    samples = [1000 + 10 * number for number in range(40)]
    for place in (3, 20, 31):
        samples[place] = 50_000
    found = steadiness_of(samples)
    assert found is not None
    assert found.change == pytest.approx(390 / 1195, rel=0.05)


def test_fewer_than_twenty_samples_make_no_trend() -> None:
    few, enough = steadiness_of(range(1000, 1019)), steadiness_of(range(1000, 1020))
    assert few is not None
    assert few.change is None
    assert enough is not None
    assert enough.change == pytest.approx(19 / 1009.5)


def test_a_trend_is_proven_from_the_pairs_on_that_chance_makes_in_one_of_a_hundred() -> None:
    """Of 20 samples, 190 pairs: 2.576 times the deviation, the square root of 20 * 19 * 45 / 18, is 79.4.

    Of 136 pairs that rise and 54 that fall the difference less one is 81, of 135 and 55 it is 79.
    """
    proven = steadiness_of([1000 + number for number in permutation(20, 54)])
    chance = steadiness_of([1000 + number for number in permutation(20, 55)])
    falling = steadiness_of([1000 - number for number in permutation(20, 54)])
    assert proven is not None
    assert proven.change is not None
    assert proven.change > 0
    assert chance is not None
    assert chance.change is None
    assert falling is not None
    assert falling.change is not None
    assert falling.change < 0


def test_noise_alone_makes_a_trend_in_about_one_of_a_hundred_clocks() -> None:
    draw = random.Random(0)
    found = [steadiness_of([round(draw.gauss(1e6, 5e4)) for _ in range(40)]) for _ in range(1000)]
    assert 2 <= sum(one is not None and one.change is not None for one in found) <= 25
