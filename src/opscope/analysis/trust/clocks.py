"""Whether a device's times are possible on the host's clock, and what to do where they are not.

A device cannot begin work before the call that hands it over, nor end it after a call that waited for it has returned.
Where a device's clock is off by a constant, some offset makes these times possible; single records that no offset fits
are wrong themselves.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.units import format_count, format_ns
from opscope.documents.verdict import CheckName
from opscope.trace.model import Trace

# Kineto places device times on the host's clock by a conversion that is off by microseconds at times: of some 200
# traces of NVIDIA's GPUs none contradicts the host by 2 us, one of an MI300 does by 8.
_TOLERATED_NS: Final = 10_000
# Choices. An offset cures most of what is impossible; what is left are single records, unless it is many of them.
_LEAST_RECORDS: Final = 3
_CURED: Final = 0.75
_SINGLE: Final = 0.2
_NO_LIMIT: Final = 1 << 61
_RETURNS_NS: Final = 100_000  # a wait returns tens of microseconds after what it waits for


class Placed(Struct, frozen=True):
    """Device activities with times that are possible.

    Attributes:
        trace: the trace, with activities shifted where their device's clock was off, and without impossible ones.
        shifts: by how much the times of which device were changed, in nanoseconds; null devices are `NO_DEVICE`.
        left_out: the impossible ones.
        failed: the sentences of the checks that failed, by name.
    """

    trace: Trace
    shifts: Mapping[int, int]
    left_out: pl.DataFrame
    failed: Mapping[str, str]


def placed(trace: Trace) -> Placed:
    """Place the activities of each device on the host's clock.

    Args:
        trace: the trace, without impossible durations. Of traces with records of several processes nothing is known:
            their numbers of launches do not tell which call belongs to which activity.
    """
    activities, limits = trace.activities, _limits(trace)
    # What contradicts itself as a whole does so in each of its parts, whatever these show.
    if CheckName.IDLE_CAUSES_KNOWN in trace.source.failed_checks or limits is None or not limits.violated(0).any():
        return unchanged(trace)
    shifts, out = dict[int, int](), np.zeros(activities.height, np.bool_)
    sentences, unclear = list[str](), list[str]()
    device = activities["device"].fill_null(NO_DEVICE).to_numpy()
    for number in np.unique(device).tolist():
        rows = np.flatnonzero(device == number)
        offset = _Offset.of_limits(limits.of(rows))
        out[rows] = offset.left_out
        if offset.offset_ns:
            shifts[number] = -offset.offset_ns
            sentences.append(offset.sentence(number))
        if offset.is_unclear:
            unclear.append(offset.contradiction(number))
    failed = {
        str(name): " ".join(texts)
        for name, texts in ((CheckName.CLOCKS_AGREE, sentences), (CheckName.IDLE_CAUSES_KNOWN, unclear))
        if texts
    }
    result = replace(trace, activities=activities.filter(~out))
    return Placed(shifted(result, shifts, failed), shifts, activities.filter(out), failed)


def unchanged(trace: Trace) -> Placed:
    """Return the activities of a trace as they were recorded."""
    return Placed(trace, {}, trace.activities.clear(), {})


def shifted(trace: Trace, shifts: Mapping[int, int], failed: Mapping[str, str]) -> Trace:
    """Return a trace with other times of some devices, and with checks that failed for it.

    Args:
        trace: the trace.
        shifts: by how much the times of which device change.
        failed: the sentences of the checks.
    """
    if not failed:
        return trace
    source = replace(trace.source, failed_checks={**trace.source.failed_checks, **failed})
    device = pl.col("device").fill_null(NO_DEVICE)
    by = device.replace_strict(list(shifts), list(shifts.values()), default=0, return_dtype=pl.Int64)
    activities = trace.activities.with_columns(by=by if shifts else pl.lit(0, pl.Int64))
    # Kernels stand among the communications too, by the same times.
    same = ["correlation", "start_ns"]
    moved = trace.communications.join(
        activities.select(*same, "by").unique(same), on=same, how="left", maintain_order="left"
    )
    return replace(
        trace,
        source=source,
        activities=_sorted(activities.with_columns(pl.col("start_ns") + pl.col("by")).drop("by")),
        communications=_sorted(moved.with_columns(pl.col("start_ns") + pl.col("by").fill_null(0)).drop("by")),
    )


def _sorted(table: pl.DataFrame) -> pl.DataFrame:
    return table.sort("start_ns", maintain_order=True)


class _Limits(Struct, frozen=True):
    """By how much each activity may be late at most and at least, in nanoseconds, by what the host did.

    Attributes:
        most: from the begin of the call that launched it to its begin; large without such a call.
        least: from the return of the first call that waited for it to its end; low without such a call.
        certain: whether these calls are known to have waited for this device.
    """

    most: Ints
    least: Ints
    certain: bool = True

    def violated(self, offset_ns: int) -> Bools:
        """Tell per activity whether it is impossible if the device's clock is late by so much."""
        result: Bools = (self.most + _TOLERATED_NS < offset_ns) | (self.least - _TOLERATED_NS > offset_ns)
        return result

    def of(self, rows: Ints) -> "_Limits":
        return _Limits(self.most[rows], self.least[rows], self.certain)

    def of_launches(self) -> "_Limits":
        """Return the limits by launches alone."""
        return _Limits(self.most, np.full(len(self.least), -_NO_LIMIT))

    @property
    def known(self) -> int:
        """How many activities have any limit."""
        return int(((self.most < _NO_LIMIT) | (self.least > -_NO_LIMIT)).sum())

    def best_offset(self) -> tuple[int, int] | None:
        """Return the least and the largest offset that most activities allow; None where no two allow any."""
        low, high = self.least - _TOLERATED_NS, self.most + _TOLERATED_NS
        possible = low <= high
        low, high = low[possible], high[possible]
        at = np.concatenate([low, high + 1])
        change = np.repeat([1, -1], len(low))
        order = np.lexsort((change, at))  # what ends before a moment is no more part of it
        depth = np.cumsum(change[order])
        if not len(depth) or depth.max() < _LEAST_RECORDS:
            return None
        first = np.flatnonzero(depth == depth.max())
        lows, highs = at[order][first], at[order][first + 1] - 1
        nearest = int(np.argmin(np.abs(np.clip(0, lows, highs))))
        # Without the tolerance, where that is possible.
        fits = ~self.violated(int(np.clip(0, lows[nearest], highs[nearest])))
        least, most = int(self.least[fits].max()), int(self.most[fits].min())
        return (least, most) if least <= most else (int(lows[nearest]), int(highs[nearest]))


