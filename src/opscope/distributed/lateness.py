"""Which ranks are late, and by how much: from who waited for whom, and from what each rank does of its own.

Whoever comes last in a collective was waited for. That is measured, and needs no cause. But a profiler slows the hosts
of ranks unequally: others may have waited for a rank in this recording alone, and that may hide what makes another one
late. So what ranks do of their own counts as well. A device that waits for other ranks sits in a communication kernel.
What is left of a step without the time in which its device only communicates is the rank's own; so is what its host
needs, less its waiting for the device, which may be hidden behind that same waiting. The longer of the two is how long
the step would take if all others were there in time. A rank is late by what it has more of its own than is typical, and
by no more than others wait in a step, or it waits for others itself: what hides behind transfers makes no one wait.
"""

import functools
import warnings
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.nesting import Bools, Floats, Ints
from opscope.base.medians import DEVIATION_OF_MEDIAN
from opscope.distributed.clocks import RankClocks
from opscope.distributed.summary import IDLE_COLUMNS, RankSummary
from opscope.distributed.waiting import Waits, is_pipeline, waits_of
from opscope.documents.verdict import IdleCause
from opscope.knowledge.collectives import MESSAGES, TOGETHER

# A rank is late where it costs a twentieth of the step in half of its steps, or a tenth in single ones: what TraceML
# (github.com/traceopt-ai/traceml) calls a straggler begins at 5 and 10 %.
_SHARE: Final = 0.05
_SHARE_OF_ONE: Final = 0.10
_OFTEN: Final = 0.5
# And it has to be that many standard deviations of what ranks differ anyway: more where few values show that.
_DEVIATIONS, _DEVIATIONS_OF_FEW = 5.0, 6.0
_FEW: Final = 12  # values
_MANY: Final = 16  # ranks
LASTING: Final = 3  # steps
_DEVIATIONS_OF_LAST: Final = 3.0  # by chance the last of eight is late by 1.4 of these
_LASTS: Final = 4  # steps: more of them make no mean more certain, as noise lasts too
ENOUGH: Final = 4  # ranks, of which one is left out: fewer show no spread
# Where nothing shows how much ranks differ, a quarter of the step: on two H100 ranks of healthy jobs differed by 16 %.
_SHARE_OF_FEW: Final = 0.25
_LOW, _OF_LOW = 0.4, 0.7416  # a low quantile of differences, which late steps leave alone, in standard deviations
_OF_QUARTER: Final = 0.6745  # from a normal distribution's quartile to its standard deviation
_SAME_LENGTH: Final = 0.02  # less than half of the least share that is called late
_UNBOUNDED: Final = 1 << 60  # nanoseconds
_MOST_SHARED: Final = 0.5  # a rank that has fewer of the steps than this share is left out


