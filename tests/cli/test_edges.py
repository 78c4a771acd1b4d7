"""The edges where people touch it: secrets, unusual inputs, outputs of several traces, widths, hints."""

import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.collect.environment import describe_rank
from opscope.export.sql_tables import COMPUTED
from opscope.record.machine import Rank
from tests.command import ROOT, opscope, screen
from tests.conftest import DATA
from tests.kineto import KinetoTrace

TRACES = DATA / "traces"
COMPILED = TRACES / "bert4_bf16_compiled.json.gz"
SQUARE = TRACES / "square_variants.json.gz"
TOKEN = "tok-3f9a77SECRET"
SETTINGS = ROOT / "tests" / "workloads" / "settings.py"


# ---------------------------------------------------------------- secrets


def with_secrets(tmp_path: Path) -> Path:
    """A trace whose header has a token wherever a program may put one."""
    header = json.loads(gzip.decompress(COMPILED.read_bytes()))
    planted = {
        "environment": {"HF_TOKEN": TOKEN},
        "PT_PROFILER_JOB_NAME": TOKEN,
        "trace_name": f"/home/{TOKEN}/t.json",
        "pytorch_version": {"HF_TOKEN": TOKEN},
        "torch_version": f"2.11.0 {TOKEN}",
        "opscope": {"torch": "2.11.0", "HF_TOKEN": TOKEN},
        "distributedInfo": {"backend": "nccl", "rank": 0, "secret": TOKEN},
        TOKEN: 1,
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**planted, **header, **planted}))
    return path


@pytest.mark.parametrize(
    "command",
    [
        *(("analyze", "FILE", "--format", name) for name in ("table", "json", "csv", "md")),
        ("analyze", "FILE", "--by", "annotation"),
        ("explain", "aten::addmm", "--in", "FILE"),
        ("explain", "--in", "FILE", "--top", "1"),
        ("sql", "SELECT * FROM operator_costs", "FILE", "--format", "json"),
        ("export", "FILE", "--parquet", "OUT/store"),
        ("export", "FILE", "--chrome", "OUT/chrome.json"),
        ("sql", f"SELECT {TOKEN} FROM nowhere", "FILE"),
    ],
    ids=lambda command: " ".join(command[:4]),
)
def test_no_output_holds_what_a_program_wrote_into_the_header(command: tuple[str, ...], tmp_path: Path) -> None:
    path, out = with_secrets(tmp_path), tmp_path / "out"
    out.mkdir()
    words = [word.replace("FILE", str(path)).replace("OUT", str(out)) for word in command]
    result = opscope(*words)
    if TOKEN not in " ".join(words):
        assert result.returncode == 0, result.stderr
        assert TOKEN not in result.stdout + result.stderr
    for written in out.rglob("*"):
        assert not written.is_file() or TOKEN.encode() not in written.read_bytes(), written
    assert "Resolved plan" not in result.stderr


def test_an_export_does_not_overwrite_its_own_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(gzip.decompress(SQUARE.read_bytes()))
    result = opscope("export", str(path), "--chrome", str(tmp_path / "." / "t.json"))
    assert result.returncode == 2
    assert path.read_bytes() == gzip.decompress(SQUARE.read_bytes())


def test_packed_files_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = b" " * (400 << 20)
    for name, packed in (("t.json.xz", lzma.compress(bomb, preset=0)), ("t.json.zst", zstandard.compress(bomb))):
        (tmp_path / name).write_bytes(packed)
        code = (
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
            "from opscope.cli import main; main()"
        )
        result = opscope("analyze", str(tmp_path / name), "--max-input", "50MB", code=code)
        assert result.returncode == 4, result.stderr
        assert "unpacks to more than" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["xz", "gz", "zst"])
