"""Whose each block is: by where it was allocated and freed, and how long it lived."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.history import BEFORE, History
from opscope.analysis.memory.stacks import Part, StackTable
from opscope.analysis.memory.steps import Steps
from opscope.documents.memory import Owner
from opscope.trace.snapshot import Ints

# cuBLAS: 4 MiB x 2 + 16 KiB x 8; 32 MiB on Hopper and newer; cuBLASLt: 1 MiB (aten/src/ATen/cuda/CublasHandlePool.cpp).
_WORKSPACES: Final = (8_519_680, 33_554_432, 1 << 20)


class Phase(StrEnum):
    """Parts of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Owned(Struct, frozen=True):
    """What belongs to whom.

    Attributes:
        owner: per life, an `Owner`.
        phase: per event, a `Phase`.
        pools: per life, whether it lies in a private pool.
    """

    owner: np.ndarray
    phase: np.ndarray
    pools: np.ndarray

    def of(self, *owners: Owner) -> np.ndarray:
        """Return a mask of the lives of some owners."""
        return np.isin(self.owner, owners)


def owned(history: History, table: StackTable, steps: Steps) -> Owned:
    """Tell the owner of every life."""
    events, lives = history.memory.events, history.lives
    phase = phases(history, table)
    pools = _in_private_pool(history)
    began = (
        np.where(lives.begin >= 0, phase[np.maximum(lives.begin, 0)], Phase.OTHER)
        if len(events)
        else (np.full(len(lives), Phase.OTHER))
    )
    facts = _Facts(history, table, steps, phase, began)
    owner = np.full(len(lives), Owner.UNKNOWN, dtype=object)
    for name, mask in facts.rules(pools):
        owner[(owner == Owner.UNKNOWN) & mask] = name
    return Owned(owner, phase, pools)


def phases(history: History, table: StackTable) -> np.ndarray:
    """Return the phase of every event, by its stack."""
    stack = history.memory.events.stack
    result = np.full(len(stack), Phase.OTHER, dtype=object)
    for part, name in (
        (Part.FORWARD, Phase.FORWARD),
        (Part.OPTIMIZER | Part.ZERO_GRADIENTS, Phase.OPTIMIZER),
        (Part.BACKWARD, Phase.BACKWARD),
    ):
        result[table.has(part)[stack]] = name
    return result


def _in_private_pool(history: History) -> np.ndarray:
    inside = np.zeros(len(history.lives), dtype=bool)
    for segment in history.memory.segments:
        if segment.pool != (0, 0):
            at = history.lives.address
            inside |= (at >= segment.address) & (at < segment.address + segment.bytes)
    return inside


