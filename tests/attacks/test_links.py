"""Links in an unpacked archive, at the places where opscope writes by itself: none is followed, no mode changes."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import opscope
from tests.jobs import Job, Shape, write_job


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the mode, the time of the last change and the content of all that is below a folder, and of itself."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *folder.rglob("*"))
    }


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "letter").write_text("mine")
    folder.chmod(0o700)
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    write_job(Job(Shape(2)), folder)
    return folder


def _link(place: Path, private: Path) -> None:
    place.symlink_to(Path("..") / private.name)


def _link_to_nothing(place: Path, private: Path) -> None:
    place.symlink_to(Path("..") / private.name / "nothing")


def _open_folder(place: Path, private: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _file(place: Path, private: Path) -> None:
    place.write_text("mine")


@pytest.mark.parametrize("plant", [_link, _link_to_nothing, _open_folder, _file])
def test_summaries_are_kept_in_no_folder_that_opscope_did_not_make(
    plant: Callable[[Path, Path], None], job: Path, private: Path
) -> None:
    plant(job / ".opscope", private)
    before = contents(job), contents(private)
    for _ in range(2):
        done = opscope("ranks", str(job))
        assert done.returncode == 0, done.stderr
        assert "Ranks: 2 whole" in done.stdout
    kept = opscope("ranks", str(job), "--shard", "1/1")
    assert kept.returncode != 0
    assert "cannot keep a summary in" in kept.stderr
    assert "remove it" in kept.stderr
    assert (contents(job), contents(private)) == before


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_stands_at_the_place_of_a_summary_loses_no_rank(kind: str, job: Path, private: Path) -> None:
    assert opscope("ranks", str(job)).returncode == 0
    before = contents(private)
    for path in (job / ".opscope").iterdir():
        path.unlink()
        if kind == "link":
            path.symlink_to(private / "letter")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
    done = opscope("ranks", str(job))
    assert done.returncode == 0, done.stderr
    assert "Ranks: 2 whole" in done.stdout
    assert contents(private) == before


@pytest.mark.parametrize("place", ["opscope", "opscope/SKILL.md"])
def test_a_skill_is_not_written_through_a_link(place: str, tmp_path: Path, private: Path) -> None:
    skills = tmp_path / "skills"
    (skills / place).parent.mkdir(parents=True)
    (skills / place).symlink_to(private if place == "opscope" else private / "letter")
    before = contents(private)
    refused = opscope("skill", "--install", str(skills), "--overwrite")
    assert refused.returncode == 2
    assert f"{skills / place} is a link" in refused.stderr
    assert contents(private) == before


def test_a_program_is_not_recorded_through_a_link(tmp_path: Path, private: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "raw").symlink_to(private)
    record = {
        "schema": "opscope.exec/1", "command": ["./add"], "folder": "/", "created": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0, "exit_code": 0, "opscope": "1", "cupti": "13", "cupti_library": "/x", "recordings": [],
    }  # fmt: skip
    (run / "exec.json").write_text(json.dumps(record))
    refused = opscope("exec", "-o", str(run), "--overwrite", "--", "true")
    assert refused.returncode == 2
    assert f"{run / 'raw'} is a link" in refused.stderr


def test_a_job_is_not_measured_through_a_link(tmp_path: Path, private: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = {"schema": "opscope.job/1", "command": [], "created": "", "opscope": "1", "world": 0, "first_failed": None}
    (run / "job.json").write_text(json.dumps({**record, "ranks": []}))
    (run / "rank0").symlink_to(private)
    (tmp_path / "train.py").write_text("")
    refused = opscope("profile", "--nproc", "2", "-o", str(run), "--overwrite", str(tmp_path / "train.py"))
    assert refused.returncode == 2
    assert f"{run / 'rank0'} is a link" in refused.stderr
