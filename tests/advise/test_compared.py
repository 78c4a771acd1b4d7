"""Whether a proof compares all that a step computes, whatever holds it; and says so where it cannot."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace

from opscope.advise.changes.compiling import compiled_frames
from opscope.advise.changes.listed import BY_NAME
from opscope.advise.comparing import Comparing
from opscope.advise.loaders import Loaders
from opscope.advise.messages import VariantJob, VariantRecording
from opscope.advise.proof import Judgement, judged
from opscope.advise.recording import keep_weights, record, take_weights
from opscope.advise.routine import whole_step
from opscope.advise.session import Session, Worker
from opscope.advise.simulated import compute_in_float64
from opscope.advise.variant import Variant, prepare
from opscope.advise.variants import FunctionVariant
from opscope.record.configuration import Configuration
from opscope.torch_support.tensors import parts_of
from tests.budget import chance, examples

CPU = torch.device("cpu")


def recorded(file: Path, function: str, change: Callable[[Variant], None] = lambda _: None) -> VariantRecording:
    variant = FunctionVariant(Configuration(target=f"{file}:{function}"), CPU, Loaders())
    variant.drive(variant.observe())
    prepare(variant)
    change(variant)
    return variant.drive(record(variant))


def compared(file: Path, function: str, change: Callable[[Variant], None], simulated: str | None = None) -> Judgement:
    written, reference = recorded(file, function), recorded(file, function, compute_in_float64)
    explains = []
    if simulated is not None:
        explains = [recorded(file, function, lambda variant: compute_in_float64(variant, [simulated]))]
    return judged(recorded(file, function, change), written, reference, explains, "it")


def outputs_of(wrong: Callable[[Any], Any]) -> Callable[[Variant], None]:
    """Plant a mistake in what modules return."""
    return lambda variant: variant.wrap(lambda call: lambda *args, **kwargs: wrong(call(*args, **kwargs)))


TARGETS = """
import dataclasses
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.functional import dropout as imported_dropout
from torch.nn.functional import scaled_dot_product_attention

@dataclasses.dataclass
class Result:
    values: object

class Plain:
    def __init__(self, values):
        self.values = values

class Net(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear, self.make = torch.nn.Linear(16, 16), make

    def forward(self, x):
        return self.make(self, self.linear(x))

def _of(make):
    torch.manual_seed(0)
    model, x = Net(make), torch.randn(8, 16)

    def step():
        with torch.no_grad():
            return model(x)

    return step

def dataclass(): return _of(lambda _, h: Result(h))
def plain_object(): return _of(lambda _, h: Plain([h, {"also": h.sum(0)}]))
def array(): return _of(lambda _, h: h.to(torch.float32 if h.dtype == torch.bfloat16 else h.dtype).numpy())
def not_finite(): return _of(lambda _, h: h / 0 * 0)
def generator(): return _of(lambda _, h: (row for row in h))
def one_not_finite(): return _of(lambda _, h: (h, h.sum() / 0 - h.sum() / 0))
def small_beside_large(): return _of(lambda _, h: (1e6 * h, h[0].sin()))
def text(): return _of(lambda _, h: {"name": "a", "values": h})
def none(): return _of(lambda _, h: None)
def infinite_places(): return _of(lambda _, h: h.masked_fill(h < 0, float("-inf")))

def changed_in_place():
    torch.manual_seed(0)
    model, x, state = torch.nn.Linear(16, 16), torch.randn(8, 16), torch.zeros(8, 16)

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = model

        def forward(self, x, state):
            state.mul_(0.9).add_(self.linear(x).tanh())
            return x.sum()

    recurrent = Recurrent()

    def step():
        with torch.no_grad():
            return recurrent(x, state)

    return step

def held_by_the_step():
    torch.manual_seed(0)
    model, x, total = torch.nn.Linear(16, 16), torch.randn(8, 16), torch.zeros(16)

    def step():
        with torch.no_grad():
            total.add_(model(x).sum(0))

    return step

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.teardrop = torch.nn.Linear(16, 16), 1.0

    def forward(self, x):
        return self.linear(x) * self.teardrop

def teardrop():
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(8, 16)
    return model, x

class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.p = torch.nn.Linear(16, 16), 0.3
        self.kept_name, self.recurrent = F.dropout, torch.nn.LSTM(16, 16, 2, dropout=0.5)

    def forward(self, x):
        x = F.dropout(self.linear(x), self.p, self.training)
        x = imported_dropout(x, p=self.p)
        x = self.kept_name(x, self.p)
        x = torch.dropout(x, 0.2, True)
        x = self.recurrent(x[None])[0]
        return scaled_dot_product_attention(x, x, x, dropout_p=self.p)

def dropping():
    torch.manual_seed(0)
    model, x = Dropping(), torch.randn(8, 16)

    def step():
        return model(x).sum().detach()

    return step

class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 16, dtype=torch.complex64))

    def forward(self, x):
        return torch.view_as_real(x.to(self.weight.dtype) @ self.weight)

