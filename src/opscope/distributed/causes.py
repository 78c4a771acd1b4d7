"""Why a rank is late: what it has more of than a rank that is not, in the steps in which it is late.

A late rank waits for nobody, so what its device does in a step, and what it waits for, is all there is to see of it. A
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
from opscope.distributed.summary import IDLE, RankSummary
from opscope.documents.bound import IdleCause
from opscope.documents.ranks import LateCause

_MOST: Final = 0.5  # a cause explains at least half of the lateness, else it is unknown
_LONGER: Final = 1.03  # kernels of the same work differ by less between two devices of a kind: 1.5 % on two H100
_ALL: Final = 0.9  # of the time of kernels that are longer: then it is the device
_ON_HOST: Final = tuple(
    IDLE[cause]
    for cause in (
        *(IdleCause.HOST_WORK, IdleCause.DISPATCH, IdleCause.LATENCY, IdleCause.TAIL),
        *(IdleCause.ALLOCATION, IdleCause.COLD_START, IdleCause.INPUT),
    )
)
_AROUND_WAITS: Final = (IDLE[IdleCause.BLOCKING], IDLE[IdleCause.DISPATCH], IDLE[IdleCause.LATENCY])
_MOST_ELEMENTS: Final = 1 << 60
_SAME: Final = ("operator", "kernel", "grid", "dims")


class Why(Struct, frozen=True):
    """Why a rank is late, where, and what that rests on."""

    cause: LateCause
    where: str | None
    evidence: list[str]


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
        self._rank = ranks[own.ranks[late.place]]
        self._mine = self._rank.steps[own.rows[late.place, late.steps].tolist()]
        typical = own.typical[late.steps]
        places = own.rows[typical, late.steps]
        pairs = [(ranks[own.ranks[place]], places[typical == place].tolist()) for place in np.unique(typical).tolist()]
        self._theirs = pl.concat([one.steps[rows] for one, rows in pairs])
        self._late = int(own.late_ns[late.place, late.steps].sum())
        self._own = int(own.own_ns[late.place, late.steps].sum())
        self._steps = len(late.steps)
        mine = [(self._rank, self._mine["row"].to_list())]
        self._work = _work_of(mine)
        self._their_work = _work_of(pairs)
        self._waits = _waits_of(mine)
        self._their_waits = _waits_of(pairs)

    def why(self) -> Why:
        work, kernels, clock = self._work_more(), *self._kernels_more()
        # Where its host alone is late, it waits for others too, and kernels beside that waiting take longer.
        device = min(self._more("compute_ns", "memcpy_ns"), self._device_late)
        sized = [
            Why(LateCause.WORK, work.where, [f"{work.said}, {self._each(work.more)} a step"]),
        ]
        if device >= _MOST * self._late:
            if work.more >= _MOST * device:
                return sized[0]
            if clock is not None:
                return clock
            if kernels.more >= _MOST * device:
                said = f"{kernels.said}, {self._each(kernels.more)} a step"
                return Why(LateCause.KERNELS, kernels.where, [said])
        if self._has_more_to_do:
            return Why(LateCause.WORK, work.where, [f"{work.said}; the host has more to do for it as well"])
        return self._on_host()

    def _on_host(self) -> Why:
        loading = self._more("host_loading_ns")
        if loading >= _MOST * self._late:
            said = f"its host spends {self._each(loading)} a step more on fetching batches"
            return Why(LateCause.INPUT, self._place(IdleCause.INPUT) or "DataLoader", [said])
        place, waits = self._waits_more()
        around = self._more(*_AROUND_WAITS)
        if waits and around >= _MOST * self._late:
            said = f"its host waits for the device {waits:.0f} times a step more, most of these in {place or 'a call'}"
            return Why(
                LateCause.BLOCKING, place, [said, f"its device stands still {self._each(around)} longer around that"]
            )
        hosts, devices = self._host_more, self._more(*_ON_HOST)
        if max(hosts, devices) >= _MOST * self._late:
            said = f"its host needs {self._each(max(hosts, devices))} a step more of its own"
            causes = (IdleCause.HOST_WORK, IdleCause.DISPATCH, IdleCause.ALLOCATION, IdleCause.COLD_START)
            return Why(LateCause.HOST, self._place(*causes), [said])
        return Why(LateCause.UNKNOWN, None, ["nothing that it does more of explains half of it"])

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
        """Return the operators that both run, with other sizes or another number of times."""
        both = self._of_operators()
        sized = both.filter(pl.col("sizes") != pl.col("sizes_right"))
        more = sized.filter(pl.col("more") > 0).sort("more", descending=True)
        if not more.height:
            return _Part(0, None, "")
        name, mine, theirs = more.row(0, named=True)["operator"], more["dims"][0], more["dims_right"][0]
        sizes = f"{mine} where others have {theirs}" if mine and theirs and mine != theirs else "more of it than others"
        return _Part(int(sized["more"].sum()), name, f"{name} has {sizes}")

    @property
    def _has_more_to_do(self) -> bool:
        """Whether most of what the device does is larger than elsewhere."""
        both = self._of_operators()
        larger = both.filter(
            (pl.col("sizes") != pl.col("sizes_right")) & (pl.col("elements") > pl.col("elements_right"))
        )
        total = int(both["total_ns"].sum())
        return total > 0 and int(larger["total_ns"].sum()) >= _MOST * total

    def _of_operators(self) -> pl.DataFrame:
        mine, theirs = (_by_operator(work) for work in (self._work, self._their_work))
        return mine.join(theirs, on="operator", how="inner").with_columns(
            more=pl.col("total_ns") - pl.col("total_ns_right")
        )

    def _kernels_more(self) -> "tuple[_Part, Why | None]":
        """Return the kernels that take longer for the same work or run nowhere else; and the clock, if all do."""
        both = self._work.join(self._their_work, on=_SAME, how="left", nulls_equal=True)
        both = both.with_columns(
            more=pl.col("total_ns") - pl.col("total_ns_right").fill_null(0),
            ratio=(pl.col("total_ns") / pl.col("calls")) / (pl.col("total_ns_right") / pl.col("calls_right")),
        )
        same = both.filter(pl.col("ratio").is_not_null())
        longer = same.filter(pl.col("ratio") > _LONGER)
        total = int(same["total_ns"].sum())
        clock = None
        if total and int(longer["total_ns"].sum()) >= _ALL * total and int(same["more"].sum()) >= _MOST * self._late:
            ratio = total / max(int(same["total_ns_right"].sum()), 1)
            said = f"nearly all its kernels take longer than the same kernels elsewhere, {ratio:.2f} times together"
            clock = Why(LateCause.CLOCK, self._rank.facts.device, [said])
        most = both.filter(pl.col("more") > 0).sort("more", descending=True)
        if not most.height:
            return _Part(0, None, ""), clock
        first = most.row(0, named=True)
        name = first["operator"] or first["kernel"]
        said = (
            f"{name} takes longer for the same work" if first["ratio"] is not None else f"{name} runs on no other rank"
        )
        return _Part(int(most["more"].sum()), name, said), clock

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

    def _place(self, *causes: IdleCause) -> str | None:
        """Return where the host was in the longest gap of some causes: the innermost that is recorded."""
        rows = self._mine["row"].to_list()
        gaps = self._rank.gaps.filter(pl.col("row").is_in(rows) & pl.col("cause").is_in([str(one) for one in causes]))
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


def _waits_of(parts_of: list[tuple[RankSummary, list[int]]]) -> pl.DataFrame:
    parts = [one.waits.filter(pl.col("row").is_in(rows)) for one, rows in parts_of]
    return pl.concat(parts).group_by("operator").agg(pl.col("calls").sum())


def _by_operator(work: pl.DataFrame) -> pl.DataFrame:
    """Return per operator its time, what sizes it has how often, and those of the sizes that take most time."""
    sizes = pl.struct("dims", "grid", "calls").sort_by("dims", "grid", "kernel")
    elements = [_sizes(*row) for row in work.select("dims", "grid").rows()]
    largest = pl.col("dims").sort_by("total_ns", descending=True).first()
    return (
        work.with_columns(elements=pl.Series(elements, dtype=pl.Float64) * pl.col("calls"))
        .filter(pl.col("operator").is_not_null())
        .group_by("operator")
        .agg(pl.col("total_ns").sum(), sizes=sizes.implode(), dims=largest, elements=pl.col("elements").sum())
        .with_columns(pl.col("sizes").list.eval(pl.element().struct.json_encode()).list.join(" "))
    )


def _sizes(dims: str | None, grid: str | None) -> int:
    """Return how much an operator has to do, for comparison: elements of its inputs, or else its blocks of threads."""
    try:
        found = _elements(json.loads(dims or "[]")) or math.prod(int(part) for part in (grid or "1").split(","))
    except (ValueError, TypeError, RecursionError):
        return 1
    return min(max(found, 0), _MOST_ELEMENTS)


def _elements(dims: object) -> int:
    """Return how many elements tensors of some sizes have, of lists of these together."""
    if not isinstance(dims, list) or not dims:
        return 0
    if all(isinstance(one, int) for one in dims):
        return math.prod(dims)
    return sum(_elements(one) for one in dims)
