"""What the rules look at, and how device time and waiting become time of a step."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.analysis.costs.limits import mostly_modelled, peaks_of
from opscope.analysis.idle.gaps import Place, Places
from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.steps import PAUSES, Waits
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import any_name, names_in, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.analysis.verdict.bounds import waiting_per_step
from opscope.analysis.verdict.step_evidence import DEVICE_ONLY, STACKS, StepEvidence, busiest
from opscope.base.parts import Losses
from opscope.base.text import lazy_pattern
from opscope.documents.findings import Fact, Rule, StepBasis, Where
from opscope.documents.limits import LimitRow
from opscope.documents.verdict import BoundKind
from opscope.knowledge.collectives import Direction, direction_of, is_pageable
from opscope.knowledge.devices import Assumed, Peaks
from opscope.knowledge.kernels.kinds import communicates
from opscope.knowledge.serving import Server, iteration_of, server_of_iteration, serving_program
from opscope.readers.formats import format_named
from opscope.record.configuration import Configuration
from opscope.trace.model import DeviceProperties, Trace

MOST_IN_SHORT: Final = 34  # characters: beside a saving and a place it fits a terminal of 80 columns
LEAST_SHARE: Final = 0.02  # of the step: a smaller saving is not worth a line
_SIDE_BY_SIDE: Final = 1.02  # summed durations over busy time: from here on, streams count as running at once
# The kinds of waiting in which the host sits in a call.
_SITTING: Final = (BoundKind.BLOCKING, BoundKind.ALLOCATION, BoundKind.COLD_START)
_NONE: Final[Ints] = np.zeros(0, np.int64)
_LOOKED_AT: Final = 32  # calls of an operator, to tell where it is called from

# Makes a change with low, likely or high assumptions; returns how many activities, calls or stretches it is about.
Apply = Callable[[Edit, Assumed], int]


class Range(Struct, frozen=True):
    """A time or saving in nanoseconds per step.

    Attributes:
        low: what is nearly certain.
        high: the most.
        middle: what is likely; None for halfway between the two.
    """

    low: float
    high: float
    middle: float | None = None

    @property
    def likely(self) -> float:
        """The likely value, which decides the order of findings."""
        return (self.low + self.high) / 2 if self.middle is None else self.middle

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.high + other.high, self.likely + other.likely)

    def times(self, low: float, high: float) -> "Range":
        """Return the range with each end scaled by its own factor, and what is likely by their mean."""
        return Range(low * self.low, high * self.high, (low + high) / 2 * self.likely)

    def no_more_than(self, other: "Range") -> "Range":
        """Return the lower of each value of two ranges."""
        return Range(min(self.low, other.low), min(self.high, other.high), min(self.likely, other.likely))

    def within(self, most: float) -> "Range":
        """Return the range clipped to 0 and ``most``."""
        high = min(max(self.high, 0.0), most)
        return Range(min(max(self.low, 0.0), high), high, min(max(self.likely, 0.0), high))


class Remedy(Struct, frozen=True):
    """What becomes of a step with the change that a finding advises.

    Attributes:
        assumes: what the replays assume, in words that follow "by replay: ".
        apply: makes the change in an edit.
        work: the activities that the change is about, where it is about nothing else: no more can be saved than without
            all of them.
        removes: whether it removes work, rather than doing it in less time.
    """

    assumes: str
    apply: Apply
    work: Ints | None = None
    removes: bool = False


CLAIM_BETWEEN: Final = "between steps"  # the claim of a finding on what comes between steps


class Draft(Struct, frozen=True, kw_only=True):
    """What a rule found, before findings are compared with each other.

    Attributes:
        todo: what to do, in at most `MOST_IN_SHORT` characters, for a list that is read at a glance.
        action: the change to make.
        claims: the time that it would save, as names of rows of work or of kinds of idle time. Findings that share a
            claim overlap.
        alone: whether it saves nothing while other work runs.
        beside: whether other work runs beside what it is about.
        remedy: the change as an edit of the replayed steps; None where no replay can tell what it saves.
        of_others: what of the saving other findings save alone; it does not count in the ranking.
        most: what no change saves more than, such as recorded idle time; in nanoseconds per step.
        of_estimate_ns: the estimated step without the profiler that the saving is of, where it is of that.
        parts: the drafts that it is made of, where it is about two of them together.
        pieces: the idle time that it is about, as positions in the pieces of `Context.waits`; empty where it is about
            work.
    """

    rule: Rule
    title: str
    where: Where
    saving: Range
    derivation: str
    evidence: tuple[Fact, ...]
    todo: str
    action: str
    wrong_if: str
    claims: frozenset[str] = field(default_factory=frozenset)
    alone: bool = False
    beside: bool = False
    remedy: Remedy | None = None
    of_others: float = 0.0
    most: float = math.inf
    of_estimate_ns: float | None = None
    parts: tuple["Draft", ...] = ()
    pieces: Ints = _NONE

    @property
    def rank(self) -> float:
        """What decides the order of findings, in nanoseconds per step."""
        return self.saving.likely - self.of_others


class StepWords(Struct, frozen=True):
    """The words for a step, or for the whole recording where no steps are marked."""

    each: str = "a step"
    of: str = "of a step"
    of_the: str = "of the step"
    per: str = "per step"
    one: str = "a step"
    the: str = "the step"
    during: str = "within the steps"


_OF_STEPS: Final = StepWords()
_OF_A_RECORDING: Final = StepWords(
    each="in the recording",
    of="of the recording",
    of_the="of the recording",
    per="in the recording",
    one="a recording",
    the="the recording",
    during="within the recording",
)


def words_for(steps: int) -> StepWords:
    """Return the words for what savings refer to: a step, or the recording where it marks none."""
    return _OF_STEPS if steps else _OF_A_RECORDING


class Recording(Struct, frozen=True, kw_only=True):
    """What was computed of a trace.

    Attributes:
        trace, links, host: as in `opscope.analysis.analyzed.Analysis`.
        work: rows of the activities that the steps launched; of all of them where no steps are marked.
        rows: that work with its limits.
        evidence: what the verdict on a step rests on.
        inputs: computes per activity its operator and that operator's inputs.
        places, backward: computed on demand, as ``inputs`` is.
        replayable: builds a few steps as a graph; None where they cannot be replayed.
        recorded: what opscope ran; None for a trace that it did not record.
        losses: notes the rules that fail.
    """

    trace: Trace
    links: Links
    host: HostTime
    work: Ints
    rows: Sequence[LimitRow]
    evidence: StepEvidence
    inputs: Callable[[], pl.DataFrame]
    places: Callable[[], Places]
    backward: Callable[[], BackwardPass]
    replayable: Callable[[], Steps | None]
    recorded: Configuration | None
    losses: Losses


_OF_XPU: Final = lazy_pattern(r"(?:ur|pi|piext|ze)[A-Z]")
_PIECES_PLACED: Final = 2_000  # the longest ones: placing all would take longer than the rest of a finding


class Context:
    """A recording, and what its steps spend their time on. Times are nanoseconds a step, or of the whole recording.

    Attributes:
        trace, links, host, evidence, backward, replayable, recorded, losses: of the recording.
        work: rows of the activities of the busiest device that the steps launched.
        device: the timeline of the busiest device.
        rows: its work with its limits.
        waits: what that device waited for.
        cost: by how much recording slowed the host down.
        steps: how many steps the trace holds; 1 where it marks none.
    """

    def __init__(self, recording: Recording) -> None:
        self.trace, self.links, self.host = recording.trace, recording.links, recording.host
        self.evidence, self.losses = recording.evidence, recording.losses
        self.backward, self.recorded, self.replayable = recording.backward, recording.recorded, recording.replayable
        self._inputs, self._places = recording.inputs, recording.places
        self.cost, self.steps = recording.evidence.cost, recording.evidence.steps or 1
        self.device: DeviceTimeline = busiest(recording.evidence.devices)
        assert recording.evidence.waits is not None
        self.waits: Waits = recording.evidence.waits
        devices = column(self.trace.activities, "device")
        self.work: Ints = recording.work[devices[recording.work] == self.device.device]
        self.rows = tuple(
            row for row in recording.rows if (NO_DEVICE if row.device is None else row.device) == self.device.device
        )

    @cached_property
    def properties(self) -> DeviceProperties | None:
        """What the trace records of the busiest device; None where it lists no properties."""
        return next((item for item in self.trace.devices if item.index == self.device.device), None)

    @cached_property
    def peaks(self) -> Peaks | None:
        """What the busiest device can do at most; None where that is not known."""
        return peaks_of(self.trace.devices).get(self.device.device)

    @property
    def has_tensor_cores_for_fp32(self) -> bool:
        """Whether the device multiplies 32-bit numbers on Tensor Cores: NVIDIA's from compute capability 8.0 on do."""
        capability = (self.properties.compute_capability if self.properties else None) or ""
        major = capability.partition(".")[0]
        return major.isdecimal() and int(major) >= 8

    @property
    def knows_shapes(self) -> bool:
        """Whether most of the device's time has a model, so that rules can look at it."""
        return mostly_modelled(self.rows)

    @property
    def unprofiled_ns(self) -> float | None:
        """The time of an unprofiled step in nanoseconds; None where it is not known."""
        return self.evidence.unprofiled_ns

    @property
    def inside_ns(self) -> float | None:
        """The same without what comes between steps, such as evaluations: nothing of those is recorded."""
        return self.evidence.inside_ns

    @property
    def step_ns(self) -> float:
        """The step that savings refer to: unprofiled where that is known, else as recorded."""
        return self.unprofiled_ns or self._profiled_ns

    @property
    def words(self) -> StepWords:
        """The words for what savings refer to: a step, or the recording."""
        return words_for(self.evidence.steps)

    @property
    def step_kind(self) -> StepBasis:
        """The kind of step that savings refer to."""
        if self.unprofiled_ns is not None:
            return StepBasis.UNPROFILED
        return StepBasis.RECORDED if self.evidence.steps else StepBasis.RECORDING

    @property
    def _profiled_ns(self) -> float:
        return max(self.device.window.duration_ns - self.waits.profiler_ns, 1) / self.steps

    @cached_property
    def runs_pytorch(self) -> bool:
        """Whether PyTorch is known to run, by its operators or by kernels of its own: else no advice names it."""
        if self.trace.operators.height or format_named(self.trace.source.format).is_pytorch:
            return True
        return any_name(self.trace.activities, lambda name: "at::native" in name)

    @cached_property
    def trains(self) -> bool:
        """Whether a backward pass was recorded."""
        return any_name(self.trace.operators, lambda text: "autograd::engine" in text or "Backward" in text)

    @cached_property
    def runs_xpu(self) -> bool:
        """Whether launches are those of Intel's GPUs, where graphs of CUDA do not exist."""
        return any_name(self.trace.launches, _OF_XPU.match)

    @cached_property
    def server(self) -> Server | None:
        """Which server of language models runs: by the names of its iterations, else by the files of its engine."""
        ways = ((self.trace.annotations, server_of_iteration), (self.trace.frames, serving_program))
        return next((server for table, of in ways for name in names_in(table) if (server := of(name))), None)

    @cached_property
    def serves(self) -> bool:
        """Whether a server of language models runs: it names its iterations, or itself."""
        return not self.trains and (self.server is not None or any_name(self.trace.annotations, iteration_of))

    def has_name(self, wanted: Callable[[str], object]) -> bool:
        """Tell whether an operator, range, kernel or frame has a name for which a condition holds."""
        trace = self.trace
        tables = (trace.operators, trace.annotations, trace.activities, trace.frames)
        return any(any_name(table, wanted) for table in tables)

    @property
    def busy_ns(self) -> float:
        """How long the device works in a step."""
        return self.evidence.busy_ns / self.steps

    @cached_property
    def host_ns(self) -> Range:
        """How long the host itself works per step, without its waits for the device: without a profiler, a range."""
        whole, waits, cost = self._profiled_ns, self.waits, self.cost
        if (light := self.evidence.light) is not None:
            # A light pass slows the host down least, so its figures narrow the range.
            whole, waits, cost = (light.window_ns - light.waits.profiler_ns) / self.steps, light.waits, DEVICE_ONLY
        own = max(whole - waits.host_waits_ns / self.steps, 0.0)
        # By which factor the profiler slowed the host is known within limits only: likely is their geometric mean.
        return Range(own / cost.most, own / cost.least, own / math.sqrt(cost.least * cost.most)).within(self.step_ns)

    @cached_property
    def idle(self) -> dict[BoundKind, Range]:
        """How long the device waits per step, by what it waits for."""
        if self.unprofiled_ns:
            parts = waiting_per_step(self.evidence, self.waits)
            return {kind: Range(time, time) for kind, time in parts.items()}
        results = {}
        for kind, time in self.waits.by_kind.items():
            high = time / self.steps
            # Recording stacks slows Python itself down, so its other work may be shorter without the profiler.
            slowed = kind in PAUSES and self.cost is STACKS
            results[kind] = Range(high / self.cost.most, high, 0.8 * high) if slowed else Range(high, high)
        if BoundKind.DISPATCH in results:
            results[BoundKind.DISPATCH] = self._dispatch(results.pop(BoundKind.DISPATCH).high, results)
        return results

    def _dispatch(self, recorded: float, others: Mapping[BoundKind, Range]) -> Range:
        """Return how much of the device's waiting for launches is left without the profiler.

        That is the host's own time, less its other work, and less the device's work beside it: what the device does
        while the host waits for it does not count.
        """
        sits = sum(others[kind].high for kind in _SITTING if kind in others)
        # Waits in which the device idles do not run beside its work, so they do not count here.
        beside_waits = max(self.waits.host_waits_ns / self.steps - sits, 0.0)
        rest = max(self.busy_ns - beside_waits, 0.0)
        rest += sum(wait.high for kind, wait in others.items() if kind not in _SITTING)
        low, high, likely = (
            max(host - rest, 0.0) for host in (self.host_ns.low, self.host_ns.high, self.host_ns.likely)
        )
        return Range(low, max(high, low), likely).within(recorded)

    def waited_for(self, kind: BoundKind) -> float:
        """Return how long the device waits for one kind of thing, per step that the verdict is about."""
        if self.unprofiled_ns:
            return self.idle_for(kind).high
        return self.waits.by_kind.get(kind, 0) / self.steps

    def idle_for(self, kind: BoundKind) -> Range:
        """Return how long the device waits per step for one kind of thing; 0 to 0 where it does not."""
        return self.idle.get(kind, Range(0.0, 0.0))

    @property
    def _serial_ns(self) -> float:
        """Idle time that stays whatever the device's work takes."""
        kinds = (BoundKind.BLOCKING, BoundKind.ALLOCATION, *PAUSES, BoundKind.DEPENDENCY)
        return sum(self.idle_for(kind).likely for kind in kinds)

    def of_device(self, low: float, high: float) -> Range:
        """Return how much shorter a step gets with less device work, up to the point where the host is the bound.

        Args:
            low: how much less device work there is at least, in nanoseconds per step.
            high: how much less at most.
        """
        low, high, host = max(min(low, self.busy_ns), 0.0), min(high, self.busy_ns), self.host_ns
        # Where the device waits for launches, the host already is the bound for a part of the step. The waits show
        # that there is such a part, not how large it is.
        waiting = self.idle_for(BoundKind.DISPATCH).likely / max(self.step_ns, 1.0)
        slow, likely, fast = (
            min(self._shorter(host_ns, less), less) * max(1 - weight * waiting, 0.0)
            for host_ns, less, weight in (
                (host.high, low, 4.0),
                (host.likely, (low + high) / 2, 2.0),
                (host.low, high, 0.0),
            )
        )
        return Range(slow, fast, likely).within(self.step_ns)

    def _shorter(self, host_ns: float, less: float) -> float:
        """Return how much shorter a step gets with less device work, if the host itself needs ``host_ns``."""
        # A step takes as long as the longer of the two: the device with the waits that stay, or the host.
        of_device = self.busy_ns + self._serial_ns
        before = max(self.inside_ns or of_device, host_ns)
        return max(before - max(of_device - less, host_ns), 0.0)

    def of_removed(self, low: float, high: float, launches: float) -> Range:
        """Return how much shorter a step gets without some device work and without its launches.

        Args:
            low: the device work at least, in nanoseconds per step.
            high: the device work at most.
            launches: its share of the step's launches, from 0 to 1.
        """
        waiting = self.idle_for(BoundKind.DISPATCH)
        of_host = Range(0.5 * launches * waiting.low, 1.5 * launches * waiting.high, launches * waiting.likely)
        return (self.of_device(low, high) + of_host).within(self.step_ns)

    @cached_property
    def uploads_pageable(self) -> Bools:
        """Per activity whether it copies from pageable memory to the device."""
        return names_that(
            self.trace.activities, lambda name: is_pageable(name) and direction_of(name) is Direction.TO_DEVICE
        )

    @cached_property
    def own_work(self) -> Intervals:
        """When the busiest device works in its window."""
        return self._working(column(self.trace.activities, "device") == self.device.device)

    @cached_property
    def work_of_others(self) -> Intervals:
        """When other devices do work of their own in that window: a collective may only wait for this one."""
        activities = self.trace.activities
        known = activities["device"].is_not_null().to_numpy() & ~names_that(activities, communicates)
        return self._working(known & (column(activities, "device") != self.device.device))

    def _working(self, mask: Bools) -> Intervals:
        rows, activities = np.flatnonzero(mask), self.trace.activities
        work = Intervals.union_of(column(activities, "start_ns")[rows], end_of(activities)[rows])
        _, start, end = work.overlaps(self.device.window.spans)
        return Intervals(start, end)

    @cached_property
    def beside_others_work(self) -> Bools:
        """Per piece of idle time whether other devices work for most of it."""
        return self.waits.idle.pieces.mostly_within(self.work_of_others)

    def idle_in(self, pieces: Bools) -> float:
        """Return how long some pieces of idle time last per step, scaled to an unprofiled step where one is known."""
        raw = float(self.waits.lengths[pieces].sum()) / self.steps
        if self.unprofiled_ns is None:
            return raw
        whole = float(self.waits.lengths.sum()) / self.steps
        return raw * min(self.least_idle_ns / max(whole, 1.0), 1.0)

    @property
    def least_idle_ns(self) -> float:
        """How long the device idles per step; without a profiler, where that step is known."""
        return max((self.inside_ns or self.step_ns) - self.busy_ns, 0.0)

    def of_waiting(self, pieces: Bools) -> Range:
        """Return how much shorter a step gets if the host ran ahead instead of waiting before these pieces."""
        idle = float(self.waits.lengths[pieces].sum()) / self.steps
        # What overlaps then is no more than the device's work, or the host's own.
        most = min(idle, self.busy_ns, self.host_ns.high)
        if self.inside_ns is None:
            low = most / self.cost.most if self.busy_ns >= self.host_ns.high else 0.0
            likely = most / math.sqrt(self.cost.least * self.cost.most)
            return Range(low, most / self.cost.least, likely).within(self.step_ns)
        # The share of these pieces in all idle time that follows a wait.
        of_all = float(self.waits.lengths[pieces & (self.waits.after >= 0)].sum())
        of_all /= max(float(self.waits.lengths[self.waits.after >= 0].sum()), 1.0)
        others = sum(self.idle_for(kind).high for kind in (BoundKind.ALLOCATION, BoundKind.DEPENDENCY))
        low, likely, high = (
            min(self.inside_ns - others - max(self.busy_ns, host), self.busy_ns) * min(of_all, 1.0)
            for host in (self.host_ns.high, self.host_ns.likely, self.host_ns.low)
        )
        # The host, slowed by recording, leaves the device idle after a wait for longer than it does without.
        most = min(max(self.inside_ns - self.busy_ns, 0.0), idle)
        if high > most and self.busy_ns >= self.host_ns.high:
            low, likely = 0.0, most / 2  # the device is the bound: such a gap may close by itself
        return Range(low, high, likely).within(most)

    # ------------------------------------------------------------ where

    def where_of_row(self, row: LimitRow) -> Where:
        """Return where the calls of a row are made."""
        place = self._place_of_operator(row.operator, row.input_dims)
        return Where(
            operator=row.operator,
            input_dims=row.input_dims,
            module=place.module if place else None,
            python=place.python if place else None,
            kernel=row.kernel,
            annotation=place.annotation if place else None,
        )

    def inputs_of(self, rows: Ints) -> pl.Series:
        """Return the input shapes of some activities' operators as JSON text; null where none were recorded."""
        return self._inputs()[rows]["input_dims"].cast(pl.String)

    def activities_of(self, rows: Iterable[LimitRow]) -> Ints:
        """Return the activities that some rows of work are made of, as rows of the trace's activities."""
        own = [self._by_claim.get(claim, _NONE) for claim in sorted(claims_of(rows))]
        result: Ints = np.concatenate([_NONE, *own])
        return result

    @cached_property
    def _by_claim(self) -> dict[str, Ints]:
        """Per claim the activities of the steps' work that it is about."""
        keys = self._claim_keys(self.work).with_columns(pl.Series("activity", self.work))
        *of_claim, last = keys.columns
        groups = keys.group_by(of_claim, maintain_order=True).agg(last)
        return {_claim(*key): np.array(rows, np.int64) for *key, rows in groups.iter_rows()}

    def claims_of_activities(self, rows: Ints) -> frozenset[str]:
        """Return the claims of a finding on some activities: the rows of work that they are part of."""
        return frozenset(_claim(*key) for key in self._claim_keys(rows).unique().iter_rows())

    def claims_of_pieces(self, pieces: Bools) -> frozenset[str]:
        """Return the claims of a finding on some pieces of idle time: their kinds."""
        kinds = [kind for kind, mask in self.waits.kinds.items() if bool((mask & pieces).any())]
        return frozenset[str]().union(*map(idle_claim, kinds))

    @cached_property
    def _claimed(self) -> tuple[Ints, Mapping[str, int]] | None:
        """Per activity the number of its claim, and the numbers by claim; None where nothing runs side by side."""
        start, end = column(self.trace.activities, "start_ns")[self.work], end_of(self.trace.activities)[self.work]
        if (end - start).sum() <= _SIDE_BY_SIDE * Intervals.union_of(start, end).length:
            return None
        keys = self._claim_keys(self.work)
        number = keys.select(pl.struct(pl.all()).rank("dense")).to_series().to_numpy().astype(np.int64)
        _, first = np.unique(number, return_index=True)
        claims = {_claim(*key): int(number[row]) for row, key in zip(first, keys[first].iter_rows(), strict=True)}
        return number, claims

    def beside_others(self, draft: Draft) -> Draft:
        """Return a draft with its saving limited by what other streams do meanwhile.

        Removing work saves at most the time in which it runs, and for certain only the time in which it runs alone.
        """
        if self._claimed is None:
            return draft
        number, claims = self._claimed
        ours = np.isin(number, [claims[claim] for claim in draft.claims if claim in claims])
        if not ours.any():
            return draft
        start, end = column(self.trace.activities, "start_ns")[self.work], end_of(self.trace.activities)[self.work]
        own, others = (Intervals.union_of(start[chosen], end[chosen]) for chosen in (ours, ~ours))
        # Savings are of summed durations, so both limits are shares of these: the time alone, and the time in which any
        # of it runs. What fills a device badly (`alone`) gains nothing while a second activity runs.
        whole = float((end - start)[ours].sum())
        alone = (own.length - own.within(others).length) / whole
        union = (own.within(_single(start, end)).length if draft.alone else own.length) / whole
        low, saving = min(alone, union), draft.saving
        saving = Range(saving.low * low, saving.high * union, saving.likely * (low + union) / 2)
        return replace(draft, saving=saving, beside=low < 1 / _SIDE_BY_SIDE)

    def beside_data(self, draft: Draft) -> Draft:
        """Return a draft that saves no more than a step takes without its waits for data, as far as they were timed.

        Only what brings data earlier shortens these; recorded steps may have had fewer.
        """
        if self.inside_ns is None or draft.claims & (idle_claim(BoundKind.INPUT) | {CLAIM_BETWEEN}):
            return draft
        most = self.inside_ns - min(self.evidence.data_ns, self.least_idle_ns)
        if draft.saving.high <= most:
            return draft
        how = f"{draft.derivation}; no more than {self.words.the} takes without its waits for data"
        return replace(draft, saving=draft.saving.within(most), derivation=how)

    def _claim_keys(self, rows: Ints) -> pl.DataFrame:
        """Return the parts of some activities' claims, in the order of the arguments of `_claim`."""
        names = self.trace.activities["name"].gather(rows).alias("kernel")
        keys = self._inputs()[rows].select("operator", "input_dims", "input_types").with_columns(names)
        # As in `_claim`, only work without an operator goes by its kernel.
        unlinked = pl.when(pl.col("operator").is_null()).then("kernel").alias("kernel")
        return keys.with_columns(unlinked)

    def _place_of_operator(self, operator: str | None, input_dims: str | None) -> Place | None:
        """Return where an operator is called: of the calls looked at, the first with a line of Python, else one."""
        if operator is None:
            return None
        table = self.trace.operators
        is_it = table["name"] == operator
        if input_dims is not None:
            is_it &= table["input_dims"] == input_dims
        rows = np.flatnonzero(is_it.fill_null(False).to_numpy())
        if not len(rows):
            return None
        # Spread over the recording, from the first call to the last.
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _LOOKED_AT)).astype(np.int64)]
        result = self._places().at(column(table, "thread")[rows], column(table, "start_ns")[rows])
        return next((place for place in result if place.python is not None), result[len(result) // 2])

    def where_of_pieces(self, pieces: Ints) -> Where:
        """Return where the host was in the longest of some pieces of idle time, and in which call."""
        if not len(pieces):
            return Where()
        idle = self.waits.idle
        longest = int(pieces[np.argmax(self.waits.lengths[pieces])])
        moment = np.array([(idle.pieces.start[longest] + idle.pieces.end[longest]) // 2])
        place = self._places().at(idle.thread[longest : longest + 1], moment)[0]
        call = int(idle.call[longest])
        return self._where(place, None if call < 0 else str(self.trace.launches["name"][call]))

    def where_mostly(self, pieces: Ints) -> Where:
        """Return the module, the line of Python and the range that are around most of some pieces of idle time."""
        idle, lengths = self.waits.idle, self.waits.lengths
        longest = pieces[np.argsort(-lengths[pieces], kind="stable")][:_PIECES_PLACED]
        if not len(longest):
            return Where()
        moments = (idle.pieces.start[longest] + idle.pieces.end[longest]) // 2
        return self._where(self._places().mostly(idle.thread[longest], moments, lengths[longest]), None)

    def where_of_call(self, call: int) -> Where:
        """Return where a call of the API was made."""
        launches = self.trace.launches
        thread, start = column(launches, "thread")[call : call + 1], column(launches, "start_ns")[call : call + 1]
        return self._where(self._places().at(thread, start)[0], str(launches["name"][call]))

    @staticmethod
    def _where(place: Place, call: str | None) -> Where:
        return Where(
            operator=place.operator, module=place.module, python=place.python, annotation=place.annotation, call=call
        )


def _single(start: Ints, end: Ints) -> Intervals:
    """Return the time in which exactly one of some intervals is open."""
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    # Places below len(start) are starts: the running count is how many intervals are open from each time on.
    opened = np.cumsum(np.where(order < len(start), 1, -1))
    alone = np.flatnonzero(opened[:-1] == 1)
    return Intervals.union_of(times[order][alone], times[order][alone + 1])


def claims_of(rows: Iterable[LimitRow]) -> frozenset[str]:
    """Return the claims of a finding on rows of device work."""
    return frozenset(_claim(row.operator, row.input_dims, row.input_types, row.kernel) for row in rows)


def _claim(operator: str | None, input_dims: str | None, input_types: str | None, kernel: str | None) -> str:
    return f"kernel {kernel}" if operator is None else f"{operator} {input_dims} {input_types}"


def idle_claim(kind: BoundKind) -> frozenset[str]:
    """Return the claim of a finding on a kind of idle time."""
    return frozenset({f"idle: {kind}"})
