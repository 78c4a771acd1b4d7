"""Summaries beside traces: what is damaged, senseless or in the way there changes no figure and loses no rank."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import opscope as package
from opscope.analysis.structure.origin import process_name
from opscope.base.errors import BadInputError
from opscope.distributed.inputs import record_of
from opscope.distributed.kept import kept_summary
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary
from tests.budget import examples
from tests.distributed.recorded import RECORDED
from tests.jobs import Job, Shape, write_job
from tests.kineto import KinetoTrace


@pytest.fixture(autouse=True)
def _never_for_ever() -> Iterator[None]:
    """End a test that waits at a pipe."""

    def end(*_: object) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_job(Job(Shape(3), steps=2, layers=2), folder, ".json")
    return folder


def copied(job: Path, target: Path) -> Path:
    shutil.copytree(job, target, ignore=shutil.ignore_patterns(".opscope"))
    return target


def kept_of(trace: Path) -> Path:
    """Return where the summary of a trace is."""
    kept_summary(trace)
    return next(
        place
        for place in (trace.parent / ".opscope").iterdir()
        if RankSummary.from_bytes(place.read_bytes()).facts.path == str(trace)
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, bytes]:
    """Return a trace of a rank, where its summary is kept, and this."""
    folder = tmp_path_factory.mktemp("alone")
    (trace,) = write_job(Job(Shape(1), steps=1, layers=1), folder, ".json")
    place = kept_of(trace)
    return trace, place, place.read_bytes()


@settings(deadline=None, max_examples=examples(60))
@given(st.floats(0, 1, exclude_max=True))
def test_no_bit_of_a_kept_summary_that_flips_changes_a_fact(alone: tuple[Path, Path, bytes], where: float) -> None:
    trace, place, whole = alone
    content, bit = bytearray(whole), int(where * len(whole) * 8)
    content[bit // 8] ^= 1 << bit % 8
    place.write_bytes(content)
    assert kept_summary(trace) == whole
    assert place.read_bytes() == whole  # made anew


def test_every_bit_and_every_length_of_a_kept_summary_is_covered(alone: tuple[Path, Path, bytes]) -> None:
    whole = alone[2]
    content = bytearray(whole)
    for bit in range(8 * len(whole)):
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadInputError):
            RankSummary.from_bytes(bytes(content))
        content[bit // 8] ^= 1 << bit % 8
    for length in range(len(whole)):
        with pytest.raises(BadInputError):
            RankSummary.from_bytes(whole[:length])


def with_facts(**facts: object) -> Callable[[RankSummary], RankSummary]:
    return lambda one: one.changed(replace(one.facts, **facts))


def with_column(table: str, column: str, value: int | None) -> Callable[[RankSummary], RankSummary]:
    def planted(one: RankSummary) -> RankSummary:
        frame: pl.DataFrame = getattr(one, table)
        return one.changed(**{table: frame.with_columns(pl.lit(value, frame.schema[column]).alias(column))})

    return planted


def with_bytes(table: str, content: bytes) -> Callable[[RankSummary], RankSummary]:
    return lambda one: RankSummary(one.facts, {**one._tables, table: content})


@pytest.mark.parametrize(
    "planted",
    [
        *(with_facts(world=world) for world in (2**31, 2**62, 0, -1, 2)),
        *(with_facts(rank=rank) for rank in (2**62, -1, 3)),
        with_facts(impossible=-1),
        with_facts(unlabelled=2**62),
        with_bytes("steps", b""),
        with_bytes("work", b"no table"),
        with_bytes("communications", b"\xff" * 1_000),
        lambda one: one.changed(work=one.gaps),
        lambda one: one.changed(steps=pl.concat([one.steps, one.steps])),
        lambda one: one.changed(steps=one.steps.clear()),
        with_column("steps", "row", None),
        with_column("steps", "begin_ns", 2**63 - 1),
        with_column("steps", "device_ns", -1),
        with_column("steps", "device_ns", 2**62),
        with_column("communications", "row", 1_000_000),
        with_column("communications", "row", -1),
        with_column("communications", "start_ns", None),
        with_column("work", "calls", -5),
        with_column("work", "total_ns", 2**63 - 1),
        with_column("gaps", "duration_ns", -(2**62)),
        with_column("gaps", "row", 2),
    ],
)
def test_a_summary_that_no_trace_can_have_is_made_anew_in_silence(
    job: Path, tmp_path: Path, planted: Callable[[RankSummary], RankSummary], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copied(job, tmp_path / "job")
    expected = package.ranks(folder).document
    place = kept_of(folder / "rank2.json")
    whole = place.read_bytes()
    place.write_bytes(planted(RankSummary.from_bytes(whole)).to_bytes())
    assert package.ranks(folder).document == expected
    assert place.read_bytes() == whole
    assert capfd.readouterr() == ("", "")


def test_summaries_of_recorded_traces_are_found_again() -> None:
    paths = [path for path in sorted(RECORDED.rglob("*")) if path.is_file() and ".json" in path.name]
    assert paths
    for path in paths:
        RankSummary.from_bytes(summarise_rank(path).to_bytes()).check()


def a_folder(place: Path) -> None:
    (place / "inside").mkdir(parents=True)


@pytest.mark.parametrize("make", [os.mkfifo, a_folder])
@pytest.mark.parametrize("where", ["summary", "folder"])
def test_what_stands_at_the_place_of_a_summary_loses_no_rank(
    job: Path, tmp_path: Path, where: str, make: Callable[[Path], None]
) -> None:
    folder = copied(job, tmp_path / "job")
    expected = package.ranks(folder).document
    place = kept_of(folder / "rank1.json")
    if where == "folder":
        shutil.rmtree(folder / ".opscope")
        place = folder / ".opscope"
    else:
        place.unlink()
    make(place)
    assert package.ranks(folder).document == expected


def test_a_pipe_at_the_place_of_a_trace_is_named_and_loses_no_other_rank(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    (folder / "rank1.json").unlink()
    os.mkfifo(folder / "rank1.json")
    for paths in ([folder], sorted(folder.glob("*.json"))):
        document = package.ranks(paths).document
        assert [one.rank for one in document.ranks if one.path] == [0, 2]
        assert "not a regular file" in document.unread[str(folder / "rank1.json")]


def trace_that_says(path: Path, info: object) -> Path:
    made = KinetoTrace(distributedInfo=info)
    made.step(1, 0, 100_000)
    made.launched_kernel("busy", (1_000, 5_000), (10_000, 50_000))
    return made.write(path)


@pytest.mark.parametrize(
    ("info", "untrue"),
    [
        ({"rank": 7, "world_size": 2}, "rank 7 of 2"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": 0, "world_size": 0}, "rank 0 of 0"),
        ({"rank": -1, "world_size": 2}, "rank -1 of 2"),
        ({"rank": 2**62}, f"rank {2**62} of unknown"),
        ({"world_size": 2**31}, f"rank unknown of {2**31}"),
    ],
)
def test_a_rank_that_cannot_be_is_not_taken_and_that_is_said(tmp_path: Path, info: object, untrue: str) -> None:
    trace_that_says(tmp_path / "first.json", info)
    with pytest.raises(BadInputError, match=untrue):
        package.ranks(tmp_path)
    (tmp_path / "first.json").rename(tmp_path / "rank1.json")
    document = package.ranks(tmp_path).document
    assert ([one.rank for one in document.ranks], document.world) == ([1], None)
    assert any(untrue in note for note in document.notes)
    assert process_name(package.read(tmp_path / "rank1.json").source) == str(tmp_path / "rank1.json")


def test_a_rank_beyond_those_of_the_job_is_not_one_of_them(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace_that_says(tmp_path / f"rank{rank}.json", {"rank": rank, "world_size": 2})
    trace_that_says(tmp_path / "other.json", {"rank": 5})
    trace_that_says(tmp_path / "rank9.json", {"world_size": 2})
    document = package.ranks(tmp_path).document
    assert [one.rank for one in document.ranks] == [0, 1]
    assert {Path(path).name for path in document.unread} == {"other.json", "rank9.json"}
    assert all("the job has 2 ranks" in reason for reason in document.unread.values())


def test_a_record_of_more_ranks_than_it_lists_is_no_record(tmp_path: Path) -> None:
    record = {"schema": "opscope.job/1", "command": [], "created": "", "opscope": "", "first_failed": None}
    (tmp_path / "job.json").write_text(json.dumps({**record, "world": 2**50, "ranks": []}))
    found = record_of([str(tmp_path)])
    assert found.record is None
    assert "0 ranks" in found.damaged[str(tmp_path / "job.json")]
