"""How a device's memory came to what it is: the life of each block, and what was allocated and reserved after each event.

PyTorch counts blocks, which are larger than what was asked for: sizes are rounded, and of a large block a rest of up to
1 MiB is not split off. Entries have what was asked for; the size of a block follows from where it lies and what lies
behind it. So peaks are PyTorch's own, to the byte.
"""

from bisect import bisect_right, insort
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.allocator import MIB, Settings
from opscope.trace.snapshot import Action, DeviceMemory, Events, Ints

BEFORE: Final = -1  # the row of what happened before the history begins


class Lives(Struct, frozen=True):
    """Every block that held something, in the order of allocation: arrays of one length.

    Attributes:
        address: where it was.
        requested: the bytes that were asked for.
        bytes: the bytes of the block, as PyTorch counts them.
        begin: the row of the event that allocated it; `BEFORE` if that was not recorded.
        end: the row of the event that freed it; the number of events if it is alive at the end.
        stack: where it was allocated.
        end_stack: where it was freed; 0 if it was not.
        stream: position in the snapshot's streams; 0 where it is unknown.
    """

    address: Ints
    requested: Ints
    bytes: Ints
    begin: Ints
    end: Ints
    stack: Ints
    end_stack: Ints
    stream: Ints

    def __len__(self) -> int:
        """Return their number."""
        return len(self.address)


class History(Struct, frozen=True):
    """The memory of one device over time.

    Attributes:
        memory: what the snapshot has of the device.
        lives: all blocks.
        allocated: bytes in blocks that hold something, after each event; the first value is before all events.
        reserved: bytes that the allocator holds of the device, likewise.
        peak: position in ``allocated`` of the highest value, the first if there are several.
    """

    memory: DeviceMemory
    lives: Lives
    allocated: Ints
    reserved: Ints
    peak: int

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated while history was recorded."""
        return int(self.allocated[self.peak])

    @property
    def alive_at_peak(self) -> np.ndarray:
        """A mask of the lives at the peak."""
        row = self.peak - 1
        return (self.lives.begin <= row) & (self.lives.end > row)


def history_of(memory: DeviceMemory, settings: Settings) -> History:
    """Follow the memory of a device through its events."""
    lives = _with_block_sizes(memory, _paired(memory), settings)
    count = len(memory.events)
    allocated = total_over_time(count, lives.begin, lives.end, lives.bytes)
    return History(memory, lives, allocated, _reserved(memory), int(np.argmax(allocated)))


def total_over_time(count: int, begin: Ints, end: Ints, sizes: Ints) -> Ints:
    """Return the bytes alive before all events and after each of them.

    Args:
        count: the number of events.
        begin: per life, the row that begins it; `BEFORE` for one that is alive before.
        end: the row that ends it; ``count`` for one that is not ended.
        sizes: in bytes.
    """
    change = np.zeros(count + 2, dtype=np.int64)
    np.add.at(change, begin + 1, sizes)
    np.subtract.at(change, end + 1, sizes)
    total: Ints = np.cumsum(change[: count + 1])
    return total


def _reserved(memory: DeviceMemory) -> Ints:
    events = memory.events
    sign = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)).astype(np.int64)
    sign -= np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    change = np.concatenate(([0], np.cumsum(sign * events.bytes)))
    now = sum(segment.bytes for segment in memory.segments)
    held: Ints = change + (now - int(change[-1]))
    return held


# ---------------------------------------------------------------- what was allocated and freed together


def _paired(memory: DeviceMemory) -> Lives:
    """Return all lives, with the requested bytes where those of the block are not known yet (0)."""
    events, count = memory.events, len(memory.events)
    is_alloc = events.action == Action.ALLOC
    rows = np.flatnonzero(is_alloc | np.isin(events.action, (Action.FREE_REQUESTED, Action.FREED)))
    rows = rows[np.lexsort((rows, events.address[rows]))]
    address, begins = events.address[rows], is_alloc[rows]
    follows = np.append(address[1:] == address[:-1], False)
    freed_next = begins & follows & ~np.append(begins[1:], True)
    began = rows[begins]
    ended = np.where(freed_next, np.append(rows[1:], 0), count)[begins]
    # A release whose allocation was not recorded, and what was alive all the time.
    no_begin = rows[~begins & ~np.append(False, freed_next[:-1])]
    order = np.argsort(began)
    known = _of_rows(events, began[order], ended[order])
    early = _of_rows(events, np.full(len(no_begin), BEFORE), no_begin)
    always, alive = _never_freed(memory, known)
    return _joined(early, always, known, alive)


def _of_rows(events: Events, begin: Ints, end: Ints) -> Lives:
    count = len(events)
    at = np.where(begin >= 0, begin, np.minimum(end, max(count - 1, 0)))
    freed = end < count
    return Lives(
        address=events.address[at],
        requested=events.bytes[at],
        bytes=np.zeros(len(at), dtype=np.int64),
        begin=begin,
        end=end,
        stack=np.where(begin >= 0, events.stack[at], 0).astype(np.int64),
        end_stack=np.where(freed, events.stack[np.minimum(end, max(count - 1, 0))], 0).astype(np.int64) if count else begin,
        stream=events.stream[at].astype(np.int64),
    )


def _never_freed(memory: DeviceMemory, known: Lives) -> tuple[Lives, dict[int, int]]:
    """Return the blocks alive at the end that no event allocated; and the size of all alive ones, by address."""
    blocks = [block for segment in memory.segments for block in segment.blocks if block.is_allocated]
    count = len(memory.events)
    last = set(known.address[known.end == count].tolist())
    always = [block for block in blocks if block.address not in last]
    numbers = np.array(
        [(block.address, block.requested or block.bytes, block.bytes, block.stack) for block in always], dtype=np.int64
    ).reshape(-1, 4)
    full = np.full(len(always), count, dtype=np.int64)
    none = np.zeros(len(always), dtype=np.int64)
    lives = Lives(
        numbers[:, 0], numbers[:, 1], numbers[:, 2], np.full(len(always), BEFORE), full, numbers[:, 3], none, none
    )
    return lives, {block.address: block.bytes for block in blocks}


def _joined(early: Lives, always: Lives, known: Lives, alive: dict[int, int]) -> Lives:
    parts = (early, always, known)
    names = Lives.__struct_fields__
    whole = Lives(*(np.concatenate([getattr(part, name) for part in parts]).astype(np.int64) for name in names))
    at_end = np.flatnonzero(whole.end == (whole.end.max() if len(whole) else 0))
    for at in at_end.tolist():
        whole.bytes[at] = alive.get(int(whole.address[at]), 0) if not whole.bytes[at] else whole.bytes[at]
    return whole


# ---------------------------------------------------------------- the size of blocks


def _with_block_sizes(memory: DeviceMemory, lives: Lives, settings: Settings) -> Lives:
    """Fill in the bytes of blocks that are not known from the end: the rounded request, and a rest that is not split."""
    rounded = settings.rounded(lives.requested)
    unknown = lives.bytes == 0
    large = rounded > MIB
    lives.bytes[unknown & ~large] = rounded[unknown & ~large]
    if settings.is_expandable:  # any rest is split off
        lives.bytes[unknown] = rounded[unknown]
        return lives
    _place_large(memory, lives, rounded, large, settings)
    return lives


def _place_large(memory: DeviceMemory, lives: Lives, rounded: Ints, large: np.ndarray, settings: Settings) -> None:
    """Walk through the large blocks in order; a block's size is limited by what lies behind it."""
    ends, expandable = _segment_ends(memory)
    starts: list[int] = sorted(lives.address[large & (lives.begin == BEFORE)].tolist())
    steps = [(int(row), False, int(at)) for at, row in zip(np.flatnonzero(large), lives.begin[large], strict=True)]
    steps += [(row, True, address) for row, address in _released(memory, lives, large)]
    for at in np.flatnonzero(large & (lives.begin == BEFORE) & (lives.bytes == 0)).tolist():
        lives.bytes[at] = _size(int(lives.address[at]), int(rounded[at]), starts, ends, settings)
    for _, is_release, at in sorted(step for step in steps if step[0] >= 0):
        if is_release:
            position = bisect_right(starts, at) - 1
            if position >= 0 and starts[position] == at:
                del starts[position]
            continue
        address = int(lives.address[at])
        if not lives.bytes[at]:
            is_exact = address in expandable
            lives.bytes[at] = rounded[at] if is_exact else _size(address, int(rounded[at]), starts, ends, settings)
        insort(starts, address)