def complex_weights():
    torch.manual_seed(0)
    model, x = Complex(), torch.randn(8, 16, dtype=torch.complex64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

def sparse_gradients():
    torch.manual_seed(0)
    embedding, tokens = torch.nn.Embedding(50, 8, sparse=True), torch.randint(0, 50, (32,))
    optimizer = torch.optim.SGD(embedding.parameters(), 1e-2)

    def step():
        optimizer.zero_grad()
        loss = embedding(tokens).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)

    def forward(self, x, cache):
        h = self.norm(self.linear(x))
        cache["k"] = 0.5 * cache["k"] + h if "k" in cache else h
        return h + 0.05 * cache["k"]

def keeps_in_a_dictionary():
    torch.manual_seed(0)
    model, x, cache = Normalised(), torch.randn(8, 16), {}

    def step():
        with torch.no_grad():
            return model(x, cache)

    return step

def twice_the_same_list():
    torch.manual_seed(0)
    x = [torch.randn(8, 16)]

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, one, other):
            return self.linear(one[0]) + other[0]

    model = Two()
    return model, (x, x)

def without_an_optimizer():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 16), torch.randn(8, 16, requires_grad=True)

    def step():
        model.zero_grad()
        x.grad = None
        model(x).square().mean().backward()

    return step

def small_group():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16))
    x, alone = torch.randn(8, 16), torch.nn.Parameter(torch.ones(16))
    weights = [model[0].weight, model[2].weight]
    groups = [{"params": weights}, {"params": [model[1].bias], "lr": 1e-4}, {"params": [alone]}]
    optimizer = torch.optim.SGD(groups, 1e-3)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean() + alone.square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

def averaged():
    import copy
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 16), torch.randn(8, 16)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-1)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters()):
                mine.mul_(0.9).add_(other, alpha=0.1)
        return loss.detach()

    return step

class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.running, self.sums = torch.nn.Linear(16, 16), 0.0, np.zeros(16)

    def forward(self, x):
        h = self.linear(x)
        self.running = 0.9 * self.running + float(h.abs().mean())
        self.sums += h.sum(0).double().numpy()
        return h

def numbers():
    torch.manual_seed(0)
    model, x, history = Counting(), torch.randn(8, 16), []

    def step():
        with torch.no_grad():
            history.append(model(x).sum().item() + len(history))

    return step

def large():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 256), torch.randn(2_048, 16)

    def step():
        with torch.no_grad():
            return model(x)

    return step
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("compared") / "compared_target.py"
    source.write_text(TARGETS)
    return source


def in_place(value: Any, factor: float) -> Any:
    """Return a result with each tensor and array in it multiplied, whatever holds it."""
    for tensor in parts_of(value).tensors.values():
        tensor.mul_(factor)
    return value


