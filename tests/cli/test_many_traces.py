"""``opscope analyze FOLDER``: a line for each trace, and what they share."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("traces")
    for name in ("before", "tf32", "compiled"):
        shutil.copy(DATA / "changes" / name / "encoder_trace_bs8.json.gz", found / f"{name}.json.gz")
    made = KinetoTrace()
    made.step(1, 0, 100_000)
    made.launched_kernel("busy", (1_000, 5_000), (10_000, 50_000))
    made.write(found / "busy.json")
    return found


def test_a_folder_has_a_line_for_each_trace(folder: Path) -> None:
    done = opscope("analyze", str(folder))
    assert done.returncode == 0, done.stderr
    for name in ("before", "tf32", "compiled", "busy"):
        assert sum(f"{name}.json" in line for line in done.stdout.splitlines()) == 1
    assert "What bounds 4 traces:" in done.stdout
    assert "Accounting:" not in done.stdout


def test_figures_are_those_of_each_trace_by_itself(folder: Path) -> None:
    rows = list(csv.DictReader(opscope("analyze", str(folder), "--format", "csv").stdout.splitlines()))
    assert len(rows) == 4
    for row in rows:
        document = json.loads(opscope("analyze", row["trace"], "--format", "json").stdout)
        first = document["findings"][0] if document["findings"] else None
        assert row["bound"] == document["bound"]["kind"]
        assert row["trust"] == document["trust"]["verdict"]
        assert row["finding"] == ("" if first is None else first["rule"])
        if first is not None:
            assert float(row["saving_ns"]) == pytest.approx(first["likely_ns"])
            assert float(row["saving_share"]) == pytest.approx(first["likely_ns"] / first["of_step_ns"])
        assert float(row["step_ns"]) == pytest.approx(document["step_time"]["ns"])
        assert row["step_basis"] == document["step_time"]["basis"]


def test_lines_can_be_sorted_and_columns_that_are_not_there_are_refused(folder: Path) -> None:
    for column in ("Busy", "busy_share"):
        text = opscope("analyze", str(folder), "--sort", column, "--format", "csv").stdout
        shares = [float(row["busy_share"]) for row in csv.DictReader(text.splitlines())]
        assert shares == sorted(shares, reverse=True)
    refused = opscope("analyze", str(folder), "--sort", "nonsense")
    assert refused.returncode == 2
    assert "there is no column 'nonsense'" in refused.stderr


def test_each_trace_and_tables_over_all_are_there_when_asked_for(folder: Path) -> None:
    assert opscope("analyze", str(folder), "--each").stdout.count("; trust: ") == 4
    rows = csv.DictReader(opscope("analyze", str(folder), "--by", "kernel", "--format", "csv").stdout.splitlines())
    assert "total_ns" in (rows.fieldnames or ())
    assert opscope("analyze", str(folder / "before.json.gz")).stdout.startswith("before.json.gz on ")


def test_traces_that_cannot_be_read_are_named_beside_the_lines(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "more")
    (tmp_path / "more" / "cut.json").write_text('{"traceEvents": [{"ph": "X", "na')
    done = opscope("analyze", str(tmp_path / "more"))
    assert done.returncode == 4
    assert "cut.json" in done.stdout + done.stderr
    assert "before.json.gz" in done.stdout
