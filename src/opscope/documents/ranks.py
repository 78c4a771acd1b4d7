"""The traces of a job's ranks together, ``opscope.ranks/1``, and two jobs, ``opscope.ranks-diff/1``.

Times are integer nanoseconds.
"""

from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct, field

from opscope.documents.findings import Finding

# ---------------------------------------------------------------- one job


_LEAST_SAVING: Final = 0.005  # of a step: less is not worth a look


class RankState(StrEnum):
    """What there is of a rank."""

    WHOLE = "whole"
    DAMAGED = "damaged"  # a part of its trace could be read
    MISSING = "missing"  # it has no trace, or none that can be read


class LateCause(StrEnum):
    """Why a rank is late."""

    HOST = "host"  # its program does something on the host
    INPUT = "input"  # it waits for its data loader
    BLOCKING = "blocking"  # its host waits for the device, where others do not
    KERNELS = "kernels"  # some of its kernels take longer than the same kernels elsewhere, or run nowhere else
    WORK = "work"  # the same operators have more to do
    CLOCK = "clock"  # all its kernels take longer: the device is slower
    UNKNOWN = "unknown"


class RankEntry(Struct, frozen=True):
    """One rank of the job.

    Attributes:
        rank: its number.
        state: what there is of it.
        reason: what is wrong with its trace; null where nothing is.
        path: the file; null where there is none.
        host: the host that it ran on; null where the trace does not say it.
        device: the name of its device.
        steps: how many steps its trace marks.
    """

    rank: int
    state: RankState
    reason: str | None = None
    path: str | None = None
    host: str | None = None
    device: str | None = None
    steps: int = 0


class JobStep(Struct, frozen=True):
    """One step of the job.

    Attributes:
        step: the profiler's number; null where no steps are marked, and everything counts as one.
        ranks: how many ranks recorded it.
        duration_ns: the median over ranks.
        last_rank: the rank that is latest: the one that others waited for longest, or that has most of its own.
        late_ns: by how much.
        exposed_ns: the mean over ranks of the time in which a device communicates and does nothing else.
    """

    step: int | None
    ranks: int
    duration_ns: int
    last_rank: int
    late_ns: int
    exposed_ns: int


class RankClock(Struct, frozen=True):
    """How a rank's clock differs from the median of the ranks' clocks.

    Attributes:
        rank: the rank.
        offset_ns: how far its clock is ahead in the middle of the recording.
        drift_ppm: how much faster it goes, in millionths.
        error_ns: by how much the offset may be wrong (one standard deviation).
    """

    rank: int
    offset_ns: int
    drift_ppm: float
    error_ns: int


class LateRank(Struct, frozen=True):
    """A rank that others wait for.

    Attributes:
        rank: its number.
        cause: why it is late.
        late_ns: by how much, in a step in which it is late (the median of these).
        of_step_ns: how long these steps take (the median).
        where: the operator, kernel, loader or place in the program; null where nothing tells.
        steps: the numbers of the steps in which it is late; null in place of each where steps have no numbers.
        evidence: what that rests on, a sentence each.
    """

    rank: int
    cause: LateCause
    late_ns: int
    of_step_ns: int
    where: str | None
    steps: list[int | None]
    evidence: list[str]


class WaitedFor(Struct, frozen=True):
    """A rank that others waited for.

    Attributes:
        rank: its number.
        waiting_ns: how long ranks waited for it in a step while their devices did nothing else: a mean over ranks and
            steps.
        others_ns: how long the (lower) median of the other ranks did, a mean over steps.
    """

    rank: int
    waiting_ns: int
    others_ns: int