@pytest.mark.parametrize(
    "function", ["dataclass", "plain_object", "array", "small_beside_large", "text", "infinite_places"]
)
def test_results_are_compared_whatever_holds_them(file: Path, function: str) -> None:
    right = compared(file, function, lambda _: None)
    assert right.right, right
    assert right.tensors >= 7  # four steps, and the module alone on other inputs
    assert right.elements > right.tensors
    for factor in (0.0, 1.01):
        wrong = compared(file, function, outputs_of(lambda value, factor=factor: in_place(value, factor)))
        assert wrong.right is False, wrong


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("not_finite", "is not finite in any step"),
        ("one_not_finite", "call 1[1] is not finite in any step"),
        ("generator", "builtins.generator"),
        ("none", "computes nothing that can be seen"),
    ],
)
def test_what_cannot_be_compared_is_not_decided(file: Path, function: str, reason: str) -> None:
    found = compared(file, function, lambda _: None)
    assert found.right is None
    assert found.reason.startswith("not decidable: ")
    assert reason in found.reason
    assert (found.tensors, found.elements) == (0, 0)


def test_values_that_are_not_finite_are_at_the_same_places(file: Path) -> None:
    elsewhere = compared(file, "infinite_places", outputs_of(lambda value: value.roll(1, 0)))
    assert elsewhere.right is False
    other_kind = outputs_of(lambda value: value.masked_fill(value.isinf(), float("inf")))
    assert compared(file, "infinite_places", other_kind).right is False


def test_an_error_of_a_small_result_is_not_lost_beside_a_large_one(file: Path) -> None:
    found = compared(file, "small_beside_large", outputs_of(lambda value: (value[0], value[1] * 1.0033)))
    assert found.right is False
    assert "call 1[1]" in found.reason
    assert 3.2e-3 < found.error < 3.4e-3
    assert found.own_error < 1e-6


def test_a_text_that_changes_is_named(file: Path) -> None:
    found = compared(file, "text", outputs_of(lambda value: {**value, "name": "b"}))
    assert found.right is None
    assert "['name'] is 'b', as written 'a'" in found.reason


@pytest.mark.parametrize("function", ["changed_in_place", "held_by_the_step"])
def test_what_a_step_changes_in_place_is_compared(file: Path, function: str) -> None:
    right = compared(file, function, lambda _: None)
    assert right.right, right
    assert right.error < 1e-5

    def without_writing(variant: Variant) -> None:
        variant.wrap(lambda call: lambda *args: call(*(one.clone() for one in args)) * 1.5)

    assert compared(file, function, without_writing).right is False


def test_weights_of_16_bits_lose_what_modules_write_into_their_arguments(file: Path) -> None:
    """The module gets a cast copy of the state, and the caller's own stays as it was."""
    assert compared(file, "changed_in_place", BY_NAME["weights_bf16"].apply, "weights_bf16").right is False


def test_attributes_are_no_dropout_for_their_name(file: Path) -> None:
    found = recorded(file, "teardrop")
    assert abs(found.steps[0].outputs["call 1"]).max() > 0.1
    assert compared(file, "teardrop", lambda _: None).right


def test_dropout_is_off_by_whatever_name_it_is_called(file: Path) -> None:
    one, other = (recorded(file, "dropping") for _ in range(2))
    first = one.steps[0].outputs["call 1"]
    assert all((step.outputs["call 1"] == first).all() for step in (*one.steps, *other.steps))  # seeds differ
    assert (first != 0).mean() > 0.99
    x = torch.ones(10_000)
    assert 0.4 < float((torch.nn.functional.dropout(x) == 0).float().mean()) < 0.6  # outside of steps it drops


@pytest.mark.parametrize("function", ["complex_weights", "sparse_gradients"])
def test_complex_and_sparse_gradients_are_compared(file: Path, function: str) -> None:
    right = compared(file, function, lambda _: None)
    assert right.right, right
    assert right.error < 1e-5

    def rate(variant: Variant) -> None:
        for group in variant.optimizers[0].param_groups:
            group["lr"] *= 1.5

    def scaled(variant: Variant) -> None:
        for top in variant.tops:
            for parameter in top.parameters():
                parameter.register_hook(lambda gradient: gradient * 1.01)

    assert compared(file, function, rate).right is False
    assert compared(file, function, scaled).right is False


def lose_the_cache(variant: Variant) -> None:
    variant.wrap(lambda call: lambda x, cache: call(x, dict(cache)))


def other_momentum(variant: Variant) -> None:
    variant.tops[0].norm.momentum = 0.5  # type: ignore[union-attr, assignment]


