"""Tricks of public benchmarks' issues, each as a variant beside honest ones: none is accepted, and none costs others.

On the CPU, in one process; `test_bench_command.py` has those that end the process.
"""

import builtins
import functools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402

from opscope.documents.bench import BenchResult, Correct  # noqa: E402
from opscope.measuring import clock, judge, rounds  # noqa: E402
from opscope.measuring.rounds import MeasuringLimits  # noqa: E402
from opscope.workbench.benchmarking import correctness, host_timing, run, steady  # noqa: E402
from opscope.workbench.benchmarking.case import Case, TimedInputs  # noqa: E402
from opscope.workbench.benchmarking.correctness import check_timed, check_variants  # noqa: E402
from opscope.workbench.benchmarking.instruments import Instruments  # noqa: E402
from opscope.workbench.benchmarking.run import bench_case  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
CPU = torch.device("cpu")
Variant = Callable[[Any], Any]
LIMITS = MeasuringLimits(seconds=0.01, calls=16)


def product(x: Any) -> Any:
    return x @ x


def inputs(size: int = 48) -> Any:
    torch.manual_seed(1)
    return torch.randn(size, size)


def measured(variants: dict[str, Variant]) -> dict[str, BenchResult]:
    case = Case("case", {"baseline": product, "same": lambda x: torch.mm(x, x)} | variants, inputs)
    return {one.name: one for one in bench_case(case, {}, CPU, LIMITS, lambda _: None)}


def is_accepted(result: BenchResult) -> bool:
    found = result.correctness
    return found is not None and found.verdict is Correct.RIGHT and not result.doubts and result.wall_ns is not None


# ---------------------------------------------------------------- what durations and results are judged by


def replacing(owner: Any, name: str, value: Any) -> Variant:
    def variant(x: Any) -> Any:
        setattr(owner, name, value)
        return x @ x

    return variant


