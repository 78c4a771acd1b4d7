"""What grows from step to step: what is kept, and what is made again, larger."""

from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.case import Case
from opscope.trace.snapshot import Ints

_FEWEST: Final = 3  # steps in a row that something grows
_SOON: Final = 4  # events between a new block and the release of the old one
_LEAST: Final = 1 << 16  # bytes a step: numbers that a program logs are no leak


class Grown(Struct, frozen=True):
    """Something that grows.

    Attributes:
        stacks: where it was allocated, those with most of it first.
        lines: the lines of the user's code in these.
        bytes_per_step: the median growth of a step.
        steps: how many steps in a row, up to the last one.
        bytes: what it holds at the last step's end.
        lives: those alive at the last step's end, and what came after it.
    """

    stacks: tuple[int, ...]
    lines: tuple[str | None, ...]
    bytes_per_step: int
    steps: int
    bytes: int
    lives: Ints


def growth_of(case: Case) -> Grown | None:
    """Return what is kept of each step, all of it together; None if nothing is."""
    ends = case.steps.ends
    if len(ends) <= _FEWEST:
        return None
    replaced = {life for chain in replaced_chains(case) for life in chain.tolist()}
    kept = []
    for stack in np.unique(case.places).tolist():
        lives = np.flatnonzero(case.places == stack)
        held = _held(case, lives)
        steps = _rising(held)
        if steps < _FEWEST or held[-1] - held[-steps - 1] < _LEAST * steps:
            continue
        alive = lives[(case.lives.begin[lives] <= ends[-1]) & (case.lives.end[lives] > ends[-1])]
        numbers = np.unique(np.searchsorted(ends, case.lives.begin[alive], "left"))
        if len(numbers) > 2 and not replaced.issuperset(alive.tolist()):
            kept.append((stack, held, steps, alive))
    return _together(case, kept) if kept else None


def replaced_chains(case: Case) -> tuple[Ints, ...]:
    """Return chains of blocks of one stack: each is freed as soon as a larger one is there in its place."""
    lives = case.lives
    large = np.flatnonzero((lives.begin >= 0) & (lives.requested > _LEAST))  # what replaces is larger than that
    by_begin: dict[int, int] = dict(zip(lives.begin[large].tolist(), large.tolist(), strict=True))
    following: dict[int, int] = {}
    for life in np.flatnonzero((lives.end < case.count) & (lives.requested >= _LEAST)).tolist():
        end = int(lives.end[life])
        for row in range(end - 1, max(end - _SOON, int(lives.begin[life])), -1):
            new = by_begin.get(row)
            if (
                new is not None
                and case.places[new] == case.places[life]
                and lives.requested[new] > lives.requested[life]
            ):
                following[life] = new
                break
    starts = set(following) - set(following.values())
    chains = []
    for start in sorted(starts):
        chain = [start]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        if len(chain) > _FEWEST:
            chains.append(np.array(chain, dtype=np.int64))
    return tuple(chains)


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


def _together(case: Case, kept: list[tuple[int, Ints, int, Ints]]) -> Grown:
    """Join what grows in the same steps: the tensors of one graph, or one line alone."""
    held = np.sum([one[1] for one in kept], axis=0)
    steps = min(one[2] for one in kept)
    stacks = tuple(one[0] for one in sorted(kept, key=lambda one: -int(one[1][-1])))
    return Grown(
        stacks=stacks,
        lines=tuple(dict.fromkeys(case.table.stacks[stack].line for stack in stacks)),
        bytes_per_step=int(np.median(np.diff(held)[-steps:])),
        steps=steps,
        bytes=int(held[-1]),
        lives=np.concatenate([np.union1d(one[3], _since(case, one[0])) for one in kept]),
    )


def _since(case: Case, stack: int) -> Ints:
    """Return what a stack allocated after the last step that is over."""
    lives = case.lives
    since: Ints = np.flatnonzero(
        (case.places == stack) & (lives.begin > case.steps.ends[-1]) & (lives.end == case.count)
    )
    return since
