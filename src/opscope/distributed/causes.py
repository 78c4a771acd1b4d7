"""Why a rank is late: what it has more of than a rank that is not, in the steps in which it is late.

A late rank waits for no one, so what its device does in a step, and what it waits for, is all there is to see of it. A
rank that is in time hides its own host behind its waiting; what both hosts do is therefore compared on the host.
"""

import json
import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.structure.nesting import Ints
from opscope.base.units import format_ns
from opscope.distributed.lateness import ENOUGH, LASTING, Late, Own, late_ranks, ranks_with_more
from opscope.distributed.summary import IDLE_COLUMNS, RankSummary
from opscope.documents.ranks import LateCause
from opscope.documents.verdict import Actor, IdleCause

_MOST: Final = 0.5  # a cause explains at least half of the lateness, else it is unknown
_LONGER: Final = 1.03  # kernels of the same work differ by less between two devices of a kind: 1.5 % on two H100
_ALL: Final = 0.9  # of the time of kernels that are longer: then it is the device
_ON_HOST: Final = tuple(
    IDLE_COLUMNS[cause]
    for cause in IdleCause
    if cause.waits_for in (Actor.CALL, Actor.HOST) and cause is not IdleCause.BLOCKING
)
_AROUND_WAITS: Final = (
    IDLE_COLUMNS[IdleCause.BLOCKING],
    IDLE_COLUMNS[IdleCause.DISPATCH],
    IDLE_COLUMNS[IdleCause.LATENCY],
)
_OF_DEVICE: Final = (LateCause.WORK, LateCause.KERNELS, LateCause.CLOCK)
# Under a profiler hosts that do the same differ: of two ranks on one machine that had nothing built in, one was slower
# in all it did, by 9 to 60 % of a step in ten recordings. So of fewer than four ranks none is late by that alone. The
# pauses of their hosts differed by 0.8 ms and 4 % of a step at most.
_OF_HOST: Final = (LateCause.HOST, LateCause.INPUT, LateCause.UNKNOWN)
_LEAST_OF_INPUT, _LEAST_OF_HOST, _LEAST_UNKNOWN = 0.2, 0.2, 0.2  # of a step
_LEAST_OF_PAUSES: Final = 0.1
_LEAST_PAUSES_NS: Final = 1_000_000  # of a step
_MUCH_MORE: Final = 0.25  # pauses than is typical
_LEAST_SEEN: Final = 0.05  # of a step, as for lateness of other kinds
_MANY_RANKS, _LEAST_OF_MANY = 8, 0.1  # so many show themselves how much hosts differ, and then less is enough
_MANY_DEVIATIONS: Final = 5.0  # where other ranks show how much hosts differ: by chance, one in a million ranks
_APART: Final = 0.5  # of its lateness
_HIDDEN: Final = 0.5  # of its lateness: less than that is waited for
_SEEN_ALL: Final = 0.9  # of what others wait
_WAITS_ITSELF: Final = 0.25  # of what others wait for the rank
_MOST_SLOWED: Final = 1.5  # times: kernels beside a collective that waits; 1.2 to 1.3 on two H100
_DAMAGED: Final = "its trace is damaged, so what it lacks may tell another cause"
_MOST_KERNELS: Final = 0.7
_LARGER: Final = 1.01  # sizes that differ by less explain no lateness
_AS_LONG: Final = 0.9  # of an operator's time: then it is nothing of this rank alone
_MOST_RANKS: Final = 64  # are looked at for what else runs where
_SOME: Final = 4  # ranks that are named
_MOST_ELEMENTS: Final = 1 << 60
_SAME: Final = ("operator", "kernel", "grid", "dims")


class Why(Struct, frozen=True):
    """Why a rank is late, where, and what that rests on.

    Attributes:
        ns: how much of a step the cause accounts for; 0 where that is not known.
        is_seen: whether the cause was seen itself, and not by the host's time alone: as pauses, or work of the device.
    """

    cause: LateCause
    where: str | None
    evidence: list[str]
    ns: int = 0
    is_seen: bool = False


class Named(Struct, frozen=True):
    """A late rank and why it is.

    Attributes:
        is_called: whether it is called late; else others waited for it, and hosts differ as much by chance.
        is_hidden: whether others hardly waited for it, as they were later still.
    """

    late: Late
    why: Why
    is_called: bool = True
    is_hidden: bool = False


