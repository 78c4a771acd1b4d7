"""Variants that are wrong in some way, on the CPU: each is found, and gets no verdict on its speed."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.case import Case  # noqa: E402
from opscope.benchmarking.correctness import check  # noqa: E402
from opscope.benchmarking.run import bench_case  # noqa: E402
from opscope.benchmarking.stopping import Limits  # noqa: E402
from opscope.documents.bench import Correct, Correctness  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def inputs(size: int = 64) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(size, size), torch.randn(size, size) / size**0.5


def right(a: Any, b: Any) -> Any:
    return a @ b


def judged(variant: Callable[..., Any], **more: Any) -> Correctness:
    case = Case("case", {"baseline": right, "variant": variant}, inputs, **more)
    return check(case, case.make_inputs(CPU, {}), case.make_inputs(CPU, {"size": 61}))["variant"]


kept: list[Any] = []


def keeps(a: Any, b: Any) -> Any:
    if not kept or kept[0].shape != a.shape or kept[0].stride() != a.stride() or kept[2] != a.data_ptr():
        kept[:] = [a.clone(), right(a, b), a.data_ptr()]
    return kept[1].clone()


def mutates(a: Any, b: Any) -> Any:
    result = right(a, b)
    a.add_(1)
    return result


def partly(a: Any, b: Any) -> Any:
    result = torch.empty(a.shape[0], b.shape[1])
    result[:-1] = right(a, b)[:-1]
    return result


def raises(a: Any, b: Any) -> Any:
    raise ValueError("no such thing")


def only_even(a: Any, b: Any) -> Any:
    return right(a, b) if a.shape[0] % 2 == 0 else torch.zeros(a.shape[0], b.shape[1])


def ignores_strides(a: Any, b: Any) -> Any:
    whole = torch.as_strided(a, a.shape, (a.shape[1], 1))
    return right(whole, b)


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        (lambda a, b: torch.zeros(a.shape[0], b.shape[1]), "relative error 1.0e+00"),
        (lambda a, b: right(a, b) * 1.01, "relative error 1.0e-02"),
        (lambda a, b: right(a, b)[:-1], "returns the shape (63, 64), not (64, 64)"),
        (lambda a, b: (right(a, b), a), "returns 2 tensors, not 1"),
        (lambda a, b: right(a, b).long(), "not a floating-point type"),
        (lambda a, b: None, "returns 0 tensors, not 1"),
        (lambda a, b: right(a, b).clamp(-3, 3), "inputs: large"),
        (mutates, "changes its input number 1"),
        (keeps, "returns the same result for other values"),
        (raises, "raises ValueError: no such thing"),
        (only_even, "inputs: odd size"),
        (ignores_strides, "inputs: strided"),
    ],
)
def test_a_wrong_variant_is_found(variant: Callable[..., Any], sentence: str) -> None:
    found = judged(variant)
    assert found.verdict is Correct.WRONG
    assert sentence in found.sentence


def test_a_result_that_is_not_written_whole_is_found() -> None:
    assert judged(partly).verdict is Correct.WRONG


def test_right_variants_are_right() -> None:
    assert judged(lambda a, b: torch.einsum("ik,kj->ij", a, b)).verdict is Correct.RIGHT
    found = judged(right)
    assert found.verdict is Correct.RIGHT
    assert {error.regime for error in found.errors} >= {"as given", "large", "tiny", "zeros", "strided", "odd size"}
    assert all(error.error is None or error.error < 1e-5 for error in found.errors)


def test_lower_precision_is_named() -> None:
    found = judged(lambda a, b: a.bfloat16() @ b.bfloat16())
    assert found.verdict is Correct.LOWER_PRECISION
    assert found.precision == "bfloat16"
    assert "it returns bfloat16, the baseline float32" in found.sentence
    half = judged(lambda a, b: (a.half() @ b.half()).float())  # of large inputs it is infinite
    assert half.verdict is Correct.WRONG
    like = judged(lambda a, b: right(a, b) * (1 + 3e-4))
    assert like.verdict is Correct.LOWER_PRECISION
    assert "TF32-like error in a float32 variant" in like.sentence


def test_without_a_float64_reference_nothing_is_said() -> None:
    case = Case("case", {"one": lambda x: x.float() + 1, "two": lambda x: x.float() + 2}, lambda: torch.ones(4))
    found = check(case, case.make_inputs(CPU, {}), None)
    assert {checked.verdict for checked in found.values()} == {Correct.NOT_CHECKED}


def test_a_benchmark_on_the_cpu_measures_wall_and_issue_and_says_so_of_the_rest() -> None:
    case = Case("case", {"baseline": right, "wrong": lambda a, b: a}, inputs)
    baseline, wrong = bench_case(case, {}, CPU, Limits(seconds=0.05), lambda _: None)
    assert baseline.wall_ns is not None
    assert baseline.issue_ns is not None
    assert baseline.wall_ns.n == len(baseline.wall_ns.samples) >= 16
    assert baseline.kernel_ns is None
    assert baseline.reasons["kernel_ns"] == "not measured: the device is not a GPU"
    assert wrong.wall_ns is None
    assert wrong.reasons["wall_ns"] == "not measured: its result is wrong"
