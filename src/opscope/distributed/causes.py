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

from opscope.base.units import format_ns
from opscope.distributed.lateness import Late, Own
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
        in_one_place: whether at least half of it passes in one stretch of each step.
    """

    cause: LateCause
    where: str | None
    evidence: list[str]
    in_one_place: bool = False


def why_late(ranks: Mapping[int, RankSummary], own: Own, late: Late) -> Why:
    """Return why a rank is late.

    Args:
        ranks: the summaries of the ranks.
        own: what they do of their own.
        late: the rank, and its steps.
    """
    return _Comparison(ranks, own, late).why()


class _Comparison:
    """A late rank beside those that are typical of its steps, both added up over these steps."""

    def __init__(self, ranks: Mapping[int, RankSummary], own: Own, late: Late) -> None:
        self._ranks, self._own_times, self._late_steps = ranks, own, late.steps
        self._rank = ranks[own.ranks[late.place]]
        self._mine = self._rank.steps[own.rows[late.place, late.steps].tolist()]
        typical = own.typical[late.steps]
        places = own.rows[typical, late.steps]
        pairs = [(ranks[own.ranks[place]], places[typical == place].tolist()) for place in np.unique(typical).tolist()]
        self._theirs = pl.concat([one.steps[rows] for one, rows in pairs])
        self._late = int(own.late_ns[late.place, late.steps].sum())
        self._own = int(own.own_ns[late.place, late.steps].sum())
        self._steps = len(late.steps)
        ours = [(self._rank, self._mine["row"].to_list())]
        self._work = _work_of(ours)
        self._their_work = _work_of(pairs)
        self._waits = _waits_of(ours)
        self._their_waits = _waits_of(pairs)

    def why(self) -> Why:
        """Return the cause that explains at least half of the lateness."""
        # Where its host alone is late, it waits for others too, and kernels beside that waiting take longer.
        device = min(self._more("compute_ns", "memcpy_ns"), self._device_late)
        work = self._work_more()
        if device >= _MOST * self._late:
            if work.more >= _MOST * device:
                return Why(LateCause.WORK, work.where, [f"{work.said}, {self._each(work.more)} a step"])
            if (clock := self._clock()) is not None:
                return clock
            kernels, is_shared = self._kernels_more()
            if kernels.more >= _MOST * device:
                cause = LateCause.WORK if is_shared else LateCause.KERNELS
                return Why(cause, kernels.where, [f"{kernels.said}, {self._each(kernels.more)} a step"])
        if self._has_more_to_do and work.where is not None:
            return Why(LateCause.WORK, work.where, [f"{work.said}; the host has more to do for it as well"])
        return self._on_host()

    def _on_host(self) -> Why:
        loading = self._more("host_loading_ns")
        if loading >= _MOST * self._late:
            text = f"its host spends {self._each(loading)} a step more on fetching batches"
            return Why(LateCause.INPUT, self._place(IdleCause.INPUT) or "DataLoader", [text])
        place, waits = self._waits_more()
        around = self._more(*_AROUND_WAITS)
        if waits and around >= _MOST * self._late:
            text = f"its host waits for the device {waits:.0f} times a step more, most of these in {place or 'a call'}"
            return Why(
                LateCause.BLOCKING, place, [text, f"its device idles {self._each(around)} longer around those waits"]
            )
        hosts, devices = self._host_more, self._more(*_ON_HOST)
        if max(hosts, devices) >= _MOST * self._late:
            text = f"its host needs {self._each(max(hosts, devices))} a step more of its own"
            compiled = (IdleCause.COMPILING, IdleCause.GUARDS)
            works = (IdleCause.HOST_WORK, *compiled, IdleCause.ALLOCATION, IdleCause.COLD_START)
            place = self._place(*works, IdleCause.DISPATCH)
            return Why(LateCause.HOST, place, [text], self._longest(*works) >= _MOST * self._late)
        return Why(LateCause.UNKNOWN, None, ["nothing this rank does more of accounts for half of the delay"])

    def _more(self, *columns: str) -> int:
        return sum(int(self._mine[name].sum()) - int(self._theirs[name].sum()) for name in columns)

    @property
    def _device_late(self) -> int:
        """By how much it would be late if its host took no time: so is what its device has of its own."""
        own = self._mine["device_ns"].sum() - self._mine["communication_ns"].sum()
        return int(own) - (self._own - self._late)

    @property
    def _host_more(self) -> int:
        return self._more("host_ns") - self._more("host_waits_ns")

    def _each(self, total: float) -> str:
        return format_ns(total / self._steps)

    # ---------------------------------------------------------------- what the device does

    def _work_more(self) -> "_Part":
        """Return the operators that both run, with larger sizes or more often."""
        more = self._larger().filter(pl.col("more") > 0).sort("more", descending=True)
        if not more.height:
            return _Part(0, None, "")
        name, own, theirs = more.row(0, named=True)["operator"], more["dims"][0], more["dims_right"][0]
        sizes = f"{own} where others have {theirs}" if own and theirs and own != theirs else "more of it than others"
        return _Part(int(more["more"].sum()), name, f"{name} has {sizes}")

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
        both = own.join(theirs, on="name", how="left").with_columns(
            more=pl.col("total_ns") - pl.col("total_ns_right").fill_null(0)
        )
        most = both.filter(pl.col("more") > 0).sort("more", descending=True)
        if not most.height:
            return _Part(0, None, ""), False
        first = most.row(0, named=True)
        name, elsewhere = first["name"], self._elsewhere(first["name"])
        as_long = [rank for rank, total in elsewhere.items() if total >= _AS_LONG * first["total_ns"]]
        if first["total_ns_right"] is not None:
            text = f"{name} takes longer"
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
        both = self._waits.join(self._their_waits, on="operator", how="left", nulls_equal=True)
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

    def _place(self, *causes: IdleCause) -> str | None:
        """Return where the host was in the longest gap of some causes: the innermost that is recorded."""
        gaps = self._gaps(*causes)
        if not gaps.height:
            return None
        longest = gaps.sort("duration_ns", descending=True).row(0, named=True)
        named = (longest[name] for name in ("python", "module", "annotation", "operator", "call"))
        return next((one for one in named if one), None)


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