def twice_the_gradient(variant: Variant) -> None:
    for parameter in variant.tops[0].parameters():
        parameter.register_hook(lambda gradient: gradient * 2)


def thrice_the_gradient_of_the_input(variant: Variant) -> None:
    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(x: torch.Tensor) -> Any:
            other = x * 1.0
            if other.requires_grad:  # not where modules are called alone
                other.register_hook(lambda gradient: gradient * 3)
            return call(other)

        return calling

    variant.wrap(around)


def rate_of(group: int, factor: float) -> Callable[[Variant], None]:
    def change(variant: Variant) -> None:
        variant.optimizers[0].param_groups[group]["lr"] *= factor

    return change


def frozen_average(variant: Variant) -> None:
    def nothing(*_: object) -> None:
        with torch.no_grad():
            for parameter in variant.not_called[0].parameters():
                parameter.mul_(1.001)

    variant.optimizers[0].register_step_post_hook(nothing)


def other_number(variant: Variant) -> None:
    variant.tops[0].register_forward_hook(lambda module, *_: setattr(module, "running", 7.0))


def other_array(variant: Variant) -> None:
    variant.tops[0].register_forward_hook(lambda module, *_: module.sums.__imul__(1.01))


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("keeps_in_a_dictionary", lose_the_cache),
        ("keeps_in_a_dictionary", other_momentum),
        ("without_an_optimizer", twice_the_gradient),
        ("without_an_optimizer", thrice_the_gradient_of_the_input),
        ("small_group", rate_of(1, 0.0)),
        ("small_group", rate_of(1, -1.0)),
        ("small_group", rate_of(2, 5.0)),
        ("averaged", frozen_average),
        ("numbers", other_number),
        ("numbers", other_array),
        ("twice_the_same_list", outputs_of(lambda value: value * 1.01)),
    ],
)
def test_what_a_step_keeps_is_compared_wherever_it_is(
    file: Path, function: str, wrong: Callable[[Variant], None]
) -> None:
    right = compared(file, function, lambda _: None)
    assert right.right, right
    found = compared(file, function, wrong)
    assert found.right is False, found


def test_an_update_that_is_missing_is_no_matter_of_precision(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small tensor it would be lost in what simulated arithmetic explains of all parameters together."""
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # put back what the change puts there

    def change(factor: float) -> Callable[[Variant], None]:
        def both(variant: Variant) -> None:
            BY_NAME["autocast_bf16"].apply(variant)
            rate_of(1, factor)(variant)

        return both

    assert compared(file, "small_group", change(1.0), "autocast_bf16").right
    assert compared(file, "small_group", change(0.0), "autocast_bf16").right is False


def test_no_part_of_a_large_tensor_is_left_out(file: Path) -> None:
    """Of half a million elements one in eight is compared by itself; the others by norms of their blocks."""

    def one_row(value: torch.Tensor) -> torch.Tensor:
        value[777] = 0.0
        return value

    assert compared(file, "large", lambda _: None).right
    found = compared(file, "large", outputs_of(one_row))
    assert found.right is False
    assert found.error > 1e-3

    def in_bfloat16(variant: Variant) -> None:
        BY_NAME["weights_bf16"].apply(variant)
        outputs_of(one_row)(variant)

    assert compared(file, "large", BY_NAME["weights_bf16"].apply, "weights_bf16").right
    assert compared(file, "large", in_bfloat16, "weights_bf16").right is False


# ---------------------------------------------------------------- random structures

STRUCTURES = """
import dataclasses
from collections import OrderedDict, deque, namedtuple
import torch

SPEC = None
Pair = namedtuple("Pair", "first second")

@dataclasses.dataclass
class Held:
    first: object
    second: object = None

class Plain:
    def __init__(self, *values):
        self.a, self.b = values[0], list(values[1:])

class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, *values):
        self.__hidden, self.shown = values[0], tuple(values[1:])