class Own(Struct, frozen=True, dict=True):
    """What ranks do of their own in the steps that all of them recorded, and how long they wait for each other.

    Arrays have a row per rank and a column per step.

    Attributes:
        ranks: the ranks, in order.
        steps: the steps, by number and how often the number has come; null numbers where none are marked.
        rows: the row of the rank's table of steps.
        own_ns: what the rank has of its own.
        duration_ns: how long the step takes.
        device_ns: how long its device computes and copies.
        pauses_ns: the longest pauses of its host together.
        left_out: ranks that recorded few of these steps, or none.
        waits: how long ranks wait for each other while their devices do nothing else.
        waited_ns: how long it is in collectives longer than the rank that comes last, also while its device computes;
            NaN where that is unknown.
        is_known: per step whether it is known who waited for whom.
        apart_ns: per rank how much later than typical it began the first step; 0 where clocks do not tell.
    """

    ranks: list[int]
    steps: list[tuple[int | None, int]]
    rows: Ints
    own_ns: Ints
    duration_ns: Ints
    device_ns: Ints
    pauses_ns: Ints
    left_out: list[int]
    waits: Waits
    waited_ns: Floats
    is_known: Bools
    apart_ns: Ints

    @property
    def is_comparable(self) -> bool:
        """Whether ranks recorded the same: marked steps, or recordings of one length."""
        if any(number is not None for number, _ in self.steps):
            return True
        longest = self.duration_ns.max(initial=0)
        return bool(longest - self.duration_ns.min(initial=longest) <= _SAME_LENGTH * longest)

    @functools.cached_property
    def late_ns(self) -> Ints:
        """By how much the rank is late; negative where it waits for others."""
        if not self.own_ns.size:
            return self.own_ns
        late = np.minimum(self.own_late_ns, self.most_ns)
        result: Ints = np.where(self.waited_for_ns > 0, np.maximum(late, self.waited_for_ns), late)
        return result

    @functools.cached_property
    def waited_for_ns(self) -> Ints:
        """How much longer others wait for it than for the ranks typically; 0 where that is not known."""
        for_ = self.waits.for_ns
        result: Ints = np.where(self.is_known, for_ - np.sort(for_, axis=0)[self._typical_place], 0)
        return result

    @functools.cached_property
    def own_late_ns(self) -> Ints:
        """How much more of its own the rank has than is typical."""
        result: Ints = self.own_ns - np.take_along_axis(self.own_ns, self.typical[None], axis=0)
        return result

    @functools.cached_property
    def most_ns(self) -> Ints:
        """By how much the rank can be late at most: as others wait, and where it waits itself it may be hidden."""
        hidden = np.where(self.is_known, self.waits.waits_ns, 0)
        most = self._others_wait
        result: Ints = np.where(most < _UNBOUNDED, most + hidden, most)
        return result

    @property
    def _others_wait(self) -> Ints:
        """How long the other ranks wait (their median); the most there is where that is unknown."""
        places = range(len(self.ranks))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of steps in which nothing is known
            if len(self.ranks) > _MANY:  # one rank more or less changes no median
                wait = np.broadcast_to(np.nanmedian(self.waited_ns, axis=0), self.waited_ns.shape)
            else:
                wait = np.array([np.nanmedian(np.delete(self.waited_ns, place, axis=0), axis=0) for place in places])
        unknown = np.isnan(wait)
        result: Ints = np.where(unknown, _UNBOUNDED, np.where(unknown, 0, wait).astype(np.int64))
        return result

    @property
    def _typical_place(self) -> int:
        return (len(self.ranks) - 1) // 2

    @property
    def typical(self) -> Ints:
        """Per step the place of the rank whose own time is the lower median."""
        order = np.argsort(self.own_ns, axis=0, kind="stable")
        result: Ints = order[self._typical_place]
        return result

    def typical_of_others(self, place: int, steps: list[int], values: Ints) -> Ints:
        """Return per step the place of the rank that is typical of all but one.

        Args:
            place: the rank that is left out.
            steps: the steps, by their places.
            values: what they are compared by, per rank and step.
        """
        order = np.argsort(values[:, steps], axis=0, kind="stable")
        others = order.T[place != order.T].reshape(len(steps), len(self.ranks) - 1)
        result: Ints = others[:, min(self._typical_place, len(self.ranks) - 2)]
        return result

    def beyond_typical(self, values: Ints) -> Ints:
        """Return how much more each rank has of something than the (lower) median of the others."""
        if len(self.ranks) < 2:
            return np.zeros_like(values)
        order = np.argsort(values, axis=0, kind="stable")
        place, ordered = np.argsort(order, axis=0, kind="stable"), np.take_along_axis(values, order, axis=0)
        at = min(self._typical_place, len(self.ranks) - 2)
        result: Ints = values - np.where(place > at, ordered[at], ordered[at + 1])
        return result

    def spread_ns(self, place: int, steps: list[int]) -> float | None:
        """Return how much the ranks but one differ in some steps (standard deviation); None of fewer than four ranks.

        Args:
            place: the rank that is left out.
            steps: the steps, by their places.
        """
        if len(self.ranks) < ENOUGH:
            return None
        by = self.waits.for_ns if self.is_known[steps].all() else self.late_ns
        others = np.delete(by[:, steps], place, axis=0).mean(axis=1)
        return DEVIATION_OF_MEDIAN * float(np.median(np.abs(others - np.median(others))))


class Collectives(Struct, frozen=True):
    """The collectives and messages of a job: all rows, as `rows_of` returns them, those of `with_last`, and clocks."""

    every: pl.DataFrame
    matched: pl.DataFrame
    clocks: RankClocks | None