def named_ranks(ranks: Mapping[int, RankSummary], own: Own) -> list[Named]:
    """Return the ranks that are late, or that others waited for, the most expensive first.

    Args:
        ranks: the summaries of the ranks.
        own: what they do of their own.
    """
    results: dict[int, Named] = {}
    for one in late_ranks(own):
        # Recordings may begin apart, which others wait for in their first step: that is before it, and not in it.
        apart = int(own.apart_ns[one.place]) if one.steps == [0] and len(own.steps) > 1 else 0
        if apart < _APART * one.late_ns:
            results[one.place] = _named(ranks, own, one)
    # What takes the device longer, or pauses the host, was seen itself, whatever else a rank is late by.
    of_device = ranks_with_more(own, own.device_ns, least_more=0.0, varies=True)
    of_host = ranks_with_more(own, own.pauses_ns, least_more=_MUCH_MORE, varies=False)
    for late, causes in ((of_device, _OF_DEVICE), (of_host, (LateCause.HOST,))):
        for one in late:
            before = results.get(one.place)
            if before is not None and before.is_called and before.why.cause != LateCause.UNKNOWN:
                continue
            named = _named(ranks, own, one)
            enough = named.why.is_seen and named.late.late_ns >= _LEAST_SEEN * one.of_step_ns
            if named.why.cause in causes and named.is_called and enough:
                results[one.place] = named
    return sorted(results.values(), key=lambda one: -one.late.late_ns * len(one.late.steps))


def _named(ranks: Mapping[int, RankSummary], own: Own, late: Late) -> Named:
    why = _Comparison(ranks, own, late).why()
    at = (late.place, late.steps)
    is_known, waits = bool(own.is_known[late.steps].all()), own.waits
    waited = float(np.median(waits.for_ns[at])) if is_known else 0.0
    by, hidden = late.late_ns, is_known and waited < _HIDDEN * late.late_ns
    most = int(np.median(np.maximum(own.most_ns[at], by)))
    few = len(own.ranks) < ENOUGH
    if why.cause in (LateCause.KERNELS, LateCause.CLOCK) or (few and why.is_seen and why.cause is not LateCause.WORK):
        # Seen itself, it is known better than by how late the rank was, which hosts of few ranks add to by chance.
        explains = why.ns * len(late.steps) / max(float(waits.for_ns[at].sum()), 1.0)
        is_all = is_known and why.cause is not LateCause.HOST and _SEEN_ALL <= explains <= 1 / _SEEN_ALL
        # Its own queue may hide a part of it.
        felt = int(np.median(waits.for_ns[at] + waits.waits_ns[at])) if is_known else most
        by = int(waited * explains) if is_all else min(why.ns, felt)
    elif few or not is_known:
        by = max(by, int(np.median(np.minimum(own.own_late_ns[at], most))))
    else:
        # What a rank has of its own is exact, but where ranks are late by turns within a step it is no one's lateness.
        own_late = np.minimum(own.own_late_ns[at], np.maximum(waits.for_ns[at], waits.all_for_ns[at]))
        by = int(np.median(np.maximum(own_late, waits.for_ns[at]))) if waited else min(by, most)
    result = Named(replace(late, late_ns=by), why, is_hidden=hidden)
    is_enough = by >= _LEAST_SEEN * late.of_step_ns
    is_called = is_enough and (why.cause not in _OF_HOST or _beyond_noise(own, result.late, why))
    if ranks[own.ranks[late.place]].facts.damage is not None:
        why = Why(LateCause.UNKNOWN, None, [_DAMAGED])
    return replace(result, why=why, is_called=is_called)


def _beyond_noise(own: Own, late: Late, why: Why) -> bool:
    """Tell whether a rank's host is slower than by chance: than those of the other ranks, if there are enough."""
    spread = own.spread_ns(late.place, late.steps)
    if why.is_seen:
        least = _LEAST_OF_INPUT if why.cause is LateCause.INPUT else _LEAST_OF_PAUSES
    elif why.cause is LateCause.UNKNOWN:
        least = _LEAST_UNKNOWN
    elif spread is None:
        return False
    else:
        least = _LEAST_OF_HOST
    if len(own.ranks) >= _MANY_RANKS and (why.cause is not LateCause.UNKNOWN or len(late.steps) >= LASTING):
        least = min(least, _LEAST_OF_MANY)
    return late.late_ns >= max(least * late.of_step_ns, _MANY_DEVIATIONS * (spread or 0.0))


