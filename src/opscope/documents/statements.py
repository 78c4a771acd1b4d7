"""Statements on an operator: the evidence, its basis, the possible gain, and the change to make.

A statement is structured evidence, from which its sentence is made last (`opscope.render.sentences`). So statements can
be ranked by gain, compared, and acted on without parsing text.
"""

from enum import StrEnum
from typing import Literal

import msgspec
from msgspec import Struct

from opscope.record.counters import Counters


class Basis(StrEnum):
    """What a statement rests on.

    Attributes:
        MEASURED: a figure of the trace or of hardware counters.
        DERIVED: follows from such figures, or from schema and shapes.
        GENERAL: knowledge about kernels of this kind, not checked on this one.
    """

    MEASURED = "measured"
    DERIVED = "derived"
    GENERAL = "general"


class ActionKind(StrEnum):
    """What can be done about a statement."""

    FEWER_LAUNCHES = "fewer launches"
    LOWER_PRECISION = "lower matrix precision"
    PAD_SIZES = "sizes that are multiples of 8"
    CONTIGUOUS_OPERANDS = "contiguous operands"
    MORE_BLOCKS = "more thread blocks"
    EVEN_WAVES = "thread blocks that fill the last wave"


class Action(Struct, frozen=True):
    """A change, and the operator whose calls it applies to."""

    change: ActionKind
    operator: str


class Gain(Struct, frozen=True):
    """The time that a change could save: nearly certain (low), and if it did all that the limit allows (high).

    Gains of statements about the same time overlap, and do not add up.

    Attributes:
        low_ns, high_ns: nanoseconds per step or of the whole recording; see ``per``.
        per: what they refer to.
        derivation: how they were derived.
    """

    low_ns: float
    high_ns: float
    per: Literal["step", "recording"]
    derivation: str


class Evidence(msgspec.Struct, frozen=True, tag_field="id"):
    """The figures of one kind of statement; the tag is the statement's id."""


class DivisionUnknown(Evidence, frozen=True, tag="division_unknown"):
    """Schema and shapes do not tell how the work divides."""


class Independent(Evidence, frozen=True, tag="independent"):
    """``count`` parts of the result do not depend on each other; ``dimensions`` by name, ``reason`` in words."""

    count: int
    unit: str
    dimensions: dict[str, int]
    reason: str


class Combined(Evidence, frozen=True, tag="combined"):
    """Each part of the result combines ``count`` values."""

    count: int
    dimensions: dict[str, int]


class GeometryUnknown(Evidence, frozen=True, tag="geometry_unknown"):
    """Grid and block were not recorded."""


class Geometry(Evidence, frozen=True, tag="geometry"):
    """The launch: ``blocks`` thread blocks of ``threads`` threads."""

    blocks: int
    grid: tuple[int, int, int]
    threads: int
    block: tuple[int, int, int]


class PerBlock(Evidence, frozen=True, tag="per_block"):
    """How many of the independent parts a thread block and a thread work on."""

    unit: str
    per_block: float
    per_thread: float


class BlockPerTile(Evidence, frozen=True, tag="block_per_tile"):
    """One thread block per tile; ``down`` and ``across`` are null if the grid does not tell which is which."""

    tile: tuple[int, int]
    tiles: int
    down: int | None
    across: int | None
    batch: int


class BlocksPerTile(Evidence, frozen=True, tag="blocks_per_tile"):
    """Several thread blocks per tile."""

    tile: tuple[int, int]
    tiles: int
    blocks_per_tile: int


class TilesDiffer(Evidence, frozen=True, tag="tiles_differ"):
    """The grid does not match the tiles; ``tiles`` are the possible numbers of tiles."""

    tile: tuple[int, int]
    tiles: tuple[int, ...]


class Waves(Evidence, frozen=True, tag="waves"):
    """The number of thread blocks over the number that the device holds at a time."""

    waves: float
    blocks_at_a_time: float


class ResourcesUnknown(Evidence, frozen=True, tag="resources_unknown"):
    """Registers and shared memory were not recorded."""


class Resources(Evidence, frozen=True, tag="resources"):
    """Registers of a thread, and shared memory of a thread block."""

    registers_per_thread: int
    shared_memory_bytes: int | None


class TheoreticalOccupancy(Evidence, frozen=True, tag="theoretical_occupancy"):
    """Theoretical occupancy, from the launch and the device's limits."""

    percent: float
    blocks_per_multiprocessor: int
    warps_per_multiprocessor: int
    limiter: str


class AchievedOccupancy(Evidence, frozen=True, tag="achieved_occupancy"):
    """Achieved occupancy, by hardware counters."""

    percent: float


class LeastTraffic(Evidence, frozen=True, tag="least_traffic"):
    """The least bytes that must be moved, and the rate that follows from the measured time of a call."""

    least_bytes: int
    call_ns: float
    gigabytes_per_second: float


class MemoryTraffic(Evidence, frozen=True, tag="memory_traffic"):
    """Traffic of the device's memory, by hardware counters, with caches empty at the start."""

    read_bytes: float
    written_bytes: float
    percent_of_peak: float | None


class ExecutedOperations(Evidence, frozen=True, tag="executed_operations"):
    """Arithmetic operations by the unit that did them, by hardware counters; a multiply-add counts two.

    Attributes:
        by_unit: operations of the kernel, by the names that peaks of devices have; those of ``fp16_vector``, which also
            convert numbers and set constants, do not count in the other figures.
        per_byte: all of them over the bytes of the device's memory; null if it moved none, or they are not known.
        of_model: all of them over those that the operator's model counts; null without a model, or if a call is
            several launches.
    """

    by_unit: dict[str, float]
    per_byte: float | None
    of_model: float | None


