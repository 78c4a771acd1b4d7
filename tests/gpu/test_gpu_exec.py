"""``opscope exec`` on a real GPU: programs whose launches, durations and ends are known."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.command import fresh_opscope
from tests.conftest import ROOT, gpu_is_missing

if reason := gpu_is_missing():
    pytest.skip(reason, allow_module_level=True)

import torch

from opscope.readers.reading import read
from opscope.trace.model import Trace
from opscope.workbench.toolchain.building import build_file
from opscope.workbench.toolchain.nvcc import BuildKind

pytestmark = pytest.mark.gpu
PROGRAMS = ROOT / "tests" / "data" / "exec" / "programs.cu"
EXAMPLE = ROOT / "examples" / "unified_memory" / "add.cu"


def _capability() -> str:
    return ".".join(map(str, torch.cuda.get_device_capability()))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("programs") / "programs"
    build_file(PROGRAMS, target, BuildKind.EXECUTABLE, [_capability()], 256)
    return target


def _exec(folder: Path, *command: str, code: int = 0) -> tuple[Trace, ...]:
    done = fresh_opscope("exec", "-o", str(folder), "--", *command)
    assert done.returncode == code, done.stdout + done.stderr
    record = json.loads((folder / "exec.json").read_text())
    assert record["exit_code"] == code
    return tuple(read(folder / "raw" / name) for name in record["recordings"])


def _kernels(trace: Trace) -> pl.DataFrame:
    return trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel")


def test_none_of_a_million_launches_is_lost(programs: Path, tmp_path: Path) -> None:
    (trace,) = _exec(tmp_path / "run", str(programs), "launches", "1000000", "0")
    assert _kernels(trace).height == 1_000_001
    assert (trace.source.dropped_records, trace.source.not_recorded) == (0, ())
    assert trace.source.size_bytes < 100 * 1_000_001
    launches = trace.launches.filter(pl.col("name").cast(pl.String) == "cudaLaunchKernel")
    assert launches.height == 1_000_001
    assert _kernels(trace).join(launches, on="correlation").height == 1_000_001


def test_the_seeds_add_in_three_launch_shapes(tmp_path: Path) -> None:
    program = tmp_path / "add"
    build_file(EXAMPLE, program, BuildKind.EXECUTABLE, [_capability()], 256)
    (trace,) = _exec(tmp_path / "run", str(program))
    shapes = _kernels(trace).group_by(pl.col("grid", "block").cast(pl.String)).len().rows()
    assert sorted(shapes) == [("1,1,1", "1,1,1", 2), ("1,1,1", "256,1,1", 2), ("4096,1,1", "256,1,1", 2)]
    moved = trace.migrations.filter(pl.col("name").cast(pl.String) == "Unified memory HtoD")
    assert moved["bytes"].sum() >= 2 * 4 * 2**20


@pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not installed")
def test_durations_are_those_of_nsight_compute(programs: Path, tmp_path: Path) -> None:
    """Of kernels that last, the shortest of three runs: others may use the GPU. It reads 0.5 to 0.8 us more of each."""
    traces = [trace for number in range(3) for trace in _exec(tmp_path / f"run{number}", str(programs), "shapes")]
    command = [
        "ncu",
        "--clock-control",
        "none",
        "--cache-control",
        "none",
        "--csv",
        "--metrics",
        "gpu__time_duration.sum",
    ]
    theirs = []
    for _ in traces:
        done = subprocess.run([*command, str(programs), "shapes"], capture_output=True, text=True, check=True)
        rows = list(csv.reader(line for line in done.stdout.splitlines() if line.startswith('"')))
        theirs.append([float(row[rows[0].index("Metric Value")].replace(",", "")) for row in rows[1:]])
    ours = [_kernels(trace).sort("start_ns")["duration_ns"].to_list() for trace in traces]
    assert len({len(one) for one in (*ours, *theirs)}) == 1
    for mine, other in zip(map(min, *ours), map(min, *theirs), strict=True):
        if other > 100_000:
            assert mine == pytest.approx(other, rel=0.02)


def test_a_captured_graph(programs: Path, tmp_path: Path) -> None:
    (trace,) = _exec(tmp_path / "run", str(programs), "graph")
    nodes = _kernels(trace).filter(pl.col("graph_node_id").is_not_null())
    assert nodes.group_by(pl.col("name").cast(pl.String)).len().sort("name").rows() == [
        ("one(float*)", 5),
        ("two(float*, int)", 5),
    ]
    assert nodes["correlation"].n_unique() == 5


@pytest.mark.parametrize(("end", "code"), [("abort", 134), ("kill", 137), ("_exit", 3)])
def test_what_was_flushed_outlives_the_program(programs: Path, tmp_path: Path, end: str, code: int) -> None:
    (trace,) = _exec(tmp_path / "run", str(programs), end, code=code)
    assert _kernels(trace).height == 1_000  # ten more came after the last flush
    assert "without a last flush" in trace.source.not_recorded[0]


def test_two_processes_and_their_ranks(programs: Path, tmp_path: Path) -> None:
    script = f"RANK=0 WORLD_SIZE=2 {programs} graph & RANK=1 WORLD_SIZE=2 {programs} shapes; wait"
    traces = _exec(tmp_path / "run", "sh", "-c", script)
    ranks = {json.loads(trace.source.metadata["distributedInfo"])["rank"]: _kernels(trace).height for trace in traces}
    assert ranks == {0: 10, 1: 20}
    exported = fresh_opscope("export", str(tmp_path / "run"), "--chrome", str(tmp_path / "both.json"))
    assert exported.returncode == 0
    assert _kernels(read(tmp_path / "both.json")).height == 30


_TORCH = """
import sys, torch
from torch.profiler import profile, ProfilerActivity
def work():
    x = torch.randn(512, 512, device="cuda")
    for _ in range(20):
        x = torch.relu(x @ x) / 600
    torch.cuda.synchronize()
