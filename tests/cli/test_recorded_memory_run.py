"""Runs of ``opscope profile --memory`` that a GPU recorded: the report, ``opscope memory``, and out of memory."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from opscope.cli.results import print_sweep
from opscope.runs.store import RunDirectory
from tests.command import WITHOUT_TORCH, opscope
from tests.report.test_page import document_of

DATA = Path(__file__).parent.parent / "data"
# Of the program: six blocks of two linear layers in float32, with AdamW.
WEIGHTS = 6 * 4 * (2 * 1024 * 4096 + 4096 + 1024)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "memory_run", tmp_path / "run"))


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "memory_run_oom", tmp_path / "oom"))


def memory_of(path: Path) -> dict[str, Any]:
    result = opscope("memory", str(path), "--format", "json", code=WITHOUT_TORCH)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", ["", "train_memory_default.pickle"])
def test_a_run_and_its_snapshot_are_joined_with_the_trace(run: Path, name: str) -> None:
    found = memory_of(run / name)
    (device,) = found["devices"]
    record = json.loads((run / "raw" / "capture_default.json").read_text())
    assert device["peak_bytes"] == record["memory"]["allocated_bytes"]  # PyTorch's own maximum
    owners = {one["owner"]: one["bytes"] for one in device["owners"]}
    assert owners["parameters"] == owners["gradients"] == owners["temporaries"] == WEIGHTS
    assert list(owners)[:4] == ["optimizer state", "gradients", "parameters", "temporaries"]  # of equals, by name
    assert 2 * WEIGHTS <= owners["optimizer state"] <= 2 * WEIGHTS + 24 * 512
    where = {(one["owner"], one["operator"], one["line"]): one["bytes"] for one in device["peak"]}
    assert where["temporaries", "aten::_foreach_sqrt", "train.py:15 (<module>)"] == WEIGHTS
    # Autograd's threads have no line of their own: it is that of the forward pass.
    assert where["gradients", "aten::mm", "train.py:13 (<module>)"] == 6 * 4 * 2 * 1024 * 4096
    assert [one["rule"] for one in found["findings"][:2]] == ["optimizer_temporaries", "optimizer_states"]


def test_no_line_is_of_opscope_itself(run: Path) -> None:
    (device,) = memory_of(run)["devices"]
    assert {one["line"].partition(":")[0] for one in device["peak"] if one["line"]} == {"train.py"}


def test_a_snapshot_alone_has_no_operators(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pickle"
    shutil.copy(run / "train_memory_default.pickle", alone)
    (device,) = memory_of(alone)["devices"]
    assert {one["operator"] for one in device["peak"]} == {None}
    assert device["peak_bytes"] == memory_of(run)["devices"][0]["peak_bytes"]


def test_the_report_and_the_page_have_the_peak(run: Path) -> None:
    result = opscope("export", "--reports", str(run))
    assert result.returncode == 0, result.stderr
    sentence = "peak memory 1.002 GiB on GPU 0; 116.2 MiB less without the optimizer's temporaries"
    assert sentence in result.stdout
    report = (run / "kernel_analysis_report_default.md").read_text()
    assert "GPU 0: at most 1.002 GiB allocated (step 1, in the optimizer's step), 1.064 GiB reserved." in report
    assert "It was recorded over 3 steps after the profile, of which no other figure is: a step took" in report
    statistics = json.loads((run / "profiling_stats_default.json").read_text())
    assert statistics["device_memory"]["devices"] == memory_of(run)["devices"]
    page = document_of((run / "report.html").read_text())
    assert [picture["peak_bytes"] for (picture,) in page["snapshots"]] == [1_075_405_312]
    assert page["title"] == "train.py 0.5 9999"  # the snapshot is the run's own


def test_a_lost_snapshot_costs_the_report_only_that(run: Path) -> None:
    (run / "train_memory_default.pickle").write_bytes(b"\x80\x04no")
    result = opscope("export", "--reports", str(run))
    assert result.returncode == 0, result.stderr
    assert "The memory that was recorded cannot be read" in (run / "kernel_analysis_report_default.md").read_text()
    assert "unprofiled step" in result.stdout


def test_a_record_that_names_another_file_is_refused(run: Path) -> None:
    path = run / "raw" / "capture_default.json"
    record = json.loads(path.read_text())
    record["memory_recording"]["snapshot"] = "../../secret.pickle"
    path.write_text(json.dumps(record))
    result = opscope("memory", str(run))
    assert result.returncode == 0, result.stderr
    assert "Read without its run: " in result.stdout
    assert "names a file as opscope does not: ../../secret.pickle" in result.stdout


def test_a_link_to_another_file_costs_only_the_memory(run: Path, tmp_path: Path) -> None:
    kept = run / "train_memory_default.pickle"
    kept.rename(tmp_path / "elsewhere.pickle")
    kept.symlink_to(tmp_path / "elsewhere.pickle")
    result = opscope("analyze", str(run))
    assert result.returncode == 0, result.stderr
    assert "unprofiled step" in result.stdout
    assert "peak memory" not in result.stdout


@pytest.mark.parametrize(
    "lost", ["raw/capture_default.json", "train_trace_default.json.gz", "raw/memory_default.json.gz"]
)
def test_a_snapshot_is_read_without_what_is_lost_beside_it(run: Path, lost: str) -> None:
    (run / lost).unlink()
    found = memory_of(run / "train_memory_default.pickle")
    assert found["devices"][0]["peak_bytes"] == 1_075_405_312
    assert any("cannot be read" in note or "cannot read" in note for note in found["notes"])


def test_a_manifest_of_another_program_does_not_matter(run: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    shutil.copy(run / "train_memory_default.pickle", tmp_path / "s.pickle")
    assert memory_of(tmp_path / "s.pickle")["devices"]


def test_a_snapshot_that_the_record_does_not_name_is_read_by_itself(run: Path) -> None:
    path = run / "raw" / "capture_default.json"
    record = json.loads(path.read_text())
    record["memory_recording"] = {"reason": "nothing was allocated on a GPU"}
    path.write_text(json.dumps(record))
    (device,) = memory_of(run / "train_memory_default.pickle")["devices"]
    assert {one["operator"] for one in device["peak"]} == {None}
    result = opscope("export", "--reports", str(run))
    assert "  No snapshot was taken: nothing was allocated on a GPU.\n" in result.stdout
    assert "opscope memory" not in result.stdout
    report = (run / "kernel_analysis_report_default.md").read_text()
    assert "No snapshot was taken: nothing was allocated on a GPU." in report


def test_out_of_memory_is_explained_from_the_run(refused: Path) -> None:
    found = memory_of(refused)
    (device,) = found["devices"]
    assert device["oom"]["line"] == "train.py:13 (<module>)"
    assert device["oom"]["asked_bytes"] == 1024 * 1024 * 4096 * 4
    assert "inputs" in {one["owner"] for one in device["owners"] if one["bytes"] == 1024 * 1024 * 1024 * 4}


def test_a_failed_run_says_why_at_once(refused: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(refused)
    print_sweep([(directory, directory.read_manifest())], "table")
    said = capsys.readouterr().err
    assert "GPU 0 was out of memory. A request for 16.00 GiB at train.py:13 (<module>) was refused" in said
    assert f"all of it: opscope memory {refused / 'train_memory_default.pickle'}" in said
    (refused / "train_memory_default.pickle").write_bytes(b"\x80\x04no")
    print_sweep([(directory, directory.read_manifest())], "table")
    assert "cannot be explained" in capsys.readouterr().err


def test_two_runs_are_compared_by_their_snapshots(run: Path, refused: Path) -> None:
    names = [str(one / "train_memory_default.pickle") for one in (run, refused)]
    result = opscope("diff", *names)
    assert result.returncode == 0, result.stderr
    assert "inputs" in result.stdout


def test_what_has_no_memory_says_how_to_record_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": '
        '[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    result = opscope("memory", str(path))
    assert result.returncode == 2
    assert "opscope profile --memory" in result.stderr
