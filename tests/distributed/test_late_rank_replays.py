"""What a late rank costs its job: replays of made jobs, beside the same jobs without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from opscope.documents.ranks import JobFinding, RanksDocument
from tests.distributed.recorded import made, said_of
from tests.jobs import Job, Lateness, Shape

MS = 1_000_000
PIPELINE = Shape(8, stages=2)


def finding_of(document: RanksDocument, rule: str = "late_rank") -> JobFinding:
    return next(one for one in document.findings if one.rule == rule)


def step_of(document: RanksDocument) -> float:
    return mean(step.duration_ns for step in document.steps)


@pytest.mark.parametrize(
    ("shape", "rank", "cause"),
    [
        (PIPELINE, 6, "host"),  # in the second stage, which waits for the first anyway
        (PIPELINE, 1, "host"),
        (PIPELINE, 5, "work"),
        (Shape(16, tensor=2, stages=2), 9, "input"),
        (Shape(16, tensor=2, stages=2), 3, "kernels"),
        (Shape(8), 2, "kernels"),
        (Shape(8, tensor=4), 2, "host"),
        (Shape(8, experts=True), 2, "kernels"),
        (Shape(8, sharded=True), 2, "input"),
    ],
)
def test_a_replay_saves_what_the_job_without_the_late_rank_does(
    shape: Shape, rank: int, cause: str, tmp_path: Path
) -> None:
    job = Job(shape, {rank: Lateness(cause, 5 * MS)}, steps=5)
    late, healthy = said_of(made(job, tmp_path / "a")), said_of(made(replace(job, late={}), tmp_path / "b"))
    true = step_of(late) - step_of(healthy)
    found = finding_of(late)
    assert found.is_replayed
    # Of the length of a step: what a rank's hosts do while it waits is not replayed.
    assert found.likely_ns == pytest.approx(true, abs=0.04 * step_of(late))
    assert found.saving_ns.low <= found.likely_ns <= found.saving_ns.high <= 5.2 * MS


def test_two_late_ranks_cost_more_together_than_each_alone(tmp_path: Path) -> None:
    job = Job(Shape(8), {2: Lateness("kernels", 5 * MS), 5: Lateness("kernels", 6 * MS)}, steps=5)
    late, healthy = said_of(made(job, tmp_path / "a")), said_of(made(replace(job, late={}), tmp_path / "b"))
    together = finding_of(late, "late_ranks")
    assert together.is_replayed
    assert together.likely_ns == pytest.approx(step_of(late) - step_of(healthy), abs=0.04 * step_of(late))
    alone = {one.ranks[0]: one.likely_ns for one in late.findings if one.rule == "late_rank"}
    assert alone[2] < 0.2 * MS
    assert alone[5] == pytest.approx(1 * MS, rel=0.3)


def test_where_collectives_cannot_be_matched_the_saving_is_a_bound(tmp_path: Path) -> None:
    found = finding_of(said_of(made(Job(Shape(8), {2: Lateness("kernels", 5 * MS)}, lose=0.05), tmp_path)))
    assert not found.is_replayed
    assert found.saving_ns.low == 0 < found.saving_ns.high == found.likely_ns
    assert found.saving.startswith("up to ")


def test_a_rank_without_another_like_it_has_a_bound(tmp_path: Path) -> None:
    found = finding_of(said_of(made(Job(Shape(3, stages=3), {1: Lateness("kernels", 9 * MS)}, steps=5), tmp_path)))
    assert not found.is_replayed


def test_a_finding_says_how_it_is_known_and_which_others_save_the_same(tmp_path: Path) -> None:
    job = Job(Shape(8), {2: Lateness("kernels", 5 * MS), 5: Lateness("work", 6 * MS)}, steps=5)
    document = said_of(made(job, tmp_path))
    found = {one.id: one for one in document.findings}
    assert set(found) == {"late_rank", "late_rank_2", "late_ranks"}
    assert found["late_ranks"].ranks == (2, 5)
    assert [one.likely_ns for one in document.findings] == sorted(
        (one.likely_ns for one in found.values()), reverse=True
    )
    of_rank = {one.rank: one for one in document.late}
    for name, one in found.items():
        assert set(one.overlaps) == set(found) - {name}
        assert one.of_step_ns == pytest.approx(step_of(document), rel=0.02)
        assert one.is_first is not one.is_small
        if one.rule == "late_rank":
            (rank,) = one.ranks
            assert [fact.text for fact in one.evidence] == of_rank[rank].evidence
            assert one.title.startswith(f"rank {rank} is late by ")
            assert (one.action == "divide the work evenly") == ("divided evenly" in one.derivation) == (rank == 5)