work()
if "profiled" in sys.argv:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
    found.export_chrome_trace(sys.argv[-1])
else:
    work()
"""


def test_pytorch_by_the_collector_and_by_torch_profiler_in_turn(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(_TORCH)
    (ours,) = _exec(tmp_path / "run", sys.executable, str(script))
    subprocess.run([sys.executable, str(script), "profiled", str(tmp_path / "trace.json")], check=True)
    theirs = read(tmp_path / "trace.json")
    names = pl.col("name").cast(pl.String)
    second = _kernels(ours).sort("start_ns").tail(_kernels(theirs).height)
    assert (
        second.group_by(names).len().sort("name").rows() == _kernels(theirs).group_by(names).len().sort("name").rows()
    )
    mine, other = (int(table["duration_ns"].sum()) for table in (second, _kernels(theirs)))
    assert mine == pytest.approx(other, rel=0.1)  # a few microseconds each, from run to run


def test_torch_profiler_in_the_program_keeps_its_results(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(_TORCH)
    (ours,) = _exec(tmp_path / "run", sys.executable, str(script), "profiled", str(tmp_path / "within.json"))
    subprocess.run([sys.executable, str(script), "profiled", str(tmp_path / "alone.json")], check=True)
    within, alone = read(tmp_path / "within.json"), read(tmp_path / "alone.json")
    assert _kernels(within).height == _kernels(alone).height > 0
    assert within.launches.height > 0
    assert ours.source.not_recorded[0].startswith("torch.profiler (libtorch_cpu.so) began to use CUPTI ")
    assert _kernels(ours).height == _kernels(alone).height  # the first half of the program


def test_ranges_of_pytorch(tmp_path: Path) -> None:
    script = tmp_path / "ranges.py"
    script.write_text(
        "import torch\n"
        "x = torch.randn(64, 64, device='cuda')\n"
        "for _ in range(5):\n"
        "    with torch.cuda.nvtx.range('step'):\n"
        "        y = x @ x\n"
        "torch.cuda.synchronize()\n"
    )
    (trace,) = _exec(tmp_path / "run", sys.executable, str(script))
    steps = trace.annotations.filter(pl.col("name").cast(pl.String) == "step")
    assert steps.height == 5
    assert (steps["duration_ns"] > 0).all()
