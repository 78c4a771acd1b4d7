"""What is measured is kept as it is measured: a run that was ended goes on, and never from what is something else's."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from opscope.advise.measured import ChangeResult, Heading, Journal, heading
from opscope.advise.messages import VariantJob
from opscope.advise.session import Session
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.measuring.rounds import Interval
from opscope.record.configuration import Configuration

OF = Heading(target="train.py", source="abc", device="a CPU", torch="2.13.0", opscope="1")
FUSED = ChangeResult(gain=Interval(1.5, 1.4, 1.6, 6), least=1.02, step_ns=1e6, first_s=0.1)
BROKEN = ChangeResult(broken="it raises")


def test_what_is_kept_is_known_to_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "measured.jsonl"
    first = Journal(path, OF)
    assert first.known == {}
    first.keep(("fused_optimizer",), FUSED)
    first.keep(("compile", "sdpa"), BROKEN)
    assert Journal(path, OF).known == {("fused_optimizer",): FUSED, ("compile", "sdpa"): BROKEN}


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_is_measured_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "measured.jsonl"
    journal = Journal(path, OF)
    journal.keep(("sdpa",), FUSED)
    journal.keep(("compile",), FUSED)
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path, OF)
    assert again.known == {("sdpa",): FUSED} | ({("compile",): FUSED} if cut == 1 else {})
    again.keep(("tf32",), BROKEN)
    assert Journal(path, OF).known == {**again.known, ("tf32",): BROKEN}


@pytest.mark.parametrize("field", Heading.__struct_fields__)
def test_measurements_of_something_else_are_refused(tmp_path: Path, field: str) -> None:
    path = tmp_path / "measured.jsonl"
    Journal(path, OF).keep(("sdpa",), FUSED)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"of another {field}"):
        Journal(path, replace(OF, **{field: "other"}))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"#!/bin/sh\n", b"\xff\xfe\n", b"[1, 2]\n", b"{}\n"])
def test_other_files_are_refused_and_stay_as_they_are(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "script"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="name another file"):
        Journal(path, OF)
    assert path.read_bytes() == content


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="cannot read"):
        Journal(tmp_path, OF)


def test_what_may_go_otherwise_another_time_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "measured.jsonl"
    journal = Journal(path, OF)
    journal.keep(("compile",), ChangeResult(broken="it took longer than 120 s", is_passing=True))
    journal.keep(("sdpa",), BROKEN)
    assert Journal(path, OF).known == {("sdpa",): BROKEN}


@pytest.mark.torch
def test_the_heading_changes_with_the_source_and_what_it_imports(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, helper = tmp_path / "train.py", tmp_path / "imported_helper.py"
    script.write_text(
        "import torch\nimport imported_helper\nmodel = torch.nn.Linear(2, 2)\n"
        "with torch.no_grad():\n    for _ in range(100):\n        model(torch.ones(1, 2))\n"
    )
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", arguments="--epochs 1")
    headings = []
    for text in ("a = 1\n", "a = 1\n", "a = 2\n"):
        helper.write_text(text)
        with Session(job, width=1, timeout_s=100) as session:
            (worker,) = session.build([job])
            assert worker.built is not None, worker.broken
            headings.append(heading(job, worker.built))
    first, same, other = headings
    assert first == same
    assert other.source != first.source
    assert heading(replace(job, arguments="--epochs 2"), worker.built).target != other.target