class _Offset(Struct, frozen=True):
    """The offset of a device's clock.

    Attributes:
        offset_ns: by how much its times are late; negative where they are early.
        low, high: between what the offset lies.
        impossible_before: how many activities were impossible as recorded.
        of: of how many that is known.
        left_out: per activity whether it remains impossible, and is left out.
        is_unclear: whether so many remain impossible that the clocks do not agree by any offset.
    """

    offset_ns: int
    low: int
    high: int
    impossible_before: int
    of: int
    left_out: Bools
    is_unclear: bool

    @classmethod
    def of_limits(cls, limits: _Limits) -> "_Offset":
        before = limits.violated(0)
        count, offset, (low, high) = int(before.sum()), 0, (0, 0)
        best = limits.best_offset() if count >= _LEAST_RECORDS else None
        if best is not None:
            low, high = best
            candidate = int(np.clip(0, low, high))
            if int(limits.violated(candidate).sum()) <= (1 - _CURED) * count:
                offset = candidate
        if not offset and not limits.certain:  # no offset explains the waits: they may be for another device
            return cls.of_limits(limits.of_launches())
        impossible = limits.violated(offset)
        if int(impossible.sum()) > _SINGLE * limits.known:
            return cls(0, 0, 0, count, limits.known, np.zeros(len(before), np.bool_), is_unclear=True)
        return cls(offset, low, high, count, limits.known, impossible, is_unclear=False)

    def sentence(self, device: int) -> str:
        """Say by how much the clock is off, and what was done about it."""
        late = self.offset_ns > 0
        why = "end after a synchronization that waited for them returned" if late else "begin before their launch"
        name = "the device" if device == NO_DEVICE else f"device {device}"
        away = f"{format_ns(abs(self.offset_ns))} too {'late' if late else 'early'}"
        farthest = max(abs(self.low), abs(self.high))
        most = f"; up to {format_ns(farthest)} would" if farthest < _NO_LIMIT // 2 else ""
        return (
            f"Times of {name} are {away}: {format_count(self.impossible_before)} of {format_count(self.of)} activities "
            f"{why}. They are shifted by that, the least that makes them possible{most}."
        )

    def contradiction(self, device: int) -> str:
        """Say that no offset makes the times possible."""
        name = "the device" if device == NO_DEVICE else f"device {device}"
        return (
            f"The clocks of the host and of {name} disagree, and not by a constant: "
            f"{format_count(self.impossible_before)} of {format_count(self.of)} activities begin before their launch "
            "or end after a synchronization that waited for them. What the device waited for cannot be told."
        )


