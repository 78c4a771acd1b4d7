"""What is kept of a table for as long as it lives, and ranks of numbers."""

import gc

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.structure import arrays
from opscope.analysis.structure.api_masks import any_name, names_in, names_that
from opscope.analysis.structure.arrays import column, count_distinct, end_of, kept, numbers_in, ranked
from opscope.analysis.structure.nesting import Ints, Nesting


def table(names: list[str | None]) -> pl.DataFrame:
    count = len(names)
    return pl.DataFrame(
        {"name": names, "thread": [0] * count, "start_ns": range(count), "duration_ns": [-1] * count},
        schema={"name": pl.Categorical, "thread": pl.Int32, "start_ns": pl.Int64, "duration_ns": pl.Int64},
    )


def test_what_is_kept_goes_with_its_table() -> None:
    one, made = table(["a"]), []

    def make() -> str:
        made.append(1)
        return "made"

    assert kept(one, "what", make) == kept(one, "what", make) == "made"
    assert len(made) == 1
    number = id(one)
    assert number in arrays._KEPT
    del one
    gc.collect()
    assert number not in arrays._KEPT


def test_tables_that_follow_each_other_share_nothing() -> None:
    # Tables that are gone leave their numbers to later ones.
    for name in "abcdefgh":
        assert names_in(table([name])) == (name,)


def test_masks_by_name() -> None:
    some = table(["a", None, "b", "a"])
    assert names_that(some, lambda name: name == "a").tolist() == [True, False, False, True]
    assert names_that(some, lambda _: True).tolist() == [True, False, True, True]
    assert any_name(some, lambda name: name == "b")
    assert not any_name(some, lambda name: name == "c")
    assert names_that(table([]), lambda _: True).tolist() == []
    assert names_that(table([None]), lambda _: True).tolist() == [False]


def test_arrays_of_a_table_may_not_be_written_to() -> None:
    some = table(["a", "b"])
    assert end_of(some).tolist() == [0, 1]
    for array in (end_of(some), column(some, "thread")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


@given(st.lists(st.integers(0, 60) | st.integers(0, 10**12), max_size=40))
def test_ranks(values: list[int]) -> None:
    distinct, place = ranked(np.array(values, np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[place].tolist() == values


@given(st.lists(st.integers(-1, 9), max_size=30))
def test_numbers(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert numbers_in(array).tolist() == sorted(set(values))
    assert count_distinct(array, 10) == len({value for value in values if value >= 0})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 20)), max_size=30))
def test_depth_counts_what_encloses(slices: list[tuple[int, int, int]]) -> None:
    thread, start, length = (np.array(one, np.int64) for one in (zip(*slices, strict=True) if slices else ([], [], [])))
    nesting = Nesting.of(thread, start, start + length)

    def climbed(row: int, parent: Ints) -> int:
        return 0 if parent[row] < 0 else 1 + climbed(int(parent[row]), parent)

    assert nesting.depth().tolist() == [climbed(row, nesting.parent) for row in range(len(slices))]
