"""A device's memory over time: the life of each block, and how much was allocated and reserved after each event.

PyTorch counts blocks, which are larger than what was asked for: sizes are rounded, and of a large block a rest of up to
1 MiB is not split off. Entries have what was asked for; the size of a block follows from where it lies and what lies
behind it. So peaks are PyTorch's own, to the byte.
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.memory.allocator import MIB, Settings
from opscope.trace.snapshot import Action, DeviceMemory, Events, Ints, Traced

_IN_ORDER: Final = 0.99  # of the totals of a trace
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
        is_whole: whether the lives add up to the totals that a trace has; always so of a snapshot.
    """

    memory: DeviceMemory
    lives: Lives
    allocated: Ints
    reserved: Ints
    peak: int
    is_whole: bool = True

    @property
    def fits_together(self) -> bool:
        """Whether never more is allocated than is reserved; else entries are missing."""
        return bool(self.is_whole and (self.allocated <= self.reserved).all() and self.allocated.min() >= 0)

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
    if memory.traced is not None:
        return _traced(memory, memory.traced)
    lives = _with_block_sizes(memory, _paired(memory), settings)
    count = len(memory.events)
    allocated = total_over_time(count, lives.begin, lives.end, lives.bytes)
    return History(memory, lives, allocated, _reserved(memory), int(np.argmax(allocated)))


def _traced(memory: DeviceMemory, totals: Traced) -> History:
    """Follow the events of a trace; what it begins with and does not free is one block of unknown origin."""
    lives = _paired(memory)
    lives.bytes[:] = lives.requested
    count, early = len(memory.events), int(lives.bytes[lives.begin == BEFORE].sum())
    numbers = (-1, *(int(totals.allocated[0]) - early,) * 2, BEFORE, count, 0, 0, 0)
    before = Lives(*(np.array([number], dtype=np.int64) for number in numbers))
    names = Lives.__struct_fields__
    lives = Lives(*(np.concatenate((getattr(before, name), getattr(lives, name))) for name in names))
    allocated = total_over_time(count, lives.begin, lives.end, lives.bytes)
    peak = int(np.argmax(totals.allocated))
    # Threads may be written out of order by a little.
    is_whole = bool((allocated == totals.allocated).mean() >= _IN_ORDER and allocated[peak] == totals.allocated[peak])
    return History(memory, lives, totals.allocated, totals.reserved, peak, is_whole and int(lives.bytes[0]) >= 0)


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
    """Return all lives, with 0 for the bytes of blocks that are not known yet.

    A life ends with the request to free it; with its completion where requests were not recorded; or, where neither
    was, when its address is allocated again.
    """
    events, count = memory.events, len(memory.events)
    rows = np.flatnonzero(np.isin(events.action, _OF_BLOCKS))
    rows = rows[np.lexsort((rows, events.address[rows]))]
    rows = rows[~_completes_request(events, rows)]
    address, begins = events.address[rows], events.action[rows] == Action.ALLOC
    follows = np.append(address[1:] == address[:-1], False)
    began = rows[begins]
    ended = np.where(follows, np.append(rows[1:], 0), count)[begins]
    # A release whose allocation was not recorded, and what was alive all the time.
    no_begin = rows[~begins & ~np.append(False, begins[:-1] & follows[:-1])]
    order = np.argsort(began)
    known = _of_rows(events, began[order], ended[order])
    early = _of_rows(events, np.full(len(no_begin), BEFORE), no_begin)
    always, alive = _never_freed(memory, known)
    return _joined(early, always, known, alive)


_OF_BLOCKS: Final = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.FREED)


def _completes_request(events: Events, rows: Ints) -> np.ndarray:
    """Tell which events, by address, complete the request before them."""
    action, address = events.action[rows], events.address[rows]
    result = np.zeros(len(rows), dtype=bool)
    result[1:] = (action[1:] == Action.FREE_COMPLETED) & (action[:-1] == Action.FREE_REQUESTED)
    result[1:] &= address[1:] == address[:-1]
    # The first event of an address may complete a request from before the history: nothing lives then.
    first = np.append(True, address[1:] != address[:-1]) if len(rows) else result
    completes: np.ndarray = result | (first & (action == Action.FREE_COMPLETED) & _has_requests(events))
    return completes


def _has_requests(events: Events) -> bool:
    return bool(np.isin(events.action, (Action.FREE_REQUESTED, Action.FREED)).any())


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
        end_stack=np.where(freed, events.stack[np.minimum(end, max(count - 1, 0))], 0).astype(np.int64)
        if count
        else begin,
        stream=events.stream[at].astype(np.int64),
    )


