"""The traces of a job's ranks -> what is said of the job."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.origin import can_be_rank
from opscope.base.errors import BadInputError
from opscope.base.files import path_text
from opscope.base.units import format_count, format_ns
from opscope.distributed.causes import Named, named_ranks
from opscope.distributed.clocks import RankClocks, clocks_of, contradicted
from opscope.distributed.collectives import (
    Matched,
    collectives_of,
    groups_of,
    matched,
    rows_of,
    slow_links,
    with_last,
)
from opscope.distributed.engines import Engine, Lost
from opscope.distributed.findings import job_findings, verdict_of, waiting_of
from opscope.distributed.inputs import Recorded
from opscope.distributed.kept import kept_summary
from opscope.distributed.lateness import Collectives, Own, own_times
from opscope.distributed.replay import replays_of
from opscope.distributed.summary import IDLE_COLUMNS, RankSummary
from opscope.documents.ranks import (
    Bubble,
    HeatMap,
    JobStep,
    JobTimeline,
    LateRank,
    RankClock,
    RankEntry,
    RankLane,
    RanksDocument,
    RankState,
)
from opscope.knowledge.collectives import MESSAGES, TOGETHER
from opscope.record.sweep import JobRecord, RankEnd

# ---------------------------------------------------------------- bubbles


def bubbles_of(ranks: Mapping[int, RankSummary], every: pl.DataFrame) -> list[Bubble]:
    """Return the bubbles of the ranks that exchange messages, the largest share of a step first.

    Args:
        ranks: the summaries.
        every: the collectives and messages of all of them, with ``rank``.
    """
    messages = every.filter(pl.col("collective").cast(pl.String).is_in(MESSAGES))
    if not messages.height:
        return []
    exposed = messages.group_by("rank", "row").agg(messages_ns=pl.col("exposed_ns").sum())
    results = []
    for (rank,), of_rank in exposed.group_by("rank"):
        assert isinstance(rank, int)
        steps = ranks[rank].steps.join(of_rank, on="row", how="left")
        messages_ns = pl.min_horizontal(pl.col("messages_ns").fill_null(0), "communication_ns")
        middle = steps.select(
            bubble_ns=(pl.sum_horizontal(*IDLE_COLUMNS.values()) + messages_ns).median(),
            messages_ns=messages_ns.median(),
            of_step_ns=pl.col("device_ns").median(),
        ).row(0)
        if middle[2]:
            results.append(Bubble(rank, *map(round, middle)))
    return sorted(results, key=lambda one: (-one.bubble_ns / one.of_step_ns, one.rank))


# ---------------------------------------------------------------- the picture


_MOST_LANES: Final = 32  # a screen; the ranks that differ most come first
_MOST_CALLS: Final = 60  # of a rank, the longest


def picture_of(
    ranks: Mapping[int, RankSummary], calls: pl.DataFrame, clocks: RankClocks | None, own: Own
) -> JobTimeline | None:
    """Return the step in which a rank is latest, as far as it fits; None without steps or a common clock.

    Args:
        ranks: the summaries.
        calls: the collectives and messages that could be matched, as `Matched.calls`.
        clocks: the ranks' clocks; None where nothing ties them together.
        own: what ranks do of their own in the steps that all of them recorded.
    """
    tied = set() if clocks is None else set(clocks.ranks.tolist())
    places = [place for place, rank in enumerate(own.ranks) if rank in tied]
    if clocks is None or not own.steps or len(places) < 2:
        return None
    late = own.late_ns
    step = int(late.max(axis=0).argmax())
    latest = sorted(places, key=lambda place: -int(late[place, step]))[:_MOST_LANES]
    number, cycle = own.steps[step]
    begins, hosts = {}, {}
    for place in sorted(latest):
        rank = own.ranks[place]
        row = ranks[rank].steps.row(int(own.rows[place, step]), named=True)
        begins[rank] = int(clocks.true(np.array([rank]), np.array([row["begin_ns"]]))[0])
        hosts[rank] = row["host_ns"]
    span = min(begins.values()), max(begins[rank] + hosts[rank] for rank in begins)
    of_step = _of_step(calls, number, cycle, span, set(begins), clocks)
    kinds = list(dict.fromkeys(of_step["kind"].to_list()))
    lanes = []
    for place in sorted(latest):
        rank = own.ranks[place]
        ours = of_step.filter(pl.col("rank") == rank)
        shown = ours.top_k(_MOST_CALLS, by="length_ns").sort("begin_ns")
        lanes.append(
            RankLane(
                rank=rank,
                begin_ns=begins[rank],
                host_ns=hosts[rank],
                late_ns=int(late[place, step]),
                calls=[
                    (start, length, kinds.index(kind), wait)
                    for start, length, kind, wait in shown.select("begin_ns", "length_ns", "kind", "wait_ns").rows()
                ],
                left_out=ours.height - shown.height,
            )
        )
    first = min(time for lane in lanes for time in (lane.begin_ns, *(call[0] for call in lane.calls)))
    moved = [_moved(lane, first) for lane in lanes]
    left_out = len(own.ranks) - len(moved)
    which = "The recording" if number is None else f"Step {number}, the one in which a rank is latest"
    sentence = (
        f"{which}. The line is the step on the host; bars are collectives of the device, pale while they wait for the "
        f"last rank{f'; {format_count(left_out)} ranks that are less late are left out' if left_out else ''}."
    )
    return JobTimeline(step=number, kinds=kinds, lanes=moved, ranks_left_out=left_out, sentence=sentence)


def _of_step(
    calls: pl.DataFrame, step: int | None, cycle: int, span: tuple[int, int], ranks: set[int], clocks: RankClocks
) -> pl.DataFrame:
    """Return the collectives of a step of some ranks: begin on the common clock, length, the part that is waiting.

    Those are what was launched in it, and what ran meanwhile: a rank may wait in it for what it launched before.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    described = pl.coalesce(pl.col("description").cast(pl.String), pl.col("group").cast(pl.String), pl.lit("no group"))
    name = pl.col("collective").cast(pl.String)
    result = calls.with_columns(
        length_ns=length,
        wait_ns=pl.when(name.is_in(TOGETHER)).then(length - length.min().over("call")).otherwise(0),
        kind=pl.concat_str(name, pl.lit(" of "), described),
    ).filter(pl.col("rank").is_in(list(ranks)))
    begin = clocks.true(result["rank"].to_numpy(), result["start_ns"].to_numpy())
    own = pl.col("step").eq_missing(pl.lit(step)) & (pl.col("cycle") == cycle)
    meanwhile = (pl.col("begin_ns") < span[1]) & (pl.col("begin_ns") + pl.col("length_ns") > span[0])
    return result.with_columns(begin_ns=pl.Series(begin, dtype=pl.Int64)).filter(own | meanwhile)


