"""Whatever a command prints of a trace, the checks that it fails come along, and what no operator launched is a row."""

import csv
import gzip
import io
import json
import shutil
from pathlib import Path

import pytest

from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A trace whose file ends in the middle, with work that no operator launched."""
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    trace.launched_kernel("gemm", (1_000, 1_000), (3_000, 7_000))
    trace.launched_kernel("lonely", (20_000, 1_000), (30_000, 5_000))
    path = trace.write(tmp_path / "cut.json")
    text = path.read_text()
    path.write_text(text[: text.rindex("]")])
    return path


COMMANDS = {
    "analyze csv": ("analyze", "--format", "csv", "{}"),
    "analyze md": ("analyze", "--format", "md", "{}"),
    "analyze json": ("analyze", "--format", "json", "{}"),
    "analyze": ("analyze", "{}"),
    "sql": ("sql", "select name from operators", "{}"),
    "sql csv": ("sql", "--format", "csv", "select name from operators", "{}"),
    "sql json": ("sql", "--format", "json", "select name from operators", "{}"),
    "dossier": ("explain", "--in", "{}"),
    "dossier json": ("explain", "--format", "json", "--in", "{}"),
    "dossier csv": ("explain", "--format", "csv", "--in", "{}"),
    "explain": ("explain", "aten::mm", "--in", "{}"),
    "explain json": ("explain", "aten::mm", "--format", "json", "--in", "{}"),
    "explain md": ("explain", "aten::mm", "--format", "md", "--in", "{}"),
    "convert": ("export", "{}", "--parquet", "{}.store"),
    "export": ("export", "{}", "--chrome", "{}.export.json"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_file_is_told_by_every_command_and_its_exit_code(command: str, cut: Path) -> None:
    words = [word.format(cut) for word in COMMANDS[command]]
    result = opscope(*words)
    assert result.returncode == 4, result.stderr
    assert "file_is_valid" in result.stdout + result.stderr
    assert "--allow-damaged" in result.stderr
    if command not in ("convert", "export"):
        assert "aten::mm" in result.stdout  # what is whole is shown
    again = ("--overwrite",) if command in ("convert", "export") else ()
    allowed = opscope(*words, *again, "--allow-damaged")
    assert allowed.returncode == 0, allowed.stderr
    assert "file_is_valid" in allowed.stdout + allowed.stderr


@pytest.mark.parametrize("command", [name for name in COMMANDS if "csv" in name or "json" in name or name == "sql"])
def test_what_programs_read_has_the_failed_checks_on_standard_error(command: str, cut: Path) -> None:
    result = opscope(*(word.format(cut) for word in COMMANDS[command]))
    assert "FAIL file_is_valid: The file is incomplete" in result.stderr


def test_documents_hold_the_checks_that_a_trace_fails(cut: Path) -> None:
    dossier = json.loads(opscope("explain", "--format", "json", "--in", str(cut)).stdout)
    explanation = json.loads(opscope("explain", "aten::mm", "--format", "json", "--in", str(cut)).stdout)
    answer = json.loads(opscope("sql", "--format", "json", "select 1 as one from operators", str(cut)).stdout)
    for failed in (
        dossier["failed_checks"],
        explanation["context"]["failed_checks"],
        answer["failed_checks"][str(cut)],
    ):
        assert [check["name"] for check in failed] == ["file_is_valid"]


def test_reports_of_a_run_end_so_too(tmp_path: Path) -> None:
    source = DATA / "h200_bert_small"
    run = shutil.copytree(source, tmp_path / "run")
    trace = next(path for path in sorted(run.iterdir()) if "_trace_" in path.name)
    packed = trace.suffix == ".gz"
    text = gzip.decompress(trace.read_bytes()) if packed else trace.read_bytes()
    text = text[: text.rindex(b"]")]
    trace.write_bytes(gzip.compress(text) if packed else text)
    statistics = run / trace.name.split(".")[0].replace("bert_trace", "profiling_stats")
    result = opscope("export", "--reports", str(run))
    assert result.returncode == 4
    assert "it ends in the middle of its events. Measure it again" in result.stderr
    assert not statistics.with_suffix(".json").exists()
    result = opscope("export", "--reports", "--format", "csv", "--allow-damaged", str(run))
    assert result.returncode == 0
    assert "FAIL file_is_valid" in result.stderr
    assert json.loads(statistics.with_suffix(".json").read_text())["bound"]["kind"] == "unknown"


def test_markdown_of_a_query_has_them_too(cut: Path) -> None:
    result = opscope("sql", "--format", "md", "select name from operators", str(cut), "--allow-damaged")
    assert "FAIL file_is_valid: " in result.stdout


def test_half_a_file_has_no_verdict(cut: Path) -> None:
    document = json.loads(opscope("analyze", "--format", "json", str(cut)).stdout)
    assert document["bound"]["kind"] == "unknown"
    assert "record it again" in document["bound"]["sentence"]
    assert "The file is incomplete" in document["bound"]["evidence"]


@pytest.mark.parametrize("by", ["operator", "shape", "category", "kernel", "stream"])
def test_the_rows_of_a_table_add_up_to_the_device_sum(by: str, cut: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(opscope("analyze", "--format", "csv", "--by", by, str(cut)).stdout)))
    column = {"kernel": "total_ns", "stream": "sum_ns"}.get(by, "self_device_ns")
    assert sum(int(row[column]) for row in rows) == 12_000
    if by in ("operator", "shape"):
        assert [(row["name"], row["self_device_ns"]) for row in rows] == [
            ("aten::mm", "7000"),
            ("(no operator)", "5000"),
        ]


def test_sql_sees_that_row_too(cut: Path) -> None:
    query = "select sum(self_device_ns) as ns, sum(activities) as n from operator_costs"
    answer = json.loads(opscope("sql", "--format", "json", query, str(cut)).stdout)
    assert answer["rows"] == [[12_000, 2]]


@pytest.mark.parametrize("command", [("analyze", "--each"), ("sql", "--strict", "select trace, name from operators")])
def test_a_file_of_a_folder_that_is_no_trace_is_named_and_stops_nothing(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("a", "z"):
        trace = KinetoTrace()
        trace.operator(f"aten::{name}", 0, 10_000)
        trace.write(tmp_path / f"{name}.json")
    (tmp_path / "results.json").write_text('{"accuracy": 0.9}')
    result = opscope(*command, str(tmp_path))
    assert result.returncode == 4
    assert "results.json is not a trace that opscope knows" in result.stderr
    assert "aten::a" in result.stdout
    assert "aten::z" in result.stdout
    assert opscope(*command, str(tmp_path), "--allow-damaged").returncode == 0
    # One that was named is an error of its own.
    named = opscope(*command, str(tmp_path / "a.json"), str(tmp_path / "results.json"), "--allow-damaged")
    assert named.returncode == 4
