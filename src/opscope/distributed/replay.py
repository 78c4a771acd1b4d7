"""A job's recorded steps once more, with a rank that does what another one like it does: how long would they take?

Each rank is taken apart into what it does of its own and where it meets others. Of its own is the time in which its
device does not only communicate; in that time collectives begin at certain places, and at others the rank waits for
one to end. Replayed, a collective ends its transfer after the last of its ranks has begun it. A rank may be late where
it would have waited anyway, as in the bubble of a pipeline: so this tells what its lateness costs the job.
"""

import functools
from collections.abc import Container, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.nesting import Ints
from opscope.distributed.clocks import RankClocks
from opscope.distributed.collectives import Matched, members_of
from opscope.distributed.summary import RankSummary
from opscope.knowledge.collectives import MESSAGES, TOGETHER

_MOST_EVENTS: Final = 100_000  # of a job: a fifth of a second for each replay
_QUEUED_NS: Final = 20_000  # between the end of one kernel and the start of the next on its stream
_AS_LATE_WITHIN: Final = 0.25  # of its lateness: what a rank has more of its own than the one that takes its place
_TRUE_WITHIN: Final = 0.05  # of the recorded time: a replay that misses that is not believed


class _Program(Struct, frozen=True):
    """What a rank does: its events in order.

    Attributes:
        begin_ns: when it begins, on the common clock.
        place_ns: where in its own time each event is; the last one is its end.
        call: the place of its call among the rank's, per event; -1 for the end.
        waits: per event whether the rank waits for that call to end; otherwise it begins it.
        calls: the calls by their place: numbers in the job.
        signature: what kinds of calls these are. Ranks that do the same have the same.
    """

    begin_ns: int
    place_ns: list[int]
    call: list[int]
    waits: list[bool]
    calls: list[int]
    signature: tuple[tuple[str, ...], ...]


class _Call(Struct):
    """A collective while it is replayed.

    Attributes:
        transfer_ns: how long it takes once all have begun it.
        missing: how many ranks have not begun it.
        last_ns: when the last one that has begun it did so.
        group: calls of one group run one after the other.
    """

    transfer_ns: int
    missing: int
    last_ns: int
    group: int


