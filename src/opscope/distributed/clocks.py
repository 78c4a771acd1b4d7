"""One clock for all ranks, from the collectives that they leave together.

No one leaves a collective before the last has entered, and all leave it at about the same time. So the ends of one
collective on all ranks tell how their clocks differ. What each rank's end is taken to be:

    end = when all leave + the rank's offset + its drift x time + the bias of who came last + noise

solved for all at once by least squares with weights that make outliers count less. On two H200 the rank that came last
left 23 microseconds after the other, so the bias is a part of it; drifts are held to what oscillators do.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.nesting import Floats, Ints
from opscope.base.medians import DEVIATION_OF_MEDIAN
from opscope.knowledge.collectives import TIES, TOGETHER

_ROUNDS: Final = 8  # of new weights
_ITERATIONS: Final = 300  # of conjugate gradients; they end earlier
_CONVERGED: Final = 1e-16
_FIRST_SCALE_NS: Final = 1e6  # of the noise, before anything is known of it
_LEAST_SCALE_NS: Final = 200.0  # Kineto's times are rounded, and differ by less within a device
_OFFSET_NS: Final = 1e8  # standard deviation that offsets are expected to have: hosts without a time server, say
_DRIFT: Final = 2e-5  # of drifts: oscillators are specified to 20 millionths, unconstrained fits invented 190
_BIAS_NS: Final = 5e4  # of the bias: 23 us on two H200
_MOSTLY: Final = 0.8  # a rank that is last so often, or the others are, cannot be told from its bias
_BIAS_SEEN_NS: Final = 25_000.0  # the largest that was seen; on two H100 it was 1.2 us
# A receiver that waited for a message ends 8 to 12 us after the sender on two H100.
_MESSAGE_NS: Final = 12_000.0
_GUESSES: Final = 8
_MOST_SCALE_NS: Final = 1e6  # of the noise: beyond that collectives do not end together, or are not collectives
_MOST_OF_GROUP: Final = 400  # collectives that are looked at
_WAITED: Final = 3.0  # times the shortest of the same size between the same ranks
_WAITED_NS: Final = 50_000


class RankClocks(Struct, frozen=True):
    """How the clocks of ranks differ from the median of all.

    Attributes:
        ranks: the ranks, in order.
        offset_ns: per rank how far its clock is ahead at ``middle_ns``.
        drift: per rank how much faster it goes, as a share.
        error_ns: per rank the standard deviation of its offset.
        middle_ns: the middle of the recording.
        bias_ns: how much later the rank leaves that came last.
        scale_ns: the noise of one end.
        collectives: how many were used, messages included.
        untied: ranks that share nothing with these, so that their clocks cannot be compared.
    """

    ranks: Ints
    offset_ns: Floats
    drift: Floats
    error_ns: Floats
    middle_ns: int
    bias_ns: float
    scale_ns: float
    collectives: int
    untied: Ints

    def true(self, rank: Ints, time_ns: Ints) -> Ints:
        """Return what times on the clocks of ranks are on the common one."""
        place = np.searchsorted(self.ranks, rank)
        ahead = self.offset_ns[place] + self.drift[place] * (time_ns - self.middle_ns)
        result: Ints = time_ns - np.rint(ahead).astype(np.int64)
        return result


def clocks_of(calls: pl.DataFrame) -> RankClocks | None:
    """Return the clocks of the ranks in some matched collectives; None where these do not tie ranks together.

    Args:
        calls: `Matched.calls`.
    """
    collectives = _some(calls.filter(pl.col("collective").is_in(TIES) & ~pl.col("is_uneven")))
    calls_together = pl.concat([collectives, _messages_waited_for(calls)])
    every = np.unique(calls_together["rank"].to_numpy())
    alone = _largest(collectives, every)  # those that collectives tie together
    kept = _largest(calls_together, every)
    calls_together = calls_together.filter(pl.col("rank").is_in(kept.tolist()))
    if len(kept) < 2:
        return None
    ranks, rank = np.unique(calls_together["rank"].to_numpy(), return_inverse=True)
    _, call = np.unique(calls_together["call"].to_numpy(), return_inverse=True)
    start, end = (calls_together[name].to_numpy().astype(np.int64) for name in ("start_ns", "end_ns"))
    fit = _Fit(call, rank, start, end, (calls_together["operation"] == "message").to_numpy())
    by_messages = ~np.isin(ranks, alone)
    result = fit.solved(ranks.astype(np.int64), by_messages, np.setdiff1d(every, kept).astype(np.int64))
    return result if result.scale_ns <= _MOST_SCALE_NS else None


def contradicted(calls: pl.DataFrame, clocks: RankClocks) -> float:
    """Return the share of collectives that somebody leaves before the last has entered, by some clocks.

    Args:
        calls: `Matched.calls`.
        clocks: the ranks' clocks.
    """
    together = calls.filter(pl.col("collective").is_in(TOGETHER) & pl.col("rank").is_in(clocks.ranks.tolist()))
    if not together.height:
        return 0.0
    rank = together["rank"].to_numpy()
    times = {name: clocks.true(rank, together[name].to_numpy()) for name in ("start_ns", "end_ns")}
    ends = together.select("call", **{name: pl.Series(values) for name, values in times.items()}).group_by("call")
    early = ends.agg(early=pl.col("end_ns").min() < pl.col("start_ns").max())["early"]
    return int(early.sum()) / len(early)


def _some(calls: pl.DataFrame) -> pl.DataFrame:
    """Return some collectives of each group, spread over the recording: more of them hardly make clocks better."""
    if not calls.height:
        return calls
    numbers = calls.select("group", "members", "call").unique(maintain_order=True)
    of_group = pl.int_range(pl.len()).over("group", "members")
    every = (pl.len().over("group", "members") / _MOST_OF_GROUP).ceil().cast(pl.Int64)
    return calls.join(numbers.filter(of_group % every == 0).select("call"), on="call", how="semi")


def _messages_waited_for(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the messages that their receivers waited for: only these end at about the same time on both ranks.

    A sender may be done long before the receiver asks for a message, and then neither knows when the other was there.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    messages = calls.filter(pl.col("operation") == "message")
    received = messages.filter(pl.col("collective") != "send").with_columns(
        shortest=duration.min().over("bytes", "group", "members", "channel")
    )
    waited = received.filter((duration > _WAITED * pl.col("shortest")) & (duration > _WAITED_NS))
    return messages.join(waited.select("call"), on="call", how="semi")


def _largest(calls: pl.DataFrame, every: Ints) -> Ints:
    """Return the ranks of the largest set that is tied together, directly or through others; none without calls."""
    if not calls.height:
        return every[:0]
    ranks, rank = np.unique(calls["rank"].to_numpy(), return_inverse=True)
    _, call = np.unique(calls["call"].to_numpy(), return_inverse=True)
    label, before = np.arange(len(ranks)), np.zeros(len(ranks), np.int64) - 1
    while (label != before).any():
        before = label.copy()
        of_call = np.full(int(call.max()) + 1, len(ranks))
        np.minimum.at(of_call, call, label[rank])
        np.minimum.at(label, rank, of_call[call])
    result: Ints = ranks[label == np.bincount(label).argmax()]
    return result


def _guess(call: Ints, rank: Ints, end: Ints) -> Ints:
    """Return by how much each rank's clock is ahead, about: means over collectives and medians over ranks in turn."""
    ranks, calls = int(rank.max()) + 1, int(call.max()) + 1
    ahead = np.zeros(ranks, np.int64)
    count = np.bincount(call, minlength=calls)
    base = int(end.min())
    for _ in range(_GUESSES):
        left = (end - base - ahead[rank]).astype(np.float64)
        left -= (np.bincount(call, left, calls) / count)[call]
        medians = pl.DataFrame({"rank": rank, "left": left}).group_by("rank").agg(pl.col("left").median()).sort("rank")
        ahead += np.rint(medians["left"].to_numpy()).astype(np.int64)
    result: Ints = ahead - int(np.median(ahead))
    return result


