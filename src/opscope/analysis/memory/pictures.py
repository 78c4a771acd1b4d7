"""What the page draws of a snapshot: bytes by owner over time, and the segments at the end with what holds them."""

from itertools import pairwise
from typing import Final

import numpy as np

from opscope.analysis.memory.case import Case
from opscope.analysis.memory.history import total_over_time
from opscope.documents.memory import MemoryPicture, Owner, SegmentPicture
from opscope.trace.snapshot import UNKNOWN, Ints, Segment

_MOMENTS: Final = 400  # more are not told apart on a screen
_TOP: Final = 6
_SEGMENTS: Final = 400
_BLOCKS: Final = 4000
_NO_LINE: Final = "no line of Python"


def picture_of(case: Case) -> MemoryPicture:
    """Draw one device."""
    lives, count = case.lives, case.count
    moments = _moments(case.history.allocated, case.history.peak)
    held = {
        owner: total_over_time(count, lives.begin[mask], lives.end[mask], lives.bytes[mask])[moments]
        for owner in Owner
        if (mask := case.owned.of(owner)).any()
    }
    owners = sorted(held, key=lambda owner: -int(held[owner].max()))
    lines = _Lines(case, owners)
    holding = [one for one in case.memory.segments if any(block.is_active for block in one.blocks)]
    empty = [one for one in case.memory.segments if not any(block.is_active for block in one.blocks)]
    segments = _chosen(holding)
    return MemoryPicture(
        device=case.memory.device,
        owners=tuple(map(str, owners)),
        time_us=tuple(_times(case, moments)),
        bytes=tuple(tuple(held[owner].tolist()) for owner in owners),
        reserved_bytes=tuple(case.history.reserved[moments].tolist()),
        top=tuple(lines.top(int(moment) - 1) for moment in moments),
        peak=int(np.searchsorted(moments, case.history.peak)),
        peak_bytes=case.history.peak_bytes,
        segments=tuple(lines.segment(segment) for segment in segments),
        left_out=len(holding) - len(segments),
        empty_segments=len(empty),
        empty_bytes=sum(one.bytes for one in empty),
        lines=lines.names,
    )


def _moments(allocated: Ints, peak: int) -> Ints:
    """Return the positions that are drawn: of each stretch the one with most, and the peak."""
    borders = np.unique(np.linspace(0, len(allocated), min(_MOMENTS, len(allocated)) + 1).astype(np.int64))
    highest = [int(begin + np.argmax(allocated[begin:end])) for begin, end in pairwise(borders.tolist())]
    moments: Ints = np.unique([*highest, peak, len(allocated) - 1])
    return moments


def _times(case: Case, moments: Ints) -> list[int]:
    """Return when the moments are; their numbers where times were not recorded."""
    times = case.memory.events.time_us
    if not len(times) or times[0] == UNKNOWN:
        return [int(moment) for moment in moments]
    since = np.concatenate(([0], np.maximum.accumulate(times) - times[0]))
    return [int(since[moment]) for moment in moments]


class _Lines:
    """Numbers the lines that blocks were allocated at."""

    def __init__(self, case: Case, owners: list[Owner]) -> None:
        self._case, self._numbers = case, dict[str, int]()
        self._owners = {owner: number for number, owner in enumerate(owners)}
        lives = case.lives
        line_of_stack = [self._number(stack.line or stack.operator or _NO_LINE) for stack in case.table.stacks]
        self._line = np.array(line_of_stack, dtype=np.int64)[lives.stack] if len(lives) else lives.stack
        self._owner = np.array([self._owners[owner] for owner in case.owned.owner], dtype=np.int64)
        self._key = self._line * len(owners) + self._owner
        ends = np.flatnonzero(lives.end == case.count).tolist()
        self._at_end = {int(lives.address[life]): life for life in ends}

    @property
    def names(self) -> tuple[str, ...]:
        """All lines, in the order of their numbers."""
        return tuple(self._numbers)

    def _number(self, line: str) -> int:
        return self._numbers.setdefault(line, len(self._numbers))

    def top(self, row: int) -> tuple[tuple[int, int, int], ...]:
        """Return the lines with most after an event."""
        lives = self._case.lives
        alive = (lives.begin <= row) & (lives.end > row)
        if not alive.any():
            return ()
        sums = np.bincount(self._key[alive], weights=lives.bytes[alive])
        largest = np.argsort(-sums, kind="stable")[:_TOP]
        count = len(self._owners)
        return tuple((int(key) // count, int(key) % count, int(sums[key])) for key in largest if sums[key])

    def segment(self, segment: Segment) -> SegmentPicture:
        """Draw a segment."""
        blocks = []
        for block in segment.blocks:
            life = self._at_end.get(block.address) if block.is_allocated else None
            owner = -1 if not block.is_active else -2 if life is None else int(self._owner[life])
            line = -1 if life is None else int(self._line[life])
            blocks.append((block.address - segment.address, block.bytes, owner, line))
        return SegmentPicture(
            bytes=segment.bytes,
            free_bytes=sum(block.bytes for block in segment.blocks if not block.is_active),
            stream=segment.stream,
            pool="default" if segment.pool == (0, 0) else f"{segment.pool[0]}, {segment.pool[1]}",
            blocks=tuple(blocks),
        )


def _chosen(segments: list[Segment]) -> list[Segment]:
    """Return the segments that are drawn: those with most free memory, as long as blocks are not too many."""
    by_free = sorted(segments, key=lambda one: -sum(block.bytes for block in one.blocks if not block.is_active))
    chosen, blocks = [], 0
    for segment in by_free[:_SEGMENTS]:
        blocks += len(segment.blocks)
        if blocks > _BLOCKS:
            break
        chosen.append(segment)
    return sorted(chosen, key=lambda one: (one.pool, one.stream, one.address))
