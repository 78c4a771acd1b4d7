"""``opscope profile --nproc N`` and ``opscope profile -- LAUNCHER``: ranks that measure the same steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opscope.base import files
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.record.sweep import Failure
from opscope.sweep.job import MeasuredRanks
from opscope.sweep.plan import RANK_MODULE, launch_named
from opscope.sweep.rank import ENDED_BY_LAUNCHER, RankResult
from opscope.sweep.worker import Message
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
    with pytest.raises(UsageError, match=r"put python before it, as in python train\.py"):
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


def test_a_launcher_behind_another_program_is_seen() -> None:
    assert words("env", "A=1", "torchrun", "--nproc-per-node", "2", SCRIPT)[-2:] == [RANK_MODULE, "--opscope-job=/job"]


def test_a_module_cannot_be_launched() -> None:
    with pytest.raises(UsageError, match="a module behind -m cannot"):
        launch_named("torchrun", ("-m", "package.train"), None)


def outcomes(**told: dict[str, Any]) -> MeasuredRanks:
    made = {
        int(rank.removeprefix("rank")): RankResult(
            int(rank.removeprefix("rank")), 4, "a", one.pop("ended"), Message(**one)
        )
        for rank, one in told.items()
    }
    return MeasuredRanks(4, made, {}, Path())


def test_what_made_others_fail_comes_first() -> None:
    found = outcomes(
        rank0={"ended": 0.0, "phase": "settling"},
        rank1={"ended": 5.0, "failure": Failure("error", "RuntimeError: Connection closed by peer")},
        rank2={"ended": 7.0, "failure": Failure("killed", "the process was killed by SIGKILL")},
        rank3={"ended": 6.0, "failure": Failure("killed", ENDED_BY_LAUNCHER)},
    )
    assert found.first_failed == 2
    assert found.whole == []


def test_a_rank_that_left_no_word_is_missing() -> None:
    found = outcomes(rank0={"ended": 1.0, "complete": True}, rank1={"ended": 1.0, "complete": True})
    assert found.whole == [0, 1]
    assert found.first_failed is None
    failure = found.failure_of(3)
    assert failure is not None
    assert "without a word" in failure.message


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
    # Other commands take the folder for its two runs; the job's record is no trace.
    page = opscope("page", "out", "-o", "page.html", cwd=tmp_path)
    assert (page.returncode, "job.json" in page.stderr) == (0, False)
    listed = json.loads(opscope("analyze", "out", "--format", "json", cwd=tmp_path).stdout)
    assert len(listed["traces"]) == 2
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
def test_a_job_of_a_few_dozen_steps_is_profiled(tmp_path: Path) -> None:
    run = opscope("profile", "--nproc", "2", "--output-dir", "out", SCRIPT, "60", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "2 whole" in run.stdout


@pytest.mark.slow
def test_ranks_that_run_twice_under_one_launcher_meet_again(tmp_path: Path) -> None:
    command = [*TORCHRUN, "-m", "opscope", "profile", "-o", "out", SCRIPT, "40"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for number in (0, 1):
        assert "The script was run" in record_of(tmp_path / "out" / f"rank{number}")["steady_state"]


@pytest.mark.slow
def test_steps_that_one_rank_takes_alone_do_not_shift_the_others(tmp_path: Path) -> None:
    script = tmp_path / "shifted.py"
    script.write_text(
        Path(SCRIPT).read_text().replace("for step in", "for _ in range(7 * rank):\n    optimizer.step()\nfor step in")
    )
    run = opscope("profile", "--nproc", "2", "--output-dir", "out", str(script), "100000", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    ranks = [tmp_path / "out" / f"rank{number}" for number in (0, 1)]
    first, second = (annotations(rank / "shifted_trace_default.json") for rank in ranks)
    records = [record_of(rank) for rank in ranks]
    # A busy machine may keep them from agreeing; then they do not say that their steps are the same.
    if [record["steps"]["ranks"] for record in records] == [2, 2]:
        assert first == second
    else:
        assert any("did not choose the same steps" in record["steady_state"] for record in records)


@pytest.mark.slow
def test_results_are_replaced_as_a_whole_and_nothing_else_is(tmp_path: Path) -> None:
    first = opscope("profile", "--nproc", "3", "--output-dir", "out", SCRIPT, "100000", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    failed = opscope("profile", "--nproc", "2", "-o", "out", "--overwrite", SCRIPT, "100000", "12", cwd=tmp_path)
    assert failed.returncode == 1
    assert json.loads((tmp_path / "out" / "job.json").read_text())["world"] == 3  # of the results that are there
    second = opscope("profile", "--nproc", "2", "-o", "out", "--overwrite", SCRIPT, "100000", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert json.loads((tmp_path / "out" / "job.json").read_text())["world"] == 2
    assert not (tmp_path / "out" / "rank2").exists()
    (tmp_path / "out" / "rank0" / "report.html").write_text("mine")
    refused = opscope("profile", "--nproc", "2", "-o", "out", "--overwrite", SCRIPT, "100000", cwd=tmp_path)
    assert refused.returncode == 2
    assert (tmp_path / "out" / "rank0" / "report.html").read_text() == "mine"


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


@pytest.mark.parametrize("left", [f".opscope-partial-elsewhere-{2**22 + 1}-job", "launcher-failed.log", "here"])
def test_what_a_killed_job_left_is_in_the_way_of_none(left: str, tmp_path: Path) -> None:
    """``here`` stands for a process of this machine, whose files are removed even unasked."""
    script = tmp_path / "train.py"
    script.write_text("")
    name = files.partial_prefix().replace(f"-{os.getpid()}-", f"-{2**22 + 1}-") + "job" if left == "here" else left
    scratch = tmp_path / "out" / name
    if name.endswith("log"):
        scratch.parent.mkdir()
        scratch.write_text("no such option")
    else:
        (scratch / "1").mkdir(parents=True)
        (scratch / "1" / "request.json").write_text("{}")
    for option in ([] if left == "here" else ["--overwrite"]), ["--overwrite"]:
        done = opscope("profile", "-o", "out", *option, "--", "env", "false", "python", str(script), cwd=tmp_path)
        assert done.returncode == 3, done.stderr  # the launcher was started
        assert "before any rank began" in done.stderr
    assert scratch.exists() == (left != "here")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    refused = opscope("profile", "-o", "out", "--overwrite", "--", "env", "false", "python", str(script), cwd=tmp_path)
    assert refused.returncode == 2
    assert "cannot be overwritten" in refused.stderr


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