class _Facts:
    """What the rules look at, of all lives at once."""

    def __init__(self, history: History, table: StackTable, steps: Steps, phase: np.ndarray, began: np.ndarray) -> None:
        self.lives = history.lives
        self.count = len(history.memory.events)
        self.parts = table.parts[self.lives.stack]
        self.end_parts = table.parts[self.lives.end_stack]
        self.native = table.has_native
        self.knows_backward = bool((phase == Phase.BACKWARD).any())
        self.recorded = (self.lives.stack > 0) | (self.lives.begin >= 0)
        self.began = began
        self.to_end = self.lives.end == self.count
        self.crossed = self._crossed(steps)
        self.next_backward = self._next(phase == Phase.BACKWARD)
        self.next_optimizer = self._next(phase == Phase.OPTIMIZER)
        self.next_forward = self._next(phase == Phase.FORWARD)
        self.after_forward = self._after_forward(phase, steps)

    def _crossed(self, steps: Steps) -> Ints:
        ends = np.array(steps.ends, dtype=np.int64)
        crossed: Ints = np.searchsorted(ends, self.lives.end, "left") - np.searchsorted(ends, self.lives.begin, "left")
        return crossed

    def _next(self, is_there: np.ndarray) -> Ints:
        """Return per life the first such event after its begin; the number of events if there is none."""
        rows = np.append(np.flatnonzero(is_there), self.count)
        result: Ints = rows[np.searchsorted(rows, self.lives.begin, "right").clip(max=len(rows) - 1)]
        return result

    def _after_forward(self, phase: np.ndarray, steps: Steps) -> np.ndarray:
        """Tell which lives begin after a forward event of their step."""
        forward = np.append(np.flatnonzero(phase == Phase.FORWARD), self.count)
        begins = np.concatenate(([0], np.array(steps.ends, dtype=np.int64) + 1))
        step_begin = begins[np.searchsorted(begins, np.maximum(self.lives.begin, 0), "right") - 1]
        result: np.ndarray = forward[np.searchsorted(forward, step_begin)] < self.lives.begin
        return result

    def _of_workspace_size(self) -> np.ndarray:
        """Tell which lives are workspaces of cuBLAS by their size: the first of each, per stream and thread, for good.

        With frames of C++ the stack tells it.
        """
        mask = np.zeros(len(self.lives), dtype=bool)
        if self.native:
            return mask
        seen: set[tuple[int, int, bool]] = set()
        sized = np.isin(self.lives.requested, _WORKSPACES) & ~self.has(Part.MADE | Part.OPTIMIZER)
        sized &= self.has(Part.FORWARD | Part.BACKWARD) | ~self.recorded
        for life in np.flatnonzero(sized & self.to_end).tolist():
            on_thread = bool(self.parts[life] & int(Part.BACKWARD))
            key = (int(self.lives.requested[life]), int(self.lives.stream[life]), on_thread)
            if key not in seen:
                seen.add(key)
                mask[life] = True
        return mask

    def has(self, part: Part) -> np.ndarray:
        result: np.ndarray = (self.parts & int(part)) > 0
        return result

    def rules(self, pools: np.ndarray) -> list[tuple[Owner, np.ndarray]]:
        """Return owners in the order in which they are tried."""
        lives, long = self.lives, (self.crossed > 0) | self.to_end
        backward, forward = self.began == Phase.BACKWARD, self.began == Phase.FORWARD
        updated = ((self.end_parts & int(Part.OPTIMIZER | Part.ZERO_GRADIENTS)) > 0) | (lives.end > self.next_optimizer)
        kept = (self.crossed > 1) | (self.to_end & (self.crossed > 0))
        reaches_backward = lives.end > self.next_backward
        workspace = self.has(Part.WORKSPACE) | self._of_workspace_size()
        made = self.has(Part.MADE | Part.LOADED | Part.COPIED) & ~self.has(Part.FORWARD | Part.BACKWARD)
        buckets = self.has(Part.BUCKET) & ~self.has(Part.MADE)
        user = self.recorded & (self.began == Phase.OTHER)
        return [
            (Owner.GRAPH_POOL, pools),
            (Owner.WORKSPACE, workspace),
            (Owner.GRADIENT, buckets & long),
            (Owner.OPTIMIZER_STATE, self.has(Part.OPTIMIZER) & long),
            (Owner.TEMPORARY, self.has(Part.OPTIMIZER)),
            (Owner.ACTIVATION, self.has(Part.RECOMPUTED)),
            (Owner.GRADIENT, backward & (updated | self.to_end)),
            (Owner.TEMPORARY, backward),
            # Autograd's threads have no stack of Python, so that of what they made before the history none is known.
            (Owner.GRADIENT, ~self.recorded & ((self.end_parts & int(Part.ZERO_GRADIENTS)) > 0)),
            (Owner.PARAMETER, made & long),
            (Owner.TEMPORARY, made),
            (Owner.KEPT, (forward | (user & self.after_forward)) & kept),
            (Owner.ACTIVATION, forward & (reaches_backward | long)),
            (Owner.TEMPORARY, forward),
            (Owner.ACTIVATION, user & self.after_forward & reaches_backward),
            (Owner.TEMPORARY, user & self.after_forward & ~long),
            (Owner.INPUT, user & (lives.begin > BEFORE) & (self.next_forward < lives.end)),
        ]


def by_owner(owner: np.ndarray, sizes: Ints) -> Mapping[Owner, int]:
    """Add sizes up by owner."""
    return {name: int(sizes[owner == name].sum()) for name in Owner if (owner == name).any()}
