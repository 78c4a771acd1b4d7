"""The tasks of benchmarks/repair: known repairs return what the slow steps return, and the judge tells wrong ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch", reason="PyTorch is not installed")

REPAIR = ROOT / "benchmarks" / "repair"
TASKS = sorted(path.parent.name for path in (REPAIR / "tasks").glob("*/task.toml"))
SCAN = REPAIR / "tasks" / "scan_by_hand"
ALL_ALIKE = """
import json, sys, tomllib, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import judge
torch.set_num_threads(1)
found = {}
for folder in sorted(path.parent for path in Path(sys.argv[1], "tasks").glob("*/task.toml")):
    task = tomllib.loads((folder / "task.toml").read_text())
    one, other = (judge.module(folder / name, f"{folder.name}_{name[:-3]}") for name in ("step.py", "repaired.py"))
    found[folder.name] = judge.differs(one, other, (1, 2), task, "cpu")
print(json.dumps(found))
"""


def judged(candidate: Path) -> dict[str, Any]:
    command = [sys.executable, str(REPAIR / "judge.py"), str(SCAN), str(candidate), "--rounds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_there_are_24_tasks_with_a_known_cause() -> None:
    from tomllib import loads

    from opscope.documents.findings import Rule

    assert len(TASKS) == 24
    for name in TASKS:
        assert loads((REPAIR / "tasks" / name / "task.toml").read_text())["cause"] in set(Rule), name


@pytest.mark.slow
def test_known_repairs_return_what_the_slow_steps_return() -> None:
    command = [sys.executable, "-c", ALL_ALIKE, str(REPAIR)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(TASKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("return torch.zeros_like(x)", "differs by up to"),
        ("return x.cumsum(1)[:, :-1]", "not a tensor of"),
        ("self.__dict__.setdefault('kept', x.cumsum(1)); return self.kept", "differs by up to"),
        ("raise ValueError('no')", "ValueError: no"),
        ("return x.cumsum(1).tolist()", "list, not a tensor"),
    ],
)  # fmt: skip
def test_wrong_repairs_are_told(tmp_path: Path, call: str, why: str) -> None:
    text = (SCAN / "repaired.py").read_text().replace("return x.cumsum(1)", call)
    (tmp_path / "step.py").write_text(text)
    found = judged(tmp_path / "step.py")
    assert not found["correct"]
    assert why in found["why"]


@pytest.mark.slow
def test_a_right_repair_is_timed_beside_the_others() -> None:
    found = judged(SCAN / "repaired.py")
    assert found["correct"]
    assert found["why"] is None
    assert min(found[f"{name}_ns"] for name in ("original", "reference", "candidate")) > 0
