"""The call tree against a slow, obvious reference on random slices: nested, crossing, empty, equal."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.structure import nesting as native
from opscope.analysis.structure.nesting import Nesting
from tests.budget import examples

Slice = tuple[int, int, int]  # thread, start, end

SLICES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=40,
)


def nesting(slices: list[Slice], began: list[int] | None = None) -> Nesting:
    columns = np.array(slices, np.int64).reshape(-1, 3)
    return Nesting.of(*columns.T, None if began is None else np.array(began, np.int64))


def encloses(slices: list[Slice], outer: int, inner: int, began: list[int] | None = None) -> bool:
    (thread, start, end), (other_thread, low, high) = slices[inner], slices[outer]
    if outer == inner or thread != other_thread or not low <= start < high or high < end:
        return False
    return (low, high) != (start, end) or age(began, outer) < age(began, inner)


def age(began: list[int] | None, row: int) -> tuple[int, int]:
    return (began[row] if began else 0, row)


def innermost(slices: list[Slice], candidates: list[int], began: list[int] | None = None) -> int:
    return max(candidates, key=lambda i: (slices[i][1], -slices[i][2], *age(began, i)), default=-1)


def reference_parents(slices: list[Slice]) -> list[int]:
    rows = range(len(slices))
    return [innermost(slices, [outer for outer in rows if encloses(slices, outer, inner)]) for inner in rows]


@settings(max_examples=examples(300))
@given(SLICES)
def test_parent_is_the_innermost_enclosing_slice(slices: list[Slice]) -> None:
    assert nesting(slices).parent.tolist() == reference_parents(slices)


def began_after(slices: list[Slice], began: list[int], outer: int, inner: int) -> bool:
    """Tell whether numbers say that a slice began after one without duration that starts when it does."""
    (thread, start, end), number = slices[inner], began[inner]
    if start < end or slices[outer][1] != start or number < 0:
        return False
    rows = range(len(slices))
    around = [i for i in rows if slices[i][:2] == (thread, start) and encloses(slices, i, outer, began)]
    return max(began[i] for i in [outer, *around]) > number


NUMBERED = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12), st.integers(-1, 9)), max_size=40
)


@settings(max_examples=examples(300))
@given(NUMBERED)
def test_numbers_tell_which_of_two_that_start_together_is_the_outer_one(drawn: list[tuple[int, ...]]) -> None:
    slices = [(thread, start, start + length) for thread, start, length, _ in drawn]
    began, rows = [number for *_, number in drawn], range(len(drawn))

    def parent(inner: int) -> int:
        around = [o for o in rows if encloses(slices, o, inner, began)]
        return innermost(slices, [o for o in around if not began_after(slices, began, o, inner)], began)

    tree = nesting(slices, began)
    assert tree.parent.tolist() == [parent(i) for i in rows]
    # Slices without duration contain no point in time.
    threads, starts, _ = np.array(slices, np.int64).reshape(-1, 3).T
    at = [innermost(slices, [o for o in rows if contains(slices[o], *slices[i][:2])], began) for i in rows]
    assert tree.innermost_at(threads, starts).tolist() == at


def contains(one: Slice, thread: int, time: int) -> bool:
    return one[0] == thread and one[1] <= time < one[2]


@settings(max_examples=examples(300))
@given(SLICES, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 45)), max_size=20))
def test_innermost_at_finds_the_latest_slice_that_contains_a_time(
    slices: list[Slice], points: list[tuple[int, int]]
) -> None:
    columns = np.array(points, np.int64).reshape(-1, 2)
    expected = [
        innermost(slices, [i for i, (t, low, high) in enumerate(slices) if t == thread and low <= time < high])
        for thread, time in points
    ]
    assert nesting(slices).innermost_at(columns[:, 0], columns[:, 1]).tolist() == expected


@given(SLICES)
def test_depth_and_subtree_sums_follow_the_parents(slices: list[Slice]) -> None:
    tree = nesting(slices)
    values = np.arange(1, len(slices) + 1, dtype=np.int64)
    depth, totals = [0] * len(slices), values.tolist()
    for row in range(len(slices)):
        ancestor = tree.parent[row]
        while ancestor >= 0:
            depth[row] += 1
            totals[ancestor] += int(values[row])
            ancestor = tree.parent[ancestor]
    assert tree.depth().tolist() == depth
    assert tree.subtree_sums(values).tolist() == totals


@given(SLICES, st.data())
def test_inside_same_finds_a_slice_with_the_same_key_among_those_above(
    slices: list[Slice], data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.integers(0, 2), min_size=len(slices), max_size=len(slices)))
    tree = nesting(slices)
    expected = []
    for row in range(len(slices)):
        above, ancestor = set(), tree.parent[row]
        while ancestor >= 0:
            above.add(keys[ancestor])
            ancestor = tree.parent[ancestor]
        expected.append(keys[row] in above)
    assert tree.inside_same(np.array(keys, np.int64)).tolist() == expected


def test_a_hundred_thousand_nested_slices_take_no_recursion() -> None:
    count = 100_000
    start = np.arange(count, dtype=np.int64)
    tree = Nesting.of(np.zeros(count, np.int64), start, 2 * count - start)
    assert tree.parent.tolist() == list(range(-1, count - 1))
    assert tree.depth()[-1] == count - 1


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 10)), max_size=25))
def test_crossing_slices_are_found_where_there_are_any(slices: list[tuple[int, int, int]]) -> None:
    thread, start, length = (np.array([item[i] for item in slices], np.int64) for i in range(3))
    found = Nesting.of(thread, start, start + length).crossing().tolist()
    crossing = [
        any(other == mine and first < begin < first + span < begin + duration for other, first, span in slices)
        for mine, begin, duration in slices
    ]
    assert any(found) == any(crossing)
    assert all(crosses for mark, crosses in zip(found, crossing, strict=True) if mark)


@settings(max_examples=examples(300))
@given(NUMBERED, st.booleans(), st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 40)), max_size=60))
def test_the_compiled_pass_is_what_numpy_says(
    slices: list[tuple[int, int, int, int]], numbered: bool, asked: list[tuple[int, int]]
) -> None:
    if native.load_nesting() is None:
        pytest.skip("the compiled pass was not built")
    rows = [(thread, start, start + length) for thread, start, length, _ in slices]
    began = [number for *_, number in slices] if numbered else None
    compiled = nesting(rows, began)
    with mock.patch.object(native, "load_nesting", return_value=None):
        slow = nesting(rows, began)
    values = np.arange(len(rows), dtype=np.int64)
    assert compiled.after is not None or not rows
    assert slow.after is None
    assert compiled.parent.tolist() == slow.parent.tolist()
    assert compiled.crossing().tolist() == slow.crossing().tolist()
    assert compiled.subtree_sums(values).tolist() == slow.subtree_sums(values).tolist()
    thread, time = (np.array([item[i] for item in asked], np.int64) for i in range(2))
    found = compiled.innermost_at(thread, time)
    with mock.patch.object(native, "load_nesting", return_value=None):
        assert found.tolist() == slow.innermost_at(thread, time).tolist()
