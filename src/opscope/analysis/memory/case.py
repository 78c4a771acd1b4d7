"""All that is known of one device's memory, and what its peak is with something changed."""

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.allocator import (
    SMALL,
    SMALL_SEGMENT,
    UNLIMITED,
    Change,
    Key,
    Replayed,
    Request,
    Settings,
    keys_of,
    met_limit,
    replayed,
    segment_size,
)
from opscope.analysis.memory.history import History, Lives, history_of, total_over_time
from opscope.analysis.memory.owners import Owned, Phase, owned
from opscope.analysis.memory.stacks import StackTable
from opscope.analysis.memory.steps import Steps, steps_of
from opscope.documents.memory import Owner
from opscope.trace.snapshot import Action, DeviceMemory, Ints, Snapshot

if TYPE_CHECKING:
    import polars as pl

MOST_REPLAYED: Final = 500_000  # events: a replay of as many takes some seconds


class AllocatingOperators(Struct, frozen=True):
    """The operators in which a trace has the allocations of a device.

    Attributes:
        operator: per event the row of its operator; -1 where it is not in the trace.
        needed_until: per event, which event the backward pass of its operator begins with; -1 without one.
        attention: per event, the row of the attention whose part its operator is, in the backward pass too; -1 where
            one kernel computes it, and elsewhere.
        operators: the trace's table.
        has_bfloat16: whether the devices multiply bfloat16 on Tensor Cores.
    """

    operator: Ints
    needed_until: Ints
    attention: Ints
    operators: "pl.DataFrame"
    has_bfloat16: bool

    def name(self, row: int) -> str:
        """Return an operator's name."""
        return str(self.operators["name"][row])

    def inputs(self, row: int) -> tuple[str | None, str | None]:
        """Return the shapes and types of an operator's inputs, as recorded."""
        return self.operators["input_dims"][row], self.operators["input_types"][row]


