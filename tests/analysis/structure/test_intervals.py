"""Unions and gaps against sets of single nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.structure.arrays import Intervals, latest_around

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 10)).map(lambda p: (p[0], p[0] + p[1])), max_size=20)


def union(pairs: list[tuple[int, int]]) -> Intervals:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return Intervals.union_of(columns[:, 0], columns[:, 1])


def covered(intervals: Intervals) -> set[int]:
    return {t for low, high in zip(intervals.start, intervals.end, strict=True) for t in range(low, high)}


@given(PAIRS)
def test_union_covers_exactly_what_any_interval_covers(pairs: list[tuple[int, int]]) -> None:
    expected = {t for low, high in pairs for t in range(low, high)}
    result = union(pairs)
    assert covered(result) == expected
    assert result.length == len(expected)


@given(PAIRS)
def test_union_is_disjoint_and_ascending_with_gaps_between(pairs: list[tuple[int, int]]) -> None:
    result = union(pairs)
    assert (result.end > result.start).all()
    assert (result.start[1:] > result.end[:-1]).all()


@given(PAIRS, st.integers(0, 45), st.integers(0, 45))
def test_clipped_and_gaps_divide_a_window(pairs: list[tuple[int, int]], low: int, high: int) -> None:
    low, high = min(low, high), max(low, high)
    result = union(pairs)
    window = Intervals(np.array([low]), np.array([high]))
    inside, gaps = covered(result.within(window)), covered(result.gaps(low, high))
    assert inside == covered(result) & set(range(low, high))
    assert gaps == set(range(low, high)) - inside


@given(PAIRS, PAIRS)
def test_within_covers_what_both_cover(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    one, other = union(first), union(second)
    assert covered(one.within(other)) == covered(one) & covered(other)
    pairs = list(zip(other.start, other.end, strict=True))
    held = one.holds(other.start, other.end).tolist()
    assert held == [set(range(low, high)) <= covered(one) for low, high in pairs]
    mine, start, end = one.overlaps(other)
    assert ((one.start[mine] <= start) & (end <= one.end[mine]) & (start < end)).all()


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=12),
    st.lists(st.integers(-3, 55), min_size=1, max_size=20),
)
def test_latest_around_is_the_latest_begun_that_holds_a_moment(spans: list[tuple[int, int]], asked: list[int]) -> None:
    start, length = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    end = start + length
    expected = [max((i for i in range(len(start)) if start[i] <= t < end[i]), default=-1) for t in asked]
    assert latest_around(start, end, np.array(asked, np.int64)).tolist() == expected
