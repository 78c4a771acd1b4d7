"""``opscope.advise`` in Python: the same document as the command's, that shows itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import opscope
from opscope.documents.advise import Outcome
from tests.advise.test_budget import TARGET
from tests.command import ROOT


@pytest.mark.slow
@pytest.mark.torch
def test_advice_is_a_document_that_shows_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "target.py").write_text(TARGET)
    said: list[str] = []
    document = opscope.advise(
        f"{tmp_path / 'target.py'}:train", only=["fused_optimizer"], device="cpu", budget_s=90, say=said.append
    )
    (tried,) = document.results
    assert tried.changes == ("fused_optimizer",)
    assert tried.verdict in (Outcome.PROVEN, Outcome.NO_DIFFERENCE, Outcome.SLOWER, Outcome.UNDECIDED)
    assert said[0] == "the step as written"
    shown = repr(document)
    assert shown.startswith(f"Advice on {tmp_path / 'target.py'}:train\n  as written")
    assert len(shown) < 2000
    assert "<table>" in document._repr_html_()
    # Its modules were imported meanwhile: the package in the function's place can be called, too.
    with pytest.raises(opscope.UsageError, match="unknown change 'magic'"):
        opscope.advise("target.py", only=["magic"])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"only": ["magic"]}, "unknown change 'magic'"),
        ({"precision": "sloppy"}, "unknown precision 'sloppy'"),
        ({"arguments": ["--epochs", "1"]}, "is not a script"),
        ({"target": "train.py", "device": "cpu"}, "is a script"),
    ],
)
def test_what_cannot_be_tried_is_refused(arguments: dict[str, object], reason: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(opscope.UsageError, match=reason):
        opscope.advise(**{"target": "bert", **arguments})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.torch
def test_a_program_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "target.py").write_text(TARGET)
    program = tmp_path / "program.py"
    program.write_text(
        "import opscope\nprint('begins')\n"
        "found = opscope.advise('target.py:train', only=['fused_optimizer'], device='cpu', budget_s=60)\n"
        "print(len(found.results), found.target)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "begins\n1 target.py:train\n"
