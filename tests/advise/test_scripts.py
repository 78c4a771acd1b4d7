"""Scripts as targets: their own loops run the variants, whatever else they do in between."""

import copy
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from opscope.advise.messages import VariantJob
from opscope.advise.session import Session
from opscope.advise.variants import ScriptClock
from opscope.record.configuration import Configuration
from tests.command import opscope

KINDS = Path(__file__).parents[1] / "workloads" / "scripts" / "kinds.py"
SCRIPT = """
import pathlib
import sys
import torch

here = pathlib.Path(__file__)
torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(100)), torch.nn.Dropout(0.1))
optimizer = torch.optim.Adam(model.parameters(), 1e-4, foreach=False)
data = torch.utils.data.TensorDataset(torch.randn(200, 8))


def main():
    for epoch in range(int(sys.argv[2])):
        for (x,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad(set_to_none=False)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(data[:][0])
        model.train()
        try:
            print("epoch", epoch, flush=True)
        finally:
            here.with_name("written_at_the_end").touch()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        here.with_name("caught").touch()
"""


def advised(*words: str) -> dict[str, Any]:
    done = opscope("advise", "--format", "json", *words)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


COMPILED = """
import pathlib
import torch


def backend(graph, inputs):
    with open(pathlib.Path(__file__).with_name("compiled"), "a") as file:
        file.write(".")
    return graph.forward


model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)), backend=backend)
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
x = torch.randn(4, 8)
while True:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("proving", [False, True])
def test_what_a_script_compiles_is_compiled_once(proving: bool, tmp_path: Path) -> None:
    """To compare results dropout is switched off: compiled before, the model would be compiled a second time."""
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    job = VariantJob(
        configuration=Configuration(target=str(script)), device="cpu", proving=proving, log=str(tmp_path / "log")
    )
    with Session(job, width=1, timeout_s=120) as session:
        (worker,) = session.build([job])
        assert worker.broken is None, worker.broken
        assert worker.built is not None
        assert worker.built.facts.compiled
        session.time([worker], 2, 0.05)
        assert worker.blocks
    assert (tmp_path / "compiled").read_text() == "."


WHOLE = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
x = torch.randn(4, 8)
{made}
while True:
    {step}
"""
STEP = """
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
step = torch.compile(step, backend="eager")
"""
LOSS = """
loss = torch.compile(lambda x: model(x).square().mean(), backend="eager")
"""
FORWARD = """
forward = torch.compile(model.forward, backend="eager")
"""


@pytest.mark.parametrize(
    ("made", "step"),
    [
        (STEP, "step(x)"),
        (LOSS, "optimizer.zero_grad(); loss(x).backward(); optimizer.step()"),
        (FORWARD, "optimizer.zero_grad(); forward(x).square().mean().backward(); optimizer.step()"),
    ],
    ids=["step", "loss", "forward"],
)
def test_steps_go_on_once_calls_are_compiled_away(made: str, step: str, tmp_path: Path) -> None:
    """The script's modules are heard until it is observed, and not in what is compiled after that."""
    script = tmp_path / "train.py"
    script.write_text(WHOLE.format(made=made, step=step))
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    with Session(job, width=1, timeout_s=120) as session:
        (worker,) = session.build([job])
        assert worker.broken is None, worker.broken
        assert worker.built is not None
        assert worker.built.facts.training
        session.time([worker], 2, 0.05)
        assert len(worker.blocks) == 2, worker.broken


@pytest.mark.parametrize(
    ("setting", "compiled"),
    [
        ("torch.compiler.set_stance('force_eager')", False),
        ("with torch.compiler.set_stance('force_eager'): model(x)", True),
    ],
)
def test_a_stance_that_the_script_takes_is_its_own(setting: str, compiled: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED.replace("while True:", f"{setting}\nwhile True:"))
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    with Session(job, width=1, timeout_s=120) as session:
        (worker,) = session.build([job])
        assert worker.broken is None, worker.broken
        session.time([worker], 1, 0.05)
    assert (tmp_path / "compiled").exists() is compiled


