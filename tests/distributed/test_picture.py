"""One step of a job on the clock of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from opscope.distributed.job import picture_of
from opscope.documents.ranks import JobTimeline
from tests.distributed.recorded import made, recorded, said_of
from tests.jobs import Job, Lateness, Shape, ran

MS = 1_000_000


def test_the_step_in_which_a_rank_is_latest_is_shown_on_one_clock(tmp_path: Path) -> None:
    job = Job(Shape(4), {2: Lateness("host", 5 * MS, (3,))}, steps=5, offset_ns=3 * MS, per_host=1)
    timeline = said_of(made(job, tmp_path)).timeline
    assert timeline is not None
    assert timeline.step == 4  # the generator counts from 0
    assert [lane.rank for lane in timeline.lanes] == [0, 1, 2, 3]
    assert timeline.lanes[2].late_ns == pytest.approx(5 * MS, rel=0.05)
    # Clocks are milliseconds apart; a rank that is last leaves collectives up to 25 us late, and seems to be ahead.
    true = [next(start for _, name, _, start, _, _ in rank.events if name == "ProfilerStep#4") for rank in ran(job)]
    for lane, begin in zip(timeline.lanes, true, strict=True):
        assert lane.begin_ns - timeline.lanes[0].begin_ns == pytest.approx(begin - true[0], abs=30_000)


def test_waiting_is_the_part_of_a_collective_before_the_last_rank_came(tmp_path: Path) -> None:
    job = Job(Shape(4), {1: Lateness("kernels", 4 * MS)}, steps=3)
    timeline = said_of(made(job, tmp_path)).timeline
    assert timeline is not None
    assert timeline.kinds == ["allreduce of data_parallel"]
    waits = [max(wait for *_, wait in lane.calls) for lane in timeline.lanes]
    assert waits[1] < 0.1 * MS
    assert all(wait == pytest.approx(4 * MS, rel=0.1) for rank, wait in enumerate(waits) if rank != 1)
    assert all(0 <= wait < length for lane in timeline.lanes for _, length, _, wait in lane.calls)


def test_many_ranks_and_calls_are_cut_and_counted(tmp_path: Path) -> None:
    timeline = said_of(made(Job(Shape(40), {33: Lateness("host", 9 * MS)}, layers=70, steps=2), tmp_path)).timeline
    assert timeline is not None
    assert len(timeline.lanes) == 32
    assert timeline.ranks_left_out == 8
    assert 33 in {lane.rank for lane in timeline.lanes}
    assert {(len(lane.calls), lane.left_out) for lane in timeline.lanes} == {(60, 10)}


def test_a_step_whose_collectives_could_not_be_matched_shows_its_ranks_all_the_same(tmp_path: Path) -> None:
    ranks = made(Job(Shape(3), {1: Lateness("host", 9 * MS, (2,))}, steps=4), tmp_path)
    rows = ranks[0].steps["step"].to_list()
    ranks[0] = ranks[0].changed(communications=ranks[0].communications.filter(pl.col("row") != rows.index(3)))
    timeline = said_of(ranks).timeline
    assert timeline is not None
    assert (timeline.step, [lane.calls for lane in timeline.lanes]) == (3, [[], [], []])


def test_what_runs_in_a_step_is_shown_where_the_step_before_has_launched_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(Shape(3), {1: Lateness("host", 9 * MS, (2,))}, layers=4, steps=4)
    ranks = made(job, tmp_path)
    before = said_of(ranks).timeline

    def earlier(ranks: Any, calls: pl.DataFrame, *more: Any) -> JobTimeline | None:
        in_step = pl.col("step") == 3
        first = pl.col("start_ns") == pl.col("start_ns").filter(in_step).min().over("rank")
        step = pl.when(in_step & first).then(2).otherwise("step").cast(calls["step"].dtype)
        return picture_of(ranks, calls.with_columns(step=step), *more)

    monkeypatch.setattr("opscope.distributed.job.picture_of", earlier)
    after = said_of(ranks).timeline
    assert before is not None
    assert before.step == 3
    assert [len(lane.calls) for lane in before.lanes] == [4, 4, 4]
    assert max(wait for *_, wait in before.lanes[0].calls) > 8 * MS
    assert after == before


def test_there_is_none_without_a_clock() -> None:
    one = {0: recorded("healthy_ddp")[0]}
    assert said_of(one).timeline is None
