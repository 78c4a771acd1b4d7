"""The one judge of results, by tensors whose errors are worked out by hand."""

from collections import UserDict

import pytest

torch = pytest.importorskip("torch")

from opscope.measuring.judge import Right, compared, right_of  # noqa: E402

pytestmark = pytest.mark.torch


def double(*values: float) -> "torch.Tensor":
    return torch.tensor(values, dtype=torch.float64)


def test_the_error_is_the_norm_of_the_difference_over_that_of_what_is_right() -> None:
    # The difference is (0, 0.1), whose norm is 0.1; that of (3, 4) is 5.
    found = compared(torch.tensor([3.0, 4.1], dtype=torch.float64), double(3, 4))
    assert found.relative_error == pytest.approx(0.02)
    # The typical element is the root of (9 + 16) / 2; the second one is off by 0.1 of itself and that together.
    assert found.element_error == pytest.approx(0.1 / (4 + 12.5**0.5))


def test_a_missing_part_of_a_large_result_is_a_problem_however_small_its_share() -> None:
    right = torch.ones(100_000, dtype=torch.float64)
    result = right.float()
    result[7] = 0
    found = compared(result, right)
    assert found.relative_error == pytest.approx(100_000**-0.5)
    assert found.problem == "is off in one or more elements, by up to 5.0e-01 of their size"


@pytest.mark.parametrize(
    ("result", "right", "problem"),
    [
        (torch.zeros(2), double(0, 0, 0), "returns the shape (2,), not (3,)"),
        (torch.zeros(2).long(), double(0, 0), "returns int64, where floating-point numbers are right"),
        (torch.zeros(2), torch.zeros(2).long(), "returns float32, where integers are right"),
        (torch.ones(2).long(), torch.ones(2).bool(), "returns int64, where booleans are right"),
        (
            torch.tensor([3]),
            torch.tensor([3 + 4j], dtype=torch.complex128),
            "returns int64, where complex numbers are right",
        ),
        (torch.tensor([3 + 4j]), torch.tensor([3]), "returns complex64, where integers are right"),
        (torch.tensor([1, 2, 4]), torch.tensor([1, 3, 5]), "returns another number in 2 of 3 elements"),
        (
            torch.tensor([1.0, float("nan")]),
            double(1, 2),
            "is NaN where the reference is a number, or the other way round, in 1 of 2 elements",
        ),
        (
            torch.tensor([float("inf"), 1.0]),
            double(2, 1),
            "is infinite where the reference is not, or the other way round, in 1 of 2 elements",
        ),
        (
            torch.tensor([5.0, 1.0]),
            double(float("inf"), 1),
            "is infinite where the reference is not, or the other way round, in 1 of 2 elements",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(result: "torch.Tensor", right: "torch.Tensor", problem: str) -> None:
    assert compared(result, right).problem == problem


def test_a_number_that_the_type_cannot_hold_is_right_as_infinity() -> None:
    assert compared(torch.tensor([1e6, 1.0]).half(), double(1e6, 1)).problem is None
    # The largest number of float16 is 65,504: so near to it, rounding decides.
    assert compared(torch.tensor([65_504.0, 1.0]).half(), double(65_510, 1)).problem is None
    assert compared(torch.tensor([float("inf"), 1.0]).half(), double(65_500, 1)).problem is None
    assert compared(torch.tensor([65_504.0, 1.0]).half(), double(1e6, 1)).problem is not None


def test_equal_whole_numbers_and_nothing_are_right() -> None:
    assert compared(torch.arange(3), torch.arange(3)).problem is None
    empty = compared(torch.zeros(0), torch.zeros(0, dtype=torch.float64))
    assert (empty.is_empty, empty.problem, empty.relative_error) == (True, None, None)
    nowhere = torch.tensor([float("nan")])
    assert compared(nowhere, nowhere.double()).is_empty


def test_complex_results_are_compared_part_by_part() -> None:
    right = torch.tensor([3 + 4j], dtype=torch.complex128)
    assert compared(torch.tensor([3 + 4j]), right).relative_error == 0.0
    assert compared(torch.tensor([3 + 4.5j]), right).relative_error == pytest.approx(0.1)


def of(right: Right) -> list[tuple["torch.dtype", list[float]]]:
    return [(one.dtype, one.tolist()) for one in right.results]


def test_what_is_right_is_computed_in_float64_where_the_reference_takes_it() -> None:
    third = right_of(lambda x: (x / 3, x > 1), (torch.tensor([1.0, 2.0]),))
    assert third.exact
    assert of(third) == [(torch.float64, [1 / 3, 2 / 3]), (torch.bool, [False, True])]


def test_whole_numbers_follow_from_the_inputs_at_their_own_precision() -> None:
    # 2**24 + 1 is no number of float32: the sum is 2**24 there.
    result = right_of(lambda x: ((x + 1).long(), x), (torch.tensor([2.0**24]),))
    assert of(result)[0] == (torch.int64, [2**24])


def test_a_reference_that_names_its_type_is_taken_as_it_is() -> None:
    weight = torch.ones(2, 2)
    result = right_of(lambda x: x @ weight, (torch.ones(1, 2),))
    assert not result.exact
    assert of(result) == [(torch.float64, [[2.0, 2.0]])]


def test_a_reference_that_takes_float64_alone_is_right_too() -> None:
    def only_double(x: "torch.Tensor") -> "torch.Tensor":
        if x.dtype is not torch.float64:
            raise NotImplementedError
        return 2 * x

    assert of(right_of(only_double, (torch.ones(1),))) == [(torch.float64, [2.0])]


def test_what_a_reference_raises_is_passed_on() -> None:
    def broken(_: object) -> object:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        right_of(broken, (torch.ones(1),))


def test_tensors_in_containers_are_copied_and_converted() -> None:
    first, second = {"a": torch.ones(1)}, [torch.ones(1)]

    def adds(one: dict[str, "torch.Tensor"], other: list["torch.Tensor"]) -> "torch.Tensor":
        return one["a"].add_(other[0])

    assert of(right_of(adds, (first, second))) == [(torch.float64, [2.0])]
    assert first["a"].tolist() == [1.0]


def test_a_mapping_of_another_class_stays_one() -> None:
    """Such as what a tokenizer returns, whose parts are attributes, too."""

    class Batch(UserDict[str, "torch.Tensor"]):
        @property
        def ids(self) -> "torch.Tensor":
            return self["ids"]

    assert of(right_of(lambda batch: 2 * batch.ids, (Batch(ids=torch.ones(1)),))) == [(torch.float64, [2.0])]
