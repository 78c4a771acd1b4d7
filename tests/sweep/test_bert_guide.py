"""Commands that users have written down, unchanged, on what ``opscope profile bert`` writes: on a CPU and an H200."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT, WITHOUT_TORCH, example, opscope
from tests.conftest import DATA

TOP_THREE = r"""
import json
with open('profiling_results/quick/profiling_stats_bs8_seq128.json') as f:
    data = json.load(f)
    for i, op in enumerate(data['top_aten_operators'][:3], 1):
        print(f'{i}. {op["name"]}')
        print(f'   {op["cuda_time_total_ms"]:.2f}ms')
        print(f'   {op["potential_cuda_file"]}')
"""
HEADINGS = r'cat profiling_results/*/kernel_analysis_report_*.md | grep "### 4\.[1-3]"'
COMPARE = r"""
import json
for cfg in ['bs1_seq128', 'bs8_seq128', 'bs16_seq128']:
    with open(f'profiling_results/full/profiling_stats_{cfg}.json') as f:
        data = json.load(f)
        print(f"{cfg}: {data['summary']['total_cuda_time_ms']:.2f}ms")
"""


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("guide")
    small = ["--hidden-size", "64", "--layers", "2", "--device", "cpu"]
    sweep = ["--batch-sizes", "1", "8", "--seq-lens", "128", "--output-dir", "profiling_results/quick"]
    result = opscope("profile", "bert", *sweep, *small, cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
@pytest.mark.torch
def test_headings_of_the_top_three_on_the_cpu(on_cpu: Path) -> None:
    result = shell(HEADINGS, on_cpu)
    assert result.returncode == 0
    # Three of each of the two reports; their pattern also finds the tenth operator, 4.10.
    top = [line for line in result.stdout.splitlines() if re.fullmatch(r"### 4\.[1-3] aten::\S+", line)]
    assert [line[:7] for line in top] == ["### 4.1", "### 4.2", "### 4.3"] * 2


@pytest.mark.torch
def test_the_statistics_name_the_same_operators_and_leave_device_times_open(on_cpu: Path) -> None:
    """Without a GPU ``cuda_time_total_ms`` is null, so their format ends there: nothing prints as 0.00ms."""
    document = json.loads((on_cpu / "profiling_results/quick/profiling_stats_bs8_seq128.json").read_text())
    headings = shell("grep -h '### 4' profiling_results/quick/*bs8_seq128.md", on_cpu).stdout
    for operator in document["top_aten_operators"][:3]:
        assert operator["name"] in headings
        assert operator["cuda_time_total_ms"] is None
        assert operator["cpu_time_total_ms"] > 0
        assert operator["native_function"]
        assert operator["source"]["basis"]
    # Nothing ran on CUDA; the files are those of the operators' functions for it, as opscope explain names them.
    files = {operator["name"]: operator["potential_cuda_file"] for operator in document["top_aten_operators"]}
    assert files["aten::addmm"] == "aten/src/ATen/native/cuda/Blas.cpp"
    result = python(TOP_THREE, on_cpu)
    assert result.stdout == f"1. {document['top_aten_operators'][0]['name']}\n"
    assert "NoneType.__format__" in result.stderr


@pytest.mark.torch
def test_resume_has_nothing_to_do_when_all_is_done(on_cpu: Path) -> None:
    small = ["--hidden-size", "64", "--layers", "2", "--device", "cpu", "--resume"]
    sweep = ["--batch-sizes", "1,8", "--seq-lens", "128", "--output-dir", "profiling_results/quick"]
    result = opscope("profile", "bert", *sweep, *small, cwd=on_cpu)
    assert result.returncode == 0, result.stderr
    assert "..." not in result.stderr
    assert "Config      Wall/step" in result.stdout


@pytest.fixture(scope="module")
def as_recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an H200 recorded, reported here from its raw files, where PyTorch cannot be imported."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in ("quick", "full"):
        target = folder / "profiling_results" / name
        shutil.copytree(DATA / "h200_bert_small", target)
        result = opscope("export", "--reports", str(target), code=WITHOUT_TORCH)
        assert result.returncode == 0, result.stderr
    return folder


def test_the_guides_commands_run_on_what_a_gpu_wrote(as_recorded: Path) -> None:
    top = python(TOP_THREE, as_recorded)
    assert top.returncode == 0, top.stderr
    assert re.fullmatch(r"(\d\. aten::\w+\n   \d+\.\d\dms\n   [\w/]+\.(cu|cpp \(calls cuBLAS\))\n){3}", top.stdout)
    # Matrix products are cuBLAS', whose source is not known: the file that calls it is. What is ATen's own is verified.
    assert "aten/src/ATen/native/cuda/layer_norm_kernel.cu" in top.stdout
    assert "aten/src/ATen/native/cuda/Blas.cpp (calls cuBLAS)" in top.stdout
    assert top.stdout.startswith("1. aten::addmm\n")
    headings = shell(HEADINGS, as_recorded)
    assert headings.returncode == 0
    assert headings.stdout.splitlines()[0] == "### 4.1 aten::addmm"
    compare = python(COMPARE, as_recorded)
    assert compare.returncode == 0, compare.stderr
    assert re.fullmatch(r"(bs(1|8|16)_seq128: \d+\.\d\dms\n){3}", compare.stdout)


def test_the_recorded_run_is_trusted_and_complete(as_recorded: Path) -> None:
    """Figures of the recorded run that its raw files allow to count by hand: see the raw trace's own events."""
    folder = as_recorded / "profiling_results" / "full"
    for name in ("bs1_seq128", "bs8_seq128", "bs16_seq128"):
        document = json.loads((folder / f"profiling_stats_{name}.json").read_text())
        assert document["trust"]["verdict"] in ("pass", "warn")
        assert document["unlinked"]["activities"] == 0
        assert sum(row["self_device_ns"] for row in document["operators"]) == sum(
            kernel["total_ns"] for kernel in document["kernels"]
        )
        assert document["summary"]["total_cuda_time_ms"] == pytest.approx(
            sum(kernel["total_ns"] for kernel in document["kernels"]) / 1e6
        )
        (device,) = document["devices"]
        parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
        assert sum(device[part] for part in parts) == device["window_ns"]
        assert document["measurement"]["event"]["median_ns"] <= document["measurement"]["wall"]["median_ns"]
        assert document["measurement"]["clocks"]["sm_mhz_median"] > 1000


