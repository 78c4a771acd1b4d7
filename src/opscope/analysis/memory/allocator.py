"""The rules by which PyTorch's caching allocator rounds, finds, splits and frees blocks; and a replay by them.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` and ``AllocatorConfig.h`` of PyTorch 2.4 to 2.15.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from opscope.trace.snapshot import Action, DeviceMemory, Ints

MIB: Final = 1 << 20
SMALLEST: Final = 512  # bytes; all sizes are multiples of it
SMALL: Final = MIB  # larger blocks come from other segments
SMALL_SEGMENT: Final = 2 * MIB
LARGE_SEGMENT: Final = 20 * MIB  # of blocks of less than `OWN_SEGMENT`
OWN_SEGMENT: Final = 10 * MIB
ROUND_LARGE: Final = 2 * MIB
UNLIMITED: Final = 1 << 62


class Settings(Struct, frozen=True):
    """What ``PYTORCH_CUDA_ALLOC_CONF`` says, as far as it changes which blocks are used.

    Attributes:
        is_expandable: ``expandable_segments``.
        max_split_size: bytes; larger blocks are never split.
        divisions: ``roundup_power2_divisions``, by power of two from 1 MiB on.
        collects_at: ``garbage_collection_threshold``, a share of the limit; 0 for never.
    """

    is_expandable: bool = False
    max_split_size: int = UNLIMITED
    divisions: tuple[int, ...] = (0,) * 16
    collects_at: float = 0.0

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Settings":
        """Read what a snapshot has of them."""
        split = settings.get("max_split_size")
        collects = settings.get("garbage_collection_threshold")
        named = settings.get("roundup_power2_divisions")
        values = named.values() if isinstance(named, dict) else ()
        divisions = tuple(value if isinstance(value, int) and 0 <= value <= 64 else 0 for value in values)
        return cls(
            is_expandable=settings.get("expandable_segments") is True,
            max_split_size=split if isinstance(split, int) and 0 < split < UNLIMITED else UNLIMITED,
            divisions=(*divisions, *(0,) * 16)[:16],
            collects_at=collects if isinstance(collects, float) and 0 < collects < 1 else 0.0,
        )

    def rounded(self, sizes: Ints) -> Ints:
        """Round sizes up as the allocator does."""
        whole: Ints = np.maximum(-(-sizes // SMALLEST) * SMALLEST, SMALLEST)
        if any(self.divisions):
            for at in np.flatnonzero(sizes > SMALLEST).tolist():
                whole[at] = self._by_divisions(int(sizes[at]), int(whole[at]))
        return whole

    def _by_divisions(self, size: int, whole: int) -> int:
        division = self.divisions[min(max(size.bit_length() - 21, 0), 15)]
        if division <= 1 or size <= SMALLEST * division or not size & (size - 1):
            return whole
        step = (1 << (size.bit_length() - 1)) >> (division.bit_length() - 1)
        return -(-size // step) * step

    def is_split(self, size: int, rest: int, *, is_large: bool) -> bool:
        """Tell whether the rest of a free block is split off."""
        if not is_large or self.is_expandable:
            return rest >= SMALLEST
        return size < self.max_split_size and rest > SMALL


def segment_size(rounded: int) -> int:
    """Return how much the allocator asks of the device for a block, in bytes."""
    if rounded <= SMALL:
        return SMALL_SEGMENT
    if rounded < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE


# ---------------------------------------------------------------- a replay of events under other settings


class Change(Struct, frozen=True):
    """What is other than in the recording.

    Attributes:
        settings: of the allocator.
        one_stream: all work runs on one stream.
        one_pool: all private pools are one.
        at_once: a block can be used again as soon as it is freed, whatever other streams do.
    """

    settings: Settings
    one_stream: bool = False
    one_pool: bool = False
    at_once: bool = False


class Replayed(Struct, frozen=True):
    """What a replay comes to.

    Attributes:
        reserved: bytes held of the device, before all events and after each of them.
        refused: the rows of requests that found no room within the limit.
    """

    reserved: Ints
    refused: tuple[int, ...]


class Key(NamedTuple):
    """Which blocks can serve a request."""

    pool: tuple[int, int]
    stream: int
    is_large: bool


class Request(NamedTuple):
    """One life, for a replay.

    Attributes:
        begin: the row of its event; negative for before all events.
        end: the row after which its block can be used again.
        size: in bytes, rounded.
        key: which blocks can serve it.
        address: where it was.
    """

    begin: int
    end: int
    size: int
    key: Key
    address: int


class _Block:
    __slots__ = ("address", "after", "before", "born", "is_free", "is_mapped", "key", "order", "size")

    def __init__(self, key: Key, address: int, size: int, order: int) -> None:
        self.key, self.address, self.size, self.order = key, address, size, order
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.is_free, self.is_mapped, self.born = False, True, 0


_Entry = tuple[int, int, int, int, _Block]  # size, order, address, serial: the smallest is taken
_BEYOND: Final = LARGE_SEGMENT << 33  # addresses that no device has, whole pages
_ROOM: Final = LARGE_SEGMENT << 20  # addresses of an expandable segment


class Allocator:
    """The caching allocator of one device.

    Args:
        settings: what it goes by.
        limit: the most bytes that it may hold of the device.
        by_age: whether of free blocks of one size that of the oldest segment is taken (PyTorch 2.13 and newer), or the
            one with the lowest address.
        addresses: where segments of each size were, in order: what the device will say again.
    """

    def __init__(
        self, settings: Settings, limit: int = UNLIMITED, *, by_age: bool = True, addresses: dict[int, list[int]]
    ) -> None:
        self.settings, self.limit = settings, limit
        self._by_age = by_age
        self._addresses = {size: list(reversed(known)) for size, known in addresses.items()}
        self.reserved = 0
        self._free: dict[Key, list[_Entry]] = {}
        self._calls = 0  # of the search in the large blocks of the default pool: the clock of their ages
        self._expandable: dict[Key, list[_Block]] = {}  # first blocks, of each expandable segment
        self._segments = self._serial = 0
        self._held: set[int] = set()  # where segments are
        self._next = _BEYOND

    def allocate(self, key: Key, size: int) -> _Block | None:
        """Return a block for a rounded request, or None if there is no room within the limit."""
        block = self._found(key, size)
        if block is None:
            self._collect()
            block = self._new(key, size)
        if block is None:
            self._release_large(key, size)
            block = self._new(key, size)
        if block is None:
            self.release_cached()
            block = self._new(key, size)
        if block is None:
            return None
        rest = block.size - size
        if rest and self.settings.is_split(size, rest, is_large=key.is_large):
            self._insert(self._cut(block, size))
        return block

    def free(self, block: _Block) -> None:
        """Give a block back; it is joined with free neighbours."""
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free and neighbour.is_mapped:
                self._remove(neighbour)
                self._join(block, neighbour)
        self._insert(block)

    def release_cached(self) -> None:
        """Give everything back to the device that holds nothing, as ``empty_cache`` does."""
        for entries in list(self._free.values()):
            for *_, block in list(entries):
                if self.settings.is_expandable:
                    self._unmap(block)
                elif _is_whole(block):
                    self._give_back(block)

    def _found(self, key: Key, size: int) -> _Block | None:
        self._calls += key.is_large and key.pool == (0, 0)
        entries = self._free.get(key, [])
        at = bisect_left(entries, (size,))
        if at == len(entries):
            return None
        if self.settings.is_expandable:
            while at + 1 < len(entries) and _reach(entries[at + 1][-1]) < _reach(entries[at][-1]):
                at += 1
        block, most = entries[at][-1], self.settings.max_split_size
        if size < most <= block.size or (size >= most and block.size >= size + LARGE_SEGMENT):
            return None
        self._remove(block)
        return block

    def _new(self, key: Key, size: int) -> _Block | None:
        asked = segment_size(size)
        if self.reserved + asked > self.limit:
            return None
        if self.settings.is_expandable:
            return self._mapped(key, size) if size <= _ROOM else None
        self.reserved += asked
        known = self._addresses.get(asked)
        if known and known[-1] not in self._held:
            address = known.pop()
        else:
            address, self._next = self._next, self._next + asked
        self._held.add(address)
        block = _Block(key, address, asked, self._segments if self._by_age else 0)
        self._segments += 1
        return block

    def _collect(self) -> None:
        """Give back the oldest free segments of the default pool, where more than the threshold is held."""
        target = self.reserved - int(self.settings.collects_at * self.limit)
        if not self.settings.collects_at or self.limit >= UNLIMITED or target <= 0:
            return
        large = [
            entry[-1] for key, entries in self._free.items() if key.is_large and key.pool == (0, 0) for entry in entries
        ]
        whole = [
            block for block in sorted(large, key=lambda one: (one.size, one.order, one.address)) if _is_whole(block)
        ]
        age = sum(self._calls - block.born for block in whole)
        released = True
        while target > 0 and released and whole:
            released, limit = False, age // len(whole)
            for block in list(whole):
                if self._calls - block.born >= limit and not self.settings.is_expandable:
                    self._give_back(block)
                    target -= block.size
                    age -= self._calls - block.born
                    whole.remove(block)
                    released = True

    def _release_large(self, key: Key, size: int) -> None:
        most = self.settings.max_split_size
        if most >= UNLIMITED:
            return
        left = max(size, most)
        for entry in sorted(self._free.get(key, []), reverse=True):
            block = entry[-1]
            if left <= 0 or block.size < most:
                break
            if _is_whole(block):
                self._give_back(block)
                left -= block.size

    def _give_back(self, block: _Block) -> None:
        """Give a whole segment back to the device."""
        self._remove(block)
        self._held.discard(block.address)
        self.reserved -= block.size

    # ---- expandable segments

    def _mapped(self, key: Key, size: int) -> _Block:
        block = self._candidate(key, size)
        if block.is_mapped:
            self._remove(block)
        else:
            block = self._map(block, min(block.size, size))
        while block.size < size:
            after = block.after
            assert after is not None
            if after.is_mapped:
                self._remove(after)
            else:
                after = self._map(after, min(size - block.size, after.size))
            if after is not block:
                self._join(block, after)
        return block

    def _candidate(self, key: Key, size: int) -> _Block:
        for first in self._expandable.get(key, []):
            block: _Block | None = first
            while block is not None:
                if not block.is_mapped:
                    before = block.before
                    begin = before if before is not None and before.is_free and before.is_mapped else block
                    if _run(begin) >= size:
                        return begin
                block = block.after
        whole = _Block(key, self._next, _ROOM, self._segments)
        whole.is_mapped = False
        self._next += _ROOM
        self._segments += 1
        self._expandable.setdefault(key, []).append(whole)
        return whole

    def _map(self, block: _Block, size: int) -> _Block:
        """Back a part of an unmapped block with memory, in whole pages; return it, joined with what lies before it."""
        page = LARGE_SEGMENT if block.key.is_large else SMALL_SEGMENT
        size = min(-(-(block.address + size) // page) * page - block.address, block.size)
        if size < block.size:
            self._cut(block, size).is_mapped = False
        block.is_mapped = True
        self.reserved += size
        before = block.before
        if before is not None and before.is_free and before.is_mapped:
            self._remove(before)
            self._join(block, before)
        return block

    def _unmap(self, block: _Block) -> None:
        page = LARGE_SEGMENT if block.key.is_large else SMALL_SEGMENT
        begin = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if end <= begin:
            return
        self._remove(block)
        if begin > block.address:
            front = block
            block = self._cut(front, begin - front.address)
            self._insert(front)
        if block.address + block.size > end:
            self._insert(self._cut(block, end - block.address))
        block.is_mapped = False
        self.reserved -= end - begin
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.is_mapped:
                self._join(block, neighbour)

    # ---- blocks

    def _entries(self, block: _Block) -> list[_Entry]:
        return self._free.setdefault(block.key, [])

    def _insert(self, block: _Block) -> None:
        block.is_free, block.born = True, self._calls
        self._serial += 1
        insort(self._entries(block), (block.size, block.order, block.address, self._serial, block))

    def _remove(self, block: _Block) -> None:
        entries = self._entries(block)
        at = bisect_left(entries, (block.size, block.order, block.address))
        while entries[at][-1] is not block:
            at += 1
        del entries[at]
        block.is_free = False

    def _cut(self, block: _Block, size: int) -> _Block:
        """Shorten a block; return the rest."""
        rest = _Block(block.key, block.address + size, block.size - size, block.order)
        block.size = size
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        return rest

    def _join(self, block: _Block, neighbour: _Block) -> None:
        """Make a neighbour part of a block."""
        if neighbour is block.before:
            block.before, block.address = neighbour.before, neighbour.address
            if block.before is not None:
                block.before.after = block
            firsts = self._expandable.get(block.key, [])
            for at, first in enumerate(firsts):
                if first is neighbour:
                    firsts[at] = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        block.size += neighbour.size


def _is_whole(block: _Block) -> bool:
    """Tell whether a block is a whole segment."""
    return block.before is None and block.after is None


def _reach(block: _Block) -> int:
    """Return the size that a block can grow to."""
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _run(block: _Block) -> int:
    """Return how much room there is from a block on, free or not mapped."""
    size, at = 0, block
    while at is not None and (at.is_free or not at.is_mapped):
        size += at.size
        if at.after is None:
            break
        at = at.after
    return size


def met_limit(memory: DeviceMemory) -> bool:
    """Tell whether the device refused memory: the allocator gave back what it could, or said that it was out of it."""
    events = memory.events
    if (events.action == Action.OOM).any():
        return True
    rows = np.flatnonzero(np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
    return any(_made_room(memory, int(row)) for row in rows if row)


def _made_room(memory: DeviceMemory, row: int) -> bool:
    """Tell whether segments were given back for the request of a row: by the same call, as ``empty_cache`` is not."""
    events = memory.events
    before = row - 1
    gives_back = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    return before >= 0 and events.action[before] in gives_back and events.stack[before] == events.stack[row]


def keys_of(memory: DeviceMemory, change: Change, address: Ints, stream: Ints, rounded: Ints) -> list[Key]:
    """Return which blocks can serve each of some requests."""
    pools = sorted((one.address, one.address + one.bytes, one.pool) for one in memory.segments if one.pool != (0, 0))
    starts = [begin for begin, _, _ in pools]
    keys = []
    for at, on, size in zip(address.tolist(), stream.tolist(), rounded.tolist(), strict=True):
        position = bisect_left(starts, at + 1) - 1
        pool = pools[position][2] if position >= 0 and at < pools[position][1] else (0, 0)
        if change.one_pool and pool != (0, 0):
            pool = (1, 0)
        keys.append(Key(pool, 0 if change.one_stream else on, size > SMALL))
    return keys


def replayed(
    memory: DeviceMemory,
    change: Change,
    requests: Sequence[Request],
    refused: Mapping[int, Key],
    limit: int = UNLIMITED,
    *,
    by_age: bool = True,
) -> Replayed:
    """Go through a history again with something changed.

    Args:
        memory: the device.
        change: what is other.
        requests: all lives.
        refused: the rows of requests that were refused, and which blocks could have served them.
        limit: the most that the device gives.
        by_age: as for `Allocator`.
    """
    count = len(memory.events)
    allocator = Allocator(change.settings, limit, by_age=by_age, addresses=_segment_addresses(memory))
    begins = {request.begin: life for life, request in enumerate(requests) if request.begin >= 0}
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for life, request in enumerate(requests):
        ends[request.end].append(life)
    early = sorted((request.address, life) for life, request in enumerate(requests) if request.begin < 0)
    blocks = {life: allocator.allocate(requests[life].key, requests[life].size) for _, life in early}
    emptied = _emptied(memory)
    changes = [(0, allocator.reserved)]
    without_room = []
    for row in sorted({*begins, *ends, *emptied, *refused} - {count}):
        life = begins.get(row, -1)
        if life >= 0:
            blocks[life] = allocator.allocate(requests[life].key, requests[life].size)
            if blocks[life] is None:
                without_room.append(row)
        if row in refused and not _has_room(allocator, refused[row], int(memory.events.bytes[row])):
            without_room.append(row)
        for ended in ends.get(row, ()):
            block = blocks.pop(ended, None)
            if block is not None:
                allocator.free(block)
        if row in emptied:
            allocator.release_cached()
        changes.append((row + 1, allocator.reserved))
    at, values = (np.array(column, dtype=np.int64) for column in zip(*changes, strict=True))
    return Replayed(np.repeat(values, np.diff(np.append(at, count + 1))), tuple(without_room))


def _has_room(allocator: Allocator, key: Key, size: int) -> bool:
    """Tell whether a request that was refused finds a block; it is free again afterwards."""
    block = allocator.allocate(key, size)
    if block is not None:
        allocator.free(block)
    return block is not None


def _emptied(memory: DeviceMemory) -> set[int]:
    """Return where ``empty_cache`` was called."""
    rows = np.flatnonzero(np.isin(memory.events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)))
    return {row for row in rows.tolist() if _by_user(memory, row)}


def _segment_addresses(memory: DeviceMemory) -> dict[int, list[int]]:
    addresses: dict[int, list[int]] = {}
    for row in np.flatnonzero(memory.events.action == Action.SEGMENT_ALLOC).tolist():
        addresses.setdefault(int(memory.events.bytes[row]), []).append(int(memory.events.address[row]))
    return addresses


def _by_user(memory: DeviceMemory, row: int) -> bool:
    """Tell whether a segment was given back by ``empty_cache``, and not to make room for a request."""
    actions, count = memory.events.action, len(memory.events)
    gives_back = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    if row and actions[row - 1] in gives_back:
        return False  # the first of a run stands for it
    while row < count and actions[row] in gives_back:
        row += 1
    asks = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    return row >= count or not (actions[row] == Action.OOM or (actions[row] in asks and _made_room(memory, row)))
