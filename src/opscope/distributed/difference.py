"""Two jobs -> what changed between them, from the summaries of their ranks."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from opscope.distributed.frames import steps_of, work_of
from opscope.distributed.job import Job, document_of
from opscope.distributed.lateness import own_times
from opscope.distributed.summary import IDLE_COLUMNS, RankFacts
from opscope.documents.difference import Gate
from opscope.documents.ranks import (
    CollectiveChange,
    JobCollective,
    JobSide,
    JobStep,
    JobStepChange,
    LateChange,
    PartOfStep,
    ProcessGroupChange,
    RanksDifference,
    RanksDocument,
    RankState,
    RankWorkChange,
)
from opscope.measuring.verdicts import gate_of

# Three steps of each side that do not mix come about once in ten times where nothing has changed, four once in 35.
_LEAST_STEPS: Final = 3
_LEAST_OF_INTERVAL: Final = 4
# Either end of the interval of how much longer steps take is wrong about once in 70: what four steps of each side show
# that do not mix (normal quantile), and less than that where steps are compared in pairs.
_ONCE_IN_70: Final = 2.19
_ONCE_IN_100: Final = 2.326
_MOST_PAIRED: Final = 2_000  # steps of a side: of more, as many are compared, evenly chosen
_PARTS: Final = {
    "compute_ns": "compute",
    "communication_ns": "exposed communication",
    "memcpy_ns": "copies and fills",
    **{column: f"idle: {cause}" for cause, column in IDLE_COLUMNS.items()},
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
    ratio, undecided = _ratio(documents[0].steps, documents[1].steps)
    low, high = ratio or (None, None)
    return RanksDifference(
        before=sides[0],
        after=sides[1],
        step=_step(sides[0], sides[1]),
        ratio_low=low,
        ratio_high=high,
        undecided=undecided,
        incomplete=[
            *_incomplete(names[0], before, documents[0], after),
            *_incomplete(names[1], after, documents[1], before),
        ],
        parts=_parts(before, after),
        late=_late(*documents),
        groups=_groups(*documents),
        collectives=_collectives(*documents),
        work=_work(before, after),
        notes=list(_notes(sides[0], sides[1], *documents)),
    )


def job_gate_of(document: RanksDifference, fail_over: float) -> Gate:
    """Judge whether steps take longer than allowed: proven, disproven, or neither.

    What a part of the ranks says is not the job's: while one is missing, nothing is proven either way.

    Args:
        document: what changed.
        fail_over: how much longer they may take, as a share (0.05 is 5 %).
    """
    if document.incomplete:
        return Gate.INCOMPLETE
    return gate_of(document.ratio_low, document.ratio_high, fail_over)


def _incomplete(name: str, job: Job, document: RanksDocument, other: Job) -> Iterator[str]:
    """Yield the ranks of a job that are not in its figures, or not whole, each with the reason."""
    lacking = {one.rank: f"{one.state}: {one.reason}" for one in document.ranks if one.state is not RankState.WHOLE}
    if job.world is None:  # then the other job tells which ranks there should be
        expected = sorted({*other.ranks, *range(other.world or 0)} - set(job.ranks))
        lacking |= dict.fromkeys(expected, f"{RankState.MISSING}: the other job has it")
    left, others = own_times(job.ranks), own_times(other.ranks)
    for rank in left.left_out:
        lacking.setdefault(rank, "not compared: it has few of the steps that most ranks have")
    for rank in set(others.ranks) & (set(job.ranks) - set(left.ranks)):
        lacking.setdefault(rank, "not compared: nothing ran on its device, and something did in the other job")
    yield from (f"{name}: rank {rank} is {lacking[rank]}" for rank in sorted(lacking))
    # Beside a whole job other files may lie; where ranks are missing, or may be, any file can be one of them.
    is_whole = job.world is not None and not lacking
    for path, reason in job.unread.items():
        if not is_whole or RankFacts(path=path).number is not None:
            yield f"{name}: {path} is not read: {reason}"


def _ratio(before: Sequence[JobStep], after: Sequence[JobStep]) -> tuple[tuple[float, float] | None, str | None]:
    """Return the least and the greatest of how many times as long steps take; or else why that is not known."""
    first, second = (np.array([step.duration_ns for step in side], np.float64) for side in (before, after))
    least = min(len(first), len(second))
    if not least:
        return None, "the ranks of a job have no step in common, or nothing ran on their devices"
    if first.min() <= 0 or second.min() <= 0:
        return None, "a step takes no time on the device"
    is_paired = [step.step for step in before] == [step.step for step in after]
    if is_paired and (first == second).all():  # to the nanosecond: one recording, however few its steps are
        return (1.0, 1.0), None
    if least < _LEAST_OF_INTERVAL:
        unmarked = " (no steps are marked)" if any(step.step is None for step in (*before, *after)) else ""
        return None, (
            f"the jobs have {len(first)} and {len(second)} steps{unmarked}, and {_LEAST_OF_INTERVAL} of each are the "
            "fewest that tell a change from chance: record more"
        )
    low, high = _of_all(first, second)
    if is_paired:
        # Steps that differ from one to the next, and in both jobs alike, tell more in pairs.
        paired_low, paired_high = _of_pairs(first, second)
        low, high = max(low, paired_low), min(high, paired_high)
    return (min(low, high), max(low, high)), None


def _of_all(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of the ratio from all pairs of steps (Hodges and Lehmann), which single slow steps leave."""
    sides = [side[np.linspace(0, len(side) - 1, min(len(side), _MOST_PAIRED)).astype(int)] for side in (before, after)]
    ratios = np.sort((sides[1][:, None] / sides[0][None, :]).ravel())
    first, second = map(len, sides)
    spread = math.sqrt(first * second * (first + second + 1) / 12)
    rank = max(1, math.ceil(first * second / 2 - _ONCE_IN_70 * spread))
    return float(ratios[rank - 1]), float(ratios[-rank])