class Late(Struct, frozen=True):
    """A rank that is late.

    Attributes:
        place: its place among the ranks.
        steps: in which steps it is, by their places.
        late_ns: by how much (the median of these steps).
        of_step_ns: how long these take (the median).
    """

    place: int
    steps: list[int]
    late_ns: int
    of_step_ns: int


def own_times(ranks: Mapping[int, RankSummary], collectives: "Collectives | None" = None) -> Own:
    """Return what some ranks do of their own; ranks without work on a device are left out.

    Args:
        ranks: their summaries.
        collectives: theirs, which tell how long they wait; None where that does not matter.
    """
    tables = {rank: one.steps for rank, one in sorted(ranks.items()) if one.steps["compute_ns"].sum()}
    numbers = list(tables)
    if not tables:
        none = np.zeros((0, 0), np.int64)
        waits, known = Waits.none((0, 0)), np.zeros(0, np.bool_)
        return Own([], [], none, none, none, none, none, [], waits, np.zeros((0, 0)), known, none[:, 0:0].ravel())
    of_rank = np.repeat(np.arange(len(tables)), [table.height for table in tables.values()])
    every = _with_own(pl.concat(tables.values()).with_columns(place=pl.Series(of_rank)))
    # One rank that was cut off early, or has no marks, must not leave the others without steps.
    usual = every.filter(pl.len().over("step", "cycle") > len(tables) / 2)
    count = usual.select("step", "cycle").n_unique()
    shared = usual.group_by("place").len().filter(pl.col("len") >= _MOST_SHARED * count)["place"].sort().to_list()
    every = every.filter(pl.col("place").is_in(shared))
    common = every.filter(pl.len().over("step", "cycle") == len(shared)).sort("place", "row")
    shape = len(shared), common.height // max(len(shared), 1)
    first = common.head(shape[1])
    # In the order of the first rank, whichever order others have.
    order = first.select("step", "cycle", order=pl.int_range(pl.len()))
    common = common.join(order, on=["step", "cycle"], how="left", nulls_equal=True).sort("place", "order")
    names = ("row", "own_ns", "device_ns", "busy_ns")
    rows, own, duration, busy = (common[name].to_numpy().astype(np.int64).reshape(shape) for name in names)
    steps = list(zip(first["step"].to_list(), first["cycle"].to_list(), strict=True))
    kept = [numbers[place] for place in shared]
    left_out = [one for one in numbers if one not in set(kept)]
    pauses = _pauses(ranks, kept, rows)
    waits, waited = Waits.none(shape), np.full(shape, np.nan)
    known, apart = np.zeros(shape[1], np.bool_), np.zeros(shape[0], np.int64)
    if collectives is not None and common.height:
        waited = _waited(collectives, kept, rows)
        waits = waits_of(ranks, kept, rows, collectives.every, collectives.matched)
        known = _known(waits, duration, collectives.every)
        apart = _apart(ranks, kept, rows, collectives.clocks)
    return Own(kept, steps, rows, own, duration, busy, pauses, left_out, waits, waited, known, apart)


