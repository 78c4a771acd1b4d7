"""What runs beside a step, written from the step's side: a routine says when the next step is to run, and waits for it.

A function's steps can be called; a script's cannot, it calls them itself. So whatever times or records steps is a
generator: each ``yield`` is one step, and is sent what the step returned. Whoever runs the steps drives it.
"""

from collections.abc import Callable, Generator
from enum import Enum
from typing import TypeVar

T = TypeVar("T")
Routine = Generator[None, object, T]


class Ran(Enum):
    """How a step went, where that is not told by what it returned."""

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
