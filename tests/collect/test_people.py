"""Scripts as people write them run to their end under ``profile``; where the work is elsewhere, it is said at once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import ROOT, opscope

pytestmark = [pytest.mark.slow, pytest.mark.torch]

SCRIPTS = ROOT / "tests" / "workloads" / "scripts"


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("fused", "training"),
        ("loader", "training"),
        ("reinforcement", "training"),
        ("sampling", "evaluation"),
        ("generate", "evaluation"),
        ("threads", "training"),
        ("own_trainer", "training"),
        ("again", "training"),
        ("prepared", "training"),
        ("prepared_in_processes", "training"),
    ],
)
def test_whatever_people_write_ends_with_a_report(kind: str, steps: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = opscope("profile", "--quick", "--output-dir", str(tmp_path / "r"), str(SCRIPTS / "people.py"), kind)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    assert document["capture"]["steps"]["kind"] == steps
    assert document["measurement"]["step"]["ns"] > 0
    assert "parts_computed" not in {check["name"] for check in document["trust"]["checks"]}
    assert (tmp_path / "r" / "report.html").is_file()
    if kind == "threads":  # operators of the thread that prepares are recorded, too
        assert "aten::randn" in {row["name"] for row in document["operators"]}


@pytest.mark.parametrize("kind", ["new_loss", "folds", "gan", "other_phases", "phases", "turns"])
def test_steps_that_go_on_with_other_objects_are_timed_to_the_end(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = opscope("profile", "--output-dir", str(tmp_path / "r"), str(SCRIPTS / "people.py"), kind)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    assert document["capture"]["steps"]["kind"] == "training"
    assert "run twice" not in document["capture"]["steady_state"]
    assert document["measurement"]["step"]["steps"] >= 200
    says = "The script replaced its loss, model or optimizer meanwhile"
    assert (says in document["capture"]["steady_state"]) is (kind in ("new_loss", "folds", "gan"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            (str(SCRIPTS / "people.py"), "spawned_for_long"),
            "has started 2 processes with torch.multiprocessing.spawn, and waits for what `long_rank` does in them: "
            "opscope profile --nproc 2",
        ),
        (
            (str(SCRIPTS / "people.py"), "in_processes"),
            "itself is busy for less than 2.0 % of the time; it started 2 processes (for `train`)",
        ),
        (
            (str(SCRIPTS / "people.py"), "in_processes_for_long"),
            "waits while other processes do the training: it started 2 processes (for `long_rank`)",
        ),
        (
            (str(SCRIPTS / "people.py"), "retrying"),
            "waits while other processes do the training: it started a process (for `long_rank`)",
        ),
        (
            (str(SCRIPTS / "people.py"), "own_optimizer_beside_processes"),
            "waits while other processes do the training: it started a process (for `long_rank`)",
        ),
        (
            (str(SCRIPTS / "people.py"), "own_optimizer_beside_spawned"),
            "has started 2 processes with torch.multiprocessing.spawn, and waits for what `long_rank` does in them",
        ),
        ((str(SCRIPTS / "people.py"), "in_a_pool"), "itself runs no operator; it started 2 processes of a pool"),
        (
            (str(SCRIPTS / "launches.py"), str(SCRIPTS / "train.py"), "--steps", "400"),
            f"--steps 400`, and what that does is not followed. Profile it: opscope profile {SCRIPTS}/train.py",
        ),
    ],
)
def test_work_in_other_processes_is_named(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    began = time.monotonic()
    done = opscope("profile", "--output-dir", str(tmp_path / "r"), *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert time.monotonic() - began < 120  # not after a second run of the script, or the end of a long one


def test_a_script_whose_steps_are_named_is_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = (str(SCRIPTS / "people.py"), "in_processes_first")
    refused = opscope("profile", "--quick", "--output-dir", str(tmp_path / "a"), *words)
    assert refused.returncode == 2
    assert "If people.py itself trains afterwards, --step-kind training waits for it" in refused.stderr
    done = opscope("profile", "--quick", "--step-kind", "training", "--output-dir", str(tmp_path / "b"), *words)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "b" / "profiling_stats_default.json").read_text())
    assert document["capture"]["steps"]["kind"] == "training"


def test_processes_that_would_go_on_end_with_the_measurement(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    number = tmp_path / "pid"
    words = ("--output-dir", str(tmp_path / "r"), str(SCRIPTS / "people.py"), "producing", str(number))
    done = opscope("profile", "--quick", *words)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def _runs(status: Path) -> bool:
    """Tell whether a process runs; one that has ended stays listed where no one asks how."""
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look a process up in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_takes_the_scripts_processes_with_it(number: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pid = tmp_path / "pid"
    command = [sys.executable, "-m", "opscope", "profile", "--output-dir", str(tmp_path / "r")]
    process = subprocess.Popen([*command, str(SCRIPTS / "people.py"), "leaving", str(pid)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
        time.sleep(0.2)
    process.send_signal(number)  # to it alone, as a supervisor does
    process.wait(60)
    status = Path(f"/proc/{pid.read_text()}/stat")
    until = time.monotonic() + 10
    while _runs(status) and time.monotonic() < until:
        time.sleep(0.2)
    assert not _runs(status)


def test_training_on_another_thread_is_said_not_to_be_followed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("--quick", "--output-dir", str(tmp_path / "r"), str(SCRIPTS / "people.py"), "in_a_thread")
    done = opscope("profile", *words)
    assert "Optimizers have stepped 400 times on other threads than the main one" in done.stdout


def test_processes_that_a_script_spawns_are_measured_as_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("--quick", "--nproc", "2", "--output-dir", str(tmp_path / "r"), str(SCRIPTS / "people.py"), "spawned")
    done = opscope("profile", *words)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        document = json.loads((tmp_path / "r" / f"rank{rank}" / "profiling_stats_default.json").read_text())
        assert (document["capture"]["rank"]["number"], document["capture"]["rank"]["world_size"]) == (rank, 2)
        assert document["measurement"]["step"]["ns"] > 0


@pytest.mark.parametrize("command", ["profile", "advise"])
def test_a_file_of_functions_names_them(command: str, tmp_path: Path) -> None:
    file = tmp_path / "fn.py"
    file.write_text('"""Doc."""\nimport torch\nSIZE = 4\ndef _own():\n    pass\ndef step():\n    return 1\n')
    done = opscope(command, str(file))
    assert done.returncode == 2
    assert f"{file}:step" in done.stderr
    assert "_own" not in done.stderr
    file.write_text("def main():\n    raise SystemExit(7)\nmain()\n")
    assert "only defines functions" not in opscope(command, str(file)).stderr


@pytest.mark.parametrize("command", ["profile", "advise"])
def test_an_option_after_a_script_that_fails_is_pointed_at(command: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import argparse, torch\nargparse.ArgumentParser().parse_args()\n")
    done = opscope(command, str(script), "--debug-me", "--step-kind", "3")
    assert done.returncode == 1
    assert "--step-kind comes after the script, so the script gets it as its own" in done.stderr
    assert "--debug-me comes" not in done.stderr
    script.write_text("import torch, no_such_module\n")  # which no option changes
    done = opscope(command, str(script), "--step-kind", "3")
    assert "ModuleNotFoundError" in done.stderr
    assert "comes after the script" not in done.stderr


@pytest.mark.parametrize("command", ["profile", "advise"])
@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("os.environ['LOCAL_RANK']", "LOCAL_RANK"),
        ("torch.distributed.init_process_group('gloo')", "RANK"),
        ("int(os.environ.get('LOCAL_RANK'))", "LOCAL_RANK"),
        ("int(os.environ.get('RANK', None))", "RANK"),
        ("len(os.environ.get('RANK') and 1 or 2)", None),
        ("int(os.getenv('NO_SUCH_VARIABLE'))", None),
        ("{}['RANK']", None),
        ("os.environ['MY_LOCAL_RANK']", None),
        ("{}['RANK of the matrix']", None),
        ("1 / int('WORLD_SIZE' not in 'RANK WORLD_SIZE')", None),
    ],
)
def test_a_script_for_a_launcher_is_told_how_to_start(
    command: str, line: str, variable: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(f"import os, torch\nprint({line})\n")
    done = opscope(command, str(script), "--note", "two words")
    assert done.returncode == 1
    says = f"train.py expects to be started by a launcher such as torchrun: {variable} is not set."
    way = f"To profile it as two processes: opscope profile --nproc 2 {script} --note 'two words'."
    assert (says in done.stderr) == (way in done.stderr) == (variable is not None)
    assert variable is not None or "expects to be started" not in done.stderr


@pytest.mark.parametrize("command", ["profile", "advise"])
def test_a_name_that_no_result_could_hold_is_refused(command: str, tmp_path: Path) -> None:
    script = os.fsdecode(os.fsencode(tmp_path) + b"/tr\xe9.py")
    Path(script).write_text("import torch\n")
    folder = tmp_path / os.fsdecode(b"\xe9")
    folder.mkdir()
    named, plain = (str(SCRIPTS / "train.py"), "--name", "\udce9"), (str(SCRIPTS / "train.py"),)
    for words, where in (((script,), tmp_path), (named, tmp_path), (plain, folder)):
        done = opscope(command, *words, cwd=where)
        assert done.returncode == 2
        assert "\\xe9" in done.stderr
        assert "is not UTF-8, and results are written in UTF-8: use another name" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_a_launcher_sets_is_no_longer_missed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import torch, os\nos.environ['LOCAL_RANK']\n")
    assert "expects to be started" in opscope("profile", str(script)).stderr
    script.write_text("raise ValueError('environment variable LOCAL_RANK expected, but not set')\n")
    assert "expects to be started" in opscope("profile", str(script)).stderr
    assert "expects to be started" not in opscope("profile", str(script), env={"LOCAL_RANK": "0"}).stderr


@pytest.mark.parametrize(
    ("launcher", "profiled"),
    [
        (["torchrun", "--nproc-per-node", "2"], "torchrun --nproc-per-node 2"),
        (["--", "/usr/bin/torchrun"], "/usr/bin/torchrun"),
        (["--", "python", "-m", "torch.distributed.run"], "-- python -m torch.distributed.run"),
    ],
)
def test_advise_takes_no_launcher(launcher: list[str], profiled: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    done = opscope("advise", *launcher, str(script), "--epochs", "3")
    assert done.returncode == 2
    assert "tries changes in one process, and " in done.stderr
    assert f"To profile them: opscope profile {profiled} {script} --epochs 3." in done.stderr
    assert f"MASTER_PORT=0 opscope advise {script} --epochs 3" in done.stderr


@pytest.mark.parametrize("words", [["torchrun"], ["mpirun", "./train.py"], ["torchrun", "-m", "package.train"]])
def test_a_launcher_whose_script_is_not_known_is_refused_with_its_reason(words: list[str]) -> None:
    done = opscope("advise", *words)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(
        f"opscope advise tries changes in one process, and {words[0]} starts several: name the script that it starts"
    )


def test_where_a_script_waits_for_a_worker_that_hangs_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 1000\n"
        "    def __getitem__(self, number):\n"
        "        time.sleep(10_000 if number > 8 else 0)\n        return torch.randn(8)\n"
        "os.chdir(os.path.dirname(os.path.dirname(__file__)))\n"
        "for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):\n"
        "    batch.sum()\n"
    )
    done = opscope("profile", "--timeout", "45", str(script), cwd=tmp_path)
    assert re.search(r"--timeout \(.+, no step in the main thread for \d+ s, at train.py:9\)", done.stderr), done.stderr


ENDS_LATE = """\
import time, torch
open('begun', 'a').write('x')
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for number in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
finally:
    open('end', 'w').close()
    time.sleep(200)
    open('late', 'w').close()