def _moved(lane: RankLane, first: int) -> RankLane:
    calls = [(begin - first, *rest) for begin, *rest in lane.calls]
    return RankLane(lane.rank, lane.begin_ns - first, lane.host_ns, lane.late_ns, calls, lane.left_out)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the job


_NO_TRACE: Final = "there is no trace of it"
_LISTED: Final = 8  # ranks
_HIDDEN: Final = "in this recording others are later still, so few wait for it"
_SHOWN: Final = 3  # reasons why files are not ranks
_MOST_ROWS, _MOST_COLUMNS = 64, 60  # of a heat map: what a page and a terminal of 100 columns show
_MOST_CONTRADICTED: Final = 0.1  # of collectives; where they are matched rightly, none on two H100


class Job(Struct, frozen=True):
    """The summaries of a job's ranks, and what is wrong with the rest.

    Attributes:
        ranks: by number, in order.
        world: how many there should be; None where no trace says it.
        duplicates: files that hold a rank again.
        unread: files without a rank, with why.
        record: what opscope wrote of the job; None where another tool recorded it.
    """

    ranks: dict[int, RankSummary]
    world: int | None
    duplicates: list[str]
    unread: dict[str, str]
    record: JobRecord | None = None

    @property
    def ends(self) -> Mapping[int, RankEnd]:
        """What is known of the ranks beside their traces."""
        return {} if self.record is None else {end.rank: end for end in self.record.ranks}


def read_job(files: Iterable[Path], engine: Engine, recorded: Recorded | None = None) -> Job:
    """Read the traces of a job.

    Args:
        files: the traces.
        engine: runs what reads them.
        recorded: what opscope wrote of the job when it started its ranks; None where another tool recorded them.

    Raises:
        BadInputError: none of them is a trace of a rank.
    """
    recorded = recorded or Recorded()
    record = recorded.record
    summaries, unread = [], dict(recorded.damaged)
    for path, result in engine.run(kept_summary, files):
        if isinstance(result, Lost):
            unread[path_text(path)] = result.reason
            continue
        summary = RankSummary.from_bytes(result)
        if summary.facts.number is None:
            unread[summary.facts.path] = _without_rank(summary)
        else:
            summaries.append(summary)
    world = _world_of(summaries)
    if world is None and record is not None:
        world = record.world
    for one in [one for one in summaries if one.facts.world not in (None, world)]:
        unread[one.facts.path] = f"of another job: its header says {one.facts.world} ranks, and most say {world}"
        summaries.remove(one)
    for one in [one for one in summaries if not can_be_rank(one.facts.number, world)]:
        unread[one.facts.path] = f"it says to be rank {one.facts.number}, and the job has {world} ranks, from 0 on"
        summaries.remove(one)
    # Of several files of a rank a whole one counts, of these one with steps, and then the first by name.
    summaries.sort(
        key=lambda one: (one.facts.number or 0, one.facts.damage is not None, not one.steps.height, one.facts.path)
    )
    ranks: dict[int, RankSummary] = {}
    duplicates = []
    for one in summaries:
        number = one.facts.number
        assert number is not None
        if number in ranks:
            duplicates.append(one.facts.path)
        else:
            ranks[number] = one
    if not ranks:
        listed = [why if path in why else f"{path}: {why}" for path, why in unread.items()]
        more = f"; and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        raise BadInputError(f"no file is a trace of a rank: {'; '.join(listed[:_SHOWN])}{more}")
    return Job(ranks, world, duplicates, unread, record)