def test_the_guides_scripts_take_the_guides_arguments(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for script in ("profile_bert.py", "run_comprehensive_profiling.sh"):
        command = [str(ROOT / "examples" / script)]
        if script.endswith(".py"):
            command.insert(0, sys.executable)
        result = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "Usage: opscope profile [OPTIONS] TARGET" in result.stdout


@pytest.mark.torch
def test_the_guides_script_profiles(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ["--batch-sizes", "1", "--seq-lens", "16", "--hidden-size", "32", "--layers", "1", "--skip-benchmark"]
    script = ROOT / "examples" / "profile_bert.py"
    result = example(script, *arguments, "--output-dir", "./profiling_results/quick", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "profiling_results/quick/profiling_stats_bs1_seq16.json").is_file()


@pytest.mark.torch
def test_the_toggling_example_shows_its_combinations_side_by_side() -> None:
    pytest.importorskip("torch")
    script = ROOT / "examples" / "toggle_collection.py"
    result = example(script, "--device", "cpu", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    rows = {line[:14].strip(): line[14:].split() for line in result.stdout.splitlines()[1:]}
    assert list(rows) == ["nothing", "CPU only", "CUDA only", "CPU and CUDA", "everything"]
    assert rows["nothing"][0] == rows["CUDA only"][0] == "0"
    assert int(rows["everything"][0]) > int(rows["CPU only"][0]) > 0
    assert "aten::randn" in result.stdout.splitlines()[-1]
    assert "aten::randn" not in result.stdout.splitlines()[2]
