"""A snapshot of PyTorch's caching allocator: what it holds of each device, and how it came to that."""

from enum import IntEnum
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]
UNKNOWN: Final = -(1 << 63)  # stands for a number that the file does not have


class Action(IntEnum):
    """What the allocator did, by the names in the file; `FREED` is a request to free and its completion at once."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    FREED = 9
    OTHER = 10


class Frame(Struct, frozen=True):
    """A place in the source.

    Attributes:
        function: its name.
        file: the path as Python or the linker has it.
        line: 0 where it is unknown.
    """

    function: str
    file: str
    line: int


class Context(Struct, frozen=True):
    """What else an entry says.

    Attributes:
        compile_context: what ``torch.compile`` was doing.
        metadata: what the program set with ``torch.cuda.memory._set_memory_metadata``.
        pool: the memory pool; None where entries do not have it.
    """

    compile_context: str
    metadata: str
    pool: tuple[int, int] | None


class Events(Struct, frozen=True):
    """What the allocator did, in order: one array a column, all of one length.

    Attributes:
        action: values of `Action`.
        address: where; of an out-of-memory entry, the bytes that the device said were free.
        bytes: as requested, before rounding; of segments their size.
        stream: position in `Snapshot.streams`.
        time_us: microseconds since 1970, or of a clock of its own; `UNKNOWN` before PyTorch 2.1.
        stack: position in `Snapshot.stacks`; 0 is the empty stack.
        context: position in `Snapshot.contexts`.
    """

    action: NDArray[np.uint8]
    address: Ints
    bytes: Ints
    stream: NDArray[np.uint16]
    time_us: Ints
    stack: NDArray[np.uint32]
    context: NDArray[np.uint32]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.action)

    def of(self, rows: slice) -> "Events":
        """Return some of the entries."""
        names = self.__struct_fields__
        return Events(*(getattr(self, name)[rows] for name in names))


class Block(Struct, frozen=True):
    """A part of a segment.

    Attributes:
        address, bytes: where it is, and its size, rounded.
        requested: the bytes that were asked for; None where it holds nothing or this is unknown.
        state: as in the file: ``active_allocated``, ``inactive``, or one of ``active_awaiting_free`` and
            ``active_pending_free``.
        stack: position in `Snapshot.stacks`.
    """

    address: int
    bytes: int
    requested: int | None
    state: str
    stack: int

    @property
    def is_allocated(self) -> bool:
        """Whether a tensor has it."""
        return self.state == "active_allocated"

    @property
    def is_active(self) -> bool:
        """Whether a tensor has it, or another stream still may use it."""
        return self.state != "inactive"


class Segment(Struct, frozen=True):
    """Memory that the allocator holds of the device in one piece.

    Attributes:
        address, bytes: where it is, and its size.
        stream: the stream's handle.
        is_large: whether blocks of more than 1 MiB come from it.
        pool: (0, 0), or the private pool that it belongs to.
        is_expandable: whether it is part of an expandable segment.
        blocks: in order.
    """

    address: int
    bytes: int
    stream: int
    is_large: bool
    pool: tuple[int, int]
    is_expandable: bool
    blocks: tuple[Block, ...]


class Annotation(Struct, frozen=True):
    """A named range's begin or end.

    Attributes:
        name: of the range.
        is_begin: whether it begins there.
        time_us: on the clock of `Events`.
    """

    name: str
    is_begin: bool
    time_us: int


class Traced(Struct, frozen=True):
    """What a trace says in place of segments: totals before all events, and after each of them.

    Attributes:
        allocated: bytes in blocks that hold something.
        reserved: bytes that the allocator holds of the device.
    """

    allocated: Ints
    reserved: Ints


class DeviceMemory(Struct, frozen=True):
    """One device.

    Attributes:
        device: its number; None for pinned memory of the host.
        events: what happened, oldest first; empty if no history was recorded.
        segments: what the allocator holds at the end.
        annotations: the ranges that PyTorch recorded beside it.
        traced: the totals of a trace, whose events have the sizes of blocks; None for a snapshot.
    """

    device: int | None
    events: Events
    segments: tuple[Segment, ...]
    annotations: tuple[Annotation, ...]
    traced: Traced | None = None


class Snapshot(Struct, frozen=True):
    """A file.

    Attributes:
        path: the file.
        devices: those of which something is known, by number, then the host.
        frames: all places in the source.
        stacks: positions in `frames`, innermost first; the first stack is empty.
        streams: the streams' handles.
        contexts: what else entries say.
        settings: the allocator's settings, as in the file; empty before PyTorch 2.1.
        bytes_read: the size of the pickle.
    """

    path: str
    devices: tuple[DeviceMemory, ...]
    frames: tuple[Frame, ...]
    stacks: "Stacks"
    streams: tuple[int, ...]
    contexts: tuple[Context, ...]
    settings: dict[str, Any]
    bytes_read: int


class Stacks(Struct, frozen=True):
    """All stacks, one after the other.

    Attributes:
        frames: positions in `Snapshot.frames`.
        ends: per stack, where it ends in ``frames``.
    """

    frames: NDArray[np.int32]
    ends: Ints

    def __len__(self) -> int:
        """Return the number of stacks."""
        return len(self.ends)

    def __getitem__(self, stack: int) -> list[int]:
        """Return a stack's frames, innermost first."""
        begin = int(self.ends[stack - 1]) if stack else 0
        return [int(frame) for frame in self.frames[begin : int(self.ends[stack])]]
