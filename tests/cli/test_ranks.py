"""``opscope ranks`` on the command line, and ``opscope.ranks`` in Python."""

import gzip
import json
import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

import opscope as package
from opscope.base.errors import BadInputError, UsageError
from tests.command import WITHOUT_TORCH, opscope
from tests.conftest import DATA
from tests.jobs import Job, Lateness, Shape, write_job
from tests.kineto import KinetoTrace

MS = 1_000_000


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_job(Job(Shape(4), {2: Lateness("kernels", 3 * MS)}), folder)
    return folder


def copied(job: Path, target: Path) -> Path:
    shutil.copytree(job, target, ignore=shutil.ignore_patterns(".opscope"))
    return target


def document(*arguments: object) -> dict[str, object]:
    done = opscope("ranks", *map(str, arguments), "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_summary_says_what_was_read_and_who_is_late(job: Path) -> None:
    done = opscope("ranks", str(job), code=WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    assert "A job of 4 ranks" in done.stdout
    assert "Ranks: 4 whole" in done.stdout
    assert re.search(r"rank 2 is late by (2\.99|3\.00)", done.stdout)
    assert "aten::sort" in done.stdout


@pytest.mark.parametrize("by", ["late", "heat", "rank", "step", "group", "collective"])
def test_each_table_is_there_for_people_and_as_csv(job: Path, by: str) -> None:
    shown, values = (opscope("ranks", str(job), "--by", by, "--format", kind) for kind in ("table", "csv"))
    assert shown.returncode == values.returncode == 0
    rows = {"late": 1, "heat": 4, "rank": 4, "step": 4, "group": 1, "collective": 1}[by]
    assert len(values.stdout.splitlines()) == 1 + (16 if by == "heat" else rows)
    assert len([line for line in shown.stdout.splitlines() if line.strip()]) == 2 + rows


def test_files_patterns_and_folders_name_the_same(job: Path) -> None:
    expected = document(job)
    assert document(*sorted(job.glob("*.json.gz"))) == expected
    assert document(f"{job}/rank*.json.gz") == expected
    assert document(job, "--jobs", 2) == expected


def test_damaged_missing_duplicate_and_foreign_files_are_said_first(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    (folder / "rank1.json.gz").unlink()
    content = (folder / "rank3.json.gz").read_bytes()
    (folder / "rank3.json.gz").write_bytes(content[: len(content) // 2])
    shutil.copy(folder / "rank0.json.gz", folder / "zero_again.json.gz")
    (folder / "notes.json").write_text("{}")
    found = document(folder)
    assert {one["rank"]: one["state"] for one in found["ranks"]} == {  # type: ignore[attr-defined]
        0: "whole", 1: "missing", 2: "whole", 3: "damaged",
    }  # fmt: skip
    assert found["duplicates"] == [str(folder / "zero_again.json.gz")]
    assert list(found["unread"]) == [str(folder / "notes.json")]  # type: ignore[call-overload]
    shown = opscope("ranks", str(folder)).stdout
    assert shown.index("1 missing") < shown.index("notes.json") < shown.index("late")
    assert "Rank 3 is damaged" in shown


def test_summaries_are_kept_beside_traces_and_found_by_content(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    first = document(folder)
    kept = sorted((folder / ".opscope").iterdir())
    assert len(kept) == 4
    assert all(path.stat().st_size < 100_000 for path in kept)
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert document(folder) == first
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    # A trace that has changed has another summary; one that was renamed has the same.
    write_job(Job(Shape(4), {1: Lateness("host", 3 * MS)}), folder)
    assert [one["rank"] for one in document(folder)["late"]] == [1]  # type: ignore[attr-defined]
    (folder / "rank0.json.gz").rename(folder / "first.json.gz")
    assert document(folder)["ranks"][0]["path"] == str(folder / "first.json.gz")  # type: ignore[index]


def test_what_others_could_have_written_is_not_believed(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    expected = document(folder)
    for path in (folder / ".opscope").iterdir():
        path.write_bytes(b"\xff" * 100)
    assert document(folder) == expected  # made again
    for path in (folder / ".opscope").iterdir():
        path.chmod(0o666)
        path.write_bytes(path.read_bytes())
    assert document(folder) == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written_to_keeps_none(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    folder.chmod(0o500)
    assert document(folder)["late"]
    assert opscope("ranks", str(folder), "--shard", "1/2").returncode == 3


def test_shards_read_a_part_each_and_the_whole_is_put_together_from_summaries(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    expected = document(job)
    for shard in (1, 2):
        done = opscope("ranks", str(folder), "--shard", f"{shard}/2")
        assert done.returncode == 0, done.stderr
        assert "2 of 2 traces are summarised" in done.stderr
        assert len(list((folder / ".opscope").iterdir())) == 2 * shard
    found = document(folder)
    assert found["late"] == expected["late"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shard", "3/2"), "is not I/N"), (("--shard", "half"), "is not I/N"), (("--jobs", "0"), "--jobs"),
        (("--jobs", "2", "--dask", "tcp://x:1"), "--dask"), (("--by", "color"), "--by"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(job: Path, options: tuple[str, ...], said: str) -> None:
    done = opscope("ranks", str(job), *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_what_names_no_rank_is_refused(tmp_path: Path) -> None:
    assert opscope("ranks", str(tmp_path)).returncode == 2
    shutil.copy(DATA / "traces" / "square_variants.json.gz", tmp_path)
    done = opscope("ranks", str(tmp_path))
    assert done.returncode == 4
    assert "which rank it is of" in done.stderr


def test_python_has_the_same_with_tables(job: Path) -> None:
    found = package.ranks(job)
    assert [(one.rank, str(one.cause)) for one in found.document.late] == [(2, "kernels")]
    late = found.steps.group_by("rank").agg(pl.col("late_ns").mean()).sort("late_ns")
    assert late["rank"].to_list()[-1] == 2
    assert found.steps.height == 16
    # On one clock no one leaves before the last has entered.
    spans = found.communications.group_by("call").agg(pl.col("begin_ns").max(), pl.col("finish_ns").min())
    assert (spans["finish_ns"] >= spans["begin_ns"]).all()
    work = found.work.filter((pl.col("operator") == "aten::sort") & (pl.col("rank") == 2))
    assert work["total_ns"].mean() == pytest.approx(3.05 * MS, rel=0.01)
    assert "rank 2" in repr(found)
    with pytest.raises(UsageError, match="no trace"):
        package.ranks(job / "nothing")
    with pytest.raises(BadInputError, match="no file is a trace of a rank"):
        package.ranks(DATA / "traces" / "square_variants.json.gz")


def test_a_damaged_summary_is_made_again_and_one_under_a_group_mask_is_believed(job: Path, tmp_path: Path) -> None:
    folder = copied(job, tmp_path / "job")
    before = os.umask(0o002)
    try:
        expected = package.ranks(folder).document
    finally:
        os.umask(before)
    kept = sorted((folder / ".opscope").iterdir())
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o644}
    for path in kept:  # a byte of a table, behind which all else is as it was
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    assert package.ranks(folder).document == expected


def test_a_name_gives_the_rank_that_a_header_does_not(tmp_path: Path) -> None:
    made = KinetoTrace()
    made.step(1, 0, 100_000)
    made.launched_kernel("busy", (1_000, 5_000), (10_000, 50_000))
    path = made.write(tmp_path / "first.json")
    assert opscope("ranks", str(tmp_path)).returncode == 4
    path.rename(tmp_path / "rank3.json")  # what was kept of it knows no name
    assert [one["rank"] for one in document(tmp_path)["ranks"]] == [3]  # type: ignore[attr-defined]


def test_run_directories_give_their_traces_and_no_other_file(job: Path, tmp_path: Path) -> None:
    for trace in sorted(job.glob("*.json*")):
        rank = re.search(r"rank(\d+)", trace.name)
        assert rank is not None
        folder = tmp_path / "run" / f"rank{rank[1]}"
        (folder / "raw").mkdir(parents=True)
        opened = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
        (folder / "train_trace_default.json").write_bytes(opened)
        for other in ("manifest.json", "comparison.json", "profiling_stats_default.json", "raw/capture_default.json"):
            (folder / other).write_text("{}")
    assert document(tmp_path / "run")["ranks"] == document(*sorted((tmp_path / "run").rglob("*_trace_*")))["ranks"]
    found = opscope("ranks", str(tmp_path / "run"))
    assert "Ranks: 4 whole" in found.stdout
    assert "Not read" not in found.stdout


def test_traces_of_other_folders_are_read_beside_run_directories(job: Path, tmp_path: Path) -> None:
    copied(job, tmp_path / "job" / "raw")
    (tmp_path / "job" / "other").mkdir()
    (tmp_path / "job" / "other" / "manifest.json").write_text("{}")
    assert "Ranks: 4 whole" in opscope("ranks", str(tmp_path / "job")).stdout
