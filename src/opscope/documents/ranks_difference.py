"""What changed between two jobs: the schema ``opscope.ranks-diff/1``. Times are integer nanoseconds."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from opscope.documents.ranks import LateCause


class JobStepChange(StrEnum):
    """What the recorded steps of two jobs say of their length."""

    LONGER = "longer"
    SHORTER = "shorter"
    UNDECIDED = "undecided"  # some steps of one job take as long as some of the other, or there are too few


class JobSide(Struct, frozen=True):
    """One of the two jobs.

    Attributes:
        name: its folder or files.
        world: how many ranks it has; null where that is unknown.
        ranks: how many of them have a trace.
        steps: how many steps these have in common.
        step_ns: the median over these steps of how long the median rank takes; null without steps.
        shortest_ns: of the shortest of them.
        longest_ns: of the longest of them.
    """

    name: str
    world: int | None
    ranks: int
    steps: int
    step_ns: int | None
    shortest_ns: int | None
    longest_ns: int | None


class PartOfStep(Struct, frozen=True):
    """A part of a step on the device: the mean over ranks and steps. The parts of a side add up to its mean step.

    Attributes:
        part: its name.
        before_ns: what it took.
        after_ns: what it takes.
    """

    part: str
    before_ns: int
    after_ns: int


class ProcessGroupChange(Struct, frozen=True):
    """What process groups of one use cost.

    Attributes:
        description: what the program calls them.
        before_ns: time in a step in which the device did nothing else, mean over ranks; null where there is no such
            group.
        after_ns: the same in the second job.
    """

    description: str
    before_ns: int | None
    after_ns: int | None


class CollectiveChange(Struct, frozen=True):
    """Collectives of one kind and size that both jobs have.

    Attributes:
        group: the description of their process group.
        collective: the operation.
        bytes: how much goes in or comes out, whichever is more; null where that is unknown.
        before_transfer_ns: what the transfer took.
        after_transfer_ns: what it takes.
        before_wait_ns: what ranks waited in it for the last one; null where ranks do not go together.
        after_wait_ns: the same in the second job.
    """

    group: str
    collective: str
    bytes: int | None
    before_transfer_ns: int | None
    after_transfer_ns: int | None
    before_wait_ns: int | None
    after_wait_ns: int | None


class LateChange(Struct, frozen=True):
    """A rank that is late in one of the jobs, or in both for the same cause.

    Attributes:
        rank: its number.
        cause: why it is late.
        before_ns: by how much; null where it was not.
        after_ns: the same in the second job.
    """

    rank: int
    cause: LateCause
    before_ns: int | None
    after_ns: int | None


class RankWorkChange(Struct, frozen=True):
    """Kernels of one name under one operator: per rank and step.

    Attributes:
        operator: the operator.
        kernel: the kernel.
        before_calls: how often it ran.
        after_calls: the same in the second job.
        before_ns: durations added up.
        after_ns: the same in the second job.
    """

    operator: str
    kernel: str
    before_calls: float
    after_calls: float
    before_ns: int
    after_ns: int


class RanksDifference(Struct, frozen=True, kw_only=True):
    """What changed from one job to another.

    Attributes:
        before: the first job.
        after: the second job.
        step: whether steps became longer or shorter.
        ratio_low, ratio_high: the range of how many times as long steps take, with what they vary; null where that is
            not known.
        undecided: why that is not known; null where it is.
        incomplete: ranks of either job that are missing, damaged, unread or not compared, each with the reason.
        parts: what a step is made of, those first that changed most.
        late: ranks that others wait for in either job.
        groups: process groups by their use.
        collectives: collectives that both have, those first that changed most by all their calls.
        work: kernels by operator, those first that changed most.
        notes: what makes the jobs hard to compare, in sentences.
    """

    schema: Literal["opscope.ranks-diff/1"] = "opscope.ranks-diff/1"
    before: JobSide
    after: JobSide
    step: JobStepChange
    ratio_low: float | None = None
    ratio_high: float | None = None
    undecided: str | None = None
    incomplete: list[str] = field(default_factory=list)
    parts: list[PartOfStep]
    late: list[LateChange]
    groups: list[ProcessGroupChange]
    collectives: list[CollectiveChange]
    work: list[RankWorkChange]
    notes: list[str] = field(default_factory=list)