class Lying(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def with_a_mode(x: Any) -> Any:
    Lying().__enter__()
    return x @ x


def traced(x: Any) -> Any:
    sys.settrace(lambda *_: None)
    return x @ x


def other_code(x: Any) -> Any:
    def time_once(call: Any, device: Any, *, waits: bool = True) -> int:
        return 1

    clock.time_once.__code__ = time_once.__code__
    return x @ x


def looser(x: Any) -> Any:
    correctness.TOLERANCE[torch.float32] = 100.0
    return x @ x


def only_later(owner: Any, name: str, value: Any, after: int) -> Variant:
    count = [0]

    def variant(x: Any) -> Any:
        count[0] += 1
        if count[0] > after:
            setattr(owner, name, value)
        return x @ x

    return variant


def zero(*_: Any, **__: Any) -> int:
    return 0


def true(*_: Any, **__: Any) -> bool:
    return True


REPLACED: dict[str, tuple[Variant, str]] = {
    "clock in ns": (replacing(time, "perf_counter_ns", zero), "time.perf_counter_ns"),
    "clock": (replacing(time, "perf_counter", zero), "time.perf_counter"),
    "clock of the process": (replacing(time, "process_time_ns", zero), "time.process_time_ns"),
    "bound clock": (replacing(clock, "perf_counter_ns", zero), "clock.perf_counter_ns"),
    "clock of the rounds": (replacing(rounds, "perf_counter", zero), "rounds.perf_counter"),
    "one call": (replacing(host_timing, "time_once", lambda *_, **__: 1), "host_timing.time_once"),
    "code of one call": (other_code, "clock.time_once"),
    "steady time": (replacing(steady, "_once", lambda *_, **__: (1, 0)), "steady._once"),
    "synchronize": (replacing(torch.cuda, "synchronize", zero), "torch.cuda.synchronize"),
    "event": (replacing(torch.cuda, "Event", zero), "torch.cuda.Event"),
    "elapsed time": (replacing(torch.cuda.Event, "elapsed_time", zero), "torch.cuda.Event.elapsed_time"),
    "turns": (replacing(run, "in_turns", zero), "run.in_turns"),
    "medians": (replacing(rounds, "duration_of", zero), "rounds.duration_of"),
    "equal": (replacing(torch, "equal", true), "torch.equal"),
    "error": (replacing(correctness, "compared", lambda *_: judge.Compared(0.0)), "correctness.compared"),
    "error of elements": (replacing(judge, "_of_finite", lambda *_: judge.Compared(0.0)), "judge._of_finite"),
    "norm": (replacing(torch.Tensor, "norm", lambda *_: torch.zeros(())), "torch.Tensor.norm"),
    "tolerance": (looser, "TOLERANCE"),
    "regimes": (replacing(correctness, "_REGIMES", ()), "correctness._REGIMES"),
    "all": (replacing(builtins, "all", true), "builtins.all"),
    "orders": (replacing(random.Random, "shuffle", zero), "random.Random.shuffle"),
    "mode": (with_a_mode, "a mode that was left on"),
    "trace": (traced, "trace function"),
    "once it is timed": (only_later(time, "perf_counter_ns", zero, 10), "time.perf_counter_ns"),
}


@pytest.fixture(autouse=True)
def everything_as_it_was() -> Iterator[None]:
    """Whatever a variant does, nothing is left replaced."""
    instruments = Instruments()
    yield
    assert instruments.mended() is None


def test_what_replaces_clocks_or_comparisons_is_refused_by_name_and_costs_no_other_its_result() -> None:
    found = measured({name: variant for name, (variant, _) in REPLACED.items()})
    for name, (_, replaced) in REPLACED.items():
        checked = found[name].correctness
        assert checked is not None
        assert checked.verdict is Correct.WRONG, name
        assert replaced in checked.sentence, (name, checked.sentence)
        assert found[name].wall_ns is None
    assert is_accepted(found["baseline"])
    assert is_accepted(found["same"])


# ---------------------------------------------------------------- results that were kept, or are not there yet


def kept_by(key: Callable[[Any], Any], show: Variant = lambda kept: kept) -> Variant:
    kept: dict[Any, Any] = {}

    def variant(x: Any) -> Any:
        found = (tuple(x.shape), x.stride(), x.dtype, key(x))
        if found not in kept:
            kept[found] = x @ x
        return show(kept[found])

    return variant


def kept_after(calls: int) -> Variant:
    state: dict[str, Any] = {"count": 0}

    def variant(x: Any) -> Any:
        state["count"] += 1
        if state["count"] < calls or x.shape != (48, 48):
            state["result"] = x @ x
        return state["result"].clone()

    return variant


def every_other_call() -> Variant:
    buffers: dict[Any, Any] = {}
    count = [0]

    def variant(x: Any) -> Any:
        count[0] += 1
        if count[0] % 2 or x.shape not in buffers:
            buffers[x.shape] = x @ x
        return buffers[x.shape]

    return variant


def one_call_late() -> Variant:
    buffers: dict[Any, Any] = {}

    def variant(x: Any) -> Any:
        before = buffers.get(x.shape)
        buffers[x.shape] = x @ x
        return buffers[x.shape] if before is None else before

    return variant


class Lazy(torch.Tensor):  # type: ignore[misc]
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            args = [
                one.as_subclass(torch.Tensor) @ one.as_subclass(torch.Tensor) if type(one) is cls else one
                for one in args
            ]
            return func(*args, **(kwargs or {}))


class LazyList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([one @ one for one in super().__iter__()])


class LazyTuple(tuple[Any, ...]):
    def __iter__(self) -> Iterator[Any]:
        return iter([one @ one for one in super().__iter__()])


class LazyDict(dict[str, Any]):
    def values(self) -> Any:
        return [one @ one for one in super().values()]


def by_a_thread(wait_s: float) -> Variant:
    def variant(x: Any) -> Any:
        result = torch.full_like(x, float("nan"))

        def work() -> None:
            time.sleep(wait_s)
            torch.mm(x, x, out=result)

        threading.Thread(target=work).start()
        return result

    return variant


def some_in(dtype: Any) -> Variant:
    return lambda x: (x.to(dtype) @ x.to(dtype)).to(x.dtype)


def in_steps(x: Any) -> Any:
    scale = x.abs().max() / 127
    rounded = (x / scale).round() if float(scale) else x
    return (rounded @ rounded) * scale * scale


def changes_its_input(x: Any) -> Any:
    result = x @ x
    x.zero_()
    return result


def half(x: Any) -> Any:
    result = torch.empty_like(x)
    rows = x.shape[0] // 2
    result[:rows] = x[:rows] @ x
    return result


OTHER: dict[str, Variant] = {
    "by pointer": kept_by(lambda x: x.data_ptr()),
    "a copy by pointer": kept_by(lambda x: x.data_ptr(), lambda kept: kept.clone()),
    "by pointer, and some work": kept_by(lambda x: x.data_ptr(), lambda kept: kept * 1),
    "by identity": kept_by(id),
    "by shape": kept_by(lambda _: 0),
    "by the first element": kept_by(lambda x: float(x[0, 0])),
    "by the last element and the pointer": kept_by(lambda x: (float(x[-1, -1]), x.data_ptr())),
    "after 100 calls": kept_after(100),
    "after 25 calls": kept_after(25),
    "every other call": every_other_call(),
    "one call late": one_call_late(),
    "lazy tensor": lambda x: x.as_subclass(Lazy),
    "lazy list": lambda x: LazyList([x]),
    "lazy tuple": lambda x: LazyTuple([x]),
    "lazy dictionary": lambda x: LazyDict(x=x),
    "a thread": by_a_thread(0.05),
    "a slow thread": by_a_thread(0.2),
    "bfloat16 within": some_in(torch.bfloat16),
    "float16 within": some_in(torch.float16),
    "eight bits within": in_steps,
    "changes its input": changes_its_input,
    "half of it": half,
    "nothing": torch.empty_like,
    "zeros": torch.zeros_like,
    "its input": lambda x: x,
}


def test_no_result_is_accepted_that_was_kept_or_comes_later_or_is_less() -> None:
    found = measured(OTHER)
    assert [name for name in OTHER if is_accepted(found[name])] == []
    assert is_accepted(found["baseline"])
    assert is_accepted(found["same"])


def test_what_is_kept_by_address_and_version_is_computed_in_every_timed_call() -> None:
    computed = [0]

    def counted(x: Any) -> Any:
        computed[0] += 1
        return x @ x

    kept: dict[Any, Any] = {}

    def variant(x: Any) -> Any:
        key = (x.data_ptr(), x._version)
        if key not in kept:
            kept.clear()
            kept[key] = counted(x)
        return kept[key] * 1

    result = measured({"variant": variant})["variant"]
    assert result.wall_ns is None or computed[0] >= result.wall_ns.n


def test_settings_that_a_variant_leaves_are_put_back() -> None:
    def leaves(x: Any) -> Any:
        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(1)
        return x @ x

    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    assert is_accepted(measured({"leaves": leaves})["same"])
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before


def test_tensors_of_the_user_are_as_they_were_also_where_a_benchmark_is_interrupted() -> None:
    x, count = inputs(), [0]

    def interrupted(x: Any) -> Any:
        count[0] += 1
        if count[0] > 40:
            raise KeyboardInterrupt
        return x @ x

    case = Case("case", {"baseline": product, "interrupted": interrupted}, lambda: x)
    with pytest.raises(KeyboardInterrupt):
        bench_case(case, {}, CPU, LIMITS, lambda _: None)
    assert torch.equal(x, inputs())


# ---------------------------------------------------------------- honest ones


def into_a_buffer(function: Variant) -> Variant:
    buffers: dict[Any, Any] = {}

    def variant(x: Any) -> Any:
        result = function(x)
        key = (result.shape, result.dtype)
        if key not in buffers:
            buffers[key] = torch.empty_like(result)
        return buffers[key].copy_(result)

    return variant


def joined(function: Variant) -> Variant:
    def variant(x: Any) -> Any:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(function(x)))
        thread.start()
        thread.join()
        return results[0]

    return variant


