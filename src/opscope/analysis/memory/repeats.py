"""Blocks of a model that run one after the other, each with the same allocations: what could be checkpointed."""

from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.case import Case
from opscope.analysis.memory.owners import Phase
from opscope.analysis.memory.stacks import Part, is_of_library, line_of
from opscope.documents.memory import Owner
from opscope.trace.snapshot import Frame, Ints

_FEWEST: Final = 3  # blocks
_LONGEST: Final = 400  # allocations of a block
_MOST: Final = 20_000  # allocations of a forward pass that are looked at
_NEARLY: Final = 0.9  # of the best: shorter periods are preferred
_LEAST_SHARE: Final = 0.1  # of the peak
_NODE: Final = 40  # events of one node of autograd's


class Blocks(Struct, frozen=True):
    """Repeated blocks of the step of the peak.

    Attributes:
        count: how many.
        period: allocations in each.
        where: the innermost line that is common to all of them.
        dropped: the lives that checkpointing would drop and make again.
        outputs: the last activation of each block, which is kept.
        forward_end: per dropped life, the last event of its block's forward pass.
        backward_begin: per dropped life, the event at which its block's backward pass begins.
        last_use: per dropped life, the event up to which the backward pass uses it. Autograd frees what it saved when a
            node is done; what checkpointing made again goes with its last use.
    """

    count: int
    period: int
    where: str | None
    dropped: Ints
    outputs: Ints
    forward_end: Ints
    backward_begin: Ints
    last_use: Ints


def repeated_blocks(case: Case, *, for_backward: bool = True) -> Blocks | None:
    """Find the blocks: in the step of the peak, and the same ones in all other steps.

    Args:
        case: the device.
        for_backward: whether only what lives until the backward pass counts.
    """
    lives = case.lives
    forward = (lives.begin >= 0) & (case.owned.phase[np.maximum(lives.begin, 0)] == Phase.FORWARD)
    forward &= (case.table.parts[lives.stack] & int(Part.RECOMPUTED)) == 0
    forward &= ~case.owned.of(Owner.WORKSPACE, Owner.GRAPH_POOL)
    everywhere = np.flatnonzero(forward)
    first, last = case.peak_step
    begins = lives.begin[everywhere]
    inside = everywhere[(begins >= first) & (begins <= min(last, case.peak_row))][:_MOST]
    if len(inside) < 2 * _FEWEST:
        return None
    kept = case.owned.of(Owner.ACTIVATION) if for_backward else np.ones(len(lives), dtype=bool)
    sizes = np.where(kept[inside] & case.alive[inside], lives.bytes[inside], 0)
    best = _period(case.places[inside], sizes)
    if best is None or best[3] < _LEAST_SHARE * case.history.peak_bytes:
        return None
    begin, period, count, _ = best
    pattern = case.places[inside[begin : begin + period]]
    groups = inside[begin : begin + count * period].reshape(count, period)
    positions = np.flatnonzero(kept[groups].mean(axis=0) >= 0.5)
    if not len(positions):
        return None
    collected = _Collected(case, positions)
    for run in _alike(case, everywhere, pattern):
        collected.add(everywhere, run, period)
    return collected.blocks(count, period, _common_line(case, inside[begin : begin + period]))


def _alike(case: Case, everywhere: Ints, pattern: Ints) -> list[tuple[int, int]]:
    """Return where a pattern of stacks repeats, and how often."""
    stacks, period = case.places[everywhere], len(pattern)
    runs: list[tuple[int, int]] = []
    starts = np.flatnonzero(stacks == pattern[0]).tolist()
    after = -1
    for start in starts:
        if start < after:
            continue
        count = 0
        while np.array_equal(stacks[start + count * period : start + (count + 1) * period], pattern):
            count += 1
        if count:
            runs.append((start, count))
            after = start + count * period
    return runs


