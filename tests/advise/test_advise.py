"""``opscope advise`` on small targets on the CPU: what it says of itself adds up, and what fails is told."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opscope.base.processes import own_environment, own_process
from tests.command import opscope

TARGETS = """
import os
import torch

def train():
    torch.manual_seed(0)
    # Many parameters and a loop over them: that is what fusing the optimizer saves.
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(150)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, foreach=False)
    x = torch.randn(4, 8)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

def infer():
    return torch.nn.Linear(4, 4), torch.randn(2, 4)

def broken():
    raise RuntimeError("no weights here")

def runs_out():
    batches = iter(range(8))
    model = torch.nn.Linear(4, 4)

    def step():
        next(batches)
        return model(torch.ones(2, 4))

    return step

def ends():
    os._exit(7)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advise") / "advise_targets.py"
    path.write_text(TARGETS)
    return path


@pytest.mark.slow
def test_a_training_step_is_advised(file: Path) -> None:
    done = opscope(
        *("advise", f"{file}:train", "--device", "cpu", "--only", "fused_optimizer", "set_to_none", "tf32"),
        *("--format", "json"),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "opscope.advise/1"
    facts = document["facts"]
    assert (facts["training"], facts["optimizers"], facts["unfused_optimizers"]) == (True, ["Adam"], 1)
    results = {"+".join(one["changes"]): one for one in document["results"]}
    assert results["tf32"]["verdict"] == "refused"
    assert results["tf32"]["reason"] == "it is for GPUs"
    fused = results["fused_optimizer"]
    assert fused["ratio"] > 0
    assert fused["verdict"] != "refused"
    assert fused["lines"] == ["optimizer = Adam(..., fused=True)"]
    for error_class, place in document["best"].items():
        best = document["results"][place]
        assert (best["class"], best["verdict"]) == (error_class, "proven")
        assert best["ci_low"] > 1.02
        assert best["error"] < 1e-4
    # Every gain beyond what the step differs from itself is proven, or others are better; none is merely claimed.
    low, high = document["of_itself"]
    assert low <= high
    assert document["processes"] >= 6


def test_what_would_be_tried(file: Path) -> None:
    done = opscope("advise", f"{file}:infer", "--device", "cpu", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "would try inference_mode (exact)" in lines
    assert "would try weights_bf16 + compile (bf16)" in lines
    assert "not fused_optimizer: the step has no optimizer" in lines


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (("{file}:broken",), "does not run as written: RuntimeError: no weights here", 1),
        (("{file}:runs_out",), "as written fails while it is timed: StopIteration", 1),
        (("{file}:ends",), "the process ended with code 7", 1),
        (("{file}:infer", "--only", "magic"), "is not one of", 2),
        (("nothing",), "unknown target 'nothing'", 2),
        (("{file}:infer", "--device", "cuda:77"), "is not there", 1),
    ],
)
def test_what_cannot_be_advised(file: Path, words: tuple[str, ...], says: str, code: int) -> None:
    done = opscope("advise", *(word.format(file=file) for word in words))
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    assert not done.stdout


@pytest.mark.slow
def test_processes_import_nothing_from_the_current_folder_and_a_killed_run_leaves_nothing(
    file: Path, tmp_path: Path
) -> None:
    folder, temporary = tmp_path / "unpacked", tmp_path / f"tmp-{'long' * 30}"  # too long for a socket's path
    folder.mkdir()
    temporary.mkdir()
    for name in ("socket", "select", "random", "json", "numpy", "msgspec", "signal", "struct", "tempfile", "pickle"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\n")
    environment = own_environment(TMPDIR=str(temporary))
    command = [*own_process("opscope"), "advise", f"{file}:infer", "--only", "compile", "--device", "cpu"]
    running = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    said = ""
    while "alone" not in said and (line := running.stderr.readline()):  # by then processes have run the step
        said += line
    assert "alone" in said
    assert list(temporary.iterdir())
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert not (folder / "ran").exists()
    sweeping = "from opscope.base.files import scratch\nwith scratch(): pass"
    for _ in range(100):  # its processes end on their own, a moment later
        subprocess.run([sys.executable, "-P", "-c", sweeping], env=environment, check=True)
        if not [one for one in temporary.iterdir() if one.name.startswith("opscope")]:
            break
        time.sleep(0.1)
    assert not [one for one in temporary.iterdir() if one.name.startswith("opscope")], os.listdir(temporary)