class Wrapped(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Variant) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


HONEST: tuple[Variant, ...] = (
    *(torch.relu, torch.exp, torch.sigmoid, torch.tanh, torch.square, torch.abs, torch.neg, torch.sin),
    *(torch.nn.functional.gelu, torch.nn.functional.silu, torch.nn.functional.softplus),
    *(lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: x.cumsum(-1), lambda x: x.abs().sqrt()),
    *(lambda x: x.sum(-1), lambda x: x.mean(-1), lambda x: x.amax(-1), lambda x: x * 2 + 1),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
)
WAYS: dict[str, Callable[[Variant], Variant]] = {
    "itself": lambda function: function,
    "of a copy": lambda function: lambda x: function(x.clone()),
    "contiguous": lambda function: lambda x: function(x.contiguous()),
    "by halves": lambda function: lambda x: torch.cat([function(part) for part in x.chunk(2)]),
    "in double": lambda function: lambda x: function(x.double()).to(x.dtype),
    "into a buffer": into_a_buffer,
    "joined thread": joined,
    "module": Wrapped,
    "partial": lambda function: functools.partial(lambda f, x: f(x), function),
    "without gradients": torch.no_grad(),
}


@pytest.mark.parametrize("function", HONEST)
def test_no_honest_one_is_refused(function: Variant) -> None:
    variants = {name: way(function) for name, way in WAYS.items()}
    case = Case("case", variants, inputs)
    given = (inputs(),)
    found = check_variants(case, given, (inputs(31),))
    assert {name for name, one in found.items() if one.verdict is not Correct.RIGHT} == set()
    changes = TimedInputs(given)
    calls = {name: functools.partial(variant, *given) for name, variant in variants.items()}
    for _ in range(4):
        changes.nudge()
        assert check_timed(case, given, calls, changes, lambda _: None) == {}
    changes.restore()
    assert torch.equal(given[0], inputs())