class _Comparison:
    """A late rank beside those that are typical of its steps, both added up over these steps."""

    def __init__(self, ranks: Mapping[int, RankSummary], own: Own, late: Late) -> None:
        self._ranks, self._own_times, self._late_steps = ranks, own, late.steps
        self._rank = ranks[own.ranks[late.place]]
        self._mine = self._rank.steps[own.rows[late.place, late.steps].tolist()]
        typical = own.typical_of_others(late.place, late.steps, own.own_ns)
        self._theirs, self._theirs_of = _typical(ranks, own, late.steps, typical)
        self._late = late.late_ns * len(late.steps)
        others = own.own_ns[typical, late.steps].sum()
        self._device_late = int(self._mine["device_ns"].sum() - self._mine["communication_ns"].sum() - others)
        is_known = bool(own.is_known[late.steps].all())
        self._waited_for = int(own.waits.for_ns[late.place, late.steps].sum()) if is_known else 0
        self._waits = int(own.waits.waits_ns[late.place, late.steps].sum()) if is_known else 0
        self._steps = len(late.steps)
        self._whole = late.of_step_ns * len(late.steps)
        self._pauses_more = int(own.pauses_ns[late.place, late.steps].sum() - own.pauses_ns[typical, late.steps].sum())
        ours = [(self._rank, self._mine["row"].to_list())]
        # Its device may have done what makes it late in the step before, and which steps work falls into may differ.
        around = _with_next(own, late.steps)
        busy = own.typical_of_others(late.place, around, own.device_ns)
        self._work = _work_of([(self._rank, own.rows[late.place, around].tolist())])
        self._their_work = _work_of(_typical(ranks, own, around, busy)[1])
        self._device_more = int((own.device_ns[late.place, around] - own.device_ns[busy, around]).sum())
        self._host_waits = _waits_of(ours)
        self._their_waits = _waits_of(self._theirs_of)

    def why(self) -> Why:
        """Return the cause that explains at least half of the lateness."""
        # Where its host alone is late, it waits for others too, and kernels beside that waiting take longer.
        bound = max(self._device_late, self._waited_for, self._waits)
        device = min(self._device_more, bound)
        work = self._work_more()
        if device >= _MOST * self._late:
            if work.more >= _MOST * device:
                evidence = [f"{work.said}, {self._each(work.more)} a step"]
                return Why(LateCause.WORK, work.where, evidence, self._of_step(device), is_seen=True)
            if (clock := self._clock()) is not None and self._waits < self._late:
                return replace(clock, ns=self._of_step(device), is_seen=True)
            kernels, is_shared = self._kernels_more()
            if kernels.more >= _MOST * device:
                cause = LateCause.WORK if is_shared else LateCause.KERNELS
                evidence = [f"{kernels.said}, {self._each(kernels.more)} a step"]
                more = min(device, kernels.more) if self._waits_itself else device
                return Why(cause, kernels.where, evidence, self._of_step(more), is_seen=True)
        if self._has_more_to_do and work.where is not None:
            return Why(LateCause.WORK, work.where, [f"{work.said}; the host has more to do for it as well"])
        host, alone = self._on_host(), self._alone()
        # What runs on no other rank was seen itself, however much a profiler slows the host beside it, or a collective
        # that waits the kernels of others.
        least = _MOST * self._late if host.is_seen or host.cause is LateCause.BLOCKING else _LEAST_SEEN * self._whole
        if alone.more < max(least, _LEAST_SEEN * self._whole):
            return host
        evidence = [f"{alone.said}, {self._each(alone.more)} a step"]
        return Why(LateCause.KERNELS, alone.where, evidence, self._of_step(alone.more), is_seen=True)

    def _alone(self) -> "_Part":
        """Return the operators and kernels that do not run on typical ranks in these steps."""
        own, theirs = (_by_name(work) for work in (self._work, self._their_work))
        alone = own.join(theirs, on="name", how="anti").sort("total_ns", descending=True)
        if not alone.height:
            return _Part(0, None, "")
        return _Part(int(alone["total_ns"].sum()), alone["name"][0], f"{alone['name'][0]} runs on no other rank")

    def _on_host(self) -> Why:
        loading = self._more("host_loading_ns")
        if loading >= _MOST * self._late:
            text = f"its host spends {self._each(loading)} a step more on fetching batches"
            loader = self._place(IdleCause.INPUT) or "DataLoader"
            return Why(LateCause.INPUT, loader, [text], self._of_step(loading), is_seen=True)
        place, waits = self._waits_more()
        around = self._more(*_AROUND_WAITS)
        if waits and around >= _MOST * self._late and self._pauses_more < _MOST * self._late:
            text = f"its host waits for the device {waits:.0f} times a step more, most of these in {place or 'a call'}"
            return Why(
                LateCause.BLOCKING, place, [text, f"its device idles {self._each(around)} longer around those waits"]
            )
        works = (
            IdleCause.HOST_WORK,
            *(IdleCause.COMPILING, IdleCause.GUARDS, IdleCause.ALLOCATION, IdleCause.COLD_START),
        )
        seen = max(self._pauses_more, self._longest(*works))
        if seen >= max(_MOST * self._late, _LEAST_PAUSES_NS * self._steps):
            text = f"its host pauses {self._each(seen)} a step more"
            return Why(LateCause.HOST, self._place(*works) or self._pause(), [text], self._of_step(seen), is_seen=True)
        hosts, devices = self._host_more, self._more(*_ON_HOST)
        if max(hosts, devices) >= _MOST * self._late:
            text = f"its host needs {self._each(max(hosts, devices))} a step more of its own"
            return Why(LateCause.HOST, self._place(*works, IdleCause.DISPATCH), [text])
        return Why(LateCause.UNKNOWN, None, ["nothing this rank does more of accounts for half of the delay"])

    @property
    def _waits_itself(self) -> bool:
        return self._waits > _WAITS_ITSELF * self._waited_for

    def _of_step(self, total: float) -> int:
        return round(total / self._steps)

    def _more(self, *columns: str) -> int:
        return sum(int(self._mine[name].sum()) - int(self._theirs[name].sum()) for name in columns)

    @property
    def _host_more(self) -> int:
        return self._more("host_ns") - self._more("host_waits_ns")

    def _each(self, total: float) -> str:
        return format_ns(total / self._steps)

    # ---------------------------------------------------------------- what the device does

    def _work_more(self) -> "_Part":
        """Return the operators that both run, with larger sizes or more often."""
        more = self._larger().filter(pl.col("more") > 0).sort("more", descending=True)
        if not more.height or self._is_beside(more["operator"][0]):
            return _Part(0, None, "")
        name, own, theirs = more.row(0, named=True)["operator"], more["dims"][0], more["dims_right"][0]
        sizes = f"{own} where others have {theirs}" if own and theirs and own != theirs else "more of it than others"
        return _Part(int(more["more"].sum()), name, f"{name} has {sizes}")

    def _is_beside(self, operator: str) -> bool:
        """Tell whether a rank does all that others do with an operator, and other sizes beside: that is no division."""
        return self._sizes_beside(operator) is not None

    def _sizes_beside(self, operator: str) -> str | None:
        """Return the sizes with most time that only this rank has, where it has all that others have, as often."""
        own, theirs = (
            one.filter(pl.col("operator") == operator)
            .group_by("dims")
            .agg(pl.col("calls").sum(), pl.col("total_ns").sum())
            for one in (self._work, self._their_work)
        )
        both = theirs.join(own, on="dims", how="left", nulls_equal=True)
        alone = own.join(theirs, on="dims", how="anti", nulls_equal=True).sort("total_ns", descending=True)
        if not alone.height or not (both["calls"] == both["calls_right"]).fill_null(value=False).all():
            return None
        return str(alone["dims"][0])

    @property
    def _has_more_to_do(self) -> bool:
        """Whether most of what the device does is larger than elsewhere."""
        total = int(self._of_operators()["total_ns"].sum())
        return total > 0 and int(self._larger()["total_ns"].sum()) >= _MOST * total

    def _larger(self) -> pl.DataFrame:
        """Return the operators that have more elements to work on, where both ranks tell how many."""
        alike = pl.col("dims").is_null() == pl.col("dims_right").is_null()
        return self._of_operators().filter(alike & (pl.col("elements") > _LARGER * pl.col("elements_right")))

    def _of_operators(self) -> pl.DataFrame:
        own, theirs = (_by_operator(work) for work in (self._work, self._their_work))
        return own.join(theirs, on="operator", how="inner").with_columns(
            more=pl.col("total_ns") - pl.col("total_ns_right")
        )

    def _clock(self) -> Why | None:
        """Return that the device is slower, where nearly all kernels take longer for the same work."""
        same = self._work.join(self._their_work, on=_SAME, how="inner", nulls_equal=True).with_columns(
            ratio=(pl.col("total_ns") / pl.col("calls")) / (pl.col("total_ns_right") / pl.col("calls_right"))
        )
        total, more = int(same["total_ns"].sum()), int((same["total_ns"] - same["total_ns_right"]).sum())
        longer = same.filter(pl.col("ratio") > _LONGER)
        # Of the time, and of the kernels: one that takes nearly all of the time is not a clock.
        of_time, of_kernels = int(longer["total_ns"].sum()), longer.height
        if not total or of_time < _ALL * total or of_kernels < _MOST_KERNELS * same.height or more < _MOST * self._late:
            return None
        ratio = total / max(int(same["total_ns_right"].sum()), 1)
        text = f"nearly all its kernels take longer than the same kernels elsewhere, {ratio:.2f} times together"
        return Why(LateCause.CLOCK, self._rank.facts.device, [text])

    def _kernels_more(self) -> "tuple[_Part, bool]":
        """Return what takes longer than elsewhere, or runs nowhere else; and whether some other ranks have it as well.

        By operator: which kernel does an operator's work may be another one on each rank.
        """
        own, theirs = (_by_name(work) for work in (self._work, self._their_work))
        # Where the rank waits itself, its kernels run beside collectives that wait, which slow them.
        slowed = _MOST_SLOWED if self._waits_itself else 1.0
        both = own.join(theirs, on="name", how="left").with_columns(
            more=pl.col("total_ns") - (slowed * pl.col("total_ns_right").fill_null(0)).cast(pl.Int64)
        )
        most = both.filter(pl.col("more") > 0).sort("more", descending=True)
        if not most.height:
            return _Part(0, None, ""), False
        first = most.row(0, named=True)
        name, elsewhere = first["name"], self._elsewhere(first["name"])
        as_long = [rank for rank, total in elsewhere.items() if total >= _AS_LONG * first["total_ns"]]
        if first["total_ns_right"] is not None:
            besides = self._sizes_beside(name)
            text = f"{name} of {besides} runs on no other rank" if besides else f"{name} takes longer"
        elif not elsewhere:
            text = f"{name} runs on no other rank" if len(self._ranks) <= _MOST_RANKS else f"{name} runs on few ranks"
        else:
            text = f"{name} runs on some ranks alone"
        if as_long:
            text += f", as on rank {', '.join(map(str, as_long[:_SOME]))}" + (", ..." if len(as_long) > _SOME else "")
        more = int(most["more"].sum())
        return _Part(min(more, self._late), name, text), bool(as_long)

    def _elsewhere(self, name: str) -> dict[int, int]:
        """Return how long an operator or kernel takes on other ranks in the same steps, where it runs."""
        results = {}
        for place, rank in enumerate(self._own_times.ranks[:_MOST_RANKS]):
            if self._ranks[rank] is self._rank:
                continue
            rows = self._own_times.rows[place, self._late_steps].tolist()
            named = pl.coalesce("operator", "kernel") == name
            total = self._ranks[rank].work.filter(pl.col("row").is_in(rows) & named)["total_ns"].sum()
            if total:
                results[rank] = int(total)
        return results

    # ---------------------------------------------------------------- where the host is

    def _waits_more(self) -> tuple[str | None, float]:
        """Return where the host waits more often, and how much more often in a step."""
        both = self._host_waits.join(self._their_waits, on="operator", how="left", nulls_equal=True)
        both = both.with_columns(
            more=pl.col("calls").cast(pl.Int64) - pl.col("calls_right").fill_null(0).cast(pl.Int64)
        )
        most = both.filter(pl.col("more") > 0).sort("more", descending=True)
        if not most.height:
            return None, 0.0
        return most["operator"][0], int(most["more"].sum()) / self._steps

    def _gaps(self, *causes: IdleCause) -> pl.DataFrame:
        rows = self._mine["row"].to_list()
        return self._rank.gaps.filter(pl.col("row").is_in(rows) & pl.col("cause").is_in([str(one) for one in causes]))

    def _longest(self, *causes: IdleCause) -> int:
        """Return how long the longest gaps of the steps are together, one of each."""
        return int(self._gaps(*causes).group_by("row").agg(pl.col("duration_ns").max())["duration_ns"].sum())

    def _pause(self) -> str | None:
        """Return where the longest pause of the host was, as far as that is recorded."""
        rows = self._mine["row"].to_list()
        pauses = self._rank.pauses.filter(pl.col("row").is_in(rows)).sort("duration_ns", descending=True)
        if not pauses.height:
            return None
        longest = pauses.row(0, named=True)
        return next((one for name in ("python", "module", "annotation") if (one := longest[name])), None)

    def _place(self, *causes: IdleCause) -> str | None:
        """Return where the host was in the longest gap of some causes: the innermost that is recorded."""
        gaps = self._gaps(*causes)
        if not gaps.height:
            return None
        longest = gaps.sort("duration_ns", descending=True).row(0, named=True)
        named = (longest[name] for name in ("python", "module", "annotation", "operator", "call"))
        return next((one for one in named if one), None)


