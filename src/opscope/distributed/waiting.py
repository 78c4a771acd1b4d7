"""Who waited for whom: exposed communication of a job's steps, cut into transfer and waiting for ranks.

A collective moves data for as long as it takes on the rank where it is shortest, the one that came last; what it takes
longer on another rank is waiting for that one. Only time in which a device communicates and does nothing else counts,
in the step in which it passes, whatever step launched the collective. So the parts of a rank's step add up:

    exposed communication = transfer + waiting for each rank + what is unknown

Where groups differ, a rank may come last as it had waited for yet another one, in a collective of another group. What
it waited there, beyond what the rank that waits for it did, is passed on to the rank that it waited for.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.nesting import Floats, Ints
from opscope.distributed.summary import RankSummary
from opscope.knowledge.collectives import MESSAGES, TOGETHER

_MOST_PASSED: Final = 4  # times that waiting is passed on: groups of tensors, experts, context and data
_LEAST_PASSED_NS: Final = 1_000
_GROUP: Final = pl.struct("group", "members").rank("dense").cast(pl.Int64)
_KEYS: Final = ["step", "group", "waits"]


class Waits(Struct, frozen=True):
    """How long ranks wait for each other in steps. Arrays have a row per rank and a column per step.

    Attributes:
        exposed_ns: how long the device communicates and does nothing else.
        transfer_ns: how much of it moves data.
        waits_ns: how much of it the rank waits for others.
        for_ns: how long others wait for the rank: the (lower) median of the other ranks.
        least_for_ns: the same of the rank that waits least for it.
        all_for_ns: the same as ``for_ns``, with waiting beside which the device computes, and by the step that launched
            the collective.
        mean_for_ns: ``for_ns`` as a mean over all ranks; over the ranks, these add up to the mean of ``waits_ns``.
    """

    exposed_ns: Ints
    transfer_ns: Ints
    waits_ns: Ints
    for_ns: Ints
    least_for_ns: Ints
    all_for_ns: Ints
    mean_for_ns: Floats

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Waits":
        """Return that nothing is known."""
        zero = np.zeros(shape, np.int64)
        return cls(zero, zero, zero, zero, zero, zero, np.zeros(shape))

    @property
    def unknown_ns(self) -> Ints:
        """How much of the exposed communication is neither transfer nor waiting, as far as that is known."""
        result: Ints = self.exposed_ns - self.transfer_ns - self.waits_ns
        return result


def waits_of(
    ranks: Mapping[int, RankSummary], numbers: list[int], rows: Ints, every: pl.DataFrame, calls: pl.DataFrame
) -> Waits:
    """Return how long ranks wait for each other.

    Args:
        ranks: the summaries.
        numbers: the ranks that are compared.
        rows: per rank and step the row of the rank's table of steps.
        every: what `rows_of` returns.
        calls: the matched ones of these, with ``last`` and ``transfer_ns``, as `with_last` returns them.
    """
    shape = rows.shape
    exposed = np.array(
        [ranks[rank].steps["communication_ns"].to_numpy()[own] for rank, own in zip(numbers, rows, strict=True)]
    ).reshape(shape)
    parts = _parts(ranks, numbers, rows, every, calls)
    transfer, waits = (_summed(parts, name, shape) for name in ("transfer", "wait"))
    by, by_call = _who_for_whom(parts.filter(pl.col("wait") > 0))
    for_ = _of_others(by_call, len(numbers), shape, median=True)
    least = _of_others(by, len(numbers), shape, median=False)
    all_for = _of_others(_who_for_whom(_hidden_too(calls, numbers, rows))[1], len(numbers), shape, median=True)
    mean = np.zeros(shape)
    total = by.group_by("step", "last").agg(pl.col("ns").sum())
    mean[total["last"].to_numpy(), total["step"].to_numpy()] = total["ns"].to_numpy() / len(numbers)
    return Waits(exposed, transfer, waits, for_, least, all_for, mean)


def _who_for_whom(waiting: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return how long ranks wait for others in steps; and in collectives, where one group has all of these.

    Args:
        waiting: stretches of waiting (``wait``), each with its step, group, collective, and who waits for whom.
    """
    edges = waiting.group_by(*_KEYS, "last").agg(ns=pl.col("wait").sum())
    if edges["group"].n_unique() < 2:
        return edges, waiting.group_by("step", "call", "waits", "last").agg(ns=pl.col("wait").sum())
    # Step by step: what is passed on grows with the square of the ranks.
    passed = [_passed_on(one) for one in edges.partition_by("step")]
    by = pl.concat(passed).group_by("step", "waits", "last").agg(pl.col("ns").sum())
    return by, by