def test_millions_of_equal_events_in_a_small_file_are_refused(tmp_path: Path, ending: str) -> None:
    """None of them is unusual by itself, and all of them would take 2 GB."""
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":1},'
    content = b'{"traceEvents":[' + event * 3_400_000 + event[:-1] + b"]}"  # 255 MB
    path = tmp_path / f"t.json.{ending}"
    if ending == "zst":
        path.write_bytes(pytest.importorskip("zstandard").compress(content))
    else:
        path.write_bytes(lzma.compress(content, preset=0) if ending == "xz" else gzip.compress(content, 6))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "from opscope.cli import main; main()"
    )
    result = opscope("analyze", str(path), code=code)
    assert result.returncode == 4, result.stderr
    assert "unpacks to more than 150 times its size" in result.stderr
    assert "--max-input" in result.stderr


def test_damage_shows_nothing_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'{{"HF_TOKEN": "{TOKEN}"}}')
    result = opscope("analyze", str(path))
    assert result.returncode == 4
    assert TOKEN not in result.stdout + result.stderr


# ---------------------------------------------------------------- inputs


def test_packed_files_of_every_kind_pipes_and_folders_are_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = gzip.decompress(SQUARE.read_bytes())
    (tmp_path / "t.json.xz").write_bytes(lzma.compress(plain))
    (tmp_path / "t.json.zst").write_bytes(zstandard.ZstdCompressor().compress(plain))
    (tmp_path / "two.json.zst").write_bytes(
        zstandard.ZstdCompressor().compress(plain[:1000]) + zstandard.ZstdCompressor().compress(plain[1000:])
    )
    expected = without_path(json.loads(opscope("analyze", str(SQUARE), "--format", "json").stdout))
    for name in ("t.json.xz", "t.json.zst", "two.json.zst"):
        found = json.loads(opscope("analyze", str(tmp_path / name), "--format", "json").stdout)
        assert without_path(found) == expected, name
    for content in (plain, SQUARE.read_bytes(), (tmp_path / "t.json.zst").read_bytes()):
        result = opscope("analyze", "-", "--format", "json", stdin=content)
        assert without_path(json.loads(result.stdout)) == expected
    folder = json.loads(opscope("analyze", str(tmp_path), "--format", "json").stdout)
    assert [without_path(one) for one in folder["traces"]] == [expected] * 3


def without_path(document: dict[str, Any]) -> dict[str, Any]:
    source = {key: value for key, value in document.pop("source").items() if key not in ("path", "size_bytes")}
    findings = [{**finding, "prove": None} for finding in document["findings"]]  # its command names the file
    screen = document["first_screen"]
    first = [{**finding, "prove": None} for finding in screen["findings"]]
    return {**document, "source": source, "findings": findings, "first_screen": {**screen, "findings": first}}