class JobWaiting(Struct, frozen=True):
    """What exposed communication is made of, as means over ranks and steps.

    ``transfer_ns``, ``unknown_ns`` and the waiting for each rank add up to ``exposed_ns``.

    Attributes:
        exposed_ns: time in which a device communicates and does nothing else.
        transfer_ns: the part that moves data: each collective takes as long as on the rank where it is shortest.
        ranks: whom the rest waits for, the most first.
        unknown_ns: what is left: messages, and collectives that could not be matched.
        of_step_ns: how long a step takes.
        sentence: the same in words.
    """

    exposed_ns: int
    transfer_ns: int
    ranks: list[WaitedFor]
    unknown_ns: int
    of_step_ns: int
    sentence: str


class RankGroup(Struct, frozen=True):
    """A process group, or several that are used alike: the same description and size.

    Attributes:
        description: what the program calls it.
        size: how many ranks it has.
        groups: how many of them there are.
        collectives: what it is used for, by the number of calls.
        busy_ns: the mean over ranks and steps of the time in which its kernels run.
        exposed_ns: the part of it in which the device does nothing else.
    """

    description: str
    size: int | None
    groups: int
    collectives: dict[str, int]
    busy_ns: int
    exposed_ns: int


class JobCollective(Struct, frozen=True):
    """Collectives of one kind and size, over all ranks.

    Attributes:
        group: the description of its process group.
        collective: the operation.
        bytes: how much goes in or comes out, whichever is more; null where that is unknown.
        calls: how many there are.
        whole: of how many every rank's kernel is recorded and agrees with the others.
        transfer_ns: the median of the shortest duration over ranks: what the transfer takes.
        wait_ns: the median over calls of the mean of what ranks wait in it for the last one; null where it does not
            let ranks go together.
        worst_wait_ns: the longest that a rank waits in one.
        algorithm_bandwidth: bytes by the transfer's time, in bytes per second; null where bytes are unknown.
        bus_bandwidth: the same by what each rank's link carries.
        last_rank: the rank that enters last most often; null where none does more often than others.
        last_share: the share of calls in which it does.
        link_bandwidth: what the links of each rank's device carry in one direction, in bytes per second, by its
            datasheet; null where that is unknown, and where a group has ranks on several hosts or of unknown ones.
    """

    group: str
    collective: str
    bytes: int | None
    calls: int
    whole: int
    transfer_ns: int | None
    wait_ns: int | None
    worst_wait_ns: int | None
    algorithm_bandwidth: float | None
    bus_bandwidth: float | None
    last_rank: int | None
    last_share: float | None
    link_bandwidth: float | None = None


class SlowLink(Struct, frozen=True):
    """Ranks between which transfers of one size take longer than between others, even the fastest.

    Attributes:
        ranks: the ranks.
        collective: the operation; ``message`` for sending and receiving.
        group: the description of their process group; null where it has none.
        bytes: how much goes in or comes out.
        calls: how many there are.
        bandwidth: these bytes by the transfer's typical time, in bytes per second.
        others_bandwidth: the same between other ranks.
        costs_ns: by how much a step would be shorter, at most, if they were as fast as others.
    """

    ranks: list[int]
    collective: str
    group: str | None
    bytes: int
    calls: int
    bandwidth: float
    others_bandwidth: float
    costs_ns: int


class Bubble(Struct, frozen=True):
    """Time in which the device of a rank of a pipeline has nothing to do: medians over its steps.

    Attributes:
        rank: the rank.
        bubble_ns: time in which its device is idle, or only waits in messages of other stages or transfers them.
        messages_ns: the part of that in messages.
        of_step_ns: how long the step takes.
    """

    rank: int
    bubble_ns: int
    messages_ns: int
    of_step_ns: int


class RankLane(Struct, frozen=True):
    """A rank in one step. Times are on the clock of all ranks, from the first thing that is shown.

    Attributes:
        rank: the rank.
        begin_ns: when its host began the step.
        host_ns: how long that took on the host.
        late_ns: by how much the rank is late in it; negative where it waits for others.
        calls: its collectives and messages on the device: begin, length, place in ``kinds``, and how much of the length
            it waits for the last rank.
        left_out: how many shorter ones are not listed.
    """

    rank: int
    begin_ns: int
    host_ns: int
    late_ns: int
    calls: list[tuple[int, int, int, int]]
    left_out: int