def _apart(ranks: Mapping[int, RankSummary], numbers: list[int], rows: Ints, clocks: RankClocks | None) -> Ints:
    """Return how much later than typical each rank began its first step."""
    if clocks is None or not set(numbers) <= set(clocks.ranks.tolist()):
        return np.zeros(len(numbers), np.int64)
    begins = [
        int(ranks[rank].steps["begin_ns"][first]) for rank, first in zip(numbers, rows[:, 0].tolist(), strict=True)
    ]
    true = clocks.true(np.array(numbers), np.array(begins))
    result: Ints = true - np.sort(true)[(len(true) - 1) // 2]
    return result


def _known(waits: Waits, duration: Ints, every: pl.DataFrame) -> Bools:
    """Tell per step whether nearly all exposed communication is transfer or waiting for known ranks."""
    if is_pipeline(every):
        return np.zeros(duration.shape[1], np.bool_)
    known: Bools = np.all(waits.unknown_ns <= _SHARE * duration, axis=0)
    return known


def _pauses(ranks: Mapping[int, RankSummary], numbers: list[int], rows: Ints) -> Ints:
    """Return per rank and step the longest pauses of the host together."""
    result = np.zeros(rows.shape, np.int64)
    for place, rank in enumerate(numbers):
        pauses = ranks[rank].pauses
        sums = np.bincount(pauses["row"].to_numpy(), pauses["duration_ns"].to_numpy(), ranks[rank].steps.height)
        result[place] = sums.astype(np.int64)[rows[place]]
    return result


def _waited(collectives: Collectives, ranks: list[int], rows: Ints) -> Floats:
    """Return per rank and step how much longer its collectives take than on the rank that is last.

    It is NaN where one of them could not be matched. A collective may run on the device while the step before or behind
    it does, so these count as well.
    """
    timed = collectives.matched.filter(pl.col("collective").is_in(TOGETHER) | (pl.col("operation") == "message"))
    duration = pl.col("end_ns") - pl.col("start_ns")
    waits = timed.with_columns(wait=duration - duration.min().over("call"))
    waits = waits.group_by("rank", "row").agg(pl.col("wait").sum(), found=pl.len())
    kinds = pl.col("collective").is_in((*TOGETHER, *MESSAGES))
    issued = collectives.every.filter(kinds).group_by("rank", "row").agg(issued=pl.len())
    waits = issued.join(waits, on=["rank", "row"], how="left").with_columns(
        wait=pl.when(pl.col("found") == pl.col("issued")).then(pl.col("wait").cast(pl.Float64))
    )
    wanted = pl.DataFrame(
        {
            "rank": pl.Series(np.repeat(np.array(ranks), rows.shape[1]), dtype=pl.Int32),
            "row": pl.Series(rows.ravel(), dtype=pl.Int32),
        }
    )
    table = wanted.join(waits, on=["rank", "row"], how="left", maintain_order="left")
    # In a step without any collective no one waits.
    each = pl.when(pl.col("issued").is_null()).then(0.0).otherwise("wait").alias("each")
    values: Floats = table.select(each)["each"].to_numpy().astype(np.float64).reshape(rows.shape)
    around = np.pad(values, ((0, 0), (1, 1)))
    result: Floats = around[:, :-2] + around[:, 1:-1] + around[:, 2:]
    return result


def _with_own(steps: pl.DataFrame) -> pl.DataFrame:
    of_profiler = pl.col(IDLE_COLUMNS[IdleCause.PROFILER])
    # Work that is queued and does not begin waits for something that is not recorded: a collective's kernel that the
    # profiler lost, say.
    waits = pl.col("communication_ns") + pl.col(IDLE_COLUMNS[IdleCause.DEPENDENCY])
    device = pl.col("device_ns") - waits - of_profiler
    host = pl.col("host_ns") - pl.col("host_waits_ns") - of_profiler
    return steps.with_columns(
        own_ns=pl.max_horizontal(device, host),
        busy_ns=pl.col("compute_ns") + pl.col("memcpy_ns"),
        cycle=pl.int_range(pl.len()).over("place", "step").cast(pl.Int32),
    )


def late_ranks(own: Own) -> list[Late]:
    """Return the ranks that are late, the most expensive first: those that others waited for, and then any others."""
    if len(own.ranks) < 2 or not own.steps or not own.is_comparable:
        return []
    # Most ranks are the last in no step, which hides how much they differ by chance.
    by_chance, _, _ = _noise(own.late_ns.astype(np.float64))
    waited = {one.place: one for one in _beyond_chance(own, own.waited_for_ns, _DEVIATIONS_OF_LAST * by_chance)}
    results = [*waited.values(), *(one for one in _beyond_chance(own, own.late_ns, 0.0) if one.place not in waited)]
    return sorted(results, key=lambda one: -one.late_ns * len(one.steps))


def _beyond_chance(own: Own, values: Ints, at_least: float) -> list[Late]:
    """Return the ranks for which some values are larger than chance explains.

    Args:
        own: what ranks do of their own.
        values: per rank and step.
        at_least: how large those are at least that chance does not explain.
    """
    late, step = values.astype(np.float64), np.median(own.duration_ns, axis=0)
    noise, deviations, least = _noise(late)
    chance = max(deviations * noise, at_least)
    results = []
    for place, of_rank in enumerate(late):
        # What is the same in three steps and more is not chance, however few ranks there are.
        lasting = least if len(step) < LASTING else 0.0
        steps = np.flatnonzero(of_rank > max(_SHARE, lasting) * step)
        # Noise of single steps matters less for what lasts, and never becomes nothing.
        usual = float(np.median(of_rank))
        if len(steps) < _OFTEN * len(step) or usual < chance / min(len(step), _LASTS) ** 0.5:
            steps = np.flatnonzero((of_rank > max(_SHARE_OF_ONE, least) * step) & (of_rank > chance))
        if len(steps):
            by, of_step = np.median(of_rank[steps]), np.median(own.duration_ns[place, steps])
            results.append(Late(place, steps.tolist(), int(by), int(of_step)))
    return results


def ranks_with_more(own: Own, values: Ints, *, least_more: float, varies: bool) -> list[Late]:
    """Return the ranks that have more of something than others, as far as that makes others wait or may.

    Args:
        own: what ranks do of their own.
        values: how much they have of it, per rank and step: time of the device, or pauses of the host.
        least_more: how much more than is typical it has to be at least, as a share of that.
        varies: whether it differs by chance from step to step, so that it has to be beyond that.
    """
    if len(own.ranks) < 2 or not own.steps or not own.is_comparable:
        return []
    beyond, step = own.beyond_typical(values), np.median(own.duration_ns, axis=0)
    more = np.minimum(beyond, own.most_ns)
    is_much = beyond > least_more * (values - beyond)
    if varies:
        noise, deviations, _ = _noise(beyond.astype(np.float64))
        is_much &= beyond > deviations * noise
    results = []
    for place in np.flatnonzero(((more > _SHARE * step) & is_much).any(axis=1)).tolist():
        of_rank = more[place]
        if len(own.ranks) >= ENOUGH:  # others show how much ranks differ by chance
            is_much[place] &= beyond[place] > _DEVIATIONS * _spread(np.delete(beyond, place, axis=0))
        steps = np.flatnonzero((of_rank > _SHARE * step) & is_much[place])
        if len(steps) < _OFTEN * len(step):
            steps = np.flatnonzero((of_rank > _SHARE_OF_ONE * step) & is_much[place])
        if len(steps):
            by, of_step = np.median(of_rank[steps]), np.median(own.duration_ns[place, steps])
            results.append(Late(place, steps.tolist(), int(by), int(of_step)))
    return sorted(results, key=lambda one: -one.late_ns * len(one.steps))


def _spread(values: Ints) -> Floats:
    """Return per step how much ranks differ (standard deviation)."""
    spread: Floats = DEVIATION_OF_MEDIAN * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return spread


def slow_ranks(own: Own) -> list[int]:
    """Return the places of ranks that have more of their own than others in step after step, however many they are.

    Of several that are alike none is late: where half of the ranks are slower, they show how much ranks differ.
    """
    if len(own.ranks) < 2 or len(own.steps) < LASTING or not own.is_comparable:
        return []
    late, step = own.late_ns.astype(np.float64), float(np.median(own.duration_ns))
    # From step to step alone.
    changes = float(np.quantile(np.abs(np.diff(late, axis=1)), _LOW)) / _OF_LOW
    least = max(_SHARE_OF_ONE * step, _DEVIATIONS * changes / min(late.shape[1], _LASTS) ** 0.5)
    return np.flatnonzero(np.median(late, axis=1) > least).tolist()


def _noise(late: Floats) -> tuple[float, float, float]:
    """Return how much ranks differ by chance, how many times that counts, and the least share of a step that does.

    The first is a standard deviation: of a rank from step to step, and of the ranks that are less late than others in a
    step, whichever is larger. Neither is moved by a rank that is late, in all or in some steps.
    """
    ranks, steps = late.shape
    scales, values = [0.0], 0
    if steps > 1:
        changes = np.abs(np.diff(late, axis=1)).ravel()
        scales.append(float(np.quantile(changes, _LOW)) / _OF_LOW)
        values += len(changes)
    if ranks >= ENOUGH:
        median, quarter = np.quantile(late, [0.5, 0.25], axis=0)
        scales.append(float(np.mean(median - quarter)) / _OF_QUARTER)
        values += late.size // 2
    shows_little = ranks < ENOUGH and steps < ENOUGH
    return max(scales), _DEVIATIONS_OF_FEW if values < _FEW else _DEVIATIONS, _SHARE_OF_FEW if shows_little else 0.0