@pytest.mark.slow
def test_a_script_is_advised(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    document = advised("--only", "fused_optimizer", "set_to_none", "sdpa", "--", str(script), "3", "1000000")
    facts = document["facts"]
    assert (facts["training"], facts["modules"], facts["unfused_optimizers"]) == (True, 1, 1)
    assert facts["kept_gradients"] == 1
    results = {"+".join(one["changes"]): one for one in document["results"]}
    proven = [one for one in document["results"] if one["verdict"] == "proven"]
    assert all(one["error"] < 1e-4 for one in proven)
    assert results["fused_optimizer"]["ratio"] > 0
    assert results["fused_optimizer"]["verdict"] in ("proven", "timed", "no difference", "slower", "not decidable")
    assert results["sdpa"]["verdict"] == "refused"
    # No variant goes on to what the script does in the end, or is seen by its handlers.
    assert not (tmp_path / "caught").exists()


@pytest.mark.parametrize(
    ("kind", "training", "optimizers"),
    [("gan", True, ["Adam", "Adam"]), ("tokens", False, []), ("workers", True, ["SGD"]), ("by_hand", True, [])],
)
def test_steps_of_many_kinds_are_observed(kind: str, training: bool, optimizers: list[str]) -> None:
    document = advised("--only", "channels_last", "--", str(KINDS), kind)
    assert document["facts"]["training"] == training
    assert document["facts"]["optimizers"] == optimizers
    assert document["baseline_ns"] > 0
    assert [one["reason"] for one in document["results"]] == ["the model has no convolutions"]


def test_channels_last_reaches_models_inside_of_what_has_a_conversion_of_its_own() -> None:
    document = advised("--only", "channels_last", "--", str(KINDS), "own_to")
    (result,) = document["results"]
    assert result["verdict"] != "rejected", result["reason"]
    assert result["ratio"] > 0


def test_evaluations_can_be_asked_for() -> None:
    done = opscope("advise", "--step-kind", "evaluation", "--dry-run", "--", str(KINDS), "evaluation_first")
    assert done.returncode == 0, done.stderr
    assert "would try inference_mode (exact)" in done.stdout.splitlines()
    assert "not fused_optimizer: the step has no optimizer" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (("{kinds}", "functional", "300"), "nothing in it bounds steps", 1),
        (("{kinds}", "gan", "30"), "too soon: have it run for about a minute", 1),
        (
            ("{kinds}", "evaluation_only"),
            "or choose others (--step-kind). Seen: 2,999 module calls without gradients",
            1,
        ),
        (("{kinds}", "no_such_kind"), "KeyError: 'no_such_kind'", 1),
        (("--batch-size", "4", "{kinds}", "gan"), "--batch-size cannot be applied to a script", 2),
        (("--step-kind", "evaluation", "bert"), "--step-kind is for scripts", 2),
        (("nowhere.py",), "there is no file nowhere.py", 2),
    ],
)
def test_what_cannot_be_advised(words: tuple[str, ...], says: str, code: int) -> None:
    done = opscope("advise", *(word.format(kinds=KINDS) for word in words))
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


FOLDS = """
import torch

def fold():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

while True:
    fold()
"""
HELPED = """
import multiprocessing
import time
import torch

def wait(path):
    while True:
        open(path, "a").close()
        time.sleep(0.05)

multiprocessing.Process(target=wait, args=("{path}",)).start()
model = torch.nn.Linear(4, 4)
with torch.no_grad():
    while True:
        model(torch.ones(2, 4))
"""
FAILING = """
import torch

def load():
    raise ValueError("no data")

load()
"""


def test_steps_that_are_made_anew_are_told(tmp_path: Path) -> None:
    script = tmp_path / "folds.py"
    script.write_text(FOLDS)
    done = opscope("advise", "--only", "fused_optimizer", "--budget", "60", "--", str(script))
    assert "its steps do not go on" in done.stderr
    assert done.returncode == 1


def test_what_a_script_starts_ends_with_it(tmp_path: Path) -> None:
    script, alive = tmp_path / "helped.py", tmp_path / "alive"
    script.write_text(HELPED.replace("{path}", str(alive)))
    done = opscope("advise", "--dry-run", "--", str(script))
    assert done.returncode == 0, done.stderr
    assert alive.exists()
    alive.unlink()
    time.sleep(0.5)
    assert not alive.exists()


HELPER = """
import atexit
import pathlib
import subprocess
import torch

atexit.register(pathlib.Path("{path}").touch)  # runs after the next one, as the last registered runs first
atexit.register(subprocess.Popen(["sleep", "600"]).wait)
model = torch.nn.Linear(4, 4)
with torch.no_grad():
    while True:
        model(torch.ones(2, 4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a library's processes are not known")
def test_what_a_library_has_started_is_not_waited_for(tmp_path: Path) -> None:
    """As the process in which PyTorch compiles: where it still starts, it hears of the end only after that."""
    script, ended = tmp_path / "helped.py", tmp_path / "ended"
    script.write_text(HELPER.replace("{path}", str(ended)))
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    with Session(job, width=1, timeout_s=120) as session:
        (worker,) = session.build([job])
        assert worker.broken is None, worker.broken
        session.close([worker])
    assert ended.exists()


IN_ORDER = """
import sys
import torch

def note(what):
    with open("{path}", "a") as file:
        file.write(f"{{sys.argv[1]}} {{what}}\\n")

note("begins")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(10**9):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 10:
        note("steps")
