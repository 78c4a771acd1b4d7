"""Every screen says the same of a trace: what a step takes, by which of its times, and what bounds it."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from opscope import analyze
from opscope.analysis.advice.context import MOST_IN_SHORT
from opscope.base.units import format_ns
from tests.command import opscope, screen
from tests.conftest import DATA

FOLDERS = ("causes", "changes", "findings", "foreign", "h200_bert_small", "old_traces", "traces")
RECORDED = {
    f"{number:03}_{path.name}": path
    for number, path in enumerate(sorted(path for name in FOLDERS for path in (DATA / name).rglob("*.json.gz")))
    if not path.name.startswith("native_functions")  # no trace
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The lines of all recorded traces in one folder, by path."""
    folder = tmp_path_factory.mktemp("traces")
    for name, path in RECORDED.items():
        shutil.copy(path, folder / name)
    rows = csv.DictReader(opscope("analyze", str(folder), "--format", "csv").stdout.splitlines())
    return {Path(row["trace"]).name: row for row in rows} | {"folder": {"path": str(folder)}}


@pytest.mark.parametrize("name", RECORDED)
def test_a_step_takes_the_same_on_every_screen(lines: dict[str, dict[str, str]], name: str) -> None:
    path, line = str(Path(lines["folder"]["path"]) / name), lines[name]
    document = json.loads(opscope("analyze", path, "--format", "json").stdout)
    brief = json.loads(opscope("analyze", "--brief", path, "--format", "json").stdout)
    step, bound = document["step_time"], document["bound"]
    assert brief["step"] == step
    assert brief["bound"] == line["bound"] == bound["kind"]
    if step is None:
        assert (line["step_ns"], line["step_basis"]) == ("", "")
        assert "step not timed" in repr(analyze(path))
        return
    assert (float(line["step_ns"]), line["step_basis"]) == (step["ns"], step["basis"])
    for written in (
        opscope("analyze", path).stdout,
        opscope("analyze", path, "--format", "md").stdout,
        opscope("analyze", "--brief", path).stdout,
        repr(analyze(path)),
    ):
        text = " ".join(written.replace("\\", "").split())
        assert f"{step['basis']} {format_ns(step['ns'])}" in text.replace("Recorded step", "recorded step")
        if step["estimate_ns"] is not None:
            assert f"about {format_ns(step['estimate_ns'])} without the profiler" in text
        assert bound["sentence"] in text


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_read_first_fits_into_fourteen_lines(lines: dict[str, dict[str, str]], name: str) -> None:
    path = str(Path(lines["folder"]["path"]) / name)
    shown = screen(80, "analyze", path)
    first = shown[: shown.index("")]
    assert len(first) <= 14
    assert max(map(len, first)) <= 80
    words = [word for line in first for word in line.split() if not set(word) <= set("█▓▒░")]
    assert len(words) <= 120
    document = json.loads(opscope("analyze", path, "--format", "json").stdout)
    found = document["first_screen"]
    assert found["sentence"] == document["bound"]["sentence"]
    assert found["step"] == document["step_time"]
    text = " ".join(" ".join(first).split())
    assert f"[{found['bound']}]" in text
    for one in found["findings"]:
        assert 0 < len(one["todo"]) <= MOST_IN_SHORT
        assert one["saves"] in text
        (whole,) = (whole for whole in document["findings"] if whole["id"] == one["id"])
        assert whole["saving_ns"] == one["saving_ns"]
    assert sum(part["share"] for part in found["parts"]) <= 1 + 1e-9


@pytest.mark.parametrize("run", ["changes/before", "h200_bert_small"])
def test_a_run_s_step_is_that_of_its_traces(run: str, tmp_path: Path) -> None:
    """The unprofiled step of each configuration: in its report, its brief, the comparison and the list of runs."""
    folder = shutil.copytree(DATA / run, tmp_path / "run")
    assert opscope("export", "--reports", str(folder)).returncode == 0
    rows = json.loads(opscope("runs", str(folder), "--format", "json").stdout)["runs"]
    assert rows
    for row in rows:
        brief = json.loads(opscope("analyze", "--brief", f"{folder}/{row['configuration']}", "--format", "json").stdout)
        report = (folder / f"kernel_analysis_report_{row['configuration']}.md").read_text()
        assert f"Unprofiled step {format_ns(row['step_ns'])} (" in report
        assert format_ns(row["step_ns"]) in (folder / "comparison.md").read_text()
        assert brief["step"]["basis"] == row["step_basis"] == "unprofiled step"
        assert row["step_ns"] == pytest.approx(brief["step"]["ns"])
