"""``opscope analyze`` as users run it: every format, every kind of row, limits and exit codes."""

import csv
import gzip
import io
import json
from pathlib import Path

import jsonschema
import pytest

from tests import tiny
from tests.command import ROOT, WITHOUT_TORCH, opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

GPT2 = str(DATA / "traces" / "gpt2_train_amp_stacks.json.gz")
TRACES = sorted((DATA / "traces").glob("*.json.gz"))
ROWS = ["kernel", "operator", "shape", "module", "category", "step", "stream"]


def schema(name: str) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((ROOT / "docs" / "schema" / name).read_text())
    return loaded


@pytest.fixture
def inference(tmp_path: Path) -> str:
    return str(tiny.inference().write(tmp_path / "tiny.json"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_json_follows_its_schema_and_adds_up(path: Path) -> None:
    result = opscope("analyze", str(path), "--format", "json", code=WITHOUT_TORCH)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    jsonschema.validate(document, schema("analysis-1.json"))
    assert document["schema"] == "opscope.analysis/1"
    total = sum(kernel["total_ns"] for kernel in document["kernels"])
    assert sum(row["self_device_ns"] for row in document["operators"]) + document["unlinked"]["device_ns"] == total
    assert sum(device["sum_ns"] for device in document["devices"]) == total
    for device in document["devices"]:
        parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
        assert sum(device[part] for part in parts) == device["window_ns"]


def test_figures_of_the_tiny_trace_are_those_worked_out_by_hand(inference: str) -> None:
    document = json.loads(opscope("analyze", inference, "--format", "json").stdout)
    (device,) = document["devices"]
    assert (device["sum_ns"], device["busy_ns"], device["window_ns"], device["idle_ns"]) == (
        58_000, 58_000, 200_000, 142_000,
    )  # fmt: skip
    operators = {row["name"]: row for row in document["operators"]}
    assert operators["aten::addmm"]["self_device_ns"] == operators["aten::linear"]["total_device_ns"] == 40_000
    assert operators["aten::addmm"]["native_function"] == "addmm"
    assert document["kernels"][0].items() >= {
        "name": "gemm", "kind": "kernel", "device": 0, "calls": 2,
        "total_ns": 40_000, "mean_ns": 20_000.0, "min_ns": 20_000, "max_ns": 20_000, "std_ns": 0.0,
    }.items()  # fmt: skip
    assert [step["launch_bound_share"] for step in document["steps"]] == [0.65, 0.3]
    assert document["launches"]["latency"]["count"] == 2
    assert document["launches"]["backlog"]["count"] == 2


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("output_format", ["table", "csv", "md"])
def test_every_kind_of_row_comes_in_every_format(rows: str, output_format: str) -> None:
    result = opscope("analyze", GPT2, "--by", rows, "--top", "3", "--format", output_format, "--why")
    assert result.returncode == 0, result.stderr
    if output_format == "csv":
        assert 2 <= len(list(csv.reader(io.StringIO(result.stdout)))) <= 4
    else:
        assert "Accounting: " in result.stdout


def test_csv_has_exact_figures_and_can_be_sorted_by_any_of_them() -> None:
    result = opscope("analyze", GPT2, "--format", "csv", "--sort", "calls")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    calls = [int(row["calls"]) for row in rows]
    assert calls == sorted(calls, reverse=True)
    assert sum(int(row["self_device_ns"]) for row in rows) == 25_104_876
    wrong = opscope("analyze", GPT2, "--sort", "cost")
    assert wrong.returncode == 2
    assert "--sort takes a column of --by operator, as a heading (Name, Category, Calls, Self device, " in wrong.stderr


def test_top_limits_the_rows_and_zero_shows_all() -> None:
    for top, expected in (("2", 2), ("0", 121)):
        result = opscope("analyze", GPT2, "--format", "csv", "--top", top)
        assert len(list(csv.DictReader(io.StringIO(result.stdout)))) == expected


def test_several_traces_are_told_apart(inference: str) -> None:
    rows = list(csv.DictReader(io.StringIO(opscope("analyze", inference, GPT2, "--format", "csv").stdout)))
    assert {row["trace"] for row in rows} == {inference, GPT2}
    document = json.loads(opscope("analyze", inference, GPT2, "--format", "json").stdout)
    jsonschema.validate(document, schema("analysis-list-1.json"))
    assert [trace["source"]["path"] for trace in document["traces"]] == [inference, GPT2]


def test_kernels_are_the_rows_where_no_operators_were_recorded(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.kernel("lonely", 0, 1_000)
    result = opscope("analyze", "--why", str(trace.write(tmp_path / "t.json")))
    assert "lonely" in result.stdout
    assert "unlinked 1,000 ns (1 activity)" in result.stdout


def test_strict_fails_where_a_check_fails(inference: str, tmp_path: Path) -> None:
    assert opscope("analyze", inference, "--strict").returncode == 0
    trace = KinetoTrace()
    trace.launched_kernel("k", (0, 1_000), (2_000, 1_000))
    trace.kernel("lost", 5_000, 10_000, correlation=77)
    lost = str(trace.write(tmp_path / "lost.json"))
    assert opscope("analyze", lost).returncode == 0
    strict = opscope("analyze", lost, "--strict")
    assert strict.returncode == 1
    assert "FAIL launch_recorded: 1 of 2 activities" in strict.stdout


def test_modules_need_stacks(inference: str) -> None:
    result = opscope("analyze", inference, "--by", "module")
    assert result.returncode == 2
    assert "records no modules: capture it with Python stacks" in result.stderr


@pytest.mark.parametrize(("size", "code"), [("1KB", 4), ("1MiB", 0), ("huge", 2)])
def test_the_size_that_is_read_is_limited(inference: str, size: str, code: int) -> None:
    result = opscope("analyze", inference, "--max-input", size)
    assert result.returncode == code
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", [b"", b"{}", b"\x7fELF", b"not json", gzip.compress(b"", mtime=0)])
def test_what_is_no_trace_is_a_bad_input(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    result = opscope("analyze", str(path))
    assert result.returncode == 4
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    result = opscope("analyze", str(tmp_path / "absent.json"))
    assert result.returncode == 4
    assert "No such file" in result.stderr


def test_names_cannot_steer_the_terminal_or_break_rows(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.operator('evil\x1b[2J\nrow|`x`,"q', 0, 1_000)
    path = str(trace.write(tmp_path / "t.json"))
    for output_format in ("table", "csv", "md"):
        result = opscope("analyze", path, "--format", output_format)
        assert "\x1b" not in result.stdout
    (row,) = csv.DictReader(io.StringIO(opscope("analyze", path, "--format", "csv").stdout))
    assert row["name"].startswith("evil")