def _typical(
    ranks: Mapping[int, RankSummary], own: Own, steps: list[int], typical: Ints
) -> tuple[pl.DataFrame, list[tuple[RankSummary, list[int]]]]:
    """Return the steps of those ranks that are typical of some steps, and these ranks with their rows."""
    rows = own.rows[typical, steps]
    pairs = [(ranks[own.ranks[place]], rows[typical == place].tolist()) for place in np.unique(typical).tolist()]
    nothing = next(iter(ranks.values())).steps.clear()
    return pl.concat([nothing, *(one.steps[chosen] for one, chosen in pairs)]), pairs


def _with_next(own: Own, steps: list[int]) -> list[int]:
    """Return some steps with those before and behind each."""
    return sorted({step for late in steps for step in (late - 1, late, late + 1) if 0 <= step < len(own.steps)})


class _Part(Struct, frozen=True):
    more: int
    where: str | None
    said: str


def _work_of(parts_of: list[tuple[RankSummary, list[int]]]) -> pl.DataFrame:
    parts = [one.work.filter(pl.col("row").is_in(rows)) for one, rows in parts_of]
    return pl.concat(parts).group_by(_SAME).agg(pl.col("calls").sum(), pl.col("total_ns").sum())


def _by_name(work: pl.DataFrame) -> pl.DataFrame:
    return work.group_by(name=pl.coalesce("operator", "kernel")).agg(pl.col("total_ns").sum())