def _never_freed(memory: DeviceMemory, known: Lives) -> tuple[Lives, dict[int, int]]:
    """Return the blocks alive at the end that no event allocated; and the size of all alive ones, by address."""
    blocks = [block for segment in memory.segments for block in segment.blocks if block.is_allocated]
    count = len(memory.events)
    last = {int(known.address[life]): life for life in np.flatnonzero(known.end == count).tolist()}
    for block in blocks:
        life = last.get(block.address)
        if life is not None and not known.stack[life]:  # entries without stacks: blocks may have them
            known.stack[life] = block.stack
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
    """Fill in the sizes of blocks that are gone at the end: the rounded request, and a rest that is not split off."""
    rounded = settings.rounded(lives.requested)
    unknown = lives.bytes == 0
    large = rounded > MIB
    lives.bytes[unknown & ~large] = rounded[unknown & ~large]
    _place_large(memory, lives, rounded, large, replace(settings, is_expandable=False))
    return lives


def _place_large(memory: DeviceMemory, lives: Lives, rounded: Ints, large: np.ndarray, settings: Settings) -> None:
    """Walk through the large blocks in order; a block's size is limited by what lies behind it."""
    borders = _first_borders(memory)
    mapped = _mapped_ranges(memory)
    begins = [begin for begin, _ in mapped]
    starts: list[int] = sorted(lives.address[large & (lives.begin == BEFORE)].tolist())

    def size(life: int) -> int:
        address = int(lives.address[life])
        at = bisect_right(begins, address) - 1
        if at >= 0 and address < mapped[at][1]:  # any rest is split off
            return int(rounded[life])
        return _size(address, int(rounded[life]), starts, borders, settings)

    for life in np.flatnonzero(large & (lives.begin == BEFORE) & (lives.bytes == 0)).tolist():
        lives.bytes[life] = size(life)
    for _, kind, number in sorted(_happenings(memory, lives, large)):
        if kind == _ALLOCATED:
            lives.bytes[number] = lives.bytes[number] or size(number)
            insort(starts, int(lives.address[number]))
        elif kind == _RELEASED:
            _discard(starts, number)
        else:
            end = int(memory.events.address[number] + memory.events.bytes[number])
            insort(borders, end) if kind == _SEGMENT_MADE else _discard(borders, end)


def _mapped_ranges(memory: DeviceMemory) -> list[tuple[int, int]]:
    """Return where expandable segments ever were, joined, in order."""
    events = memory.events
    rows = np.isin(events.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
    ranges = [*zip(events.address[rows].tolist(), (events.address[rows] + events.bytes[rows]).tolist(), strict=True)]
    ranges += [(one.address, one.address + one.bytes) for one in memory.segments if one.is_expandable]
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


_SEGMENT_GONE, _SEGMENT_MADE, _RELEASED, _ALLOCATED = range(4)


def _happenings(memory: DeviceMemory, lives: Lives, large: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the row, the kind, and a number: of a life, of an event of a segment, or the address that is released."""
    actions = memory.events.action
    for life in np.flatnonzero(large & (lives.begin >= 0)).tolist():
        yield int(lives.begin[life]), _ALLOCATED, life
    for row, address in _released(memory, lives, large):
        yield row, _RELEASED, address
    for row in np.flatnonzero(actions == Action.SEGMENT_ALLOC).tolist():
        yield row, _SEGMENT_MADE, row
    for row in np.flatnonzero(actions == Action.SEGMENT_FREE).tolist():
        yield row, _SEGMENT_GONE, row


def _first_borders(memory: DeviceMemory) -> list[int]:
    """Return where segments end that are there before all events."""
    events = memory.events
    ends = Counter(segment.address + segment.bytes for segment in memory.segments)
    for action, sign in ((Action.SEGMENT_FREE, 1), (Action.SEGMENT_ALLOC, -1)):
        rows = events.action == action
        for end in (events.address[rows] + events.bytes[rows]).tolist():
            ends[end] += sign
    return sorted(end for end, count in ends.items() for _ in range(max(count, 0)))


def _discard(numbers: list[int], number: int) -> None:
    at = bisect_right(numbers, number) - 1
    if at >= 0 and numbers[at] == number:
        del numbers[at]


def _released(memory: DeviceMemory, lives: Lives, large: np.ndarray) -> list[tuple[int, int]]:
    """Return when large blocks could be used again, and their addresses: not before the release was complete."""
    events = memory.events
    addresses = set(lives.address[large].tolist())
    complete = np.flatnonzero(events.action == Action.FREE_COMPLETED)
    waiting = [(int(row), int(events.address[row])) for row in complete if int(events.address[row]) in addresses]
    ended = lives.end[large & (lives.end < len(events))]
    at_once = (Action.FREED, Action.ALLOC)  # the latter where the release was not recorded
    return waiting + [(int(row), int(events.address[row])) for row in ended if events.action[row] in at_once]


def _size(address: int, rounded: int, starts: list[int], borders: list[int], settings: Settings) -> int:
    behind, border = bisect_right(starts, address), bisect_right(borders, address)
    limits = [starts[behind]] if behind < len(starts) else []
    limits += [borders[border]] if border < len(borders) else []
    room = min(limits, default=address + rounded) - address
    if room < rounded:  # a history that does not fit together
        return rounded
    return rounded if settings.is_split(rounded, room - rounded, is_large=True) else room
