"""Few points of a long curve: its ends, and where each stretch first is lowest and highest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opscope.report.page.timeline import extremes


def test_each_stretch_keeps_its_lowest_and_highest() -> None:
    values = np.array([3, 3, 9, 3, 1, 1, 4, 4, 2, 2, 2, 2])
    # 6 points are two stretches of six values; a value that comes twice stands where it came first.
    assert extremes(values, 6).tolist() == [0, 2, 4, 6, 8, 11]
    assert extremes(values, 12).tolist() == list(range(12))


@given(st.lists(st.integers(-3, 3), max_size=200), st.integers(4, 60))
def test_nothing_lower_or_higher_is_left_out(values: list[int], most: int) -> None:
    found = extremes(np.array(values, np.int64), most).tolist()
    assert found == sorted(set(found))
    assert len(found) <= max(most, 0)
    if values:
        assert {0, len(values) - 1} <= set(found)
        assert {min(values), max(values)} <= {values[at] for at in found}
