"""Whole sweeps over tiny workloads on the CPU: outputs, failures, resuming. Each test runs the real command."""

import csv
import io
import json
import os
import pty
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opscope.cli.results import print_sweep
from opscope.documents.trace import TraceDocument
from opscope.record.configuration import CaptureOptions, Schedule
from opscope.record.sweep import Entry, Manifest, document_kind
from opscope.runs.store import RunDirectory
from tests.command import PYTHONPATH, ROOT, TOY, WITHOUT_TORCH, opscope, started, toy

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCHEMAS = ROOT / "docs" / "schema"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def validate(path: Path, schema: str) -> None:
    jsonschema.validate(read_json(path), read_json(SCHEMAS / schema))


def manifest(directory: Path) -> Manifest:
    return msgspec.json.decode((directory / "manifest.json").read_bytes(), type=Manifest)


def profile(directory: Path, target: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return opscope("profile", target, "--skip-benchmark", "--output-dir", str(directory), *args, **how)


def test_schemas_are_those_of_the_types(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "build_schemas.py", tmp_path], check=True, capture_output=True)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_text() == (SCHEMAS / path.name).read_text(), f"run 'make schemas': {path.name} is out of date"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in SCHEMAS.iterdir()}


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda path: path.stem)
def test_a_schema_is_named_as_its_documents_are(path: Path, tmp_path: Path) -> None:
    schema = read_json(path)
    name, version = re.fullmatch(r"([a-z]+(?:-[a-z]+)*)-(\d+)", path.stem).groups()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:opscope:{name}:{version}"
    document = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    assert document["properties"]["schema"]["enum"] == [f"opscope.{name}/{version}"] == [schema["title"]]
    assert version == "1"  # nothing is released
    # Such a file among traces is none.
    (tmp_path / "other.json").write_text(f'{{"schema":"opscope.{name}/{version}"}}')
    assert document_kind(tmp_path / "other.json") == name


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations of a plain step, benchmarked, with stacks and memory."""
    directory = tmp_path_factory.mktemp("sweep") / "results"
    args = ["--batch-sizes", "2", "64", "--with-stack", "--profile-memory", "--output-dir", str(directory)]
    result = opscope("profile", toy("step"), *args)
    assert result.returncode == 0, result.stderr
    (directory / "stdout").write_text(result.stdout)
    (directory / "stderr").write_text(result.stderr)
    return directory


def test_every_promised_file_is_there_and_valid(sweep: Path) -> None:
    for name in ("bs2", "bs64"):
        validate(sweep / f"profiling_stats_{name}.json", "analysis-1.json")
        validate(sweep / "raw" / f"capture_{name}.json", "capture-1.json")
        assert (sweep / f"kernel_analysis_report_{name}.md").read_text().startswith("# Kernel analysis: ")
        assert read_json(sweep / f"step_trace_{name}.json")["traceEvents"]
    validate(sweep / "comparison.json", "sweep-comparison-1.json")
    validate(sweep / "manifest.json", "sweep-1.json")
    assert not [path.name for path in sweep.rglob("*") if "partial" in path.name or path.name.startswith(".")]


def test_the_manifest_says_what_was_run_and_with_what(sweep: Path) -> None:
    written = manifest(sweep)
    assert written.command[:3] == ("opscope", "profile", toy("step"))
    assert [entry.status for entry in written.entries] == ["done", "done"]
    assert written.framework is not None
    assert written.framework.torch.startswith("2.")
    assert written.framework.device == "cpu"
    assert written.git_revision is None or len(written.git_revision) >= 40


def test_figures_of_a_step_are_plausible_and_consistent(sweep: Path) -> None:
    document = msgspec.json.decode((sweep / "profiling_stats_bs64.json").read_bytes(), type=TraceDocument)
    assert document.step_count == 3
    assert {operator.name: operator.calls for operator in document.operators}["aten::mm"] == 3
    mm = next(operator for operator in document.operators if operator.name == "aten::mm")
    assert mm.native_function == "mm"
    assert mm.detail is not None
    assert mm.cpp_function == mm.detail.native_function.cpp_function == "at::native::structured_mm_out_cpu::impl"
    assert "dispatcher: RegisterCPU" in mm.detail.native_function.how
    assert mm.detail.shapes[0].input_dims == "[[64, 32], [32, 32]]"
    assert mm.detail.called_from
    assert "toy.py" in mm.detail.called_from[0].place
    wall = document.measurement.wall
    assert wall is not None
    assert wall.count >= 6
    assert wall.min_ns <= wall.median_ns <= wall.max_ns
    assert document.measurement.cold_step_ns is not None
    assert document.measurement.cold_step_ns > 0
    step = document.measurement.step
    assert step is not None
    record = read_json(sweep / "raw" / "capture_bs64.json")
    assert step.ns == pytest.approx(statistics.mean(record["benchmark"]["wall_ns"]))
    assert document.measurement.sequences_per_second == pytest.approx(64e9 / step.ns)
    assert sum(row.self_cpu_ns for row in document.categories) == document.cpu_self_ns
    assert document.memory[0].allocations > 0


def test_device_times_are_null_with_a_reason_and_said_once(sweep: Path) -> None:
    document = read_json(sweep / "profiling_stats_bs2.json")
    assert document["summary"]["total_cuda_time_ms"] is None
    assert document["summary"]["device_times_reason"] == "nothing ran on a GPU"
    assert {operator["cuda_time_total_ms"] for operator in document["top_aten_operators"]} == {None}
    assert all(operator["cpu_time_total_ms"] > 0 for operator in document["top_aten_operators"])
    assert (sweep / "stderr").read_text().count("Device times are unknown (null)") == 1


def test_standard_output_shows_the_costs_and_where_the_reports_are(sweep: Path) -> None:
    text = (sweep / "stdout").read_text()
    assert "bs2: " in text
    assert re.search(r"^  (1\.|-) aten::", text, re.MULTILINE)  # numbered where nothing else is found
    assert "Config  Wall/step" in text
    assert f"Reports in {sweep}/:" in text
    assert "profiling_stats_bs64.json" in text


def test_the_reports_are_made_anew_without_pytorch(sweep: Path) -> None:
    """The same figures from the raw files alone, with PyTorch made impossible to import."""
    names = ["profiling_stats_bs2.json", "kernel_analysis_report_bs2.md", "comparison.json", "comparison.md"]
    before = {name: (sweep / name).read_bytes() for name in names}
    for name in names:
        (sweep / name).unlink()
    result = opscope("export", "--reports", str(sweep), code=WITHOUT_TORCH)
    assert result.returncode == 0, result.stderr
    assert {name: (sweep / name).read_bytes() for name in names} == before


def test_analysis_leaves_pytorch_alone_where_it_is_installed(sweep: Path) -> None:
    code = (
        "import sys, atexit\natexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "from opscope.cli import main; main()"
    )
    assert opscope("export", "--reports", str(sweep), code=code).stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize("output_format", ["json", "csv", "md", "table"])
def test_results_come_in_every_format_on_standard_output(sweep: Path, output_format: str) -> None:
    result = opscope("export", "--reports", str(sweep), "--format", output_format)
    assert result.returncode == 0
    if output_format == "json":
        jsonschema.validate(json.loads(result.stdout), read_json(SCHEMAS / "sweep-comparison-1.json"))
    else:
        first = {"csv": "sweep,id,batch_size,seq_len,wall_ns,", "md": "## Comparison: ", "table": "bs2: "}[
            output_format
        ]
        assert result.stdout.startswith(first)


def test_packed_traces_serve_as_well(sweep: Path, tmp_path: Path) -> None:
    import gzip

    copy = tmp_path / "packed"
    shutil.copytree(sweep, copy)
    for trace in copy.glob("step_trace_*.json"):
        trace.with_suffix(".json.gz").write_bytes(gzip.compress(trace.read_bytes()))
        trace.unlink()
    assert opscope("export", "--reports", str(copy)).returncode == 0


def test_a_manifest_cannot_lead_out_of_its_directory(sweep: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(sweep, copy)
    record = copy / "raw" / "capture_bs2.json"
    record.write_text(record.read_text().replace("step_trace_bs2.json", "../../../../etc/hostname"))
    result = opscope("export", "--reports", str(copy))
    assert result.returncode == 4
    assert "names traces as opscope does not" in result.stderr
    shutil.rmtree(copy)
    shutil.copytree(sweep, copy)
    (tmp_path / "outside.json").write_bytes((copy / "step_trace_bs2.json").read_bytes())
    (copy / "step_trace_bs2.json").unlink()
    (copy / "step_trace_bs2.json").symlink_to(tmp_path / "outside.json")
    led_out = opscope("export", "--reports", str(copy))
    assert led_out.returncode == 4
    assert "outside its directory" in led_out.stderr


# ---------------------------------------------------------------- failures


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    directory = tmp_path_factory.mktemp("ill") / "results"
    return directory, profile(directory, toy("ill"), "--batch-sizes", "1", "2", "3", "4", "5", "6")


def test_those_that_die_are_recorded_and_the_others_go_on(
    ill: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    directory, result = ill
    assert result.returncode == 1
    entries = {entry.configuration.count("batch_size"): entry for entry in manifest(directory).entries}
    assert [entries[n].status for n in (1, 2, 3, 4, 5, 6)] == ["done", "failed", "failed", "failed", "failed", "done"]
    failures = {n: entries[n].failure for n in (2, 3, 4, 5)}
    assert {n: failure and failure.kind for n, failure in failures.items()} == {
        2: "killed", 3: "error", 4: "out of memory", 5: "error",
    }  # fmt: skip
    messages = {n: failure.message for n, failure in failures.items() if failure}
    assert "SIGKILL" in messages[2]
    assert messages[3] == "RuntimeError: the third batch is always bad"
    assert messages[4].startswith("OutOfMemoryError: CUDA out of memory")
    assert "exit code 7" in messages[5]
    for number in (1, 6):
        assert (directory / f"profiling_stats_bs{number}.json").is_file()


def test_failures_are_said_with_the_log_that_has_more(ill: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, result = ill
    assert (
        f"bs3 failed: RuntimeError: the third batch is always bad (log: {directory}/raw/log_bs3.txt)" in result.stderr
    )
    assert "Traceback" in (directory / "raw" / "log_bs3.txt").read_text()
    assert "Traceback" not in result.stderr
    comparison = read_json(directory / "comparison.json")
    assert [row["id"] for row in comparison["failed"]] == ["bs2", "bs3", "bs4", "bs5"]
    assert "## Without a result" in (directory / "comparison.md").read_text()


def test_resume_runs_only_what_is_missing(ill: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, _ = ill
    before = (directory / "profiling_stats_bs1.json").stat().st_mtime_ns
    result = profile(
        directory, toy("ill"), "--batch-sizes", "1", "2", "3", "4", "5", "6", "--resume", env={"TOY_CURED": "1"}
    )
    assert result.returncode == 0, result.stderr
    assert "bs1" not in "".join(line for line in result.stderr.splitlines() if line.startswith("["))
    assert result.stderr.count(": done (") == 4
    assert (directory / "profiling_stats_bs1.json").stat().st_mtime_ns == before
    assert {entry.status for entry in manifest(directory).entries} == {"done"}
    assert len(read_json(directory / "comparison.json")["rows"]) == 6


def test_resume_with_other_settings_is_refused(ill: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, _ = ill
    result = profile(directory, toy("ill"), "--batch-sizes", "1", "--active", "5", "--resume")
    assert result.returncode == 2
    assert "was measured with other settings (schedule: " in result.stderr
    other = profile(directory, toy("step"), "--batch-sizes", "1", "--resume")
    assert other.returncode == 2
    assert "was measured with other settings (target: " in other.stderr


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("absent", [], "has no function 'absent'; it has: "),
        ("not_a_function", [], "is not a function but int"),
        ("returns_module", [], "returned a module without example inputs"),
        ("needs_more", [], "requires a parameter 'width': give it a value with --set width=VALUE"),
        ("needs_batch", [], "requires 'batch_size': set --batch-sizes"),
        ("talkative", ["--batch-sizes", "2"], "--batch-sizes is set, but"),
        ("step", ["--mode", "training"], "--mode training cannot be applied to a step"),
        ("step", ["--dtype", "bf16"], "--dtype bfloat16 cannot be applied to a step"),
        ("step", ["--activities", "cuda"], "only CUDA activities are to be collected, but the workload runs on cpu"),
    ],
)
def test_a_bad_target_is_wrong_usage(tmp_path: Path, target: str, args: list[str], message: str) -> None:
    result = profile(tmp_path / "r", toy(target), "--device", "cpu", "--in-process", *args)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module_at_all:step", "there is no module 'no_such_module_at_all'"),
        ("no/file.py:step", "there is no file"),
    ],
)
def test_a_target_that_is_not_there_is_wrong_usage(tmp_path: Path, target: str, message: str) -> None:
    result = profile(tmp_path / "r", target)
    assert result.returncode == 2
    assert message in result.stderr


def test_wrong_usage_ends_the_sweep_at_once(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("returns_module"), "--in-process")
    assert [entry.status for entry in manifest(tmp_path / "r").entries] == ["failed"]
    assert result.stderr.count("FAILED") == 1


def test_a_gpu_that_is_not_there_is_an_environment_error(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("step"), "--batch-sizes", "1", "2", "--device", "cuda:63")
    assert result.returncode == 3
    assert "device cuda:63 is not there" in result.stderr
    assert "not run: bs2; --resume runs them" in result.stderr


def test_what_the_workload_prints_is_kept_in_its_log_and_out_of_the_results(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("talkative"), "--format", "json")
    assert json.loads(result.stdout)["rows"][0]["id"] == "default"
    assert "hello from the workload" in (tmp_path / "r" / "raw" / "log_default.txt").read_text()


def test_each_configuration_is_built_in_a_process_of_its_own(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    result = profile(tmp_path / "r", toy("counts_its_builds"), "--batch-sizes", "1", "2", env={"TOY_MARKS": str(marks)})
    assert result.returncode == 0, result.stderr
    assert marks.read_text() == "1\n2\n"


def test_repeat_writes_one_trace_statistics_and_report_per_cycle(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("step"), "--batch-sizes", "1", "--repeat", "2", "--active", "2")
    assert result.returncode == 0, result.stderr
    for suffix in ("", "_cycle2"):
        document = read_json(tmp_path / "r" / f"profiling_stats_bs1{suffix}.json")
        assert document["summary"]["steps"] == 2
        assert document["trace"] == f"step_trace_bs1{suffix}.json"
        assert (tmp_path / "r" / f"kernel_analysis_report_bs1{suffix}.md").is_file()


def test_a_module_is_trained_when_asked(tmp_path: Path) -> None:
    for target in ("module", "keyword_module"):
        directory = tmp_path / target
        result = profile(directory, toy(target), "--mode", "training", "--in-process")
        assert result.returncode == 0, result.stderr
        name = "keyword_module" if target == "keyword_module" else "module"
        events = read_json(directory / f"{name}_trace_default.json")["traceEvents"]
        assert any(event["name"].startswith("Optimizer.step#AdamW") for event in events)
        assert any(event["name"].startswith("autograd::engine") for event in events)


def limited_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


def test_files_that_cannot_be_written_whole_are_an_error_and_not_half_a_result(tmp_path: Path) -> None:
    """No file may grow beyond 60 kB here, which cuts the trace and the operator table short, as a full disk does."""
    directory = tmp_path / "r"
    result = subprocess.run(
        [sys.executable, "-m", "opscope", "profile", toy("step"), "--skip-benchmark", "--active", "40",
         "--output-dir", str(directory)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True, text=True, timeout=300, check=False, preexec_fn=limited_file_size,
    )  # fmt: skip
    assert result.returncode == 3
    assert "could not be written whole (" in result.stderr
    assert "free there)" in result.stderr
    assert "Traceback" not in result.stderr
    (entry,) = manifest(directory).entries
    assert entry.status == "failed"
    assert entry.failure is not None
    assert not (directory / "profiling_stats_default.json").exists()
    assert not [path.name for path in directory.rglob(".*")]


def test_an_interrupted_sweep_keeps_what_is_done_and_resumes(tmp_path: Path) -> None:
    directory, marks = tmp_path / "r", tmp_path / "marks"
    command = [*(sys.executable, "-m", "opscope"), *counting_sweep(directory)]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "TOY_MARKS": str(marks)}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_the_second(marks)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    check_interrupted(directory, marks, errors)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_interrupt_as_well(tmp_path: Path, number: signal.Signals, code: int) -> None:
    directory, marks = tmp_path / "r", tmp_path / "marks"
    command = started(*counting_sweep(directory), env={"TOY_MARKS": str(marks)})
    wait_for_the_second(marks)
    os.kill(command.pid, number)
    result = command.finish()
    assert result.returncode == code, result.stderr
    check_interrupted(directory, marks, result.stderr)


def counting_sweep(directory: Path) -> list[str]:
    sizes = ["--batch-sizes", "1", "2", "3"]
    return ["profile", toy("counts_its_builds"), "--skip-benchmark", *sizes, "--output-dir", str(directory)]


def wait_for_the_second(marks: Path) -> None:
    deadline = time.monotonic() + 120
    while not (marks.exists() and "2" in marks.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)


def check_interrupted(directory: Path, marks: Path, errors: str) -> None:
    assert "interrupted" in errors
    assert "Traceback" not in errors
    statuses = [entry.status for entry in manifest(directory).entries]
    assert statuses == ["done", "pending", "pending"]
    result = opscope(*counting_sweep(directory), "--resume", env={"TOY_MARKS": str(marks)})
    assert result.returncode == 0, result.stderr
    assert [entry.status for entry in manifest(directory).entries] == ["done"] * 3
    assert marks.read_text().split() == ["1", "2", "2", "3"]


# ---------------------------------------------------------------- workloads that misbehave


@pytest.mark.parametrize("target", ["leaves_a_child", "leaves_a_thread", "writes_on_every_pipe"])
def test_a_result_is_a_result_whatever_the_workload_leaves_behind(tmp_path: Path, target: str) -> None:
    began = time.monotonic()
    result = profile(tmp_path / "r", toy(target))
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - began < 150  # half of what the child and the thread sleep
    validate(tmp_path / "r" / "profiling_stats_default.json", "analysis-1.json")


def test_files_of_the_current_directory_do_not_shadow_libraries(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('shadowed')")
    (tmp_path / "mine.py").write_text(f"exec(open({str(TOY)!r}).read())")
    command = [sys.executable, "-P", "-m", "opscope", "profile", "mine:step", "--skip-benchmark", "--output-dir", "r"]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr


def test_the_same_mistake_twice_ends_the_sweep(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("same_mistake"), "--batch-sizes", "1", "2", "3", "4")
    assert result.returncode == 2
    assert [entry.status for entry in manifest(tmp_path / "r").entries] == ["failed", "failed", "pending", "pending"]


def test_messages_cannot_steer_the_terminal(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("hostile_message"))
    assert result.returncode == 1
    assert "cleared your screen" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert "\x1b" not in (tmp_path / "r" / "comparison.md").read_text()


def test_a_sweep_without_any_result_has_a_comparison_that_says_so(tmp_path: Path) -> None:
    result = profile(tmp_path / "r", toy("ill"), "--batch-sizes", "3", "--format", "json")
    printed = json.loads(result.stdout)
    jsonschema.validate(printed, read_json(SCHEMAS / "sweep-comparison-1.json"))
    assert printed["rows"] == []
    assert printed["failed"][0]["id"] == "bs3"
    assert "No configuration has a result." in (tmp_path / "r" / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("leaves_politely", "error", "the process ended with exit code 0 before it had a result (first step)"),
        ("asks_for_too_much", "out of memory", "can't allocate memory"),
        ("profiles_itself", None, "profil"),
    ],
)
def test_the_reason_of_a_failure_is_found(tmp_path: Path, target: str, kind: str | None, message: str) -> None:
    assert profile(tmp_path / "r", toy(target)).returncode == 1
    (entry,) = manifest(tmp_path / "r").entries
    assert entry.failure is not None
    assert kind is None or entry.failure.kind == kind
    assert message in entry.failure.message


# ---------------------------------------------------------------- results of earlier sweeps


def test_results_of_an_earlier_run_are_never_taken_for_new_ones(tmp_path: Path) -> None:
    directory = tmp_path / "r"
    first = profile(directory, toy("ill"), "--batch-sizes", "1", "3", "--repeat", "2", env={"TOY_CURED": "1"})
    assert first.returncode == 0, first.stderr
    refused = profile(directory, toy("ill"), "--batch-sizes", "1", "3")
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    assert "--overwrite" in refused.stderr
    second = profile(directory, toy("ill"), "--batch-sizes", "1", "3", "--overwrite")
    assert second.returncode == 1
    left = {path.name for path in directory.rglob("*") if path.is_file()}
    assert {name for name in left if "_cycle2" in name} == set()
    assert {name for name in left if "bs3" in name} == {"log_bs3.txt"}
    assert "profiling_stats_bs1.json" in left


def test_a_sweep_can_be_extended_by_other_sizes(tmp_path: Path) -> None:
    assert profile(tmp_path / "r", toy("step"), "--batch-sizes", "1").returncode == 0
    result = profile(tmp_path / "r", toy("step"), "--batch-sizes", "2", "--resume")
    assert result.returncode == 0, result.stderr
    assert [row["id"] for row in read_json(tmp_path / "r" / "comparison.json")["rows"]] == ["bs1", "bs2"]


def test_resume_notices_that_the_target_has_changed(tmp_path: Path) -> None:
    target = tmp_path / "mine.py"
    target.write_text(TOY.read_text())
    args = ["--batch-sizes", "1"]
    assert profile(tmp_path / "r", f"{target}:step", *args).returncode == 0
    assert profile(tmp_path / "r", f"{target}:step", *args, "--resume").returncode == 0
    target.write_text(TOY.read_text() + "# changed\n")
    result = profile(tmp_path / "r", f"{target}:step", *args, "--resume")
    assert result.returncode == 2
    assert f"{target} has changed since" in result.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [('"batch_size": 2', '"batch_size": 7'), ('"step_trace_bs2.json"', ""), ('"wall_ns": [', '"wall_ns": [0, ')],
)
def test_a_damaged_record_is_refused_and_leaves_no_old_report(
    tmp_path: Path, sweep: Path, before: str, after: str
) -> None:
    copy = shutil.copytree(sweep, tmp_path / "run")
    record = copy / "raw" / "capture_bs2.json"
    assert before in record.read_text()
    record.write_text(record.read_text().replace(before, after))
    result = opscope("export", "--reports", str(copy))
    assert result.returncode == 4
    assert "capture_bs2.json" in result.stderr
    assert not list(copy.glob("profiling_stats_bs2*"))
    assert not list(copy.glob("kernel_analysis_report_bs2*"))


def test_without_its_operator_table_a_run_is_read_with_the_shipped_one(tmp_path: Path, sweep: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "run")
    (table,) = (copy / "raw").glob("native_functions-*")
    table.unlink()
    assert opscope("export", "--reports", str(copy)).returncode == 0


def test_report_goes_on_after_a_damaged_configuration_and_repairs_it_later(tmp_path: Path, sweep: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "run")
    trace = copy / "step_trace_bs2.json"
    whole = trace.read_bytes()
    trace.write_bytes(whole[: len(whole) // 2])
    result = opscope("export", "--reports", str(copy))
    assert result.returncode == 4
    assert "bs2 failed: " in result.stderr
    assert [entry.status for entry in manifest(copy).entries] == ["failed", "done"]
    trace.write_bytes(whole)
    assert opscope("export", "--reports", str(copy)).returncode == 0
    assert [entry.status for entry in manifest(copy).entries] == ["done", "done"]


def test_another_environment_is_noted(tmp_path: Path, sweep: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "run")
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"torch_threads": ', '"torch_threads": 9'))
    result = opscope("profile", toy("step"), "--batch-sizes", "3", "--with-stack", "--profile-memory", "--resume",
                     "--output-dir", str(copy))  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "bs3 was measured in another environment: torch_threads " in (copy / "comparison.md").read_text()


# ---------------------------------------------------------------- several sweeps at once, progress


def test_presets_print_all_their_sweeps_as_one_document(tmp_path: Path) -> None:
    args = ["--preset", "quick", "--hidden-size", "64", "--layers", "1", "--skip-benchmark", "--active", "1"]
    result = opscope("profile", "bert", *args, "--output-dir", str(tmp_path), "--format", "json")
    assert result.returncode == 0, result.stderr
    jsonschema.validate(json.loads(result.stdout), read_json(SCHEMAS / "sweep-comparison-1.json"))
    report = opscope("export", "--reports", str(tmp_path / "quick"), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(report.stdout)))
    assert [(row["sweep"], row["batch_size"], row["device_sum_ns"]) for row in rows] == [
        (str(tmp_path / "quick"), "1", ""),
        (str(tmp_path / "quick"), "8", ""),
    ]


def test_several_sweeps_are_one_document(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [sweep, shutil.copytree(sweep, tmp_path / "other")]
    finished = [(RunDirectory(path), manifest(path)) for path in both]
    print_sweep(finished, "json")
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, read_json(SCHEMAS / "sweep-comparison-list-1.json"))
    assert printed["schema"] == "opscope.sweep-comparison-list/1"
    assert len(printed["sweeps"]) == 2


def test_a_terminal_shows_configuration_phase_and_time_left(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    sweep = ("profile", toy("step"), "--batch-sizes", "1", "2", "--output-dir", str(tmp_path / "r"))
    env = {"TERM": "xterm-256color", "COLUMNS": "150"}
    command = started(*sweep, env=env, terminal=os.ttyname(child))
    shown = bytearray()
    while b"[2/2] bs2: done (" not in shown:
        shown += os.read(parent, 1 << 16)
    assert command.finish().returncode == 0
    os.close(child)
    os.close(parent)
    text = shown.decode()
    for expected in ("time left: after the first", "s left", "[2/2] bs2: done ("):
        assert expected in text, expected
    assert re.search(r"\[1/2\] bs1: (building|first step|timing|profiling)", text)


@pytest.mark.torch
def test_reports_beside_the_next_measurement_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from opscope.sweep.plan import expand, new_manifest
    from opscope.sweep.runner import Here, Plan, Reports, run_sweep

    class Silent:
        def __init__(self) -> None:
            self.ended: list[int] = []

        def configuration(self, number: int, entry: Entry) -> None:
            pass

        def progress(self, phase: str, fraction: float, waits: str = "") -> None:
            pass

        def finished(self, number: int, entry: Entry) -> None:
            self.ended.append(number)

    options = CaptureOptions(device="cpu", schedule=Schedule(active=1), benchmark=False)
    pages = []
    for beside in (False, True):
        monkeypatch.setattr(Reports, "may_run_beside", lambda _reports, _entry, told=beside: told)
        directory = RunDirectory(tmp_path / str(beside))
        directory.create()
        observer = Silent()
        manifest = new_manifest(expand(toy("step"), {"batch_size": (1, 2, 3)}), options, ("opscope",))
        done = run_sweep(Plan(manifest, directory, Here()), observer)
        assert [entry.status for entry in done.entries] == ["done"] * 3
        assert observer.ended == [1, 2, 3]
        assert directory.read_manifest() == done
        assert all(name in done.digests for name in ("report.html", "comparison.json"))
        pages.append((tmp_path / str(beside) / "report.html").read_text())
    assert abs(len(pages[0]) - len(pages[1])) < 0.05 * len(pages[0])  # times differ, and nothing is missing