def _period(stacks: Ints, sizes: Ints) -> tuple[int, int, int, int] | None:
    """Return where the longest repetition begins, its period, how often it repeats, and the bytes in it."""
    total = np.concatenate(([0], np.cumsum(sizes)))
    repetitions = []
    for period in range(1, min(_LONGEST, len(stacks) // _FEWEST) + 1):
        same = np.append(stacks[period:] == stacks[:-period], False)
        borders = np.flatnonzero(~same)
        runs = np.diff(np.concatenate(([-1], borders))) - 1
        at = int(np.argmax(runs))
        count = int(runs[at]) // period + 1
        if count < _FEWEST:
            continue
        begin = int(borders[at]) - int(runs[at])
        repetitions.append((begin, period, count, int(total[begin + count * period] - total[begin])))
    best = max((one[3] for one in repetitions), default=0)
    return next((one for one in repetitions if best and one[3] >= _NEARLY * best), None)


class _Collected:
    """Collects what blocks would drop."""

    def __init__(self, case: Case, positions: Ints) -> None:
        self._case, self._positions = case, positions  # of what a block keeps, among its allocations; the output last
        self._backward = case.phase_rows(Phase.BACKWARD)
        ends = case.lives.end
        self._ended = {int(ends[life]): life for life in np.flatnonzero(ends < case.count).tolist()}
        self._dropped: list[int] = []
        self._outputs: list[int] = []
        self._forward_end: list[int] = []
        self._backward_begin: list[int] = []

    def add(self, everywhere: Ints, run: tuple[int, int], period: int) -> None:
        """Add blocks that follow each other."""
        begin, count = run
        lives = self._case.lives
        whole = everywhere[begin : begin + count * period].reshape(count, period)
        groups = list(whole[:, self._positions])
        for number, members in enumerate(groups):
            last = int(lives.begin[members[-1]])
            self._outputs.append(int(members[-1]))
            self._dropped += members[:-1].tolist()
            self._forward_end += [last] * (len(members) - 1)
            self._backward_begin += [self._begin_of_backward(groups, number)] * (len(members) - 1)

    def blocks(self, count: int, period: int, where: str | None) -> Blocks:
        """Return them."""
        lists = (self._dropped, self._outputs, self._forward_end, self._backward_begin)
        dropped, outputs, forward_end, begin = (np.array(one, dtype=np.int64) for one in lists)
        last_use = np.array([self._last_use(int(row)) for row in self._case.lives.end[dropped]], dtype=np.int64)
        return Blocks(count, period, where, dropped, outputs, forward_end, begin, last_use)

    def _last_use(self, freed: int) -> int:
        """Return where the temporaries begin that a node makes and frees just before it frees what it saved.

        Autograd sums a gradient to its tensor's size after the node has run: what was made again is gone by then, what
        the node saved is not.
        """
        at = freed
        while (
            at > max(freed - _NODE, 0) and self._nested_from(at - 1, freed) is None and self._began_at(at - 1) < at - 1
        ):
            at -= 1  # what else the node frees at its end: its input, and what else it saved
        used = freed
        while at > 0 and (begin := self._nested_from(at - 1, freed)) is not None:
            used = at = begin
        return used

    def _nested_from(self, row: int, freed: int) -> int | None:
        """Return where a temporary of a node begins that an event frees; None if the event frees no such thing.

        What is allocated after it is freed before it.
        """
        begin = self._began_at(row)
        if begin == row or begin < freed - _NODE:
            return None
        return begin if all(self._began_at(inner) >= begin for inner in range(begin, row)) else None

    def _began_at(self, row: int) -> int:
        """Return where the life began that an event ends; the event itself where it ends none."""
        life = self._ended.get(row)
        return row if life is None else int(self._case.lives.begin[life])

    def _begin_of_backward(self, groups: list[Ints], number: int) -> int:
        """Return when the backward pass of a block begins: when that of the block behind it has ended."""
        lives = self._case.lives
        own = int(lives.end[groups[number]].min())
        if number + 1 < len(groups):
            behind = groups[number + 1][:-1]
            return min(int(lives.end[behind].max()) if len(behind) else own, own)
        later = self._backward[self._backward > int(lives.begin[groups[number]].max())]
        return min(int(later[0]) if len(later) else own, own)


def _common_line(case: Case, lives: Ints) -> str | None:
    """Return the innermost line of the user's code that all of some lives were allocated below."""
    chains = [case.table.stacks[int(stack)].lines for stack in set(case.lives.stack[lives].tolist())]
    common = 0
    while all(len(chain) > common and chain[common] == chains[0][common] for chain in chains):
        common += 1
    frames = [Frame(function, file, line) for file, function, line in chains[0][:common]]
    users = [frame for frame in frames if not is_of_library(frame.file)]
    return line_of(users[-1]) if users else None
