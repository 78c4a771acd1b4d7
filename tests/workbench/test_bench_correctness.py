"""Variants that are wrong in some way, on the CPU: each is found, and gets no verdict on its speed."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from opscope.documents.bench import Correct, Correctness  # noqa: E402
from opscope.measuring.rounds import MeasuringLimits  # noqa: E402
from opscope.workbench.benchmarking.case import Case  # noqa: E402
from opscope.workbench.benchmarking.correctness import check_variants  # noqa: E402
from opscope.workbench.benchmarking.run import bench_case  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def inputs(size: int = 64) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(size, size), torch.randn(size, size) / size**0.5


def right(a: Any, b: Any) -> Any:
    return a @ b


def judged(variant: Callable[..., Any], *, baseline: Callable[..., Any] | None = None, **more: Any) -> Correctness:
    case = Case("case", {"baseline": baseline or right, "variant": variant}, inputs, **more)
    return check_variants(case, case.make_inputs(CPU, {}), case.make_inputs(CPU, {"size": 61}))["variant"]


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
        (lambda a, b: torch.zeros(a.shape[0], b.shape[1]), "off in one or more elements"),
        (lambda a, b: right(a, b) * 1.01, "relative error 1.0e-02"),
        (lambda a, b: right(a, b)[:-1], "returns the shape (63, 64), not (64, 64)"),
        (lambda a, b: (right(a, b), a), "returns 2 tensors, not 1"),
        (lambda a, b: right(a, b).long(), "where floating-point numbers are right"),
        (lambda a, b: None, "returns 0 tensors, not 1"),
        (lambda a, b: right(a, b).clamp(-50, 50), "inputs: large"),
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


@pytest.mark.parametrize(
    ("baseline", "variant", "sentence"),
    [
        (
            lambda a, b: right(a, b) > 0,
            lambda a, b: (right(a, b) > 0).long(),
            "returns int64, where booleans are right",
        ),
        (lambda a, b: right(a, b) > 0, lambda a, b: right(a, b) > 0, None),
        (torch.complex, lambda a, b: torch.complex(a, b).real, "where complex numbers are right"),
        (torch.complex, torch.complex, None),
        # Ten times what float16 holds, and the same cut off at its largest number.
        (lambda a, b: (a.half() + 1) * 6e5, lambda a, b: ((a.half() + 1) * 6e5).clamp(-65_504, 65_504), "is infinite"),
    ],
)
def test_kinds_of_numbers_and_overflow(
    baseline: Callable[..., Any], variant: Callable[..., Any], sentence: str | None
) -> None:
    found = judged(variant, baseline=baseline)
    if sentence is None:
        assert found.verdict is Correct.RIGHT
    else:
        assert found.verdict is Correct.WRONG
        assert sentence in found.sentence


def test_a_variant_in_float64_is_as_right_as_a_reference_that_takes_float32_alone() -> None:
    weight = torch.ones(64, 64)

    def only_float(a: Any, b: Any) -> Any:
        return torch.softmax(a @ weight[: a.shape[1]] + b[0], -1)

    found = judged(
        lambda a, b: torch.softmax(a.double() @ weight[: a.shape[1]].double() + b[0].double(), -1),
        baseline=only_float,
    )
    assert found.verdict is Correct.RIGHT, found.sentence


def test_parts_of_a_dictionary_are_compared_by_their_keys() -> None:
    def baseline(a: Any, b: Any) -> Any:
        return {"sum": a + 1, "product": a * 2}

    assert judged(lambda a, b: {"product": a * 2, "sum": a + 1}, baseline=baseline).verdict is Correct.RIGHT
    assert judged(lambda a, b: {"product": a + 1, "sum": a * 2}, baseline=baseline).verdict is Correct.WRONG


def test_where_nothing_was_compared_nothing_is_right() -> None:
    found = judged(lambda a, b: (a * 3)[:0], baseline=lambda a, b: (a * 2)[:0])
    assert found.verdict is Correct.NOT_CHECKED
    assert found.sentence.startswith("nothing was compared: its results hold no finite numbers")


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


def of(variants: dict[str, Callable[..., Any]], *values: Any) -> dict[str, Correct]:
    case = Case("case", variants, lambda: values)
    return {name: found.verdict for name, found in check_variants(case, values, None).items()}


def test_what_does_not_take_float64_is_held_beside_itself() -> None:
    layer = torch.nn.Linear(64, 32)
    x = torch.randn(16, 64)
    case = Case("case", {"layer": layer, "zeros": lambda x: torch.zeros(16, 32)}, lambda: x)
    found = check_variants(case, (x,), None)
    assert found["layer"].verdict is Correct.RIGHT
    assert found["zeros"].verdict is Correct.WRONG
    assert found["layer"].reference is not None
    assert "does not take float64" in found["layer"].reference


def test_what_cannot_be_compared_is_not_checked() -> None:
    x = torch.ones(1_000)
    assert of({"a": torch.nn.functional.dropout, "b": lambda x: x * 0}, x) == dict.fromkeys("ab", Correct.NOT_CHECKED)
    assert of({"a": lambda x: None, "b": lambda x: x}, x) == dict.fromkeys("ab", Correct.NOT_CHECKED)


def test_kinds_of_results() -> None:
    x, right = torch.randn(64, 64), dict.fromkeys("ab", Correct.RIGHT)
    assert of({"a": torch.fft.fft, "b": lambda x: torch.fft.fft(x * 2) / 2}, x) == right
    assert of({"a": torch.fft.fft, "b": lambda x: torch.fft.fft(x).conj()}, x)["b"] is Correct.WRONG
    top = {"a": lambda x: x.topk(5), "b": lambda x: tuple(v[..., :5] for v in x.sort(descending=True))}
    assert of(top, x) == right
    assert of({"a": lambda x: {"y": x.argmax(-1)}, "b": lambda x: {"y": x.argmin(-1)}}, x)["b"] is Correct.WRONG
    assert of({"a": lambda x: x.sum().item(), "b": lambda x: float(x.sum())}, x) == right
    assert of({"a": lambda x: x * 2, "b": lambda x: (x * 2).to_sparse()}, x) == right
    assert of({"a": lambda x: x + 1, "b": lambda x: 1 + x}, x[:1].expand(64, 64)) == right


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_right_ones_are_right_at_every_precision(dtype: Any) -> None:
    x = torch.randn(128, 128).to(dtype)
    right = dict.fromkeys("abc", Correct.RIGHT)
    assert of({"a": torch.square, "b": lambda x: x * x, "c": lambda x: x**2}, x) == right
    in_double = lambda x: (x.double() @ x.double()).to(dtype)  # noqa: E731
    assert of({"a": lambda x: x @ x, "b": lambda x: torch.mm(x, x), "c": in_double}, x) == right
    assert of({"a": lambda x: x.softmax(-1), "b": lambda x: torch.softmax(x, 1), "c": torch.nn.Softmax(1)}, x) == right


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_few_elements_that_were_left_out_are_found(dtype: Any) -> None:
    def most_of_it(x: Any) -> Any:
        y = x + 1
        y.view(-1)[-64:] = 0
        return y

    assert of({"a": lambda x: x + 1, "b": most_of_it}, torch.randn(1 << 20).to(dtype))["b"] is Correct.WRONG


def test_each_result_is_held_to_its_own_precision() -> None:
    x = torch.randn(256, 256)
    variants = {"a": lambda x: (x.bfloat16(), x * 3), "b": lambda x: (x.bfloat16(), x * 3.02)}
    assert of(variants, x)["b"] is Correct.WRONG


def test_a_wrong_baseline_makes_nothing_else_right() -> None:
    x = torch.randn(256)
    case = Case("case", {"a": lambda x: x * 1.5, "b": lambda x: x * 1.6, "c": lambda x: x}, lambda: x, lambda x: x)
    found = {name: one.verdict for name, one in check_variants(case, (x,), None).items()}
    assert found == {"a": Correct.WRONG, "b": Correct.WRONG, "c": Correct.RIGHT}
    assert set(check_variants(case, (x,), None, only=("c",))) == {"c"}


def test_a_kept_result_is_doubted() -> None:
    results: dict[int, Any] = {}

    def kept(x: Any) -> Any:
        if results.get("version") != (x.data_ptr(), x._version):
            results["version"], results["result"] = (x.data_ptr(), x._version), x.exp()
        return results["result"]

    case = Case("case", {"a": torch.exp, "b": kept}, lambda: torch.randn(4096))
    _, found = bench_case(case, {}, CPU, MeasuringLimits(seconds=0.02), lambda _: None)
    assert found.correctness is not None
    assert found.correctness.verdict is Correct.WRONG or "a result that was kept?" in found.doubts[-1]


def test_a_benchmark_on_the_cpu_measures_wall_and_issue_and_says_so_of_the_rest() -> None:
    case = Case("case", {"baseline": right, "wrong": lambda a, b: a}, inputs)
    baseline, wrong = bench_case(case, {}, CPU, MeasuringLimits(seconds=0.05), lambda _: None)
    assert baseline.wall_ns is not None
    assert baseline.issue_ns is not None
    assert baseline.wall_ns.n == len(baseline.wall_ns.samples) >= 16
    assert baseline.kernel_ns is None
    assert baseline.reasons["kernel_ns"] == "not measured: the device is not a GPU"
    assert wrong.wall_ns is None
    assert wrong.reasons["wall_ns"] == "not measured: its result is wrong"


def test_a_baseline_that_tf32_does_not_change_is_not_timed_at_tf32() -> None:
    def product(a: Any, b: Any) -> Any:  # as one that sets its own precision
        return a @ b

    case = Case("case", {"baseline": product, "rough": lambda a, b: product(a, b) * (1 + 3e-4)}, inputs)
    found = bench_case(case, {}, CPU, MeasuringLimits(seconds=0.05), lambda _: None)
    assert [one.name for one in found] == ["baseline", "rough"]
    assert found[1].correctness is not None
    assert found[1].correctness.precision == "tf32"


# ---------------------------------------------------------------- what a lower precision can explain


def test_an_error_like_that_of_a_lower_precision_is_wrong_where_nothing_is_computed_in_one() -> None:
    x = torch.randn(256)
    case = Case("t", {"twice": lambda x: x * 2, "nearly": lambda x: x * 2.001}, lambda: (x,), None)
    found = check_variants(case, (x,), None)["nearly"]
    assert found.verdict is Correct.WRONG
    assert "nothing that it computes is done in a lower precision" in found.sentence


def test_of_a_product_the_same_error_is_a_lower_precision() -> None:
    x, y = torch.randn(64, 64), torch.randn(64, 64)

    def rounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Multiply what has ten bits behind the point, as TF32 does."""
        bits = [(value.view(torch.int32) & ~0x1FFF).view(torch.float32) for value in (x, y)]
        return bits[0] @ bits[1] if x.dtype is torch.float32 else x @ y

    case = Case("t", {"product": torch.mm, "rounded": rounded}, lambda: (x, y), None)
    found = check_variants(case, (x, y), None)["rounded"]
    assert (found.verdict, found.precision) == (Correct.LOWER_PRECISION, "tf32")


def test_the_error_that_is_shown_is_that_of_the_inputs_that_decided() -> None:
    from opscope.documents.bench import BenchResult, RegimeError
    from opscope.report.bench_document import _right

    x = torch.randn(256)

    def wrong_for_small(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs().max() < 1e-2, x * 2.1, x * 2)

    case = Case("t", {"twice": lambda x: x * 2, "other": wrong_for_small}, lambda: (x,), None)
    found = check_variants(case, (x,), None)["other"]
    assert (found.verdict, found.worst) == (Correct.WRONG, "tiny")
    assert next(error for error in found.errors if error.regime == "as given").error == 0.0
    far = RegimeError(regime="tiny", error=5e-2)
    others = (RegimeError(regime="as given", error=3e-1), far)
    shown = replace(found, errors=others)
    assert _right(BenchResult(name="other", case="t", correctness=shown)) == "wrong, error 5e-02"
