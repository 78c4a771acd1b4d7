"""Slow links, what links can carry, and the bubbles of pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import opscope
from opscope.documents.ranks import RanksDocument
from tests.distributed import recorded
from tests.jobs import Job, Shape, write_job


def said_of(job: Job, folder: Path, hosts: list[str] | None = None) -> RanksDocument:
    write_job(job, folder)
    if hosts is not None:
        ends = [{"rank": rank, "host": host, "failure": None} for rank, host in enumerate(hosts)]
        record = {"schema": "opscope.job/1", "command": [], "created": "", "opscope": "", "world": len(hosts)}
        (folder / "job.json").write_text(json.dumps({**record, "first_failed": None, "ranks": ends}))
    return opscope.ranks(folder).document


@pytest.mark.parametrize(
    ("shape", "slow"),
    [(Shape(16, tensor=2), (4, 5)), (Shape(8, stages=4), (2, 4)), (Shape(12, tensor=2, stages=3), (10, 11))],
)
def test_a_slow_link_is_named_with_its_ranks_and_nobody_is_called_late(
    shape: Shape, slow: tuple[int, ...], tmp_path: Path
) -> None:
    found = said_of(Job(shape, slow={slow: 3.0}, steps=6), tmp_path)
    assert [tuple(one.ranks) for one in found.slow_links] == [slow]
    link = found.slow_links[0]
    # The rank that comes last leaves up to 20 us later, which a transfer of 30 us does not hide.
    assert 2 < link.others_bandwidth / link.bandwidth < 3.3
    assert not found.late
    assert [finding.rule for finding in found.findings] == ["slow_link"]
    assert 0 < link.costs_ns <= max(step.duration_ns for step in found.steps)


def test_small_transfers_of_a_slow_link_are_not_listed_and_times_of_zero_stop_nothing(tmp_path: Path) -> None:
    job = Job(Shape(16, tensor=2), slow={(4, 5): 4.0}, steps=6)
    ranks = recorded.made(job, tmp_path)
    for rank, one in ranks.items():
        rows = one.communications
        # The same again with 64 bytes, which take as long on all links, and with no time at all.
        small = rows.with_columns(bytes=pl.lit(64, pl.Int64), end_ns=pl.col("start_ns") + 7_000)
        nothing = rows.with_columns(bytes=pl.lit(32, pl.Int64), end_ns=pl.col("start_ns"))
        both = [
            part.with_columns(ordinal=pl.col("ordinal") + 1_000 * n) for n, part in enumerate((rows, small, nothing))
        ]
        ranks[rank] = one.changed(communications=pl.concat(both))
    found = recorded.said_of(ranks).slow_links
    assert [(one.ranks, one.bytes) for one in found] == [([4, 5], 512 << 10)]


@pytest.mark.parametrize("shape", [Shape(16, tensor=2), Shape(8, stages=4), Shape(4), Shape(4, stages=2)])
def test_links_of_a_healthy_job_are_not_slow(shape: Shape, tmp_path: Path) -> None:
    assert not said_of(Job(shape, steps=6), tmp_path).slow_links


def test_of_two_pairs_neither_is_called_slow(tmp_path: Path) -> None:
    assert not said_of(Job(Shape(4, tensor=2), slow={(0, 1): 3.0}, steps=6), tmp_path).slow_links


@pytest.mark.parametrize("kind", sorted(path.name for path in recorded.RECORDED.iterdir() if path.is_dir()))
def test_recordings_of_two_devices_have_no_slow_link(kind: str) -> None:
    assert not recorded.said_of(recorded.recorded(kind)).slow_links


def test_bandwidth_stands_beside_what_links_carry_within_a_host(tmp_path: Path) -> None:
    found = said_of(Job(Shape(8, tensor=2)), tmp_path, ["a"] * 4 + ["b"] * 4)
    peaks = {one.group: one.link_bandwidth for one in found.collectives}
    assert peaks == {"tensor_parallel": 450e9, "data_parallel": None}  # of an H200; data goes between hosts


def test_without_hosts_nothing_is_said_of_links(tmp_path: Path) -> None:
    assert {one.link_bandwidth for one in said_of(Job(Shape(4)), tmp_path).collectives} == {None}


def test_bubbles_are_what_a_step_has_beside_work_and_other_communication(tmp_path: Path) -> None:
    found = said_of(Job(Shape(4, stages=4), steps=5), tmp_path)
    steps = opscope.ranks(tmp_path).steps
    assert {one.rank for one in found.bubbles} == {0, 1, 2, 3}
    for one in found.bubbles:
        of_rank = steps.filter(rank=one.rank)
        work = of_rank["compute_ns"] + of_rank["memcpy_ns"]
        # Without other communication, all that is not work is the bubble.
        median = (of_rank["device_ns"] - work).median()
        assert one.bubble_ns == pytest.approx(median, abs=1)
        assert 0 < one.messages_ns <= one.bubble_ns < one.of_step_ns
    assert not said_of(Job(Shape(4)), tmp_path / "other").bubbles
