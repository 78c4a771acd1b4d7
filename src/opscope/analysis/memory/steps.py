"""Where steps end in a history: by the ranges that PyTorch recorded, by its optimizers, or by the loop they are in."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.stacks import Part, StackTable
from opscope.trace.snapshot import Action, DeviceMemory, Ints

_PROFILER_STEP: Final = "ProfilerStep#"
_OPTIMIZER_STEP: Final = "Optimizer.step#"
_FEWEST: Final = 3  # of iterations that make a loop: two alike may be chance
_DEEPEST: Final = 60
_OFTEN: Final = 0.3  # of the line that it goes back to most often: an outer loop goes back less often


class Steps(Struct, frozen=True):
    """The steps of a history.

    Attributes:
        ends: the rows after which a step is over, ascending; the last one is often not over at the end.
        by: how they were recognised, in words.
    """

    ends: tuple[int, ...]
    by: str

    def number_at(self, row: int) -> int:
        """Return the step of an event, from 0."""
        return int(np.searchsorted(np.array(self.ends), row, side="left"))

    @property
    def is_marked(self) -> bool:
        """Whether a profiler has marked them, so that nothing else is a step."""
        return _PROFILER_STEP.rstrip("#") in self.by

    def after(self, rows: np.ndarray) -> np.ndarray:
        """Return where the steps of some events end; the largest number where they do not."""
        ends = np.array([*self.ends, np.iinfo(np.int64).max])
        result: np.ndarray = ends[np.searchsorted(ends, rows, side="left")]
        return result


def steps_of(memory: DeviceMemory, table: StackTable) -> Steps:
    """Find the steps."""
    if not len(memory.events):
        return Steps((), _NOT_KNOWN)
    for steps in (
        _one_optimizer(memory, table, _annotated(memory)),
        _optimizer_runs(memory, table),
        _loop(memory, table),
    ):
        if len(steps.ends) > 1:
            return steps
    return Steps((), _NOT_KNOWN)


_NOT_KNOWN: Final = "no step was recognised"


def _one_optimizer(memory: DeviceMemory, table: StackTable, steps: Steps) -> Steps:
    """Keep the ends of one optimizer where several of one class take turns, as in a GAN: those of the last line."""
    stack = memory.events.stack
    inside = np.flatnonzero(table.has(Part.OPTIMIZER)[stack] & ~table.has(Part.ZERO_GRADIENTS)[stack])
    places: list[str | None] = []
    for begin, end in zip((-1, *steps.ends), steps.ends, strict=False):
        last = int(np.searchsorted(inside, end, "right")) - 1
        known = last >= 0 and inside[last] > begin
        places.append(table.stacks[int(stack[inside[last]])].place if known else None)
    counts = Counter(places)  # None is a line too: that of an optimizer whose step allocates nothing
    often = [place for place, count in counts.items() if count >= max(_OFTEN * max(counts.values()), 2)]
    if len(often) < 2:
        return steps
    ends = tuple(end for end, place in zip(steps.ends, places, strict=True) if place == places[-1])
    return Steps(ends, f"{steps.by} of the last of {len(often)} optimizers")


def _annotated(memory: DeviceMemory) -> Steps:
    ends: dict[str, list[int]] = {}
    for note in memory.annotations:
        if not note.is_begin and note.name.startswith((_PROFILER_STEP, _OPTIMIZER_STEP)):
            is_profiler = note.name.startswith(_PROFILER_STEP)
            ends.setdefault(_PROFILER_STEP if is_profiler else note.name, []).append(note.time_us)
    if not ends:
        return Steps((), "")
    name = _PROFILER_STEP if _PROFILER_STEP in ends else max(ends, key=lambda one: len(ends[one]))
    rows = dict.fromkeys(_last_before(memory, ends[name]).tolist())
    return Steps(tuple(row for row in rows if row >= 0), f"a step ends with {name.rstrip('#')}")


def _last_before(memory: DeviceMemory, times_us: Sequence[int]) -> Ints:
    times = np.maximum.accumulate(memory.events.time_us)  # threads may be out of order by a little
    rows: Ints = np.searchsorted(times, sorted(times_us), side="right") - 1
    return rows


def steps_of_optimizers(memory: DeviceMemory) -> Ints:
    """Return the last events before optimizers' steps end, by the ranges that PyTorch recorded; none without any."""
    ends = [one.time_us for one in memory.annotations if not one.is_begin and one.name.startswith(_OPTIMIZER_STEP)]
    return _last_before(memory, ends) if len(memory.events) else np.empty(0, np.int64)


def _optimizer_runs(memory: DeviceMemory, table: StackTable) -> Steps:
    """End steps where events of the optimizer are followed by something else."""
    inside = table.has(Part.OPTIMIZER)[memory.events.stack] & ~table.has(Part.ZERO_GRADIENTS)[memory.events.stack]
    rows = np.flatnonzero(inside[:-1] & ~inside[1:])
    # Between two runs of one step lie no events of a module.
    forward = np.cumsum(table.has(Part.FORWARD)[memory.events.stack])
    kept = [int(row) for at, row in enumerate(rows) if at + 1 == len(rows) or forward[rows[at + 1]] > forward[row]]
    return Steps(tuple(kept), "a step ends with the optimizer's")


def _loop(memory: DeviceMemory, table: StackTable) -> Steps:
    """Find the outermost loop: the function in which the line goes back again and again."""
    events = memory.events
    rows = np.flatnonzero(
        (events.action == Action.ALLOC) & np.array([bool(one.own_lines) for one in table.stacks])[events.stack]
    )
    chains: Sequence[tuple[tuple[str, str, int], ...]] = [
        table.stacks[at].own_lines for at in events.stack[rows].tolist()
    ]
    for depth in range(_DEEPEST):
        reach = [at for at, chain in enumerate(chains) if len(chain) > depth]
        if len(reach) < _FEWEST:
            break
        function = Counter(chains[at][depth][:2] for at in reach).most_common(1)[0][0]
        inside = [at for at in reach if chains[at][depth][:2] == function]
        lines = [chains[at][depth][2] for at in inside]
        wraps = _rounds(lines, inside)
        if len(wraps) >= _FEWEST - 1:
            file = function[0].replace("\\", "/").rsplit("/", 1)[-1]
            ends = tuple(int(rows[at]) - 1 for at in wraps)
            return Steps(ends, f"a step is a round of the loop in {function[1]} ({file})")
        line = Counter(lines).most_common(1)[0][0]
        keep = [at for at in inside if chains[at][depth][2] == line]
        rows, chains = rows[keep], [chains[at] for at in keep]
    return Steps((), "")


def _rounds(lines: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return where a loop begins anew: where the line goes back to the first one that it often goes back to."""
    back = [at + 1 for at in range(len(lines) - 1) if lines[at + 1] < lines[at]]
    counts = Counter(lines[at] for at in back)
    often = _OFTEN * max(counts.values(), default=0)
    first = min((line for line, count in counts.items() if count >= often), default=0)
    return [places[at] for at in back if lines[at] == first]