def _hidden_too(calls: pl.DataFrame, numbers: list[int], rows: Ints) -> pl.DataFrame:
    """Return the waiting in all matched collectives, also where devices compute meanwhile."""
    places = {rank: place for place, rank in enumerate(numbers)}
    place = pl.col("rank", "last").replace_strict(places, default=-1, return_dtype=pl.Int64)
    return (
        calls.drop("step")
        .filter(pl.col("collective").is_in(TOGETHER) & pl.col("last").is_in(numbers))
        .join(_step_of_rows(numbers, rows), on=["rank", "row"], how="inner")
        .select(
            place,
            "step",
            "call",
            group=_GROUP,
            wait=pl.col("end_ns") - pl.col("start_ns") - pl.col("transfer_ns"),
        )
        .rename({"rank": "waits"})
        .filter((pl.col("wait") > 0) & (pl.col("last") != pl.col("waits")))
    )


def _step_of_rows(numbers: list[int], rows: Ints) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "rank": pl.Series(np.repeat(np.array(numbers), rows.shape[1]), dtype=pl.Int32),
            "row": pl.Series(rows.ravel(), dtype=pl.Int32),
            "step": np.tile(np.arange(rows.shape[1]), len(numbers)),
        }
    )


def _of_others(by: pl.DataFrame, count: int, shape: tuple[int, ...], *, median: bool) -> Ints:
    """Return how long the (lower) median of the other ranks waits for each, or the one that waits least."""
    keys = [name for name in ("step", "call", "last") if name in by.columns]
    place = (count - 2) // 2 if median else 0
    # Those that are not listed do not wait.
    at = place - (count - 1 - pl.len().cast(pl.Int64))
    waits = by.filter(pl.col("waits") != pl.col("last")).group_by(keys)
    each = waits.agg(ns=pl.when(at >= 0).then(pl.col("ns").sort().get(at.clip(0))).otherwise(0))
    result = np.zeros(shape, np.int64)
    np.add.at(result, (each["last"].to_numpy(), each["step"].to_numpy()), each["ns"].to_numpy())
    return result


