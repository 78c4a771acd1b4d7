"""What runs beside a step, written from the step's side, and the generators that a step may draw from."""

import random
from collections.abc import Callable, Generator
from enum import Enum
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")
Routine = Generator[None, object, T]


def seed(number: int) -> None:
    """Set all generators that a step may draw from."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Ran(Enum):
    """How a step went, where what it returned does not show it."""

    INTERRUPTED = "something else came in between: no whole step"


def whole_step() -> Routine[object]:
    """Wait for one whole step; return what it returned."""
    while (returned := (yield)) is Ran.INTERRUPTED:
        pass
    return returned


def drive(routine: Routine[T], step: Callable[[], object]) -> T:
    """Call a step as often as a routine waits for one; return what the routine returns."""
    try:
        next(routine)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    while True:
        returned = step()
        try:
            routine.send(returned)
        except StopIteration as end:  # not one that the step raises
            return end.value  # type: ignore[no-any-return]