def _without_rank(summary: RankSummary) -> str:
    untrue = summary.facts.untrue
    text = "neither its header nor its name says" if untrue is None else f"its header says {untrue}, and no name"
    return f"{text} which rank it is of"


def _world_of(summaries: Sequence[RankSummary]) -> int | None:
    """Return how many ranks most headers say that there are, of as many the larger; None where none says it."""
    worlds = Counter(one.facts.world for one in summaries if one.facts.world is not None)
    return max(worlds, key=lambda world: (worlds[world], world), default=None)


def document_of(job: Job) -> RanksDocument:
    """Return what is said of a job."""
    every = rows_of(job.ranks)
    result, clocks = matched_on_clocks(every, job.world)
    every = every.with_columns(bytes=pl.when(~pl.col("is_uneven")).then("bytes"))
    calls = with_last(result.calls, clocks)
    own = own_times(job.ranks, Collectives(every, calls, clocks))
    named, entries = named_ranks(job.ranks, own), _entries(job)
    late, waiting = _late(own, named), waiting_of(own)
    slow = slow_links(result, round(np.mean([one.steps.height for one in job.ranks.values()])))
    return RanksDocument(
        world=job.world,
        ranks=entries,
        duplicates=job.duplicates,
        unread=job.unread,
        steps=_steps(job.ranks, own),
        clocks=[] if clocks is None else _clocks(clocks),
        clock_note=_clock_note(clocks),
        late=late,
        waiting=waiting,
        verdict=verdict_of(own, named, waiting),
        heat=_heat(own),
        timeline=picture_of(job.ranks, result.calls, clocks, own),
        groups=groups_of(every, job.ranks),
        collectives=collectives_of(calls, every, entries),
        slow_links=slow,
        bubbles=bubbles_of(job.ranks, every),
        matched_by=result.by,
        ambiguous=result.ambiguous,
        findings=job_findings(own, late, slow, replays_of(job.ranks, result, clocks) if late else None),
        notes=list(_notes(job, own, result)),
    )


def matched_on_clocks(rows: pl.DataFrame, world: int | None) -> tuple[Matched, RankClocks | None]:
    """Match the collectives of some ranks, and return the clocks that follow from them; None where none do.

    Args:
        rows: what `rows_of` returns of the ranks.
        world: how many ranks the job has; None where that is unknown.
    """
    result = matched(rows, world)
    clocks = clocks_of(result.calls)
    says_nothing = rows["group"].null_count() == rows.height
    if clocks is not None and says_nothing and contradicted(result.calls, clocks) > _MOST_CONTRADICTED:
        # They say nothing of their groups, and ranks leave them before others enter: they are not of all ranks.
        return Matched(result.calls.clear(), rows.height, result.ambiguous, result.by), None
    return result, clocks


def _entries(job: Job) -> list[RankEntry]:
    numbers = set(job.ranks) | set(range(job.world or 0))
    entries, ends = [], job.ends
    for number in sorted(numbers):
        one, end = job.ranks.get(number), ends.get(number)
        if one is None:
            entries.append(
                RankEntry(number, RankState.MISSING, end.failure if end is not None and end.failure else _NO_TRACE)
            )
            continue
        facts = one.facts
        entries.append(
            RankEntry(
                rank=number,
                state=RankState.DAMAGED if facts.damage or facts.impossible else RankState.WHOLE,
                reason=facts.damage or _impossible(facts.impossible),
                path=facts.path,
                host=facts.host or (None if end is None else end.host),
                device=facts.device,
                steps=one.steps["step"].count(),
            )
        )
    return entries


def _impossible(count: int) -> str | None:
    return f"{count} records have times that cannot be true, and are left out" if count else None


