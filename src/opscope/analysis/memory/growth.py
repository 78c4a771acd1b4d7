"""Lines whose memory grows from step to step: what is kept, and what is made again larger."""

from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.case import Case
from opscope.trace.snapshot import Ints

_FEWEST: Final = 3  # steps in a row that something grows
_LEAST: Final = 1 << 16  # bytes a step: numbers that a program logs are no leak


class Grown(Struct, frozen=True):
    """Something that grows.

    Attributes:
        stacks: where it was allocated, those with most of it first.
        lines: the lines of the user's code in these.
        bytes_per_step: the median growth of a step.
        steps: how many steps in a row, up to the last one.
        bytes: what it holds at the last step's end.
        lives: those alive at the last step's end; of what is replaced, all that came after each other.
        is_replaced: whether one block is replaced by a larger one in each step.
    """

    stacks: tuple[int, ...]
    lines: tuple[str | None, ...]
    bytes_per_step: int
    steps: int
    bytes: int
    lives: Ints
    is_replaced: bool


def growth_of(case: Case) -> tuple[Grown, ...]:
    """Return what grows: first what is kept, then what is replaced by something larger."""
    ends = case.steps.ends
    if len(ends) <= _FEWEST:
        return ()
    kept, replaced = [], []
    for stack in np.unique(case.lives.stack).tolist():
        lives = np.flatnonzero(case.lives.stack == stack)
        held = _held(case, lives)
        steps = _rising(held)
        if steps < _FEWEST or held[-1] - held[-steps - 1] < _LEAST * steps:
            continue
        alive = lives[(case.lives.begin[lives] <= ends[-1]) & (case.lives.end[lives] > ends[-1])]
        numbers = np.unique(np.searchsorted(ends, case.lives.begin[alive], "left"))
        if len(numbers) > 2:
            kept.append((stack, held, steps, alive))
        elif len(alive) == 1:
            replaced.append(_of((stack,), case, held, steps, lives[case.lives.bytes[lives] > _LEAST], is_replaced=True))
    return (*_together(case, kept), *replaced)


def _held(case: Case, lives: Ints) -> Ints:
    """Return the bytes of some lives that are alive at the end of each step."""
    ends = np.array(case.steps.ends)
    change = np.zeros(len(ends) + 1, dtype=np.int64)
    np.add.at(change, np.searchsorted(ends, case.lives.begin[lives], "left"), case.lives.requested[lives])
    np.subtract.at(change, np.searchsorted(ends, case.lives.end[lives], "left"), case.lives.requested[lives])
    held: Ints = np.cumsum(change)[:-1]
    return held


def _rising(held: Ints) -> int:
    """Return in how many steps in a row, up to the last one, something grew."""
    rises = np.diff(held) > 0
    flat = np.flatnonzero(~rises)
    return int(len(rises) - 1 - flat[-1]) if len(flat) else len(rises)


def _together(case: Case, kept: list[tuple[int, Ints, int, Ints]]) -> list[Grown]:
    """Join what grows in the same steps: the tensors of one graph, or one line alone."""
    if not kept:
        return []
    held = np.sum([one[1] for one in kept], axis=0)
    lives = np.concatenate([one[3] for one in kept])
    stacks = sorted(kept, key=lambda one: -int(one[1][-1]))
    return [_of(tuple(one[0] for one in stacks), case, held, min(one[2] for one in kept), lives, is_replaced=False)]


def _of(stacks: tuple[int, ...], case: Case, held: Ints, steps: int, lives: Ints, *, is_replaced: bool) -> Grown:
    return Grown(
        stacks=stacks,
        lines=tuple(dict.fromkeys(case.table.stacks[stack].line for stack in stacks)),
        bytes_per_step=int(np.median(np.diff(held)[-steps:])),
        steps=steps,
        bytes=int(held[-1]),
        lives=lives,
        is_replaced=is_replaced,
    )