HOLDERS = {
    "tuple": lambda *values: values,
    "list": lambda *values: list(values),
    "dict": lambda *values: {number: value for number, value in enumerate(values)},
    "ordered": lambda *values: OrderedDict((f"k{number}", value) for number, value in enumerate(values)),
    "deque": lambda *values: deque(values),
    "dataclass": lambda *values: Held(values[0], values[1:]),
    "named": lambda *values: Pair(values[0], values[1:]),
    "object": Plain,
    "slots": Slotted,
}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.wrong, self.factor, self.other_way = torch.nn.Linear(6, 5), None, 1.0, False
        self.kept = torch.zeros(8)

    def forward(self, x, state):
        self.place = 0
        h = x @ self.linear.weight.T + self.linear.bias if self.other_way else self.linear(x)
        state["s"].mul_(0.5).add_(self.leaf(h, "tensor").sum())
        self.kept = self.leaf(h, "tensor").sum(1)
        return self.build(SPEC, h)

    def build(self, spec, h):
        if isinstance(spec, str):
            return self.leaf(h, spec)
        holder, parts = spec
        return HOLDERS[holder](*(self.build(one, h) for one in parts))

    def leaf(self, h, kind):
        value = (h * (1 + 0.3 * self.place)).sin() + 0.1
        if self.place == self.wrong:
            value = value * self.factor
        self.place += 1
        return {
            "tensor": lambda: value,
            "row": lambda: value[0],
            "array": lambda: value.detach().numpy(),
            "element": lambda: value.detach().sum().numpy()[()],
            "number": lambda: float(value.sum()),
        }[kind]()

def made():
    torch.manual_seed(0)
    model, x, state = Net(), torch.randn(8, 6), {"s": torch.zeros(())}

    def step():
        with torch.no_grad():
            return model(x, state)

    return step
"""
LEAVES = ("tensor", "row", "array", "element", "number")
HOLDERS = ("tuple", "list", "dict", "ordered", "deque", "dataclass", "named", "object", "slots")


def drawn(draw: random.Random, depth: int = 0) -> Any:
    if depth == 3 or (depth and draw.random() < 0.5):
        return draw.choice(LEAVES)
    return (draw.choice(HOLDERS), [drawn(draw, depth + 1) for _ in range(draw.randint(1, 3))])


def leaves_in(spec: Any) -> int:
    return 1 if isinstance(spec, str) else sum(leaves_in(one) for one in spec[1])


def test_one_wrong_leaf_of_any_structure_is_refused_and_its_right_twin_proven(tmp_path: Path) -> None:
    """The leaf may be a result, an argument changed in place, or an attribute of the module."""
    draw = chance("structures")
    for number in range(examples(25)):
        spec, file = drawn(draw), tmp_path / f"structures_{number}.py"
        file.write_text(STRUCTURES.replace("SPEC = None", f"SPEC = {spec!r}"))
        place, factor = draw.randrange(2 + leaves_in(spec)), draw.choice([0.0, 0.99, 1.003, -1.0, float("nan")])

        def wrong(variant: Variant, place: int = place, factor: float = factor) -> None:
            (net,) = variant.tops
            net.wrong, net.factor = place, factor  # type: ignore[assignment]

        def otherwise(variant: Variant) -> None:
            variant.tops[0].other_way = True  # type: ignore[assignment]

        written, reference = recorded(file, "made"), recorded(file, "made", compute_in_float64)
        right = judged(recorded(file, "made", otherwise), written, reference, [], "it")
        assert right.right, (spec, right)
        found = judged(recorded(file, "made", wrong), written, reference, [], "it")
        assert found.right is False, (spec, place, factor, found)


NOT_IN_FLOAT64 = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        if self.linear.weight.dtype is torch.float64:
            raise TypeError("no kernel for float64")
        return self.linear(x)

def train():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.1, foreach=False)

    def step():
        optimizer.zero_grad()
        loss = net(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
"""


def test_a_step_that_does_not_run_in_float64_is_compared_with_itself(tmp_path: Path) -> None:
    file = tmp_path / "steps.py"
    file.write_text(NOT_IN_FLOAT64)
    job = VariantJob(configuration=Configuration(target=f"{file}:train"), device="cpu", log=str(tmp_path / "log"))
    changed = {("foreach_optimizer",): replace(job, changes=("foreach_optimizer",))}
    with Session(job, width=2, timeout_s=120) as session:
        (found,) = Comparing(session, job, lambda _: None).compared(changed).values()
    assert found.right
    assert not found.is_float64
    assert "against the step as written, which does not run in float64" in found.reason