def _of_pairs(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of the ratio from steps of one number (Student)."""
    changes = np.log(after / before)
    width = _student(len(changes) - 1) * float(changes.std(ddof=1)) / math.sqrt(len(changes))
    middle = float(changes.mean())
    return math.exp(middle - width), math.exp(middle + width)


def _student(freedom: int) -> float:
    """Return the quantile of Student's distribution, within 2 % from three degrees of freedom on (Fisher's series)."""
    z = _ONCE_IN_100
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _side(name: str, job: Job, document: RanksDocument) -> JobSide:
    durations = [step.duration_ns for step in document.steps]
    if not durations:
        return JobSide(name, job.world, len(job.ranks), 0, None, None, None)
    return JobSide(
        name, job.world, len(job.ranks), len(durations), int(np.median(durations)), min(durations), max(durations)
    )


def _step(before: JobSide, after: JobSide) -> JobStepChange:
    if min(before.steps, after.steps) < _LEAST_STEPS:
        return JobStepChange.UNDECIDED
    assert before.longest_ns is not None
    assert before.shortest_ns is not None
    assert after.longest_ns is not None
    assert after.shortest_ns is not None
    if after.shortest_ns > before.longest_ns:
        return JobStepChange.LONGER
    return JobStepChange.SHORTER if after.longest_ns < before.shortest_ns else JobStepChange.UNDECIDED


def _parts(before: Job, after: Job) -> list[PartOfStep]:
    means = [steps_of(job).select(pl.col(list(_PARTS)).mean()) for job in (before, after)]
    results = [
        PartOfStep(name, *(round(float(mean[column][0] or 0.0)) for mean in means)) for column, name in _PARTS.items()
    ]
    return sorted((one for one in results if one.before_ns or one.after_ns), key=lambda one: -_by(one))


def _by(one: PartOfStep | RankWorkChange) -> int:
    return abs(one.after_ns - one.before_ns)


def _late(before: RanksDocument, after: RanksDocument) -> list[LateChange]:
    sides = [{(one.rank, one.cause): one.late_ns for one in document.late} for document in (before, after)]
    results = [LateChange(*key, sides[0].get(key), sides[1].get(key)) for key in dict.fromkeys((*sides[1], *sides[0]))]
    return sorted(results, key=lambda one: -max(one.before_ns or 0, one.after_ns or 0))


def _groups(before: RanksDocument, after: RanksDocument) -> list[ProcessGroupChange]:
    sides: list[dict[str, int]] = []
    for document in (before, after):
        sums: dict[str, int] = {}
        for one in document.groups:
            sums[one.description] = sums.get(one.description, 0) + one.exposed_ns
        sides.append(sums)
    names = dict.fromkeys((*sides[0], *sides[1]))
    results = [ProcessGroupChange(name, sides[0].get(name), sides[1].get(name)) for name in names]
    return sorted(results, key=lambda one: -abs((one.after_ns or 0) - (one.before_ns or 0)))


def _collectives(before: RanksDocument, after: RanksDocument) -> list[CollectiveChange]:
    def by_key(rows: Iterable[JobCollective]) -> dict[tuple[str, str, int | None], JobCollective]:
        return {(one.group, one.collective, one.bytes): one for one in rows}

    first, second = by_key(before.collectives), by_key(after.collectives)
    common = [(first[key], second[key]) for key in first if key in second]
    results = [
        (
            CollectiveChange(
                *key, one.transfer_ns, other.transfer_ns, before_wait_ns=one.wait_ns, after_wait_ns=other.wait_ns
            ),
            abs(_whole(other) - _whole(one)) * max(one.calls, other.calls),
        )
        for one, other in common
        for key in [(one.group, one.collective, one.bytes)]
    ]
    return [one for one, _ in sorted(results, key=lambda pair: -pair[1])]


def _whole(one: JobCollective) -> int:
    return (one.transfer_ns or 0) + (one.wait_ns or 0)


def _work(before: Job, after: Job) -> list[RankWorkChange]:
    keys = ["operator", "kernel"]
    sides = [_work_of_step(job, keys) for job in (before, after)]
    joined = sides[0].join(sides[1], on=keys, how="full", coalesce=True, suffix="_after", nulls_equal=True)
    joined = joined.with_columns(pl.exclude(keys).fill_null(0.0)).sort(
        (pl.col("ns_after") - pl.col("ns")).abs(), descending=True
    )
    return [
        RankWorkChange(
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
    if [step.duration_ns for step in first.steps] == [step.duration_ns for step in second.steps] != []:
        yield f"all {before.steps} steps take the same to the nanosecond: both are of one recording, it seems"
    yield "steps ran under a profiler, which lengthens what the host does"


def _told(world: int | None) -> str:
    return "an unknown number of" if world is None else str(world)
