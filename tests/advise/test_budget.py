"""``opscope advise`` keeps to its time: what is known when it ends, or is ended, is printed with its state."""

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from opscope.advise.measured import ChangeResult
from opscope.advise.messages import VariantJob
from opscope.advise.search import first_tries
from opscope.advise.session import AdviseError, OutOfTimeError, Session
from opscope.advise.telling import Telling
from opscope.advise.trying import SearchPlan, _Trying
from opscope.base.processes import own_environment, own_process
from opscope.measuring.rounds import Interval
from opscope.record.configuration import Configuration
from tests.advise.facts import facts
from tests.command import opscope

TARGET = """
import torch

def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(50)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, foreach=False)
    x = torch.randn(4, 8)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "budget_target.py"
    path.write_text(TARGET)
    return path


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("only", [(), ("--only", "larger_batch")])
def test_too_little_time_is_no_answer_and_no_traceback(file: Path, only: tuple[str, ...]) -> None:
    pytest.importorskip("torch")
    began = time.monotonic()
    done = opscope("advise", f"{file}:train", "--device", "cpu", "--budget", "0.5", *only)
    assert time.monotonic() - began < 60
    assert done.returncode == 5
    assert "nothing was measured" in done.stderr
    assert "Give it a larger --budget" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_a_script_that_only_lacks_time_is_not_said_to_take_opscopes_options(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import time, torch\ntime.sleep(60)\n")
    done = opscope("advise", "--budget", "1", "--", str(script), "--device", "cpu")
    assert done.returncode == 5
    assert "nothing was measured" in done.stderr
    assert "comes after the script" not in done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_what_is_known_is_printed_when_the_user_ends_it(file: Path) -> None:
    pytest.importorskip("torch")
    command = [*own_process("opscope"), "advise", f"{file}:train", "--device", "cpu", "--format", "json"]
    running = subprocess.Popen(
        command,
        env=own_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    while (line := running.stderr.readline()) and "7 left" not in line and "left" not in line:
        pass
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    document = json.loads(out)
    assert document["ended"] == "interrupt"
    assert "interrupted during" in document["unfinished"]
    assert document["baseline_ns"] > 0
    until = time.monotonic() + 20  # the process that others are forked from ends by itself, a moment later
    while (left := _processes_of(running.pid)) and time.monotonic() < until:
        time.sleep(0.2)
    assert left == []


def _processes_of(session: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "args=", "-s", str(session)], capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


def test_it_is_said_again_what_is_done_and_what_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opscope.advise.telling._EVERY_S", 0.05)
    lines: list[str] = []
    telling = Telling(lines.append, lambda: "best so far: tf32 1.50 times as fast (proven)")
    with telling:
        telling.say("comparing")
        time.sleep(0.5)
    assert lines[0] == "comparing"
    assert lines[1] == "still comparing; best so far: tf32 1.50 times as fast (proven)"
    told = len(lines)
    time.sleep(0.3)
    assert len(lines) == told  # nothing after it has ended


def test_a_session_ends_when_its_time_is_over() -> None:
    job = VariantJob(configuration=Configuration(target="nothing.py:step"), device="cpu")
    with Session(job, width=1, timeout_s=100, ends_at=time.monotonic() - 1) as session:
        with pytest.raises(OutOfTimeError):
            session.build([job])
        assert session.started == 0


def test_what_starts_in_seconds_is_tried_before_what_is_compiled() -> None:
    possible = ("fused_attention", "tf32", "autocast_bf16", "fused_optimizer", "compile", "compile_reduce_overhead")
    tries = first_tries(possible)
    compiled = [place for place, names in enumerate(tries) if any(name.startswith("compile") for name in names)]
    quick = tries.index(("fused_attention", "tf32", "fused_optimizer"))
    assert quick < min(compiled)


@pytest.mark.parametrize("fails", ["lacks memory", "does not run beside others"])
def test_an_early_proof_for_which_memory_is_too_small_has_another_turn(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = VariantJob(configuration=Configuration(target="nothing.py:step"), device="cuda")
    plan = SearchPlan(configuration=job.configuration, device="cuda")
    with Session(job, width=1, timeout_s=1) as session:
        trying = _Trying(plan, session, job, lambda _: None)
    seen = ChangeResult(gain=Interval(2.0, 1.9, 2.1, 6))
    trying._known.measured["tf32",] = seen

    def proves(finalists: Sequence[tuple[str, ...]], *_: object) -> set[tuple[str, ...]]:
        trying._known.again |= set(finalists)
        if fails != "lacks memory":
            raise AdviseError("the step as written does not run: out of memory")
        trying._known.measured[finalists[0]] = ChangeResult(broken="out of memory", lacks_memory=True)
        return set(finalists)

    monkeypatch.setattr(trying._prover, "prove", proves)
    trying._prove_early(facts())
    assert trying._known.measured["tf32",] is seen
    assert trying._finalists() == [("tf32",)]  # its turn comes when the search has ended
    tried: list[object] = []
    monkeypatch.setattr(trying._prover, "prove", lambda *_: tried.append(1))
    trying._prove_early(facts())
    assert tried == []