class Sectors(Evidence, frozen=True, tag="sectors"):
    """32-byte sectors per access of a warp, by hardware counters."""

    access: Literal["load", "store"]
    per_request: float


class BankConflicts(Evidence, frozen=True, tag="bank_conflicts"):
    """Bank conflicts in shared memory, by hardware counters."""

    conflicts: float


class VectorWidth(Evidence, frozen=True, tag="vector_width"):
    """Elements that a thread loads at a time, by the kernel's name."""

    elements: int


class UsualMemory(Evidence, frozen=True, tag="usual_memory"):
    """How kernels of this kind read and write."""

    text: str


class Stalls(Evidence, frozen=True, tag="stalls"):
    """What warps waited for most, in warps per issued instruction, by hardware counters."""

    reasons: dict[str, float]


class ActiveThreads(Evidence, frozen=True, tag="active_threads"):
    """Threads of a warp that were active per instruction, by hardware counters."""

    threads: float


class UsualSynchronisation(Evidence, frozen=True, tag="usual_synchronisation"):
    """How kernels of this kind synchronise."""

    text: str


class SynchronisationUnknown(Evidence, frozen=True, tag="synchronisation_unknown"):
    """Nothing is known about the kernel's synchronisation."""


class Share(Evidence, frozen=True, tag="share"):
    """The operator's share of the device sum: no change to it can gain more."""

    percent: float


class LaunchBound(Evidence, frozen=True, tag="launch_bound"):
    """The step waits for the host."""


class Rate(Evidence, frozen=True, tag="rate"):
    """Floating-point operations per second over the kernels of a call."""

    flop: int
    call_ns: float
    kernels: int
    teraflops_per_second: float


class OnFp32Cores(Evidence, frozen=True, tag="on_fp32_cores"):
    """A matrix product without Tensor Cores."""

    kernel: str


class AnyAlignment(Evidence, frozen=True, tag="any_alignment"):
    """A kernel for operands of any alignment; ``sizes`` are the product's."""

    sizes: dict[str, int]
    all_multiples_of_8: bool


class IdleMultiprocessors(Evidence, frozen=True, tag="idle_multiprocessors"):
    """Fewer thread blocks than multiprocessors."""

    idle: int
    multiprocessors: int


class LastWave(Evidence, frozen=True, tag="last_wave"):
    """The last wave does not fill the device."""

    waves: float
    percent_full: float


class UsualGain(Evidence, frozen=True, tag="usual_gain"):
    """What makes kernels of this kind faster."""

    text: str


# A tagged union: msgspec tells the kinds of evidence apart by ``id``.
AnyEvidence = (
    DivisionUnknown
    | Independent
    | Combined
    | GeometryUnknown
    | Geometry
    | PerBlock
    | BlockPerTile
    | BlocksPerTile
    | TilesDiffer
    | Waves
    | ResourcesUnknown
    | Resources
    | TheoreticalOccupancy
    | AchievedOccupancy
    | LeastTraffic
    | MemoryTraffic
    | ExecutedOperations
    | Sectors
    | BankConflicts
    | VectorWidth
    | UsualMemory
    | Stalls
    | ActiveThreads
    | UsualSynchronisation
    | SynchronisationUnknown
    | Share
    | LaunchBound
    | Rate
    | OnFp32Cores
    | AnyAlignment
    | IdleMultiprocessors
    | LastWave
    | UsualGain
)


class Statement(Struct, frozen=True, kw_only=True):
    """One statement.

    Attributes:
        text: the sentence, made from the evidence.
        basis: what it rests on.
        evidence: its figures, with the statement's id.
        gain: what could be gained; null if unknown.
        action: what to change; null for an observation.
    """

    text: str = ""
    basis: Basis
    evidence: AnyEvidence
    gain: Gain | None = None
    action: Action | None = None

    @property
    def id(self) -> str:
        """The kind of statement: ``last_wave``."""
        return str(self.evidence.__struct_config__.tag)


class OperatorStatements(Struct, frozen=True):
    """All statements on one operator.

    Attributes:
        inputs: shapes of the inputs that took most of its time, which the statements are about; null if not recorded.
        kernel: the kernel that took most of the time with these inputs; null if it launched none.
        parallel: dimensions that are independent of each other, with their sizes.
        reduced: dimensions that are combined for each element of the result, with their sizes.
        parallelism: why it can run in parallel.
        coverage: how grid and block cover those dimensions.
        resources: registers, shared memory, occupancy and what limits it.
        memory_access: how it reads and writes.
        synchronisation: how it synchronises.
        gains: what could be gained.
        counters: hardware counters of the operator, replayed alone; empty if there are none.
        counters_reason: why there are none; null if there are.
    """

    inputs: str | None
    kernel: str | None
    parallel: dict[str, int]
    reduced: dict[str, int]
    parallelism: tuple[Statement, ...]
    coverage: tuple[Statement, ...]
    resources: tuple[Statement, ...]
    memory_access: tuple[Statement, ...]
    synchronisation: tuple[Statement, ...]
    gains: tuple[Statement, ...]
    counters: tuple[Counters, ...]
    counters_reason: str | None

    def by_topic(self) -> dict[str, tuple[Statement, ...]]:
        """Return the statements by topic, in the order of this class's fields."""
        names = ("parallelism", "coverage", "resources", "memory_access", "synchronisation", "gains")
        return {name: getattr(self, name) for name in names}