class JobTimeline(Struct, frozen=True):
    """The step in which a rank is latest, of the ranks that are late by most.

    Attributes:
        step: its number; null where no steps are marked.
        kinds: what collectives there are, with their process groups.
        lanes: the ranks, in order.
        ranks_left_out: how many ranks are not listed.
        sentence: which step it is, and how a picture of it is read.
    """

    step: int | None
    kinds: list[str]
    lanes: list[RankLane]
    ranks_left_out: int
    sentence: str


class HeatMap(Struct, frozen=True):
    """By how much ranks are late, step by step: of many, those that are late by most, and several steps as one.

    Attributes:
        ranks: the ranks, in order.
        steps: per column its first and its last step.
        late_ns: per rank and column the most in one of its steps; negative where the rank waits for others.
        sentence: by how much the latest is late.
    """

    ranks: list[int]
    steps: list[tuple[int | None, int | None]]
    late_ns: list[list[int]]
    sentence: str


class JobFinding(Finding, frozen=True, kw_only=True):
    """What could make the job's steps shorter. Where it was not replayed, ``likely_ns`` is the most that it can save.

    Attributes:
        ranks: the ranks that it is about; empty for all.
        is_replayed: whether the saving is a replay of the recorded steps, in which late ranks do what another rank like
            each does.
    """

    ranks: tuple[int, ...] = ()
    is_replayed: bool = False

    @property
    def is_small(self) -> bool:
        """Whether it saves so little of a step that it is not worth a look."""
        return self.likely_ns < _LEAST_SAVING * self.of_step_ns


class RanksDocument(Struct, frozen=True, kw_only=True):
    """The traces of one job's ranks together.

    Attributes:
        world: how many ranks the job has; null where no trace says it.
        ranks: all of them, in the order of their numbers.
        duplicates: files that hold a rank again, which are left out.
        unread: files that are none of a rank, or cannot be read, with why.
        steps: the steps that ranks have in common.
        clocks: the ranks' clocks; empty where collectives do not tell.
        clock_note: what the clocks rest on, or why there are none.
        late: the ranks that are late, the most expensive first; empty for a healthy job.
        waiting: whom ranks wait for; null without steps or a second rank.
        verdict: who is late, or why none is called that, in a sentence; empty where ranks cannot be compared.
        heat: by how much ranks are late in each step; null without steps or a second rank.
        timeline: one step on one clock; null without steps, or without clocks.
        groups: the process groups by their use.
        collectives: the collectives, those that take longest first.
        slow_links: ranks between which transfers take longer than between others, the most expensive first.
        bubbles: of the ranks of a pipeline, those first that have most; empty where ranks send no messages.
        matched_by: how a collective's kernels of different ranks were found to belong together.
        ambiguous: collectives that could not be matched: their number of calls differs between ranks.
        findings: what could make steps faster, the most first.
        notes: what the figures lack, in sentences.
    """

    schema: Literal["opscope.ranks/1"] = "opscope.ranks/1"
    world: int | None
    ranks: list[RankEntry]
    duplicates: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    steps: list[JobStep] = field(default_factory=list)
    clocks: list[RankClock] = field(default_factory=list)
    clock_note: str = ""
    late: list[LateRank] = field(default_factory=list)
    waiting: JobWaiting | None = None
    verdict: str = ""
    heat: HeatMap | None = None
    timeline: JobTimeline | None = None
    groups: list[RankGroup] = field(default_factory=list)
    collectives: list[JobCollective] = field(default_factory=list)
    slow_links: list[SlowLink] = field(default_factory=list)
    bubbles: list[Bubble] = field(default_factory=list)
    matched_by: str = ""
    ambiguous: int = 0
    findings: list[JobFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- two jobs


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