class Replay:
    """The recorded steps of a job, which can be replayed with other ranks."""

    def __init__(self, programs: Mapping[int, _Program], calls: Sequence[_Call], steps: int) -> None:
        self._programs, self._calls, self._steps = programs, calls, max(steps, 1)
        self._recorded_ns = self._total(programs)

    @property
    def total_ns(self) -> int | None:
        """How long all steps take, replayed as they were recorded; None where that comes to no end."""
        return self._recorded_ns

    def saving_ns(self, late: Mapping[int, float]) -> int | None:
        """Return by how much a step would be shorter if late ranks did what another rank like them does.

        Args:
            late: by how much each of them is late in a step, in nanoseconds (the mean).

        Returns:
            Nanoseconds; None where a rank has no other like it, or none that has as much less of its own as it is late.
        """
        programs = dict(self._programs)
        for rank, late_ns in late.items():
            peer = self._peer(rank, late)
            if peer is None:
                return None
            own = self._programs[rank]
            more = (own.place_ns[-1] - peer.place_ns[-1]) / self._steps
            # Of a rank whose host is held up by others, the device is idle, which seems its own.
            if abs(more - late_ns) > _AS_LATE_WITHIN * late_ns:
                return None
            programs[rank] = _Program(peer.begin_ns, peer.place_ns, peer.call, peer.waits, own.calls, own.signature)
        total = self._total(programs)
        return (
            None if total is None or self._recorded_ns is None else max(0, (self._recorded_ns - total) // self._steps)
        )

    def _peer(self, rank: int, late: Container[int]) -> _Program | None:
        """Return the rank with as much of its own as is typical, of those that do the same and are not late."""
        own = self._programs.get(rank)
        if own is None:
            return None
        like = [one for other, one in self._programs.items() if other not in late and one.signature == own.signature]
        like.sort(key=lambda one: one.place_ns[-1])
        return like[(len(like) - 1) // 2] if like else None

    def _total(self, programs: Mapping[int, _Program]) -> int | None:
        """Return how long it takes from the first rank's beginning to the last one's end; None if ranks are stuck.

        They are where streams are not as assumed here, so that each waits for what another one would issue later.
        """
        calls = [_Call(one.transfer_ns, one.missing, one.last_ns, one.group) for one in self._calls]
        ended: dict[int, int] = {}
        waiting: dict[int, list[int]] = {}
        runs = {rank: _Run(program) for rank, program in programs.items()}
        ready = list(runs)
        while ready:
            rank = ready.pop()
            for number in runs[rank].goes_on(calls, ended):
                ready += waiting.pop(number, [])
            if (held := runs[rank].held) is not None:
                waiting.setdefault(held, []).append(rank)
        if waiting:
            return None
        begin = min(program.begin_ns for program in programs.values())
        return max(run.now for run in runs.values()) - begin


class _Run:
    """A rank while it is replayed.

    Attributes:
        now: its time.
        held: the call that it waits for, whose end is not known yet; None where it can go on.
    """

    def __init__(self, program: _Program) -> None:
        self.now = program.begin_ns
        self.held: int | None = None
        self._program = program
        self._event = self._place = 0
        self._streams: dict[int, int] = {}  # per group the call that runs last

    def goes_on(self, calls: Sequence[_Call], ended: dict[int, int]) -> list[int]:
        """Go on as far as possible; return the calls whose end is known now."""
        program = self._program
        results: list[int] = []
        self.held = None
        while self._event < len(program.place_ns):
            place, which = program.place_ns[self._event], program.call[self._event]
            number = program.calls[which] if which >= 0 else -1
            needed = number if program.waits[self._event] else self._before(calls, number)
            if needed is not None and needed not in ended:
                self.held = needed
                return results
            self.now += place - self._place
            self._place = place
            self._event += 1
            if which < 0:
                continue
            if program.waits[self._event - 1]:
                self.now = max(self.now, ended[number])
                continue
            call = calls[number]
            begins = self.now if needed is None else max(self.now, ended[needed])
            self._streams[call.group] = number
            call.last_ns, call.missing = max(call.last_ns, begins), call.missing - 1
            if not call.missing:
                ended[number] = call.last_ns + call.transfer_ns
                results.append(number)
        return results

    def _before(self, calls: Sequence[_Call], number: int) -> int | None:
        """Return the call of the same group that has to end before one can begin; None if there is none."""
        return None if number < 0 else self._streams.get(calls[number].group)


class Saving(Struct, frozen=True):
    """By how much a step would be shorter.

    Of collectives that were queued behind others it is unknown when they were issued. If no rank like theirs shows it,
    it is when they began, at the latest, or right after those before them, at the earliest.

    Attributes:
        late_ns: where they were issued at the latest, which is nearer to the truth in made jobs.
        early_ns: where they were issued at the earliest.
    """

    late_ns: int
    early_ns: int


class Replays(Struct, frozen=True):
    """A job that can be replayed.

    Attributes:
        as_begun: where queued collectives are issued when they began.
        as_early: where they are issued right after those before them.
    """

    as_begun: Replay
    as_early: Replay

    def saving(self, late: Mapping[int, float]) -> Saving | None:
        """Return what a step would save if late ranks did what another rank like each does.

        Args:
            late: by how much each of them is late in a step, in nanoseconds (the mean).

        Returns:
            None where a rank has no other like it, or none that has as much less of its own as it is late.
        """
        begun, early = self.as_begun.saving_ns(late), self.as_early.saving_ns(late)
        return None if begun is None or early is None else Saving(begun, early)


def replays_of(ranks: Mapping[int, RankSummary], result: Matched, clocks: RankClocks | None) -> Replays | None:
    """Take the recorded steps apart; None where they cannot be replayed so that they take as long as they did.

    Args:
        ranks: the summaries.
        result: the matched collectives and messages.
        clocks: the ranks' clocks; None where nothing ties them together.
    """
    calls = result.calls
    # Where ranks wait in what could not be matched, that would count as their own.
    if clocks is None or not calls.height or result.partial or result.ambiguous or 2 * calls.height > _MOST_EVENTS:
        return None
    there = set(calls["rank"].unique().to_list())
    if set(ranks) != there or not there <= set(clocks.ranks.tolist()):
        return None
    if any(not one.steps.height for one in ranks.values()):
        return None
    table = _aligned(calls, clocks)
    each = table.group_by("number").agg(pl.col("transfer").min(), pl.len().alias("size"), pl.col("stream").first())
    made = [_Call(*row) for row in each.sort("number").select("transfer", "size", pl.lit(0), "stream").rows()]
    parts = {rank: part.sort("start") for (rank,), part in table.partition_by("rank", as_dict=True).items()}
    ends = {rank: _end(one, rank, parts[rank], clocks) for rank, one in ranks.items()}
    begins = {rank: _begin(one, rank, parts[rank], clocks) for rank, one in ranks.items()}
    recorded = max(ends.values()) - min(begins.values())
    steps = max(one.steps.height for one in ranks.values())
    taken = {rank: _Taken(rank, part, begins[rank], ends[rank]) for rank, part in parts.items()}
    both = [Replay(programs, made, steps) for programs in (_as_begun(taken), _as_early(taken))]
    totals = [one.total_ns for one in both]
    if any(total is None or abs(total - recorded) > _TRUE_WITHIN * recorded for total in totals):
        return None
    return Replays(*both)


def _aligned(calls: pl.DataFrame, clocks: RankClocks) -> pl.DataFrame:
    """Return the calls on the common clock, numbered from 0; what does not make ranks wait has a number per rank."""
    rank = calls["rank"].to_numpy()
    name = pl.col("collective").cast(pl.String)
    together = name.is_in((*TOGETHER, *MESSAGES))
    own = pl.when(together).then(pl.struct("call", pl.lit(-1, pl.Int32).alias("rank")))
    # PyTorch gives each group a stream of its own, other programs may not: calls that never overlap share one.
    before = pl.col("end_ns").cum_max().shift(1)
    by_start = calls.sort("rank", "start_ns")
    overlap = by_start.select((pl.col("start_ns") < before.over("rank")).any()).item()
    stream = pl.struct("group", "members").rank("dense").cast(pl.Int64) if overlap else pl.lit(0, pl.Int64)
    return calls.with_columns(
        start=pl.Series(clocks.true(rank, calls["start_ns"].to_numpy()), dtype=pl.Int64),
        end=pl.Series(clocks.true(rank, calls["end_ns"].to_numpy()), dtype=pl.Int64),
        number=own.otherwise(pl.struct("call", "rank")).rank("dense").cast(pl.Int64) - 1,
        transfer=pl.col("end_ns") - pl.col("start_ns"),
        stream=stream,
    )


def _end(summary: RankSummary, rank: int, calls: pl.DataFrame, clocks: RankClocks) -> int:
    last = summary.steps.row(-1, named=True)
    host = int(clocks.true(np.array([rank]), np.array([last["begin_ns"] + last["host_ns"]]))[0])
    return max(host, int(calls["end"].to_numpy().max()))


def _begin(summary: RankSummary, rank: int, calls: pl.DataFrame, clocks: RankClocks) -> int:
    host = int(clocks.true(np.array([rank]), summary.steps["begin_ns"].head(1).to_numpy())[0])
    return min(host, int(calls["start"].to_numpy().min()))


class _Taken:
    """A rank taken apart.

    Attributes:
        places: where in its own time each call begins.
        first_of_queue: of each call the one behind which it was queued, itself where it was not. It was issued at some
            time after that one, and before it began.
        signature: what kinds of calls these are.
    """

    def __init__(self, rank: int, calls: pl.DataFrame, begin: int, end_ns: int) -> None:
        """Take a rank apart.

        Args:
            rank: its number.
            calls: its collectives and messages by their beginning, on the common clock.
            begin: when it begins.
            end_ns: when it ends.
        """
        start, end, exposed = (calls[name].to_numpy() for name in ("start", "end", "exposed_ns"))
        stops = np.maximum(end - exposed, start)  # compute stops there, and waits for the call to end
        own = _OwnClock(stops, end)
        before = own(np.array([begin]))
        self._begin, self._numbers = begin, calls["number"].to_list()
        self._joins = np.flatnonzero(end > stops)
        self._rest = own(np.concatenate([stops[self._joins], [end_ns]])) - before
        self.places: Ints = own(start) - before
        queued = np.zeros(len(start), bool)
        queued[1:] = start[1:] - np.maximum.accumulate(end)[:-1] < _QUEUED_NS
        self.first_of_queue: Ints = np.maximum.accumulate(np.where(queued, 0, np.arange(len(start))))
        kinds = ("collective", "description", "type", "bytes")
        peers = calls["peer"].cast(pl.String).cast(pl.Int64, strict=False).to_list()
        self.signature = tuple(
            (*map(str, row), "" if peer is None else "up" if peer > _place(members, rank) else "down")
            for row, peer, members in zip(calls.select(kinds).rows(), peers, calls["members"].to_list(), strict=True)
        )

    def program(self, places: Ints) -> _Program:
        """Return the rank with its calls issued at some places of its own time."""
        all_ = np.concatenate([places, self._rest])
        which = np.concatenate([np.arange(len(places)), self._joins, [-1]])
        waits = np.concatenate([np.zeros(len(places), bool), np.ones(len(self._joins), bool), [False]])
        # At one place calls begin before anybody waits for them, and the end is last.
        order = np.lexsort((which, waits, which < 0, all_))
        events = (all_[order].tolist(), which[order].tolist(), waits[order].tolist())
        return _Program(self._begin, *events, self._numbers, self.signature)


@functools.lru_cache(maxsize=1 << 12)
def _place(members: str | None, rank: int) -> int:
    """Return a rank's place in a group, as peers of messages are places; its own number where the list lacks it."""
    listed = members_of(members)
    return listed.index(rank) if rank in listed else rank


def _as_begun(taken: Mapping[int, _Taken]) -> dict[int, _Program]:
    """Return the ranks with queued calls issued when they began, or as soon as a rank like them issued the same."""
    like: dict[tuple[tuple[str, ...], ...], list[Ints]] = {}
    for one in taken.values():
        like.setdefault(one.signature, []).append(one.places)
    programs = {}
    for rank, one in taken.items():
        first = one.first_of_queue
        soonest = np.min([places - places[first] for places in like[one.signature]], axis=0)
        programs[rank] = one.program(one.places[first] + np.maximum(soonest, 0))
    return programs


def _as_early(taken: Mapping[int, _Taken]) -> dict[int, _Program]:
    """Return the ranks with queued calls issued right after those before them."""
    return {rank: one.program(one.places[one.first_of_queue]) for rank, one in taken.items()}


class _OwnClock:
    """Tells how much of its own a rank has done until some time: all but what it only communicates."""

    def __init__(self, begin: Ints, end: Ints) -> None:
        """Take the stretches in which the rank only communicates; they may overlap."""
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], np.maximum.accumulate(end[order])
        # Overlapping stretches count once: each begins where the one before has ended.
        begin = np.maximum(begin, np.concatenate([begin[:1], end[:-1]]))
        self._first = int(begin[0])  # interpolated are small numbers: those since the epoch are not exact as floats
        self._times = np.column_stack([begin, end]).ravel() - self._first
        self._lost = np.column_stack([np.cumsum(end - begin) - (end - begin), np.cumsum(end - begin)]).ravel()

    def __call__(self, times: Ints) -> Ints:
        lost: Ints = np.rint(np.interp(times - self._first, self._times, self._lost)).astype(np.int64)
        return times - lost
