"""Two jobs -> what changed between them, from the summaries of their ranks."""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import polars as pl

from opscope.distributed.frames import steps_of, work_of
from opscope.distributed.job import Job, document_of
from opscope.distributed.summary import IDLE
from opscope.documents.ranks import JobCollective, RanksDocument
from opscope.documents.ranks_difference import (
    CollectiveChange,
    GroupChange,
    JobSide,
    LateChange,
    PartOfStep,
    RanksDifference,
    StepChange,
    WorkChange,
)

# Three steps of each side that do not mix come about once in ten times where nothing has changed, four once in 35.
_LEAST_STEPS: Final = 3
_PARTS: Final = {
    "compute_ns": "compute",
    "communication_ns": "exposed communication",
    "memcpy_ns": "copies and fills",
    **{column: f"idle: {cause}" for cause, column in IDLE.items()},
}


def difference_of(before: Job, after: Job, names: tuple[str, str]) -> RanksDifference:
    """Return what changed from one job to another.

    Args:
        before: the first job.
        after: the second job.
        names: their names, for people.
    """
    documents = document_of(before), document_of(after)
    sides = [_side(name, job, document) for name, job, document in zip(names, (before, after), documents, strict=True)]
    return RanksDifference(
        before=sides[0],
        after=sides[1],
        step=_step(sides[0], sides[1]),
        parts=_parts(before, after),
        late=_late(*documents),
        groups=_groups(*documents),
        collectives=_collectives(*documents),
        work=_work(before, after),
        notes=list(_notes(sides[0], sides[1], *documents)),
    )


def _side(name: str, job: Job, document: RanksDocument) -> JobSide:
    durations = [step.duration_ns for step in document.steps]
    if not durations:
        return JobSide(name, job.world, len(job.ranks), 0, None, None, None)
    return JobSide(
        name, job.world, len(job.ranks), len(durations), int(np.median(durations)), min(durations), max(durations)
    )


def _step(before: JobSide, after: JobSide) -> StepChange:
    if min(before.steps, after.steps) < _LEAST_STEPS:
        return StepChange.UNDECIDED
    assert before.longest_ns is not None
    assert before.shortest_ns is not None
    assert after.longest_ns is not None
    assert after.shortest_ns is not None
    if after.shortest_ns > before.longest_ns:
        return StepChange.LONGER
    return StepChange.SHORTER if after.longest_ns < before.shortest_ns else StepChange.UNDECIDED


def _parts(before: Job, after: Job) -> list[PartOfStep]:
    means = [steps_of(job).select(pl.col(list(_PARTS)).mean()) for job in (before, after)]
    found = [
        PartOfStep(name, *(round(float(mean[column][0] or 0.0)) for mean in means)) for column, name in _PARTS.items()
    ]
    return sorted((one for one in found if one.before_ns or one.after_ns), key=lambda one: -_by(one))


def _by(one: PartOfStep | WorkChange) -> int:
    return abs(one.after_ns - one.before_ns)


def _late(before: RanksDocument, after: RanksDocument) -> list[LateChange]:
    sides = [{(one.rank, one.cause): one.late_ns for one in document.late} for document in (before, after)]
    found = [LateChange(*key, sides[0].get(key), sides[1].get(key)) for key in dict.fromkeys((*sides[1], *sides[0]))]
    return sorted(found, key=lambda one: -max(one.before_ns or 0, one.after_ns or 0))


def _groups(before: RanksDocument, after: RanksDocument) -> list[GroupChange]:
    sides: list[dict[str, int]] = []
    for document in (before, after):
        sums: dict[str, int] = {}
        for one in document.groups:
            sums[one.description] = sums.get(one.description, 0) + one.exposed_ns
        sides.append(sums)
    names = dict.fromkeys((*sides[0], *sides[1]))
    found = [GroupChange(name, sides[0].get(name), sides[1].get(name)) for name in names]
    return sorted(found, key=lambda one: -abs((one.after_ns or 0) - (one.before_ns or 0)))


def _collectives(before: RanksDocument, after: RanksDocument) -> list[CollectiveChange]:
    def by_key(rows: Iterable[JobCollective]) -> dict[tuple[str, str, int | None], JobCollective]:
        return {(one.group, one.collective, one.bytes): one for one in rows}

    first, second = by_key(before.collectives), by_key(after.collectives)
    common = [(first[key], second[key]) for key in first if key in second]
    found = [
        (
            CollectiveChange(
                *key, one.transfer_ns, other.transfer_ns, before_wait_ns=one.wait_ns, after_wait_ns=other.wait_ns
            ),
            abs(_whole(other) - _whole(one)) * max(one.calls, other.calls),
        )
        for one, other in common
        for key in [(one.group, one.collective, one.bytes)]
    ]
    return [one for one, _ in sorted(found, key=lambda pair: -pair[1])]


def _whole(one: JobCollective) -> int:
    return (one.transfer_ns or 0) + (one.wait_ns or 0)


def _work(before: Job, after: Job) -> list[WorkChange]:
    keys = ["operator", "kernel"]
    sides = [_work_of_step(job, keys) for job in (before, after)]
    joined = sides[0].join(sides[1], on=keys, how="full", coalesce=True, suffix="_after", nulls_equal=True)
    joined = joined.with_columns(pl.exclude(keys).fill_null(0.0)).sort(
        (pl.col("ns_after") - pl.col("ns")).abs(), descending=True
    )
    return [
        WorkChange(
            operator=row["operator"] or "(no operator)",
            kernel=row["kernel"],
            before_calls=row["calls"],
            after_calls=row["calls_after"],
            before_ns=round(row["ns"]),
            after_ns=round(row["ns_after"]),
        )
        for row in joined.iter_rows(named=True)
    ]


def _work_of_step(job: Job, keys: list[str]) -> pl.DataFrame:
    """Return what a rank runs in a step, by operator and kernel: the mean over all ranks and steps."""
    steps = max(sum(one.steps.height for one in job.ranks.values()), 1)
    sums = work_of(job).group_by(keys).agg(pl.col("calls").sum(), pl.col("total_ns").sum())
    return sums.select(*keys, calls=pl.col("calls") / steps, ns=pl.col("total_ns") / steps)


def _notes(before: JobSide, after: JobSide, first: RanksDocument, second: RanksDocument) -> Iterator[str]:
    if before.world != after.world:
        worlds = f"the first job has {_told(before.world)} ranks, the second {_told(after.world)}"
        yield f"{worlds}: a rank may do less or more"
    devices = [sorted({one.device for one in document.ranks if one.device}) for document in (first, second)]
    if devices[0] != devices[1]:
        yield f"the devices differ: {', '.join(devices[0]) or 'unknown'}, then {', '.join(devices[1]) or 'unknown'}"
    for side in (before, after):
        if side.world is not None and side.ranks < side.world:
            yield f"{side.world - side.ranks} of {side.world} ranks of {side.name} have no trace"
    yield "steps ran under a profiler, which lengthens what the host does"


def _told(world: int | None) -> str:
    return "an unknown number of" if world is None else str(world)
