"""What steps work with, however they are written."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.found import changed_state, observed_step, observing, python_state, reached_from
from opscope.advise.routine import drive
from tests.advise.facts import facts

MODEL = torch.nn.Linear(4, 4)
X = torch.randn(2, 4)


def by_global() -> torch.Tensor:
    return MODEL(X)


def by_closure() -> Callable[[], torch.Tensor]:
    model = MODEL
    return lambda: model(X)


def by_default(model: torch.nn.Module = MODEL) -> torch.Tensor:
    return model(X)


class Trainer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.parts = {"models": [model]}

    def step(self) -> torch.Tensor:
        return self.parts["models"][0](X)

    def __call__(self) -> torch.Tensor:
        return self.step()


def generating(model: torch.nn.Module) -> Any:
    while True:
        yield model(X)


def nested() -> Callable[[], torch.Tensor]:
    inner = by_closure()

    def step() -> torch.Tensor:
        def once() -> torch.Tensor:
            return inner()

        return once()

    return step


def by_generator() -> Callable[[], torch.Tensor]:
    steps = generating(MODEL)
    next(steps)
    return lambda: next(steps)


@pytest.mark.parametrize(
    "step",
    [
        by_global,
        by_closure(),
        by_default,
        functools.partial(by_default, MODEL),
        Trainer(MODEL).step,
        Trainer(MODEL),
        nested(),
        by_generator(),
        functools.lru_cache(maxsize=None)(by_closure()),
        torch.no_grad()(by_closure()),
    ],
    ids=["global", "closure", "default", "partial", "method", "object", "nested", "generator", "cached", "decorated"],
)
def test_the_model_is_reached(step: Callable[[], object]) -> None:
    assert any(module is MODEL for module in reached_from(step).modules)


def test_modules_inside_others_are_no_tops() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reached = reached_from(lambda: (model, optimizer))
    assert reached.tops == [model]
    assert reached.optimizers == [optimizer]


class TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
        return self.inner(x) * scale


def test_what_a_step_calls_is_observed() -> None:
    model, head = TwoInputs(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)

    def step() -> float:
        optimizer.zero_grad(set_to_none=False)
        loss = head(model(X, scale=2.0)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    observed = drive(observed_step(), step)
    assert observed is not None
    assert [root.module for root in observed.roots] == [model, head]  # the module inside is not a root
    assert observed.roots[0].args[0] is X
    assert observed.roots[0].kwargs == {"scale": 2.0}
    assert observed.optimizers == [optimizer]
    assert (observed.backward, observed.kept_gradients) == (1, 1)
    # Nothing is left behind.
    assert not model._forward_pre_hooks
    assert torch.optim.Optimizer.zero_grad.__qualname__ == "Optimizer.zero_grad"
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_a_module_that_raises_ends_its_call() -> None:
    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    failing = Failing()

    def step() -> torch.Tensor:
        try:
            failing(X)
        except ValueError:
            return MODEL(X)
        raise AssertionError

    with observing() as observed:
        step()
    assert [root.module for root in observed.roots] == [failing, MODEL]


class Broken(torch.nn.Module):
    """A module whose graph breaks: what comes after it is a frame of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_found_and_compiled_as_without_opscope(in_place: bool) -> None:
    """What is traced, and how often, is what it is without hooks; the model is one root."""

    def graphs_of(observe: bool) -> tuple[list[int], list[torch.nn.Module], torch.nn.Module]:
        torch._dynamo.reset()
        sizes: list[int] = []

        def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
            sizes.append(len(graph.graph.nodes))
            return graph.forward

        torch.manual_seed(0)
        plain = Broken()
        if in_place:
            plain.compile(backend=backend)
        model = plain if in_place else torch.compile(plain, backend=backend)
        if not observe:
            model(X)
            return sizes, [], plain
        with observing() as observed:
            first = model(X)
        assert torch.equal(first, model(X))  # nothing is compiled anew once the hooks are gone
        return sizes, [root.module for root in observed.roots], plain

    sizes, roots, model = graphs_of(observe=True)
    assert sizes == graphs_of(observe=False)[0]
    assert len(sizes) == 2
    assert len(roots) == 1
    assert getattr(roots[0], "_orig_mod", roots[0]) is model


def test_a_step_that_is_compiled_as_a_whole_is_observed() -> None:
    """Its optimizer steps within the compiled region, where a script's boundaries are heard."""
    torch._dynamo.reset()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    observed = contextlib.ExitStack()
    seen = []

    def boundary(*_: object) -> None:
        observed.close()
        if len(seen) < 2:
            seen.append(observed.enter_context(observing()))

    handle = optimizer.register_step_post_hook(boundary)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()

    for _ in range(4):
        step()
    handle.remove()
    assert len(seen) == 2
    compiled = torch.compile(lambda x: torch.compiler.is_compiling(), backend="eager")
    assert compiled(X)  # what is compiled afterwards is compiled again


def stepping(change: Callable[[], object]) -> tuple[str, ...]:
    """Return what a step that calls a function changes, besides tensors."""
    before = python_state(change)
    change()
    return changed_state(before, python_state(change))


COUNT = 0


def counts_globally() -> None:
    global COUNT  # noqa: PLW0603 (that is what is tried)
    COUNT += 1


def counts() -> Callable[[], None]:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    return step


class Counts:
    def __init__(self) -> None:
        self.steps, self.losses, self.inner = 0, [0.0], {"rates": [0.1, 0.2]}

    def step(self) -> None:
        self.steps += 1

    def keep(self) -> None:
        self.losses.append(1.0)

    def slower(self) -> None:
        self.inner["rates"][1] *= 0.9


def schedules() -> Callable[[], None]:
    optimizer = torch.optim.SGD(MODEL.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step() -> None:
        optimizer.step()
        schedule.step()

    return step


def iterates() -> Callable[[], object]:
    batches = iter([X, X, X])
    return lambda: next(batches)


def counts_on() -> Callable[[], object]:
    numbers = itertools.count()
    return lambda: next(numbers)


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (counts_globally, {"COUNT"}),
        (counts(), {"count"}),
        (Counts().step, {"self.steps"}),
        (Counts().keep, {"self.losses", "self.losses.1"}),
        (Counts().slower, {"self.inner.rates.1"}),
        (iterates(), {"batches"}),
        (counts_on(), {"numbers"}),
        (by_closure(), set()),
        (Trainer(MODEL).step, set()),
    ],
)
def test_what_a_step_changes_besides_tensors_is_seen(step: Callable[[], object], changes: set[str]) -> None:
    assert set(stepping(step)) == changes


def test_a_learning_rate_that_changes_is_seen() -> None:
    assert any(way.endswith("optimizer.0.lr") for way in stepping(schedules()))


def test_a_step_that_changes_more_than_tensors_is_no_graph() -> None:
    refuses = BY_NAME["cuda_graph"].refuses
    assert refuses(facts()) is None
    assert "changes count" in str(refuses(facts(changes_state=("count",))))
    assert "the same one" in str(refuses(facts(loaders=1)))
    assert "make the step a function" in str(refuses(facts(changes_state=None)))
    assert refuses(facts(device="cpu")) == "it is for GPUs"