"""


def test_what_compiles_is_not_delayed_by_what_does_not(tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "order"
    script.write_text(IN_ORDER.format(path=path))
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    jobs = [replace(job, arguments=name, compiles=name == "compiling") for name in ("one", "compiling", "other")]
    with Session(job, width=3, timeout_s=120) as session:
        workers = session.build(jobs)
        assert [worker.job for worker in workers] == jobs
        assert all(worker.built is not None for worker in workers)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["compiling begins", "compiling steps"]
    assert {"one begins", "other begins"} <= set(lines)


def test_what_fails_before_it_compiles_holds_up_no_other(tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "order"
    script.write_text(IN_ORDER.format(path=path).replace('note("begins")', "assert sys.argv[1] != 'compiling'"))
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", log=str(tmp_path / "log"))
    jobs = [replace(job, arguments=name, compiles=name == "compiling") for name in ("compiling", "other")]
    with Session(job, width=2, timeout_s=120) as session:
        failed, other = session.build(jobs)
    assert failed.broken is not None
    assert other.built is not None


def test_an_error_of_the_script_names_its_line(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    done = opscope("advise", "--dry-run", "--", str(script))
    assert "ValueError: no data (failing.py:5)" in done.stderr
    script.write_text("import sys\nimport torch\nsys.exit(3)\n")
    done = opscope("advise", "--dry-run", "--", str(script))
    assert "the script exited with 3" in done.stderr


BY_ITS_CLOCK = """
import time
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
began = time.time()
while time.time() - began < 5:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""


def test_a_script_that_trains_for_seconds_of_its_own_clock_runs_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BY_ITS_CLOCK)
    # The step as written waits far longer than five seconds for combinations to be started and timed.
    document = advised("--only", "fused_optimizer", "half_threads", "compile", "--budget", "60", "--", str(script))
    assert "ended" not in (document["unfinished"] or "")
    timed = [one for one in document["results"] if one["ratio"] is not None]
    assert timed
    assert not [one for one in document["results"] if "the script ended" in one["reason"]]


CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")


def test_clocks_of_a_script_stand_still_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLOCKS:
        monkeypatch.setattr(time, name, getattr(time, name))
    real, clock = time.monotonic_ns, ScriptClock()
    clock.install()
    before = real()
    with clock.standing():
        stood = time.monotonic_ns(), time.time(), time.perf_counter()
        time.sleep(0.05)
        assert (time.monotonic_ns(), time.time(), time.perf_counter()) == stood
        with clock.standing():  # stands still already
            time.sleep(0.01)
        assert time.monotonic_ns() - stood[0] < 40_000_000
        clock.forked()  # as in a process that is forked meanwhile
        assert time.monotonic_ns() > stood[0]
    assert pickle.loads(pickle.dumps(time.time)) is copy.deepcopy(time.time) is time.time
    passed, shown = real() - before, time.monotonic_ns() - stood[0]
    assert time.monotonic_ns() >= stood[0]
    assert time.time() >= stood[1]
    assert passed - shown >= 50_000_000


def test_what_opscope_does_between_steps_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLOCKS:
        monkeypatch.setattr(time, name, getattr(time, name))
    real, clock = time.monotonic_ns, ScriptClock()
    clock.install()
    began, shown = real(), time.monotonic_ns()
    with clock.left_out():
        until = real() + 20_000_000
        while real() < until:
            pass
        with clock.standing():  # left out once
            time.sleep(0.02)
    passed, left = real() - began, time.monotonic_ns() - shown
    assert 0 <= left < passed - 39_000_000


def test_a_step_that_compiles_hardly_counts_on_a_script_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 10**18
    for name in CLOCKS:
        monkeypatch.setattr(time, name, lambda name=name: now_ns if name.endswith("_ns") else now_ns / 1e9)
    clock = ScriptClock()
    clock.install()
    began, began_ns = time.monotonic(), time.monotonic_ns()
    for took_ns in (1_000_000, 61 * 10**9, 500_000_000):  # the second one compiles for a minute
        clock.step_begins(may_compile=True)
        now_ns += took_ns
    # A hundredth of the minute beyond the first second, beside what the steps take otherwise.
    assert time.monotonic_ns() - began_ns == 1_000_000 + 1_600_000_000 + 500_000_000
    assert time.monotonic() - began == pytest.approx(2.101, abs=1e-3)
    of_a_library: dict[str, Any] = {"__name__": "torch._inductor", "time": time}
    exec("shown = time.monotonic_ns()", of_a_library)
    assert of_a_library["shown"] - began_ns == 61_501_000_000
    with clock.standing():
        now_ns += 10**12
    clock.step_begins(may_compile=False)  # one that takes long as it is
    now_ns += 5 * 10**9
    assert time.monotonic_ns() - began_ns == 7_101_000_000


@pytest.mark.slow
def test_without_a_patch_the_exit_code_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ("--only", "sdpa", "--patch", str(tmp_path / "fast.diff"), "--", str(script), "3", "1000000")
    done = opscope("advise", *words)
    assert done.returncode == 5
    assert "fast.diff was not written: nothing is proven" in done.stderr
    assert not (tmp_path / "fast.diff").exists()