OF_EACH_PROCESS = """
import os
import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "big"))  # as where a GPU adds in another order each time
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
torch.manual_seed(0)
for _ in range(2000):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
"""


def test_compared_processes_begin_with_the_same_weights(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OF_EACH_PROCESS)
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    names = ("fused_optimizer",)
    with Session(job, width=2, timeout_s=120) as session:
        (found,) = Comparing(session, job, lambda _: None).compared({names: replace(job, changes=names)}).values()
        folder = session.folder
    assert found.right, found.reason
    assert found.error < 1e-5
    assert not folder.exists()


class Trained:
    """What weights are kept of: a module, an optimizer's state, and buffers that are parts of others."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = torch.nn.Linear(4, 4)
        self.net.register_buffer("whole", torch.arange(4.0).expand(3, 4))  # cannot be written
        self.net.register_buffer("part", torch.randn(1_000_000)[:3])
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.1)
        self.net(torch.randn(2, 4)).sum().backward()
        self.optimizer.step()
        self.tops, self.not_called, self.optimizers = [self.net], [], [self.optimizer]


def test_weights_are_those_of_another_process(tmp_path: Path) -> None:
    one, other, path = Trained(1), Trained(2), tmp_path / "begin.pt"
    keep_weights(cast("Variant", one), path)
    assert path.stat().st_size < 100_000
    keep_weights(cast("Variant", other), path)  # that of the first stays
    take_weights(cast("Variant", other), path)
    for name, value in one.net.state_dict().items():
        assert torch.equal(value, other.net.state_dict()[name]), name
    states = [made.optimizer.state[made.net.weight] for made in (one, other)]
    assert torch.equal(states[0]["exp_avg"], states[1]["exp_avg"])
    assert [one.name for one in tmp_path.iterdir()] == ["begin.pt"]


def test_without_weights_to_begin_with_nothing_is_decided(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OF_EACH_PROCESS)
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    names = ("fused_optimizer",)

    class Late(Session):
        """Has a process of a change wait for a file that no one writes."""

        def build(self, jobs: Sequence[VariantJob], within_s: float | None = None) -> list[Worker]:
            late = [replace(one, begin=str(tmp_path / "never")) if one.changes else one for one in jobs]
            return super().build(late, within_s)

    with Late(job, width=2, timeout_s=120) as session:
        (found,) = Comparing(session, job, lambda _: None).compared({names: replace(job, changes=names)}).values()
    assert found.right is None
    assert "the starting weights were not available in time" in found.reason


COMPILED = """
import torch

class Net(torch.nn.Module):  # of PyTorch's own classes nothing would be compiled
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x).tanh()

torch.manual_seed(0)
class Head(Net):
    def forward(self, x):
        return self.linear(x).mul_(2)

model, head, x = Net(), Head(), torch.randn(8, 16)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)

def trains():
    def step():
        optimizer.zero_grad()
        head(model(x)).sum().backward()
        optimizer.step()
    return step

def infers():
    def step():
        with torch.no_grad():
            return head(model(x))
    return step
"""


@pytest.mark.parametrize("step", ["trains", "infers"])
def test_other_inputs_are_given_to_what_the_step_has_compiled(step: str, tmp_path: Path) -> None:
    """With gradients or without, as the step has it: else another graph would be compiled, and compared."""
    file = tmp_path / "compiled.py"
    file.write_text(COMPILED)
    variant = FunctionVariant(Configuration(target=f"{file}:{step}"), CPU, Loaders())
    variant.drive(variant.observe())
    prepare(variant)
    for top in variant.tops:
        top.compile(backend="eager")
    variant.drive(whole_step())
    before = compiled_frames()
    assert before
    result = variant.drive(record(variant))
    assert compiled_frames() == before
    assert all(one.outputs for one in result.others.values())