def _parts(
    ranks: Mapping[int, RankSummary], numbers: list[int], rows: Ints, every: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return the stretches in which devices only communicate, each with its step, and how much of it is waiting."""
    places = {rank: place for place, rank in enumerate(numbers)}
    pieces = [
        ranks[rank].exposed.select(pl.lit(rank, pl.Int32).alias("rank"), pl.all()).with_columns(waits=pl.lit(place))
        for rank, place in places.items()
    ]
    kinds = every.select("rank", "place", together=pl.col("collective").is_in(TOGETHER))
    of_call = calls.select(
        "rank",
        "place",
        "call",
        "last",
        until=pl.col("end_ns") - pl.col("transfer_ns"),
        group=_GROUP,
    ).filter(pl.col("last").is_in(numbers))
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    waiting = (pl.min_horizontal(end, "until") - begin).clip(0)
    last = pl.col("last").replace_strict(places, default=-1, return_dtype=pl.Int64)
    return (
        pl.concat(pieces)
        .join(_step_of_rows(numbers, rows), on=["rank", "row"], how="inner")
        .join(kinds, on=["rank", "place"], how="left")
        .join(of_call, on=["rank", "place"], how="left")
        .with_columns(last=last, length=end - begin, is_matched=pl.col("until").is_not_null() & pl.col("together"))
        .with_columns(
            wait=pl.when(pl.col("is_matched") & (pl.col("last") != pl.col("waits"))).then(waiting).otherwise(0)
        )
        .with_columns(transfer=pl.when("is_matched").then(pl.col("length") - pl.col("wait")).otherwise(0))
    )


def _summed(parts: pl.DataFrame, name: str, shape: tuple[int, ...]) -> Ints:
    result = np.zeros(shape, np.int64)
    np.add.at(result, (parts["waits"].to_numpy(), parts["step"].to_numpy()), parts[name].to_numpy())
    return result


def _passed_on(edges: pl.DataFrame) -> pl.DataFrame:
    """Return who waited for whom, with what a rank waited in other groups passed on to those it waited for."""
    total = edges.group_by("step", "waits").agg(all_ns=pl.col("ns").sum())
    in_group = edges.group_by(*_KEYS).agg(own_ns=pl.col("ns").sum())
    done, left = [], edges
    for _ in range(_MOST_PASSED):
        left = left.with_columns(passed=_held_up(left, total, in_group))
        done.append(left.select(*_KEYS, "last", ns=pl.col("ns") - pl.col("passed")))
        passed = left.filter(pl.col("passed") > _LEAST_PASSED_NS)
        done.append(left.filter(pl.col("passed") <= _LEAST_PASSED_NS).select(*_KEYS, "last", ns="passed"))
        if not passed.height:
            return pl.concat(done)
        theirs = edges.select("step", last="waits", group_of="group", by="last", of_ns="ns")
        left = (
            passed.with_row_index("edge")
            .join(theirs, on=["step", "last"], how="inner")
            .filter(pl.col("group") != pl.col("group_of"))
            .with_columns(share=pl.col("of_ns") / pl.col("of_ns").sum().over("edge"))
            .select("step", group="group_of", waits="waits", last="by", ns=pl.col("passed") * pl.col("share"))
            .with_columns(pl.col("ns").round().cast(pl.Int64))
        )
        left = left.group_by(*_KEYS, "last").agg(pl.col("ns").sum())
    return pl.concat([*done, left])


def _held_up(edges: pl.DataFrame, total: pl.DataFrame, in_group: pl.DataFrame) -> pl.Series:
    """Return per edge how much of it the last rank had waited itself, in other groups, beyond the rank that waits."""
    elsewhere = total.join(in_group.select("step", "waits", "group", "own_ns"), on=["step", "waits"], how="left")
    elsewhere = elsewhere.select("step", "waits", "group", other_ns=pl.col("all_ns") - pl.col("own_ns"))
    sides = edges.with_row_index("edge")
    for side, name in (("last", "last_ns"), ("waits", "waits_ns")):
        of_group = elsewhere.rename({"waits": side, "other_ns": name})
        of_all = total.rename({"waits": side, "all_ns": f"{name}_all"})
        sides = sides.join(of_group, on=["step", side, "group"], how="left")
        sides = sides.join(of_all, on=["step", side], how="left")
        sides = sides.with_columns(pl.coalesce(name, f"{name}_all", pl.lit(0)).alias(name)).drop(f"{name}_all")
    more = (pl.col("last_ns") - pl.col("waits_ns")).clip(0)
    return sides.sort("edge").select(passed=pl.min_horizontal(more, "ns"))["passed"]


def is_pipeline(every: pl.DataFrame) -> bool:
    """Tell whether most exposed communication is messages: ranks of a pipeline wait for each other by design."""
    messages = every.filter(pl.col("collective").cast(pl.String).is_in(MESSAGES))
    return bool(2 * messages["exposed_ns"].sum() > every["exposed_ns"].sum())
