"""What steps work with, however they are written."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opscope.advise.found import observed_step, observing, reached_from
from opscope.advise.routine import drive

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
    assert [root.module for root in observed.roots] == [model, head]  # the module inside is no root
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
