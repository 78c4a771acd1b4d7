"""What fills a device's memory, how it came to that, and what to do: the schema ``opscope.memory/1``."""

from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from opscope.base.units import format_bytes


class Owner(StrEnum):
    """Whose memory is. It follows from where it was allocated and freed, and from how long it lived."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activations"
    INPUT = "inputs"
    TEMPORARY = "temporaries"
    WORKSPACE = "workspaces"
    GRAPH_POOL = "graph pools"
    KEPT = "kept from earlier steps"
    UNKNOWN = "unknown"


class MemoryRule(StrEnum):
    """The rules that make findings on memory."""

    CHECKPOINT = "checkpoint"
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries"
    OPTIMIZER_STATES = "optimizer_states"
    VOCABULARY_LOSS = "vocabulary_loss"
    ZEROED_GRADIENTS = "zeroed_gradients"
    LATE_ZERO_GRAD = "late_zero_grad"
    GROWTH = "growth"
    GROWING_CACHE = "growing_cache"
    EVALUATION_GRAPH = "evaluation_graph"
    PREVIOUS_OUTPUT = "previous_output"
    FRAGMENTATION = "fragmentation"
    GRAPH_POOLS = "graph_pools"
    SEVERAL_STREAMS = "several_streams"
    RECORDED_STREAMS = "recorded_streams"
    LOADED_COPY = "loaded_copy"
    WHOLE_DATASET = "whole_dataset"
    LOW_PRECISION = "low_precision"

    @property
    def change(self) -> str:
        """What changes, in a few words: the end of a sentence."""
        return _CHANGES[self]


_CHANGES: Final = {
    MemoryRule.CHECKPOINT: "with checkpointed blocks",
    MemoryRule.OPTIMIZER_TEMPORARIES: "without the optimizer's temporaries",
    MemoryRule.OPTIMIZER_STATES: "with optimizer states in 8 bits",
    MemoryRule.VOCABULARY_LOSS: "with the loss in parts",
    MemoryRule.ZEROED_GRADIENTS: "with gradients set to None",
    MemoryRule.LATE_ZERO_GRAD: "with gradients freed earlier",
    MemoryRule.GROWTH: "without what grows",
    MemoryRule.GROWING_CACHE: "with a static cache",
    MemoryRule.EVALUATION_GRAPH: "under no_grad",
    MemoryRule.PREVIOUS_OUTPUT: "without the last step's result",
    MemoryRule.FRAGMENTATION: "with other settings of the allocator",
    MemoryRule.GRAPH_POOLS: "with one pool for all CUDA graphs",
    MemoryRule.SEVERAL_STREAMS: "on one stream",
    MemoryRule.RECORDED_STREAMS: "without record_stream",
    MemoryRule.LOADED_COPY: "without a second copy of the weights",
    MemoryRule.WHOLE_DATASET: "with its data on the host",
    MemoryRule.LOW_PRECISION: "under autocast to bfloat16",
}


class AliveEntry(Struct, frozen=True, kw_only=True):
    """Blocks that were alive at the peak, of one owner and from one place.

    Attributes:
        owner: whose they are.
        module: the user's functions ``forward`` that they were allocated in, from the outermost; null outside of them.
        operator: the operator or autograd node; null where frames of C++ were not recorded.
        line: the innermost line of the user's code; null where no line was recorded.
        bytes: of all of them, as PyTorch counts blocks.
        count: how many blocks.
    """

    owner: Owner
    module: str | None
    operator: str | None
    line: str | None
    bytes: int
    count: int


class OwnerEntry(Struct, frozen=True):
    """One owner at the peak.

    Attributes:
        owner: whose memory it is.
        bytes: at the peak.
        before_bytes: the same where the step before had its own peak; null if there is none.
    """

    owner: Owner
    bytes: int
    before_bytes: int | None


class GrowthEntry(Struct, frozen=True):
    """A line whose memory grows from step to step.

    Attributes:
        line: the innermost line of the user's code that allocated it; null where none was recorded.
        bytes_per_step: the median growth of a step.
        steps: how many steps in a row it grew, up to the last one.
        bytes: what it holds at the last step's end.
    """

    line: str | None
    bytes_per_step: int
    steps: int
    bytes: int


class PinEntry(Struct, frozen=True):
    """A segment that cannot be given back, and what holds it.

    Attributes:
        address: of the segment.
        bytes: its size.
        free_bytes: how much of it holds nothing.
        pinned_by: the bytes of what holds it.
        line: where the largest block in it was allocated; null if that is unknown.
    """

    address: int
    bytes: int
    free_bytes: int
    pinned_by: int
    line: str | None


class SettingEntry(Struct, frozen=True):
    """A setting of the allocator, replayed.

    Attributes:
        setting: as ``PYTORCH_CUDA_ALLOC_CONF`` takes it; empty for those of the recording.
        reserved_bytes: the most that is reserved with it.
        fits: whether all requests of the recording find room within what the device gave; null where the device gave
            and refused amounts on both sides of what is needed.
    """

    setting: str
    reserved_bytes: int
    fits: bool | None


class OutOfMemory(Struct, frozen=True):
    """A request that was refused, the last one if there were several.

    Attributes:
        asked_bytes: as rounded.
        line: where; null if that is unknown.
        module: the functions ``forward`` that it was in.
        allocated_bytes: what was allocated then.
        reserved_bytes: what was reserved then.
        device_free_bytes: what the device had left.
        count: how many requests were refused in all.
        sentence: all of it in words, with what would free how much.
    """

    asked_bytes: int
    line: str | None
    module: str | None
    allocated_bytes: int
    reserved_bytes: int
    device_free_bytes: int | None
    count: int
    sentence: str


class DeviceMemoryEntry(Struct, frozen=True, kw_only=True):
    """The memory of one device.

    Attributes:
        device: its number; null for pinned memory of the host.
        allocated_bytes, reserved_bytes: when the snapshot was taken.
        peak_bytes: the most that was allocated while history was recorded.
        peak_reserved_bytes: the most that was reserved, likewise.
        peak_step: the step of the peak, from 0; null where no steps were recognised.
        peak_phase: the part of the step, in words.
        owners: what was alive at the peak, by owner; adds up to ``peak_bytes``.
        peak: the same by owner and place, the largest first.
        fragmentation_bytes: what is free in segments that hold something and so cannot be given back; null where a
            trace was read, which does not have segments.
        pins: such segments, those with most free memory first, at most ten.
        growth: lines whose memory grows from step to step.
        oom: the request that was refused; null if none was.
        settings: settings of the allocator, replayed; empty where the history was too long or is missing.
        events: how many events were recorded.
        adds_up: whether there is a history and its entries add up; else the peak is not known.
        steps: how many steps were recognised.
        steps_by: how they were recognised.
        notes: what is not known, and why.
    """

    device: int | None
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int
    peak_step: int | None
    peak_phase: str
    owners: tuple[OwnerEntry, ...]
    peak: tuple[AliveEntry, ...]
    fragmentation_bytes: int | None
    pins: tuple[PinEntry, ...]
    growth: tuple[GrowthEntry, ...]
    oom: OutOfMemory | None
    settings: tuple[SettingEntry, ...]
    events: int
    adds_up: bool
    steps: int
    steps_by: str
    notes: tuple[str, ...] = ()


class MemoryFinding(Struct, frozen=True, kw_only=True):
    """One thing to do about memory.

    Attributes:
        id: unique in its document.
        rule: the rule that found it.
        device: the number of its device.
        title: what is the case, in one line.
        where: the line of the user's code; null where it has none.
        of: what becomes smaller: the peak of what is allocated, or of what is reserved.
        saves_bytes: by how much, by the history with the change; 0 where this is not known.
        then_bytes: what it is then.
        action: the change to make.
        costs: what it costs in time, as far as that is known.
        evidence: what was observed.
        wrong_if: what would make it wrong.
    """

    id: str
    rule: MemoryRule
    device: int | None
    title: str
    where: str | None
    of: Literal["allocated", "reserved"]
    saves_bytes: int
    then_bytes: int
    action: str
    costs: str
    evidence: tuple[str, ...]
    wrong_if: str


class MemoryDocument(Struct, frozen=True, kw_only=True):
    """One snapshot, or the memory that a trace has recorded.

    Attributes:
        snapshot: its file.
        devices: by number; pinned memory of the host last.
        findings: what would take less memory, by how much it saves.
        notes: over which steps it was recorded, and what that cost; empty where this is not known.
    """

    schema: Literal["opscope.memory/1"] = "opscope.memory/1"
    snapshot: str
    devices: tuple[DeviceMemoryEntry, ...]
    findings: tuple[MemoryFinding, ...]
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str | None:
        """The highest peak in a line, and of a snapshot what saves most of it; None where no peak is known."""
        known = [one for one in self.devices if one.device is not None and one.peak_bytes and one.adds_up]
        if not known:
            return None
        most = max(known, key=lambda device: device.peak_bytes)
        saving = (one for one in self.findings if one.device == most.device and one.of == "allocated")
        first = next((one for one in saving if one.saves_bytes), None)
        of_trace = most.fragmentation_bytes is None  # which knows less, and whose reader may have asked for times
        less = "" if first is None or of_trace else f"; {format_bytes(first.saves_bytes)} less {first.rule.change}"
        return f"peak memory {format_bytes(most.peak_bytes)} on GPU {most.device}{less}"


# ---------------------------------------------------------------- pictures


class SegmentPicture(Struct, frozen=True):
    """A segment at the end, as the page draws it.

    Attributes:
        bytes: its size.
        free_bytes: how much of it holds nothing.
        stream: the stream's handle.
        pool: what holds it: ``default``, or the private pool's number.
        blocks: where each block begins, its bytes, its owner as a position in the picture's owners (-1: free, -2:
            another stream may still use it), and the line as a position in the picture's lines (-1: unknown).
    """

    bytes: int
    free_bytes: int
    stream: int
    pool: str
    blocks: tuple[tuple[int, int, int, int], ...]


class MemoryPicture(Struct, frozen=True, kw_only=True):
    """One device over time, and its segments at the end.

    Attributes:
        device: its number; null for pinned memory of the host.
        owners: those that ever hold something, by their largest sum.
        lines: of the user's code, that ``top`` and ``segments`` refer to.
        time_us: of each drawn moment, since the first event; of several events that are drawn as one, the one with
            most allocated.
        bytes: per owner, its sum at each of these moments.
        reserved_bytes: what was reserved then.
        top: per moment the lines that held most, as a position in ``lines``, one in ``owners``, and bytes.
        peak: the position of the moment with most.
        peak_bytes: how much that was.
        segments: those that hold something, in the order of their addresses; if there are too many, those with most
            free memory.
        left_out: how many of them are not drawn.
        empty_segments: how many segments hold nothing.
        empty_bytes: how much these are.
    """

    device: int | None
    owners: tuple[str, ...]
    lines: tuple[str, ...]
    time_us: tuple[int, ...]
    bytes: tuple[tuple[int, ...], ...]
    reserved_bytes: tuple[int, ...]
    top: tuple[tuple[tuple[int, int, int], ...], ...]
    peak: int
    peak_bytes: int
    segments: tuple[SegmentPicture, ...]
    left_out: int
    empty_segments: int
    empty_bytes: int


# ---------------------------------------------------------------- two snapshots


class OwnerChange(Struct, frozen=True):
    """One owner at both peaks.

    Attributes:
        owner: whose memory it is.
        before_bytes: at the first snapshot's peak.
        after_bytes: at the second one's.
    """

    owner: Owner
    before_bytes: int
    after_bytes: int


class LineChange(Struct, frozen=True):
    """What one place held at both peaks.

    Attributes:
        owner: whose memory it is.
        place: file and function; lines move between two versions of a program.
        line: the line in the second snapshot, or in the first where it has none there; null where none was recorded.
        before_bytes: at the first snapshot's peak.
        after_bytes: at the second one's.
    """

    owner: Owner
    place: str
    line: str | None
    before_bytes: int
    after_bytes: int


class DeviceMemoryDifference(Struct, frozen=True, kw_only=True):
    """One device in both.

    Attributes:
        device: its number; null for pinned memory of the host.
        sentence: the change of its peak in words, and the owners that changed most.
        before_peak_bytes, after_peak_bytes: the most that was allocated.
        before_reserved_bytes, after_reserved_bytes: the most that was reserved.
        owners: all owners, those that changed most first; they add up to the change of the peak.
        lines: all places likewise.
    """

    device: int | None
    sentence: str
    before_peak_bytes: int
    after_peak_bytes: int
    before_reserved_bytes: int
    after_reserved_bytes: int
    owners: tuple[OwnerChange, ...]
    lines: tuple[LineChange, ...]


class MemoryDifference(Struct, frozen=True, kw_only=True):
    """Two snapshots: the schema ``opscope.memory-diff/1``.

    Attributes:
        before, after: their files.
        devices: those that both have.
        gone: findings of the first that the second does not have, by title.
        new: those of the second that the first does not have.
        notes: what is not compared, and why.
    """

    schema: Literal["opscope.memory-diff/1"] = "opscope.memory-diff/1"
    before: str
    after: str
    devices: tuple[DeviceMemoryDifference, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    notes: tuple[str, ...]