def _steps(ranks: Mapping[int, RankSummary], own: Own) -> list[JobStep]:
    if not own.steps:
        return []
    last, steps = own.late_ns.argmax(axis=0), np.arange(len(own.steps))
    exposed = np.array(
        [ranks[rank].steps["communication_ns"].to_numpy()[rows] for rank, rows in zip(own.ranks, own.rows, strict=True)]
    ).mean(axis=0)
    duration, late = np.median(own.duration_ns, axis=0), own.late_ns[last, steps]
    return [
        JobStep(number, len(own.ranks), int(took), own.ranks[rank], int(by), int(alone))
        for (number, _), took, rank, by, alone in zip(own.steps, duration, last, late, exposed, strict=True)
    ]


def _heat(own: Own) -> HeatMap | None:
    if len(own.ranks) < 2 or not own.steps or not own.is_comparable:
        return None
    late = own.late_ns
    most = np.argsort(-late.max(axis=1), kind="stable")[:_MOST_ROWS]
    places = np.sort(most)
    # Neighbouring steps share a column where there are more than can be shown.
    columns = min(len(own.steps), _MOST_COLUMNS)
    first = np.linspace(0, len(own.steps), columns, endpoint=False).astype(np.int64)
    last = np.append(first[1:], len(own.steps)) - 1
    shown = np.maximum.reduceat(late[places], first, axis=1)
    latest = format_ns(max(int(shown.max()), 0))
    return HeatMap(
        ranks=[own.ranks[place] for place in places],
        steps=[(own.steps[low][0], own.steps[high][0]) for low, high in zip(first, last, strict=True)],
        late_ns=shown.tolist(),
        sentence=f"The darkest cell is {latest} late; where a rank waits for others, it is empty.",
    )


def _clocks(clocks: RankClocks) -> list[RankClock]:
    return [
        RankClock(int(rank), round(float(offset)), round(float(drift) * 1e6, 3), round(float(error)))
        for rank, offset, drift, error in zip(
            clocks.ranks, clocks.offset_ns, clocks.drift, clocks.error_ns, strict=True
        )
    ]


def _clock_note(clocks: RankClocks | None) -> str:
    """Say what the clocks rest on."""
    if clocks is None:
        return "not compared: no collective ties them together"
    when = "later" if clocks.bias_ns > 0 else "earlier"
    bias = f"; the last rank to enter exits {format_ns(abs(clocks.bias_ns))} {when}"
    untied = f"; {len(clocks.untied)} ranks share nothing with these and have no clock" if len(clocks.untied) else ""
    return f"from the ends of {clocks.collectives} collectives, each within {format_ns(clocks.scale_ns)}{bias}{untied}"


def _late(own: Own, named: Sequence[Named]) -> list[LateRank]:
    return [
        LateRank(
            rank=own.ranks[one.late.place],
            cause=one.why.cause,
            late_ns=one.late.late_ns,
            of_step_ns=one.late.of_step_ns,
            where=one.why.where,
            steps=[own.steps[step][0] for step in one.late.steps],
            evidence=[*one.why.evidence, *([_HIDDEN] if one.is_hidden else [])],
        )
        for one in named
        if one.is_called
    ]


def _notes(job: Job, own: Own, result: Matched) -> Iterable[str]:
    ranks = job.ranks
    missing = (job.world or len(ranks)) - len(ranks)
    if missing > 0:
        yield f"{missing} of {job.world} ranks have no trace: what they do is unknown, and late ones among them are"
    if len(own.ranks) > 1 and not own.steps:
        yield "the ranks have no step in common, so none can be called late"
    elif own.steps and own.steps[0][0] is None:
        yield "no steps are marked: the whole recording counts as one step"
        if not own.is_comparable:
            yield "recordings of ranks differ in length, so none can be called late"
    if own.left_out:
        listed = ", ".join(map(str, own.left_out[:_LISTED]))
        yield f"{len(own.left_out)} ranks have few of the steps that most have, and are not compared: {listed}"
    if left := set(ranks) - set(own.ranks) - set(own.left_out):
        yield f"on {len(left)} ranks nothing ran on a device: {', '.join(map(str, sorted(left)[:_LISTED]))}"
    if any(one.facts.host_collectives for one in ranks.values()):
        yield "ranks also wait for each other on the host (gloo): who is late there is not seen"
    if result.ambiguous:
        yield f"{result.ambiguous} kernels of collectives are in steps in which ranks issued different numbers of them"
    if result.partial:
        yield f"{result.partial} collectives lack the kernel of a rank, or ranks disagree about them"
    if untrue := [one.facts.untrue for one in ranks.values() if one.facts.untrue is not None]:
        yield f"headers of {len(untrue)} traces say what cannot be ({untrue[0]}): their names tell their ranks"
    unlabelled = sum(one.facts.unlabelled for one in ranks.values())
    if unlabelled:
        yield f"{unlabelled} kernels say nothing of the collective that they belong to"