def _waits_of(parts_of: list[tuple[RankSummary, list[int]]]) -> pl.DataFrame:
    parts = [one.waits.filter(pl.col("row").is_in(rows)) for one, rows in parts_of]
    return pl.concat(parts).group_by("operator").agg(pl.col("calls").sum())


def _by_operator(work: pl.DataFrame) -> pl.DataFrame:
    """Return per operator its time, how much it has to do, and the sizes that take most of the time."""
    elements = [_sizes(*row) for row in work.select("dims", "grid").rows()]
    largest = pl.col("dims").sort_by("total_ns", descending=True).first()
    return (
        work.with_columns(elements=pl.Series(elements, dtype=pl.Float64) * pl.col("calls"))
        .filter(pl.col("operator").is_not_null())
        .group_by("operator")
        .agg(pl.col("total_ns").sum(), dims=largest, elements=pl.col("elements").sum())
    )


def _sizes(dims: str | None, grid: str | None) -> int:
    """Return how much an operator has to do, for comparison: elements of its inputs, or else its blocks of threads."""
    try:
        result = _elements(json.loads(dims or "[]")) or math.prod(int(part) for part in (grid or "1").split(","))
    except (ValueError, TypeError, RecursionError):
        return 1
    return min(max(result, 0), _MOST_ELEMENTS)


def _elements(dims: object) -> int:
    """Return how many elements tensors of some sizes have, of lists of these together."""
    if not isinstance(dims, list) or not dims:
        return 0
    if all(isinstance(one, int) for one in dims):
        return math.prod(dims)
    return sum(_elements(one) for one in dims)