def _released(memory: DeviceMemory, lives: Lives, large: np.ndarray) -> list[tuple[int, int]]:
    """Return when large blocks could be used again, and their addresses: not before the release was complete."""
    events = memory.events
    waiting = {
        (int(row), int(events.address[row])) for row in np.flatnonzero(events.action == Action.FREE_COMPLETED)
    }
    at_once = events.action == Action.FREED
    ended = lives.end[large & (lives.end < len(events))]
    addresses = set(lives.address[large].tolist())
    done = [(int(row), int(events.address[row])) for row in ended if at_once[row]]
    return done + [(row, address) for row, address in waiting if address in addresses]


def _segment_ends(memory: DeviceMemory) -> tuple[list[int], set[int]]:
    """Return where segments that ever were end; a block never reaches beyond."""
    events = memory.events
    rows = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    ends = set((events.address[rows] + events.bytes[rows]).tolist())
    ends |= {segment.address + segment.bytes for segment in memory.segments}
    # An address handed out again may lie within a segment that was freed: its beginning is a border as well.
    ends |= set(events.address[rows].tolist()) | {segment.address for segment in memory.segments}
    inside = {block.address for one in memory.segments if one.is_expandable for block in one.blocks}
    return sorted(ends), inside


def _size(address: int, rounded: int, starts: list[int], ends: list[int], settings: Settings) -> int:
    behind = bisect_right(starts, address)
    border = bisect_right(ends, address)
    limits = [starts[behind]] if behind < len(starts) else []
    limits += [ends[border]] if border < len(ends) else []
    room = min(limits, default=address + rounded) - address
    if room < rounded:  # borders of segments that were there at another time
        return rounded
    rest = room - rounded
    return rounded if settings.is_split(rounded, rest, is_large=True) else room


