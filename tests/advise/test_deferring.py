"""Numbers that are fetched when they are looked at: they are what they would have been, and no one waits before."""

import copy
import json
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opscope.advise.deferring import Counted, Later, as_tensors, defer

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: float(torch.tensor(value)))
COMPUTE = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": lambda one, other: abs(one) ** min(abs(other), 2.0),
    "%": lambda one, other: one % (abs(other) + 1),
    "<": operator.lt,
    "==": operator.eq,
}


def later(value: float, counted: Counted | None = None) -> Later:
    return Later(torch.tensor(value, dtype=torch.float64), counted or Counted())


def outcome(compute: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    try:
        return compute(one, other)
    except ZeroDivisionError:
        return "division by zero"


@given(NUMBERS, st.one_of(NUMBERS, st.integers(-1000, 1000)), st.sampled_from(sorted(COMPUTE)))
def test_what_is_computed_is_what_numbers_give(one: float, other: float, name: str) -> None:
    compute = COMPUTE[name]
    wanted = outcome(compute, one, other)
    for found in (outcome(compute, later(one), other), outcome(compute, one, later(other)) if name != "/" else None):
        if found is not None:
            assert found == wanted or (isinstance(wanted, float) and math.isclose(found, wanted, rel_tol=1e-15))
    assert outcome(compute, later(one), later(other)) == wanted or name == "/"


def test_sums_fetch_nothing_until_somebody_looks() -> None:
    counted = Counted()
    total: Any = 0.0
    for value in (1.0, 2.0, 3.5):
        total += later(value, counted) * 2
    mean = total / 4
    assert counted.fetched == 0
    assert f"{mean:.2f}" == "3.25"
    assert float(mean) == 3.25
    assert counted.fetched == 1
    assert math.isclose(total, 13.0)
    assert [round(mean), int(mean), str(mean), bool(mean), mean.is_integer()] == [3, 3, "3.25", True, False]
    assert max(mean, 1) is mean
    with pytest.raises(TypeError):
        json.dumps(mean)  # what takes nothing but numbers fails, and the change with it


def test_copies_are_the_same_number() -> None:
    counted = Counted()
    made = later(2.5, counted)
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == 2.5


def test_a_later_number_is_compared_by_the_tensor_that_holds_it() -> None:
    tensor = torch.tensor(1.0, dtype=torch.float64)
    found = Later(tensor, Counted())
    assert found.value == 1.0
    tensor.fill_(2.0)  # as each replay of a graph does
    assert as_tensors({"loss": found, "steps": 3}) == {"loss": tensor, "steps": 3}


@pytest.fixture
def deferred() -> Iterator[Counted]:
    fetch = torch.Tensor.item
    yield defer("cpu")
    torch.Tensor.item = fetch  # type: ignore[method-assign]


def test_only_what_the_user_fetches_is_put_off(deferred: Counted, tmp_path: Path) -> None:
    tensor = torch.tensor([1.5])
    found = tensor.item()
    tensor.fill_(7.0)  # as the next step does
    assert isinstance(found, Later)
    assert found == 1.5
    assert isinstance(torch.tensor(3).item(), int)
    assert (deferred.made, deferred.fetched) == (1, 1)
    optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])  # whose own code fetches the loss
    optimizer.step(lambda: torch.tensor(1.0, requires_grad=True))
    assert deferred.made == 1