def _limits(trace: Trace) -> _Limits | None:
    """Return the limits of all activities; None where calls do not tell any."""
    activities, launches = trace.activities, trace.launches
    if not activities.height or not launches.height or _processes(trace) > 1:
        return None
    calls = launches.filter(pl.col("correlation").is_not_null()).select(
        "correlation", begin=pl.col("start_ns"), end=pl.col("start_ns") + pl.col("duration_ns")
    )
    calls = calls.group_by("correlation").agg(pl.col("begin").min(), pl.col("end").max())
    of = activities.select("correlation").join(calls, on="correlation", how="left", maintain_order="left")
    known = of["begin"].is_not_null().to_numpy()
    begin, end = (of[name].fill_null(0).to_numpy() for name in ("begin", "end"))
    most = np.where(known, column(activities, "start_ns") - begin, _NO_LIMIT)
    least = np.full(activities.height, -_NO_LIMIT, np.int64)
    if _is_one_device(trace):
        waits, returned = _device_waits(launches)
        first = np.searchsorted(waits, end)
        waited = np.flatnonzero(known & (first < len(waits)))
        least[waited] = end_of(activities)[waited] - returned[first[waited]]
        certain = len(trace.devices) == 1 or _return_after_work(least[waited], first[waited])
        return _Limits(most, least, certain)
    return _Limits(most, least)


def _is_one_device(trace: Trace) -> bool:
    """Tell whether all work is of one device and context: of several, calls do not say for which one they wait."""
    return trace.activities["device"].n_unique() == 1 and trace.activities["context"].drop_nulls().n_unique() < 2


def _return_after_work(late_ns: Ints, wait: Ints) -> bool:
    """Tell whether waits are seen to be for the device that worked, as they return shortly after its work has ended.

    A process may wait for another device, which has nothing to do.

    Args:
        late_ns: per activity how long after the return of the first wait after its launch it ends.
        wait: per activity the number of that wait.
    """
    last = pl.DataFrame({"wait": wait, "late": late_ns}).group_by("wait").agg(pl.col("late").max())["late"].to_numpy()
    within = (last <= _TOLERATED_NS) & (last > -_RETURNS_NS)
    return bool(within.any() and within.sum() >= (last > _TOLERATED_NS).sum())


def _processes(trace: Trace) -> int:
    return len({trace.threads[number][0] for number in trace.launches["thread"].unique()})


def _device_waits(launches: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return when calls began that wait for all earlier work of a device, and until when such a call had returned."""
    waits = names_that(launches, lambda name: "DeviceSynchronize" in name)
    succeeded = launches["status"].fill_null(0).to_numpy() == 0
    chosen = launches.filter(pl.Series(waits & succeeded)).sort("start_ns")
    # Of calls that overlap, the one that returns first has waited too.
    returned = np.minimum.accumulate(end_of(chosen)[::-1])[::-1]
    return column(chosen, "start_ns"), returned