"""


@pytest.mark.parametrize(
    ("number", "options", "code"), [(signal.SIGINT, ["--check-clock"], 0), (signal.SIGTERM, [], 143)]
)
def test_an_interrupt_while_a_script_ends_costs_no_report(
    number: int, options: list[str], code: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(ENDS_LATE)
    words = ("profile", "--quick", *options, "--output-dir", "run", str(script))
    process = subprocess.Popen([sys.executable, "-m", "opscope", *words], cwd=tmp_path, stderr=subprocess.PIPE)
    until = time.monotonic() + 90
    while not (tmp_path / "end").exists() and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(2)  # what it says of the measurement is read
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "begun").read_text() == "x"
    assert not (tmp_path / "late").exists()


def test_a_script_that_hangs_at_its_end_costs_no_report(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(ENDS_LATE)
    patient = (
        "from opscope.sweep import process; process._ENDS_WITHIN_SECONDS = 3; from opscope.cli import main; main()"
    )
    done = opscope("profile", "--quick", "--output-dir", "run", str(script), cwd=tmp_path, code=patient)
    assert done.returncode == 0, done.stderr
    assert "unprofiled step" in done.stderr + done.stdout
    assert (tmp_path / "end").exists()
    assert not (tmp_path / "late").exists()


def test_where_a_script_hangs_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import threading, torch\ndef stuck():\n    threading.Event().wait()\nstuck()\n")
    done = opscope("profile", "--timeout", "45", str(script), cwd=tmp_path)
    assert done.returncode == 1
    where = r"no step in the main thread for \d+ s, at train.py:3, in stuck"
    assert re.search(rf"it took longer than the 45 s of --timeout \(.+, {where}\)", done.stderr)
    assert re.search(rf"s so far; {where}\n", done.stderr)


def test_the_way_named_for_one_process_works(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for number in range(100_000):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(8, 64)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    refused = opscope("advise", str(script)).stderr
    words = re.search(r"process: (RANK=.*) opscope advise", refused)
    assert words is not None
    alone = dict(word.split("=") for word in words[1].split())
    done = opscope("advise", "--only", "foreach_optimizer", "--budget", "30", str(script), env=alone)
    assert done.returncode == 0, done.stderr
    assert "does not run as written" not in done.stderr
    assert "As written: " in done.stdout