def _from_median(offset: Floats) -> Floats:
    result: Floats = offset - np.median(offset)
    return result


class _Fit:
    def __init__(self, call: Ints, rank: Ints, start: Ints, end: Ints, is_message: npt.NDArray[np.bool_]) -> None:
        self.is_message = is_message
        self.call, self.rank, self.count = call, rank, int(rank.max()) + 1
        self.calls = int(call.max()) + 1
        # Hosts may be hours apart; what is fitted is what is left of that.
        self.guess = _guess(call, rank, end)
        start, end = start - self.guess[rank], end - self.guess[rank]
        self.middle = (int(end.min()) + int(end.max())) // 2
        self.end = (end - self.middle).astype(np.float64)
        self.span = max(float(np.abs(self.end).max()), 1.0)
        self.time = self.end / self.span
        self.start = (start - self.middle).astype(np.float64)
        duration = end - start
        shortest = np.full(self.calls, np.iinfo(np.int64).max)
        np.minimum.at(shortest, call, duration)
        # Who has the shortest kernel entered last, unless that was so little later that its bias is larger.
        self.last = ((duration == shortest[call]) & ~is_message).astype(np.float64)
        self.weight = np.ones(len(end))

    def solved(self, ranks: Ints, by_messages: npt.NDArray[np.bool_], untied: Ints) -> RankClocks:
        result, scale = np.zeros(2 * self.count + 1), _FIRST_SCALE_NS
        deviations = np.concatenate(
            [np.full(self.count, _OFFSET_NS), np.full(self.count, max(_DRIFT * self.span, 1e-9)), [_BIAS_NS]]
        )
        for _ in range(_ROUNDS):
            ridge = (scale / deviations) ** 2
            result = _conjugate_gradients(
                self._normal(ridge), self._back(self._centred(self.end)), result, self._diagonal(ridge)
            )
            left = np.abs(self._centred(self.end) - self._forward(result))
            scale = max(DEVIATION_OF_MEDIAN * float(np.median(left)), _LEAST_SCALE_NS)
            self.weight = 1 / np.maximum(1.0, left / scale)
            self.last = self._last(result)
        offset, drift, bias = result[: self.count], result[self.count : -1] / self.span, float(result[-1])
        middle_drift = float(np.median(drift))
        return RankClocks(
            ranks=ranks,
            offset_ns=_from_median(offset + self.guess),
            drift=drift - middle_drift,
            error_ns=np.hypot(self._errors(scale, bias), np.where(by_messages, _MESSAGE_NS, 0.0)),
            middle_ns=self.middle,
            bias_ns=bias,
            scale_ns=scale,
            collectives=self.calls,
            untied=untied,
        )

    def _last(self, result: Floats) -> Floats:
        """Return who entered last by the clocks so far."""
        offset, drift = result[: self.count], result[self.count : -1]
        entered = self.start - offset[self.rank] - drift[self.rank] * self.start / self.span
        latest = np.full(self.calls, -np.inf)
        np.maximum.at(latest, self.call, entered)
        last: Floats = ((entered == latest[self.call]) & ~self.is_message).astype(np.float64)
        return last

    def _centred(self, values: Floats) -> Floats:
        """Take out what is common to the ranks of each collective."""
        weights = np.bincount(self.call, self.weight, self.calls)
        mean: Floats = values - (np.bincount(self.call, self.weight * values, self.calls) / weights)[self.call]
        return mean

    def _forward(self, result: Floats) -> Floats:
        offset, drift, bias = result[: self.count], result[self.count : -1], result[-1]
        return self._centred(offset[self.rank] + drift[self.rank] * self.time + bias * self.last)

    def _back(self, values: Floats) -> Floats:
        weighted = self.weight * values
        return np.concatenate(
            [
                np.bincount(self.rank, weighted, self.count),
                np.bincount(self.rank, weighted * self.time, self.count),
                [float(weighted @ self.last)],
            ]
        )

    def _normal(self, ridge: Floats) -> Callable[[Floats], Floats]:
        return lambda result: self._back(self._forward(result)) + ridge * result

    def _diagonal(self, ridge: Floats) -> Floats:
        of_time = np.bincount(self.rank, self.weight * self.time**2, self.count)
        of_last = [float(self.weight @ self.last)]
        return np.concatenate([np.bincount(self.rank, self.weight, self.count), of_time, of_last]) + ridge

    def _errors(self, scale: float, bias: float) -> Floats:
        """Return the standard deviations of offsets, by how many ends each rests on.

        A rank that is nearly always last, or never where there are only two, cannot be told from the bias.
        """
        count = np.bincount(self.rank, self.weight, self.count)
        share = np.bincount(self.rank, self.last, self.count) / np.maximum(
            np.bincount(self.rank, minlength=self.count), 1
        )
        unclear = (share > _MOSTLY) | ((share < 1 - _MOSTLY) & (self.count == 2))
        of_bias = np.where(unclear, max(abs(bias), _BIAS_SEEN_NS), 0.0)
        spread: Floats = np.hypot(scale / np.sqrt(np.maximum(count, 1)), of_bias)
        return spread


def _conjugate_gradients(apply: Callable[[Floats], Floats], wanted: Floats, result: Floats, diagonal: Floats) -> Floats:
    """Solve symmetric equations, with the diagonal as preconditioner."""
    left = wanted - apply(result)
    direction = scaled = left / diagonal
    size = float(left @ scaled)
    least = _CONVERGED * max(float(wanted @ (wanted / diagonal)), 1e-30)
    for _ in range(_ITERATIONS):
        if size <= least:
            break
        image = apply(direction)
        along = size / float(direction @ image)
        result = result + along * direction
        left = left - along * image
        scaled = left / diagonal
        size, before = float(left @ scaled), size
        direction = scaled + (size / before) * direction
    return result