@pytest.mark.parametrize("ending", ["xz", "zst"])
def test_damaged_packed_files_are_read_in_part_or_refused(ending: str, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = gzip.decompress(SQUARE.read_bytes())
    packed = lzma.compress(plain) if ending == "xz" else zstandard.ZstdCompressor().compress(plain)
    path = tmp_path / f"t.json.{ending}"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    result = opscope("analyze", str(path))
    assert "Traceback" not in result.stderr
    assert re.search(r"data are damaged", result.stdout + result.stderr)


# ---------------------------------------------------------------- several traces, and outputs


def test_csv_of_several_traces_has_them_all_and_says_which() -> None:
    replay = TRACES / "cudagraph_replay.json.gz"
    result = opscope("analyze", str(COMPILED), str(replay), "--format", "csv")
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    of = {next(value for value in row.values() if str(value).endswith(".json.gz")) for row in rows}
    assert of == {str(COMPILED), str(replay)}


def test_markdown_has_the_verdict_and_the_trust() -> None:
    document = json.loads(opscope("analyze", str(COMPILED), "--format", "json").stdout)
    shown = opscope("analyze", str(COMPILED), "--format", "md").stdout
    assert document["bound"]["sentence"].split(".")[0] in shown
    assert "trust" in shown.lower()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_the_terminal_and_no_number_is_cut(width: int) -> None:
    pytest.importorskip("torch")
    lines = screen(width, "analyze", str(COMPILED), "--by", "kernel", "--top", "10")
    assert max(map(len, lines)) <= width
    piped = opscope("analyze", str(COMPILED), "--by", "kernel", "--top", "10", "--format", "csv").stdout
    totals = [int(row["total_ns"]) for row in csv.DictReader(io.StringIO(piped))]
    first = f"{totals[0] / 1000:.1f} us"
    assert any(first in line for line in lines), first
    assert len(lines) < 60  # 96 rows of a screen before


def test_sorting_takes_the_headings_of_the_table() -> None:
    shown = opscope("analyze", str(COMPILED), "--by", "operator", "--sort", "Calls", "--format", "csv")
    assert shown.returncode == 0, shown.stderr
    calls = [int(row["calls"]) for row in csv.DictReader(io.StringIO(shown.stdout))]
    assert calls == sorted(calls, reverse=True)
    assert opscope("analyze", str(COMPILED), "--sort", "nonsense").returncode == 2


# ---------------------------------------------------------------- annotations


def nested() -> KinetoTrace:
    """``outer`` 0..100 with ``inner`` 10..40 twice; kernels of 7, 11, 13 and 17 ns are launched in them; 19 outside."""
    trace = KinetoTrace()
    trace.annotation("outer", 0, 100)
    trace.annotation("inner", 10, 30)
    trace.annotation("inner", 50, 30)
    trace.annotation("alone", 200, 50)
    for launch, length in ((5, 7), (15, 11), (55, 13), (210, 17), (300, 19)):
        trace.operator("aten::mm", launch - 1, 6)
        trace.launched_kernel("k", (launch, 2), (1000 + 100 * launch, length))
    return trace


def test_annotations_have_the_device_time_of_what_was_launched_in_them(
    analyzed: Callable[[KinetoTrace], Analysis],
) -> None:
    table = analyzed(nested()).annotations
    rows = {row["path"]: row for row in table.iter_rows(named=True)}
    assert list(rows) == ["outer", "outer / inner", "alone", "(in no range)"]
    figures = {path: (row["calls"], row["self_device_ns"], row["total_device_ns"]) for path, row in rows.items()}
    assert figures["outer"] == (1, 7, 7 + 11 + 13)
    assert figures["outer / inner"] == (2, 11 + 13, 11 + 13)
    assert figures["alone"] == (1, 17, 17)
    assert figures["(in no range)"][1] == 19
    assert table["self_device_ns"].sum() == 7 + 11 + 13 + 17 + 19
    assert (rows["outer"]["span_ns"], rows["outer"]["self_cpu_ns"]) == (100, 40)


def test_variants_of_one_trace_can_be_told_apart() -> None:
    shown = opscope("analyze", str(SQUARE), "--by", "annotation", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert sum(row["self_device_ns"] for row in document["annotations"]) in (
        0,
        sum(device["sum_ns"] for device in document["devices"]),
    )


# ---------------------------------------------------------------- SQL


def test_every_table_and_column_of_sql_has_a_sentence() -> None:
    result = opscope("sql", "--schema", "--format", "json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert {row["table"] for row in rows} >= {"operators", "launches", "activities", *COMPUTED}
    assert not [row for row in rows if len(row["meaning"].split()) < 2 and row["column"] not in ("time_ns",)]


def test_an_activity_is_joined_to_its_operator_step_and_launch(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(4, 0, 100)
    trace.operator("aten::mm", 10, 20)
    trace.launched_kernel("k", (12, 3), (40, 25), stream=9)
    path = trace.write(tmp_path / "t.json")
    query = "SELECT operator, step, stream, launch, duration_ns FROM linked_activities"
    result = opscope("sql", query, str(path), "--format", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["rows"] == [["aten::mm", 4, 9, "cudaLaunchKernel", 25]]


def test_errors_of_sql_are_one_line() -> None:
    result = opscope("sql", "SELECT nam FROM operators", str(SQUARE))
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) <= 3
    assert "Resolved plan" not in result.stderr
    assert "nam" in result.stderr


# ---------------------------------------------------------------- explain


@pytest.mark.parametrize("name", ["aten::sofmax", "void no one::knows_this<int>(int)", "aten::"])
def test_names_that_nothing_recognises_end_with_exit_code_1(name: str) -> None:
    result = opscope("explain", name)
    assert result.returncode == 1
    if name == "aten::sofmax":
        assert "did you mean" in result.stderr.lower()
        assert "aten::softmax" in result.stderr


def test_an_operator_without_a_trace_has_candidate_files_of_its_device_kernels() -> None:
    answer = json.loads(opscope("explain", "aten::cumsum", "--torch", "2.11.0", "--format", "json").stdout)
    assert "aten/src/ATen/native/cuda/" in json.dumps(answer["device_kernels"])
    shown = opscope("explain", "aten::cumsum", "--torch", "2.11.0").stdout
    assert "candidate" in shown
    # One that decomposes has those of the operator that does its work, which it names.
    shown = opscope("explain", "aten::softmax", "--torch", "2.11.0").stdout
    assert "native/cuda/SoftMax.cu (candidate: of aten::_softmax" in shown


# ---------------------------------------------------------------- devices


def test_work_of_devices_that_are_not_understood_is_named_and_not_host_only(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 50)
    for number in range(5):
        trace.slice("mtia_ccp_events", "kernel", 100 + number, 1, pid=0, tid=3)
    document = json.loads(opscope("analyze", str(trace.write(tmp_path / "t.json")), "--format", "json").stdout)
    assert document["bound"]["kind"] != "host only"
    (check,) = [check for check in document["trust"]["checks"] if check["name"] == "devices_understood"]
    assert check["verdict"] != "pass"
    assert check["count"] == 5
    assert "mtia_ccp_events" in check["sentence"]


def test_a_truncated_trace_without_device_events_has_no_verdict(tmp_path: Path) -> None:
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    for number in range(50):
        trace.operator("aten::mm", 100 * number, 50)
        trace.launch(100 * number + 10, 5)
    path = tmp_path / "t.json"
    path.write_text(trace.text()[: -len(trace.text()) // 3])
    document = json.loads(opscope("analyze", str(path), "--format", "json").stdout)
    assert document["bound"]["kind"] == "unknown"
    assert "record it again" in document["bound"]["sentence"]
    assert "Everything ran on the CPU" not in document["bound"]["sentence"]


def test_a_device_without_a_name_has_that_of_the_others(analyzed: Callable[[KinetoTrace], Analysis]) -> None:
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    trace.kernel("k", 0, 10, device=2)
    (device,) = analyzed(trace).devices
    assert device.name == "NVIDIA H200, inferred from the other devices"


# ---------------------------------------------------------------- profile


@pytest.mark.torch
def test_sweeps_over_any_setting_have_ids_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sweep = ["--hidden-size", "8", "16", "--dtype", "fp32", "bf16", "--set", "width=4,6"]
    result = opscope("profile", f"{SETTINGS}:sized", "--skip-benchmark", *sweep, "--output-dir", str(tmp_path / "r"))
    assert result.returncode == 0, result.stderr
    names = {path.stem.removeprefix("profiling_stats_") for path in (tmp_path / "r").glob("profiling_stats_*.json")}
    assert names == {f"hidden{h}_{d}_width{w}" for h in (8, 16) for d in ("fp32", "bf16") for w in (4, 6)}


@pytest.mark.torch
def test_a_plain_function_that_does_the_work_is_a_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = opscope("profile", f"{SETTINGS}:work", "--skip-benchmark", "--output-dir", str(tmp_path / "r"))
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    assert {row["name"]: row["calls"] for row in document["operators"]}["aten::relu"] == document["step_count"]


@pytest.mark.torch
def test_a_configuration_that_takes_too_long_is_ended_and_recorded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = opscope("profile", f"{SETTINGS}:slow", "--timeout", "2", "--output-dir", str(tmp_path / "r"))
    assert result.returncode == 1
    assert "2 s of --timeout" in result.stderr
    (entry,) = json.loads((tmp_path / "r" / "manifest.json").read_text())["entries"]
    assert (entry["status"], entry["failure"]["kind"]) == ("failed", "timeout")


def test_the_rank_is_what_torchrun_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert describe_rank() is None
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert describe_rank() == Rank(3, 8, 1)