class Case:
    """One device of a snapshot.

    Args:
        snapshot: the file.
        memory: the device.
        table: the snapshot's stacks.
        calls: the operators that allocated; None without a trace.
    """

    def __init__(
        self, snapshot: Snapshot, memory: DeviceMemory, table: StackTable, calls: AllocatingOperators | None = None
    ) -> None:
        self.snapshot, self.memory, self.table, self.calls = snapshot, memory, table, calls
        self.settings = Settings.of(snapshot.settings)
        self.history: History = history_of(memory, self.settings)
        self.steps: Steps = steps_of(memory, table)
        self.owned: Owned = owned(self.history, table, self.steps)
        self._replays: dict[tuple[Change, int, bytes | None], Replayed] = {}

    @property
    def lives(self) -> Lives:
        """All blocks."""
        return self.history.lives

    @property
    def count(self) -> int:
        """The number of events."""
        return len(self.memory.events)

    @cached_property
    def alive(self) -> np.ndarray:
        """A mask of the lives at the peak."""
        return self.history.alive_at_peak

    @property
    def peak_row(self) -> int:
        """The event that made the peak; `BEFORE` if it was before all of them."""
        return self.history.peak - 1

    @cached_property
    def peak_step(self) -> tuple[int, int]:
        """The first and last event of the step of the peak."""
        ends = self.steps.ends
        number = self.steps.number_at(max(self.peak_row, 0))
        return (ends[number - 1] + 1 if number else 0), (ends[number] if number < len(ends) else self.count - 1)

    @cached_property
    def places(self) -> Ints:
        """Per life a number that is the same for what one stack of the program has allocated; also that stack's own."""
        places: Ints = self.table.same_as[self.lives.stack]
        return places

    def line_of(self, life: int) -> str | None:
        """Return the line of the user's code that allocated a block."""
        return self.table.stacks[int(self.lives.stack[life])].line

    def phase_rows(self, phase: Phase) -> Ints:
        """Return the events of a phase."""
        rows: Ints = np.flatnonzero(self.owned.phase == phase)
        return rows

    def in_step(self, rows: np.ndarray) -> np.ndarray:
        """Return a mask of the events that are in the step of the peak."""
        first, last = self.peak_step
        mask: np.ndarray = (rows >= first) & (rows <= last)
        return mask

    def peak_with(
        self,
        *,
        begin: Ints | None = None,
        end: Ints | None = None,
        sizes: Ints | None = None,
        more: tuple[Ints, Ints, Ints] | None = None,
    ) -> int:
        """Return the peak with other lives.

        Args:
            begin: other first events of the lives.
            end: other last events.
            sizes: other bytes of theirs.
            more: further lives: begin, end, bytes.
        """
        lives = self.lives
        begin = lives.begin if begin is None else begin
        end = lives.end if end is None else np.maximum(end, begin)
        sizes = self.sizes if sizes is None else sizes
        if more is not None:
            begin, end, sizes = (np.concatenate((old, new)) for old, new in zip((begin, end, sizes), more, strict=True))
        return int(total_over_time(self.count, begin, end, sizes).max())

    # ---- what a step that ran out of memory would have come to

    @cached_property
    def _ratios(self) -> np.ndarray:
        """How much larger the refused step is than each of those before it; empty if none was refused.

        By the largest of what the forward passes of all of them allocate.
        """
        events, ends = self.memory.events, self.steps.ends
        if not len(events) or not ends or not (events.action[ends[-1] :] == Action.OOM).any():
            return np.empty(0)
        lives = self.lives
        number = np.searchsorted(np.array(ends), lives.begin, "left")
        forward = (lives.begin >= 0) & (self.owned.phase[np.maximum(lives.begin, 0)] == Phase.FORWARD)
        forward &= ~self.owned.of(Owner.WORKSPACE)
        best = (0, np.ones(len(ends)))
        for stack in np.unique(self.places[forward]).tolist():
            of_stack = forward & (self.places == stack)
            largest = np.zeros(len(ends) + 1, dtype=np.int64)
            np.maximum.at(largest, number[of_stack], lives.requested[of_stack])
            if largest.min() > 0 and largest[-1] > best[0]:
                best = (int(largest[-1]), largest[-1] / largest[:-1])
        return np.maximum(best[1], 1.0)

    @cached_property
    def scale(self) -> float:
        """How much larger the refused step is than the one before it; 1 without."""
        return float(self._ratios[-1]) if len(self._ratios) else 1.0

    @cached_property
    def sizes(self) -> Ints:
        """The bytes of lives; those of whole steps before a refused one as large as in that one."""
        return self._scaled(self.lives.bytes)

    @cached_property
    def requests(self) -> Ints:
        """The bytes that were asked for, scaled like `sizes`."""
        return self._scaled(self.lives.requested)

    def _scaled(self, sizes: Ints) -> Ints:
        if not len(self._ratios) or (self._ratios == 1).all():
            return sizes
        lives = self.lives
        gradients = lives.requested[self.owned.of(Owner.GRADIENT)]
        grows = self.owned.of(Owner.ACTIVATION, Owner.INPUT, Owner.TEMPORARY)
        grows &= ~np.isin(lives.requested, gradients) | self.owned.of(Owner.ACTIVATION, Owner.INPUT)
        number = np.searchsorted(np.array(self.steps.ends), lives.begin, "left")
        ratios = np.append(self._ratios, 1.0)
        scaled: Ints = np.where(grows, (sizes * ratios[number]).astype(np.int64), sizes)
        return scaled

    @cached_property
    def peak_bytes(self) -> int:
        """The peak; of a refused step what it would have come to, by the steps before it."""
        return self.peak_with()

    # ---- the allocator, replayed

    def unused_for(self, row: int) -> int:
        """Return how much was reserved and free where a request was refused, of its stream and size, in bytes."""
        events, lives = self.memory.events, self.lives
        stream, large = int(events.stream[row]), bool(events.bytes[row] > SMALL)
        handle = self.snapshot.streams[stream]
        held = sum(one.bytes for one in self.memory.segments if one.stream == handle and one.is_large == large)
        later = np.arange(self.count) >= row
        later &= (events.stream == stream) & ((events.bytes > SMALL_SEGMENT) == large)
        gained = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        lost = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        held += int(events.bytes[later & lost].sum() - events.bytes[later & gained].sum())
        used = (lives.begin < row) & (self._usable_again > row) & ((lives.bytes > SMALL) == large)
        used &= (lives.stream == stream) | (lives.begin < 0)
        return max(held - int(lives.bytes[used].sum()), 0)

    @cached_property
    def refused_by_pieces(self) -> bool:
        """Whether a request was refused though as much was reserved and free for it."""
        rows = np.flatnonzero(self.memory.events.action == Action.OOM).tolist()
        return any(self.unused_for(row) >= int(self.memory.events.bytes[row]) for row in rows)

    @cached_property
    def limit(self) -> tuple[int, int]:
        """The most that the device surely gave, and the least that it surely refused."""
        reserved, events = self.history.reserved, self.memory.events
        gave = int(reserved.max()) if met_limit(self.memory) else UNLIMITED
        refused = UNLIMITED
        for row in np.flatnonzero(events.action == Action.OOM).tolist():
            asked, free = segment_size(int(events.bytes[row])), int(events.address[row])
            if 0 <= free < asked:  # else a fraction of the device was set as the limit
                gave = max(gave, int(reserved[row]) + free)
            refused = min(refused, max(int(reserved[row]) + asked, gave + 1))
        return gave, refused

    def replay(self, change: Change, *, limit: int | None = None, left_out: np.ndarray | None = None) -> Replayed:
        """Replay the allocator; each replay is done once.

        Args:
            change: what is other.
            limit: the most that the device gives; None for what it surely gave.
            left_out: a mask of lives that are not requested.
        """
        most = self.limit[0] if limit is None else limit
        key = (change, most, None if left_out is None else left_out.tobytes())
        if key not in self._replays:
            self._replays[key] = self._replay(change, most, left_out)
        return self._replays[key]

    def _replay(self, change: Change, limit: int, left_out: np.ndarray | None) -> Replayed:
        lives, events = self.lives, self.memory.events
        rounded = change.settings.rounded(lives.requested)
        keys = keys_of(self.memory, change, lives.address, lives.stream, rounded)
        ends = self._usable_again if not change.at_once else lives.end
        kept = np.ones(len(lives), dtype=bool) if left_out is None else ~left_out
        requests = [
            Request(int(lives.begin[at]), int(ends[at]), int(rounded[at]), keys[at], int(lives.address[at]))
            for at in np.flatnonzero(kept).tolist()
        ]
        refused = {
            int(row): Key((0, 0), 0 if change.one_stream else int(events.stream[row]), bool(events.bytes[row] > SMALL))
            for row in np.flatnonzero(events.action == Action.OOM)
        }
        by_age = any(context.pool is not None for context in self.snapshot.contexts)  # of PyTorch 2.12 and newer
        return replayed(self.memory, change, requests, refused, limit, by_age=by_age)

    @cached_property
    def _usable_again(self) -> Ints:
        """Per life, the event after which its block can be used again: other streams may have to be waited for."""
        events, ends = self.memory.events, self.lives.end.copy()
        waiting: dict[int, list[int]] = {}
        for row in np.flatnonzero(events.action == Action.FREE_COMPLETED).tolist():
            waiting.setdefault(int(events.address[row]), []).append(row)
        freed = np.flatnonzero(ends < self.count)
        for life in freed[events.action[ends[freed]] == Action.FREE_REQUESTED].tolist():
            rows = waiting.get(int(self.lives.address[life]), [])
            later = bisect_right(rows, int(ends[life]))
            ends[life] = rows[later] if later < len(rows) else self.count
        return ends

    @cached_property
    def is_replayed_right(self) -> bool:
        """Whether the replay with nothing changed reserves what was reserved, within 2 %."""
        if not self.count or self.count > MOST_REPLAYED or self.memory.traced is not None:
            return False
        true = int(self.history.reserved.max())
        return abs(int(self.replay(Change(self.settings)).reserved.max()) - true) <= 0.02 * true
