"""Changes written into source: the places are those of a script that runs, and what is written runs again."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opscope.advise.changes import compiling
from opscope.advise.messages import Built, VariantJob
from opscope.advise.proving import Written, _diff, _root_of, written
from opscope.advise.session import Session
from opscope.advise.source import NotWritableError, ScriptPlaces
from opscope.advise.writer import Writer
from opscope.record.configuration import Configuration

LOOP = '''"""A loop in a function."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.out = nn.Linear(4, 2)

    def forward(self, images, scale=1.0):
        return self.out(self.convolution(images).mean((2, 3))) * scale


torch.autograd.set_detect_anomaly(True)


def main(steps=200):
    net = Net()
    optimizer = torch.optim.AdamW(
        net.parameters(),
        lr=1e-3,
        foreach=False,
    )
    for step in range(steps):
        images = torch.randn(2, 3, 8, 8)
        optimizer.zero_grad(set_to_none=False)
        prediction = net(images, scale=2.0)
        text = """a string
    of several lines"""
        loss = (prediction - len(text)).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
'''
CLASS = """import torch as t
from helper import Trainer, data

trainer = Trainer(t.nn.Sequential(t.nn.Linear(4, 4), t.nn.ReLU()))
for (x,) in data():
    trainer.step(x)
"""
HELPER = """from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
import torch


def data():
    kept = TensorDataset(torch.randn(4000, 4))
    return DataLoader(kept, batch_size=(4))


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, x):
        return self.model(x).square().mean()

    def step(self, x):
        loss = self.loss(x)
        self.optimizer.zero_grad(False)
        loss.backward()
        self.optimizer.step()
"""
INFERENCE = """import torch
model = torch.nn.Linear(4, 4).eval()
@torch.no_grad()
def run(batch):
    return model(batch * 1.0)
for _ in range(2000):
    run(torch.ones(2, 4))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Built]]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("edited")
    (folder / "helper.py").write_text(HELPER)
    scripts = {name: folder / f"{name}.py" for name in ("loop", "trained", "inference")}
    for script, text in zip(scripts.values(), (LOOP, CLASS, INFERENCE), strict=True):
        script.write_text(text)
    found = {}
    jobs = [VariantJob(configuration=Configuration(target=str(script)), device="cpu") for script in scripts.values()]
    with Session(jobs[0], width=2, timeout_s=100) as session:
        for (name, script), worker in zip(scripts.items(), session.build(jobs), strict=True):
            assert worker.built is not None, worker.broken
            found[name] = script, worker.built
    return found


@pytest.fixture
def write(built: dict[str, tuple[Path, Built]]) -> Callable[..., Written]:
    def write(name: str, *changes: str) -> Written:
        script, one = built[name]
        return written(changes, script, one.places, {"device": "cpu", "workers": "3", "threads": "1", "cores": "4"})

    return write


def added(found: Written) -> list[str]:
    return [line[1:] for line in found.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]


CASES = {
    ("loop", "compile"): ["    net.compile()"],
    ("loop", "fused_optimizer"): ["    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)"],
    ("loop", "set_to_none"): ["        optimizer.zero_grad()"],
    ("loop", "channels_last"): [
        "    net.to(memory_format=torch.channels_last)",
        "        prediction = net(images.to(memory_format=torch.channels_last), scale=2.0)",
    ],
    ("loop", "half_threads"): ["torch.set_num_threads(1)"],
    ("loop", "all_threads"): ["torch.set_num_threads(4)"],
    ("loop", "no_anomaly_detection"): ["torch.autograd.set_detect_anomaly(False)"],
    ("loop", "foreach_optimizer"): ["        foreach=True,"],
    ("trained", "compile"): ["trainer.model = t.compile(trainer.model)"],
    ("trained", "fused_optimizer"): ["        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, fused=True)"],
    ("trained", "set_to_none"): ["        self.optimizer.zero_grad()"],
    ("trained", "loader_workers"): [
        "    return DataLoader(kept, batch_size=(4), num_workers=3, persistent_workers=True)"
    ],
    ("trained", "autocast_bf16"): [
        '        with torch.autocast("cpu", dtype=torch.bfloat16):',
        "            loss = self.loss(x)",
        "            self.optimizer.zero_grad(False)",
    ],
    ("trained", "half_threads"): ["t.set_num_threads(1)"],
    ("inference", "inference_mode"): ["@torch.inference_mode()"],
    ("inference", "weights_bf16"): [
        "    return model((batch * 1.0).to(torch.bfloat16))",
        "model.to(torch.bfloat16)",
    ],
    ("inference", "compile"): ["model = torch.compile(model)"],
    ("inference", "autocast_bf16"): [
        '    with torch.autocast("cpu", dtype=torch.bfloat16):',
        "        return model(batch * 1.0)",
    ],
}


@pytest.mark.torch
@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_change_is_written(write: Callable[..., Written], name: str, change: str) -> None:
    assert added(write(name, change)) == CASES[name, change]


def test_a_models_name_may_hold_words_that_stand_for_others() -> None:
    lines: list[str] = []

    class Noting(Writer):
        def for_model(self, line_of: Callable[[Any, str, str], str]) -> None:
            lines.append(line_of(SimpleNamespace(own_class=False), "TORCH_MODEL", "t"))

    compiling.COMPILE.edit.write(Noting(Path("train.py"), ScriptPlaces(), {}))
    assert lines == ["TORCH_MODEL = t.compile(TORCH_MODEL)"]


@pytest.mark.torch
def test_strings_keep_their_lines(write: Callable[..., Written]) -> None:
    lines = added(write("loop", "autocast_bf16"))
    assert lines == [
        '        with torch.autocast("cpu", dtype=torch.bfloat16):',
        "            prediction = net(images, scale=2.0)",
        '            text = """a string',
        "            loss = (prediction - len(text)).square().mean()",
    ]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("loop", ("autocast_bf16", "channels_last", "fused_optimizer", "set_to_none", "half_threads")),
        ("trained", ("autocast_bf16", "fused_optimizer", "set_to_none", "loader_workers")),
        ("inference", ("weights_bf16", "inference_mode", "half_threads")),
    ],
)
def test_what_is_written_applies_and_runs(
    built: dict[str, tuple[Path, Built]], write: Callable[..., Written], tmp_path: Path, name: str, changes: tuple[str]
) -> None:
    found = write(name, *changes)
    assert found.root == built[name][0].parent
    for original in found.root.glob("*.py"):
        (tmp_path / original.name).write_text(original.read_text())
    subprocess.run(("git", "apply", "-"), input=found.diff.encode(), cwd=tmp_path, check=True)
    for path, text in found.sources.items():
        assert (tmp_path / Path(path).name).read_text() == text
    done = subprocess.run((sys.executable, f"{name}.py"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_what_cannot_be_written_is_said(built: dict[str, tuple[Path, Built]], write: Callable[..., Written]) -> None:
    script, one = built["loop"]
    from msgspec.structs import replace

    lost = replace(one.places, optimizers=[("AdamW", ())])
    with pytest.raises(NotWritableError, match="AdamW is not made in your own source"):
        written(["fused_optimizer"], script, lost, {})
    with pytest.raises(NotWritableError, match="by hand"):
        write("loop", "int8_weights")


@pytest.mark.torch
def test_other_source_stands_for_files_that_stay_as_they_are(built: dict[str, tuple[Path, Built]]) -> None:
    script = built["trained"][0]
    helper = script.parent / "helper.py"
    subprocess.run((sys.executable, "-c", "import helper"), cwd=script.parent, check=True)  # its bytecode is cached
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu")
    texts = {
        str(helper): "raise RuntimeError('the other helper')\n",
        str(script): "raise RuntimeError('the other script')\n",
    }
    jobs = [
        VariantJob(configuration=job.configuration, device="cpu", sources={path: text}) for path, text in texts.items()
    ]
    with Session(job, width=2, timeout_s=100) as session:
        reasons = [worker.broken.reason for worker in session.build(jobs) if worker.broken is not None]
    assert reasons == ["RuntimeError: the other helper (helper.py:1)", "RuntimeError: the other script (trained.py:1)"]
    assert helper.read_text() == HELPER


def test_a_patch_of_files_beside_the_script_s_folder_is_of_the_folder_that_holds_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in checkouts without .git: the script lies in projects/, and its model in a package beside that."""
    script, model = tmp_path / "projects" / "char" / "train.py", tmp_path / "package" / "model.py"
    for path in (script, model):
        path.parent.mkdir(parents=True)
        path.write_text("x = 1\n")
    monkeypatch.chdir(script.parent)
    assert _root_of(script, [str(script)]) == script.parent
    root = _root_of(script, [str(script), str(model)])
    assert root == tmp_path
    diff = _diff(str(model), root, "x = 1\n", "x = 2\n")
    done = subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=root, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert model.read_text() == "x = 2\n"
    (script.parent / ".git").mkdir()
    assert _root_of(script, [str(script)]) == script.parent
