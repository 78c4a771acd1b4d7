"""Which ranks others wait for, and by how much: from what each rank does of its own, without any clock.

A device that waits for other ranks sits in a communication kernel. What is left of a step without the time in which its
device only communicates is the rank's own; so is what its host needs, less its waiting for the device, which may be
hidden behind that same waiting. The longer of the two is how long the step would take if all others were there in time.
A rank is late by what it has more of its own than the ranks have typically. Its victims have not: they wait.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from opscope.base.medians import DEVIATION_OF_MEDIAN
from opscope.distributed.summary import IDLE, RankSummary
from opscope.documents.bound import IdleCause

Ints = npt.NDArray[np.int64]

# A rank is late where it costs a twentieth of the step in half of its steps, or a tenth in one and that is rare: what
# TraceML (github.com/traceopt-ai/traceml) calls a straggler begins at 5 and 10 %.
_SHARE: Final = 0.05
_SHARE_OF_ONE: Final = 0.10
_OFTEN: Final = 0.5
_FEW: Final = 3  # steps, of which fewer show no spread
_ENOUGH: Final = 4  # ranks, of which one is left out: fewer show no spread
_SAME_LENGTH: Final = 0.02  # less than half of the least share that is called late
_RARE: Final = 3.0  # so many times what nine in ten of all ranks' other steps deviate


class Own(Struct, frozen=True):
    """What ranks do of their own in the steps that all of them recorded.

    Attributes:
        ranks: the ranks, in order.
        steps: the steps, by number and how often the number has come; null numbers where none are marked.
        rows: per rank and step the row of the rank's table of steps.
        own_ns: per rank and step what the rank has of its own.
        duration_ns: per rank and step how long the step takes.
    """

    ranks: list[int]
    steps: list[tuple[int | None, int]]
    rows: Ints
    own_ns: Ints
    duration_ns: Ints

    @property
    def is_comparable(self) -> bool:
        """Whether ranks recorded the same: marked steps, or recordings of one length."""
        if any(number is not None for number, _ in self.steps):
            return True
        longest = self.duration_ns.max(initial=0)
        return bool(longest - self.duration_ns.min(initial=longest) <= _SAME_LENGTH * longest)

    @property
    def late_ns(self) -> Ints:
        """Per rank and step by how much the rank is late; negative where it waits for others."""
        late: Ints = self.own_ns - np.take_along_axis(self.own_ns, self.typical[None], axis=0)
        return late

    @property
    def typical(self) -> Ints:
        """Per step the place of the rank whose own time is the lower median."""
        order = np.argsort(self.own_ns, axis=0, kind="stable")
        found: Ints = order[(len(self.ranks) - 1) // 2]
        return found

    def spread_ns(self, place: int, steps: list[int]) -> float | None:
        """Return how much the ranks but one differ in some steps (standard deviation); None of fewer than four ranks.

        Args:
            place: the rank that is left out.
            steps: the steps, by their places.
        """
        if len(self.ranks) < _ENOUGH:
            return None
        others = np.delete(self.late_ns[:, steps], place, axis=0).mean(axis=1)
        return DEVIATION_OF_MEDIAN * float(np.median(np.abs(others - np.median(others))))


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


def own_times(ranks: Mapping[int, RankSummary]) -> Own:
    """Return what some ranks do of their own; ranks without work on a device are left out."""
    tables = {rank: one.steps for rank, one in sorted(ranks.items()) if one.steps["compute_ns"].sum()}
    numbers = list(tables)
    if not tables:
        none = np.zeros((0, 0), np.int64)
        return Own([], [], none, none, none)
    of_rank = np.repeat(np.arange(len(tables)), [table.height for table in tables.values()])
    every = _with_own(pl.concat(tables.values()).with_columns(place=pl.Series(of_rank)))
    common = every.filter(pl.len().over("step", "cycle") == len(tables)).sort("place", "row")
    shape = len(tables), common.height // len(tables)
    first = common.head(shape[1])
    # In the order of the first rank, whichever order others have.
    order = first.select("step", "cycle", order=pl.int_range(pl.len()))
    common = common.join(order, on=["step", "cycle"], how="left", nulls_equal=True).sort("place", "order")
    rows, own, duration = (
        common[name].to_numpy().astype(np.int64).reshape(shape) for name in ("row", "own_ns", "device_ns")
    )
    steps = list(zip(first["step"].to_list(), first["cycle"].to_list(), strict=True))
    return Own(numbers, steps, rows, own, duration)


def _with_own(steps: pl.DataFrame) -> pl.DataFrame:
    of_profiler = pl.col(IDLE[IdleCause.PROFILER])
    # Work that is queued and does not begin waits for something that is not recorded: a collective's kernel that the
    # profiler lost, say.
    waits = pl.col("communication_ns") + pl.col(IDLE[IdleCause.DEPENDENCY])
    device = pl.col("device_ns") - waits - of_profiler
    host = pl.col("host_ns") - pl.col("host_waits_ns") - of_profiler
    return steps.with_columns(
        own_ns=pl.max_horizontal(device, host), cycle=pl.int_range(pl.len()).over("place", "step").cast(pl.Int32)
    )


def _is_steady(late: npt.NDArray[np.float64]) -> bool:
    """Tell whether lateness is more than chance from step to step: twice its standard error above zero."""
    if len(late) < _FEW:
        return True
    error = float(late.std(ddof=1)) / len(late) ** 0.5
    return bool(float(late.mean()) > 2 * error)


def late_ranks(own: Own) -> list[Late]:
    """Return the ranks that are late, the dearest first."""
    if len(own.ranks) < 2 or not own.steps or not own.is_comparable:
        return []
    late, step = own.late_ns.astype(np.float64), np.median(own.duration_ns, axis=0)
    usual = float(np.quantile(np.abs(late), 0.9)) if late.size else 0.0
    found = []
    for place, of_rank in enumerate(late):
        steps = np.flatnonzero(of_rank > _SHARE * step)
        if len(steps) < _OFTEN * len(step) or not _is_steady(of_rank):
            steps = np.flatnonzero((of_rank > _SHARE_OF_ONE * step) & (of_rank > _RARE * usual))
        if len(steps):
            found.append(
                Late(
                    place, steps.tolist(), int(np.median(of_rank[steps])), int(np.median(own.duration_ns[place, steps]))
                )
            )
    return sorted(found, key=lambda one: -one.late_ns * len(one.steps))
