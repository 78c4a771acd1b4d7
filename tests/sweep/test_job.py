"""``opscope profile --nproc N`` and ``opscope profile -- LAUNCHER``: ranks that measure the same steps."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.sweep.launchers import RANK_MODULE, launch_named
from tests.command import ROOT, opscope

SCRIPT = str(ROOT / "tests" / "workloads" / "scripts" / "ranks.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def words(*command: str) -> list[str]:
    launch = launch_named(command[0], command[1:], None)
    assert launch is not None
    return launch.of_ranks(Path("/job"))


def test_the_rank_takes_the_place_of_the_script() -> None:
    python = sys.executable
    assert words(python, "-u", SCRIPT, "--lr", "x.py") == [
        *(python, "-u", "-m", RANK_MODULE, "--opscope-job=/job", "--lr", "x.py")
    ]
    assert words(*TORCHRUN, SCRIPT)[-3:] == ["-m", RANK_MODULE, "--opscope-job=/job"]
    assert words("env", "A=1", python, SCRIPT, "5")[-4:] == ["-m", RANK_MODULE, "--opscope-job=/job", "5"]


def test_a_launcher_that_takes_its_module_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "deepspeed"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    assert words(str(launcher), "--num_gpus=2", SCRIPT)[2:4] == ["--module", RANK_MODULE]


@pytest.mark.parametrize("target", ["bert", "train.py", "package.module:function", "torchrun"])
def test_what_is_no_job_is_none(target: str) -> None:
    assert launch_named(target, (), None) is None


def test_a_script_that_is_its_own_program_is_refused() -> None:
    with pytest.raises(UsageError, match=r"write it as env python train\.py"):
        launch_named("env", ("train.py",), None)


def test_a_launcher_that_is_not_there() -> None:
    with pytest.raises(EnvironmentLacksError, match="no such program"):
        launch_named("no-such-launcher", ("python", "train.py"), None)


def test_nproc_is_for_scripts() -> None:
    with pytest.raises(UsageError, match="bert is none"):
        launch_named("bert", (), 2)


def annotations(trace: Path) -> set[str]:
    return set(re.findall(r'"name": "(number \d+)"', trace.read_text()))


def record_of(rank: Path) -> Any:
    return json.loads((rank / "raw" / "capture_default.json").read_text())


@pytest.mark.slow
def test_all_ranks_profile_the_same_steps(tmp_path: Path) -> None:
    run = opscope("profile", "--nproc", "2", "--output-dir", "out", SCRIPT, "100000", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "2 whole" in run.stdout
    ranks = [tmp_path / "out" / f"rank{number}" for number in (0, 1)]
    steps = [annotations(rank / "ranks_trace_default.json") for rank in ranks]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 3
    assert [record_of(rank)["steps"]["ranks"] for rank in ranks] == [2, 2]
    assert record_of(ranks[0])["steps"]["before"] == record_of(ranks[1])["steps"]["before"]
    assert all("the same on all 2 ranks" in record_of(rank)["steady_state"] for rank in ranks)
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert (job["world"], job["first_failed"]) == (2, None)
    again = opscope("profile", "--nproc", "2", "--output-dir", "out", SCRIPT, "100000", cwd=tmp_path)
    assert again.returncode == 2
    assert "is not replaced unasked" in again.stderr


@pytest.mark.slow
def test_a_job_that_is_too_short_runs_again_as_a_whole(tmp_path: Path) -> None:
    run = opscope("profile", "--output-dir", "out", "--", *TORCHRUN, SCRIPT, "6", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for number in (0, 1):
        assert "The script was run twice" in record_of(tmp_path / "out" / f"rank{number}")["steady_state"]


@pytest.mark.slow
def test_a_rank_that_died_is_named_with_its_reason(tmp_path: Path) -> None:
    run = opscope("profile", "--nproc", "2", "--output-dir", "out", SCRIPT, "100000", "12", cwd=tmp_path)
    assert run.returncode == 1
    assert "rank 1 failed first: the process was killed by SIGKILL" in run.stderr
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert job["first_failed"] == 1
    assert "SIGKILL" in job["ranks"][1]["failure"]
    assert not list((tmp_path / "out").glob(".opscope-partial*"))


@pytest.mark.slow
def test_a_launcher_that_starts_nothing_is_quoted(tmp_path: Path) -> None:
    run = opscope("profile", "--output-dir", "out", "--", *TORCHRUN, "--no-such-option", SCRIPT, cwd=tmp_path)
    assert run.returncode == 3
    assert "before any rank began" in run.stderr
    assert "no-such-option" in run.stderr


@pytest.mark.slow
def test_processes_without_ranks_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import torch\nfor _ in range(40): torch.ones(64, 64) @ torch.ones(64, 64)\n")
    both = f"{sys.executable} $* & {sys.executable} $* & wait"
    (tmp_path / "twice.sh").write_text(f"shift; {both}\n")
    one = opscope("profile", "-o", "one", "--", "env", sys.executable, str(script), cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert (tmp_path / "one" / "rank0" / "manifest.json").is_file()
    opscope("profile", "-o", "two", "--", "sh", "twice.sh", sys.executable, str(script), cwd=tmp_path)
    assert "two processes are rank 0" in (tmp_path / "two" / "launcher.log").read_text()
