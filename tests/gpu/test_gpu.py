"""What only a GPU can show: device times against PyTorch's own table, overheads, clocks, memory, toggling."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opscope
from opscope.analysis.analyzed import Analysis
from opscope.documents.findings import Rule
from opscope.documents.verdict import Verdict
from opscope.record.codec import decode
from opscope.record.configuration import Configuration
from opscope.record.sweep import Failure, Manifest
from tests.command import ROOT, toy
from tests.command import opscope as command

pytestmark = pytest.mark.gpu

WORKLOAD_SCRIPTS = ROOT / "tests" / "workloads" / "scripts"

WORKLOADS = {
    "bert fp32": Configuration("bert", axes={"batch_size": 8, "seq_len": 128}),
    "bert bf16": Configuration("bert", {"dtype": "bfloat16"}, {"batch_size": 8, "seq_len": 128}),
    "bert eager": Configuration("bert", {"attention": "eager", "layers": 3}, {"batch_size": 4, "seq_len": 128}),
    "bert simplified": Configuration("bert", {"simplified": True, "layers": 3}, {"batch_size": 4, "seq_len": 128}),
    "gpt2 training": Configuration(
        "gpt2", {"mode": "training", "dtype": "bfloat16"}, {"batch_size": 4, "seq_len": 512}
    ),
    "gpt2 fp16 training": Configuration(
        "gpt2", {"mode": "training", "dtype": "float16", "layers": 2}, {"batch_size": 2, "seq_len": 256}
    ),
    "resnet50 training": Configuration("resnet50", {"mode": "training"}, {"batch_size": 32}),
    "bert compiled": Configuration(
        "bert", {"dtype": "bfloat16", "layers": 2, "compile": True}, {"batch_size": 4, "seq_len": 128}
    ),
}


def profiled_twice(step: Callable[[], object], path: Path) -> tuple[Analysis, Any]:
    """Profile a step once; return our analysis of the trace and PyTorch's own averages of the same events."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    averages = []

    def finished(profiler: Any) -> None:
        profiler.export_chrome_trace(str(path))
        averages.append(profiler.key_averages())

    step()
    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(wait=1, warmup=2, active=2, repeat=1)
    with profile(activities=both, schedule=plan, record_shapes=True, on_trace_ready=finished) as profiler:
        for _ in range(5):
            step()
            torch.cuda.synchronize()
            profiler.step()
    return opscope.analyze(opscope.read(path)), averages[0]


def kernel_sums(analysis: Analysis) -> dict[str, tuple[int, int]]:
    """Calls and nanoseconds per kernel name, all devices together, as PyTorch's table has them."""
    sums: dict[str, tuple[int, int]] = {}
    for name, calls, total in analysis.kernels.select("name", "calls", "total_ns").rows():
        before = sums.get(name, (0, 0))
        sums[name] = (before[0] + calls, before[1] + total)
    return sums


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_figures_equal_pytorchs_own_table(name: str, tmp_path: Path) -> None:
    """Kernel sums and self device time of every operator exactly, CPU times to PyTorch's rounding."""
    import torch
    from torch.autograd import DeviceType

    from opscope.workloads.models import build_workload

    step = build_workload(WORKLOADS[name], torch.device("cuda", 0)).step
    analysis, averages = profiled_twice(step, tmp_path / "trace.json")
    on_device = [row for row in averages if row.device_type == DeviceType.CUDA and not row.is_user_annotation]
    theirs = {row.key: (row.count, round(row.self_device_time_total * 1000)) for row in on_device}
    assert kernel_sums(analysis) == theirs

    ours = {row["name"]: row for row in analysis.operators.iter_rows(named=True)}
    rows = {row.key: row for row in averages if row.device_type == DeviceType.CPU and row.key in ours}
    assert set(rows) == set(ours)
    wrong = {
        key: (ours[key]["self_device_ns"], row.self_device_time_total)
        for key, row in rows.items()
        if abs(ours[key]["self_device_ns"] - row.self_device_time_total * 1000) > 1
    }
    assert wrong == {}
    wrong = {
        key: (ours[key]["self_cpu_ns"], row.self_cpu_time_total)
        for key, row in rows.items()
        if abs(ours[key]["self_cpu_ns"] - row.self_cpu_time_total * 1000) > 50 + row.count
    }
    assert wrong == {}
    # PyTorch adds up the totals of an operator nested in itself; ours counts the outermost only.
    wrong = {
        key: (ours[key]["total_device_ns"], row.device_time_total)
        for key, row in rows.items()
        if ours[key]["total_device_ns"] > row.device_time_total * 1000 + 1
        or (ours[key]["calls"] == row.count and abs(ours[key]["total_device_ns"] - row.device_time_total * 1000) > 1)
    }
    assert wrong == {}
    assert analysis.accounting.holds
    assert analysis.accounting.unlinked_activities == 0
    assert {check.name for check in analysis.trust.checks if check.verdict is Verdict.FAIL} == set()


def test_a_sweep_measures_times_clocks_and_memory(tmp_path: Path) -> None:
    directory = tmp_path / "r"
    result = command("profile", "bert", "--layers", "2", "--batch-sizes", "1", "32", "--seq-lens", "128",
                     "--output-dir", str(directory))  # fmt: skip
    assert result.returncode == 0, result.stderr
    small, large = json.loads((directory / "comparison.json").read_text())["rows"]
    for row in (small, large):
        assert 0 < row["device_busy_ns"] <= row["device_sum_ns"] + 1e-9
        assert row["device_busy_ns"] < row["wall_ns"] * 1.1
        assert row["event_ns"] <= row["wall_ns"]
        assert row["trust"] in ("pass", "warn")
    assert large["device_sum_ns"] > small["device_sum_ns"]
    assert large["peak_memory_bytes"] > small["peak_memory_bytes"]
    assert small["launch_bound"]
    manifest = decode(directory / "manifest.json", Manifest)
    assert manifest.framework is not None
    assert manifest.framework.device == "cuda:0"
    assert manifest.machine is not None
    assert manifest.machine.driver
    assert manifest.clocks is not None
    assert 100 < manifest.clocks.sm_mhz_median <= manifest.clocks.sm_mhz_limit
    statistics = json.loads((directory / "profiling_stats_bs32_seq128.json").read_text())
    addmm = statistics["top_aten_operators"][0]
    assert addmm["name"] == "aten::addmm"
    detail = next(row["detail"] for row in statistics["operators"] if row["name"] == "aten::addmm")
    assert detail["native_function"]["cpp_function"] == "at::native::structured_addmm_out_cuda::impl"
    assert "dispatcher: RegisterCUDA" in detail["native_function"]["how"]
    assert detail["kernels"][0]["registers_per_thread"] > 0
    assert statistics["summary"]["total_cuda_time_ms"] == pytest.approx(
        sum(entry["self_cuda_time_ms"] for entry in statistics["category_statistics"])
    )


SWEEPS = {
    "bert fp32": ["bert", "--batch-sizes", "1", "4", "8", "16", "--seq-lens", "128", "256", "512"],
    "bert bf16": ["bert", "--dtype", "bf16", "--batch-sizes", "1", "4", "8", "16", "--seq-lens", "128", "256", "512"],
    "gpt2 training": ["gpt2", "--mode", "training", "--dtype", "bf16", "--batch-sizes", "1", "4", "--seq-lens", "512"],
    "resnet50 training": ["resnet50", "--mode", "training", "--batch-sizes", "8", "32"],
}


@pytest.mark.parametrize("name", list(SWEEPS))
def test_whole_sweeps_add_up(name: str, tmp_path: Path) -> None:
    """Every configuration of the full sweeps: the identity, shares of the window, sums by kernel and category."""
    directory = tmp_path / "r"
    result = command("profile", *SWEEPS[name], "--in-process", "--skip-benchmark", "--output-dir", str(directory))
    assert result.returncode == 0, result.stderr
    documents = [json.loads(path.read_text()) for path in sorted(directory.glob("profiling_stats_*.json"))]
    assert len(documents) == (12 if name.startswith("bert") else 2)
    for document in documents:
        total = document["summary"]["total_cuda_time_ms"]
        assert document["unlinked"]["activities"] == 0
        of_operators = sum(row["self_device_ns"] for row in document["operators"])
        assert of_operators == sum(kernel["total_ns"] for kernel in document["kernels"])
        assert sum(kernel["total_ns"] for kernel in document["kernels"]) / 1e6 == pytest.approx(total)
        assert sum(c["self_cuda_time_ms"] for c in document["category_statistics"]) == pytest.approx(total)
        assert sum(step["device_sum_ns"] for step in document["steps"]) / 1e6 == pytest.approx(total)
        (device,) = document["devices"]
        parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
        assert sum(device[part] for part in parts) == device["window_ns"]
        assert document["trust"]["verdict"] in ("pass", "warn")
        if "training" in name:
            assert sum(document["phases_ns"].values()) / 1e6 == pytest.approx(total)


def test_running_out_of_device_memory_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "r"
    result = command("profile", "bert", "--simplified", "--layers", "1", "--batch-sizes", "1000000", "1",
                     "--seq-lens", "128", "--skip-benchmark", "--output-dir", str(directory))  # fmt: skip
    assert result.returncode == 1
    failed, done = decode(directory / "manifest.json", Manifest).entries
    assert isinstance(failed.failure, Failure)
    assert (failed.failure.kind, done.status) == ("out of memory", "done")
    assert "CUDA out of memory" in failed.failure.message


def test_a_gpu_step_without_gpu_work_is_flagged(tmp_path: Path) -> None:
    """A workload meant for the GPU that never uses it has no device times, and the check says so."""
    directory = tmp_path / "r"
    result = command(
        "profile", toy("talkative"), "--device", "cuda", "--skip-benchmark", "--output-dir", str(directory)
    )
    assert result.returncode == 1
    assert "default: No kernel, memcpy or memset was recorded of a workload that uses a GPU" in result.stderr
    document = json.loads((directory / "profiling_stats_default.json").read_text())
    assert document["trust"]["verdict"] == "fail"
    assert document["summary"]["total_cuda_time_ms"] is None
    assert document["bound"]["kind"] == "unknown"


def test_device_activities_alone_have_no_operators_but_the_schedules_steps(tmp_path: Path) -> None:
    directory = tmp_path / "r"
    result = command("profile", toy("step"), "--batch-sizes", "256", "--device", "cuda", "--activities", "cuda",
                     "--active", "4", "--output-dir", str(directory))  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads((directory / "profiling_stats_bs256.json").read_text())
    assert document["summary"]["steps"] == 4
    assert document["operators"] == []
    assert document["summary"]["total_cuda_time_ms"] == pytest.approx(document["unlinked"]["device_ns"] / 1e6)
    assert {kernel["calls"] % 4 for kernel in document["kernels"]} == {0}


def test_host_activities_alone_have_no_device_times(tmp_path: Path) -> None:
    directory = tmp_path / "r"
    result = command("profile", toy("step"), "--batch-sizes", "256", "--device", "cuda", "--activities", "cpu",
                     "--output-dir", str(directory))  # fmt: skip
    assert result.returncode == 0, result.stderr
    summary = json.loads((directory / "profiling_stats_bs256.json").read_text())["summary"]
    assert summary["total_cuda_time_ms"] is None
    assert summary["device_times_reason"] == "CUDA activities were not collected"


@pytest.mark.parametrize(
    ("activities", "operators", "kernels"),
    [((), False, False), (("cpu",), True, False), (("cuda",), False, True), (("cpu", "cuda"), True, True)],
)
def test_the_four_combinations_of_collected_activities(
    activities: tuple[Any, ...], operators: bool, kernels: bool
) -> None:
    import torch

    with opscope.profile(device="cuda") as session:
        for _ in range(3):
            session.stop("cpu", "cuda")
            left = torch.randn(512, 512, device="cuda")
            if activities:
                session.start(*activities)
            with session.step():
                torch.relu(left @ left)
    analysis = session.run.analysis
    names = set(analysis.operators["name"])
    assert ("aten::mm" in names) == operators
    assert "aten::randn" not in names
    assert analysis.has_device_times == kernels
    if operators and kernels:
        assert analysis.accounting.unlinked_activities == 0
        assert analysis.kernels["calls"].sum() >= 6
    elif kernels:
        assert analysis.accounting.unlinked_activities == analysis.kernels["calls"].sum() >= 6


def test_a_first_use_is_named_as_such() -> None:
    """In a fresh process the first launches load their code, which is not what a launch costs."""
    import subprocess
    import sys

    code = (
        "import torch, opscope\n"
        "with opscope.profile(device='cuda') as session:\n"
        "    for _ in range(3):\n"
        "        with session.step():\n"
        "            torch.ones(512, 512, device='cuda') * 2\n"
        "check = next(c for c in session.run.analysis.trust.checks if c.name == 'cold_launches')\n"
        "print(check.verdict, [step.cold for step in session.run.analysis.steps])"
    )
    from tests.command import ROOT

    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "warn [True, False, False]"


SCRIPTS = {
    "training": """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.randn(64, 256, device="cuda")
for _ in range(STEPS):
    optimizer.zero_grad()
    net(data).square().mean().backward()
    optimizer.step()
print("whole")
""",
    "graph": """
import torch
left = torch.randn(512, 512, device="cuda")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    left @ left
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(8):
        right = torch.relu(left @ left)
for _ in range(STEPS):
    graph.replay()
torch.cuda.synchronize()
print("whole")
""",
}


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_steps_of_a_script_are_found_on_the_gpu(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[name].replace("STEPS", "3000"))
    result = command("profile", "--run-on", "--output-dir", str(tmp_path / "r"), str(script))
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    assert "Steps were found automatically" in document["capture"]["steady_state"]
    assert document["step_count"] == 3
    assert document["measurement"]["between_marks"]
    assert document["measurement"]["wall"]["count"] >= 6
    assert document["light"]["agrees"], document["light"]
    assert len(document["light"]["steps"]) == 3
    failed = {check["name"] for check in document["trust"]["checks"] if check["verdict"] == "fail"}
    # Replays that are still at work while the next step begins make shares of the window meaningless, and it says so.
    assert failed <= ({"work_outside_window"} if name == "graph" else set())
    activities = {step["activities"] for step in document["steps"]}
    assert len(activities) == 1  # every step does the same
    if name == "graph":
        assert activities.pop() % 8 == 0  # a product is one kernel or several
    assert "whole" in (tmp_path / "r" / "raw" / "log_default.txt").read_text()


def test_a_script_that_ends_soon_is_run_again_and_recorded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS["training"].replace("STEPS", "2"))
    result = command("profile", "--output-dir", str(tmp_path / "r"), str(script))
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    assert "The script was run twice: the first run was too short" in document["capture"]["steady_state"]
    assert document["kernels"]
    once = command("profile", "--once", "--output-dir", str(tmp_path / "once"), str(script))
    assert once.returncode == 2
    assert "Without --once it is run again, and recorded" in once.stderr


MEMORY_SCRIPT = """
import sys
import torch

torch.manual_seed(0)
limit, after = float(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_per_process_memory_fraction(limit)
block = lambda: torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
net = torch.nn.Sequential(*[block() for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(net.parameters())
try:
    for number in range(3000):
        rows = 1024 if number < after else 1024 * 1024
        loss = net(torch.randn(rows, 1024, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
except torch.OutOfMemoryError:
    print("too many rows")
    sys.exit(7)
print("most", torch.cuda.max_memory_allocated())
"""


def test_the_memory_of_a_scripts_steps_is_recorded_to_the_byte(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MEMORY_SCRIPT)
    arguments = ["--memory", "--run-on", "--quick", "--output-dir", str(tmp_path / "r"), str(script), "0.5", "9999"]
    result = command("profile", *arguments)
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    most = re.search(r"most (\d+)", (tmp_path / "r" / "raw" / "log_default.txt").read_text())
    assert most is not None
    memory = document["device_memory"]
    (device,) = memory["devices"]
    assert device["peak_bytes"] == int(most[1])  # every step needs the same, and no more is needed before
    owners = {one["owner"]: one["bytes"] for one in device["owners"]}
    assert sum(owners.values()) == device["peak_bytes"]
    weights = sum(4 * (1024 * 4096 * 2 + 4096 + 1024) for _ in range(6))
    assert 0 <= owners["parameters"] - weights <= 512
    assert 0 <= owners["gradients"] - weights <= 512  # the loss's own, if it still lives
    assert 2 * weights <= owners["optimizer state"] <= 2 * weights + 512 * 24  # and the numbers of steps
    most_of_them = max((one["bytes"], one["line"]) for one in device["peak"] if one["owner"] == "parameters")
    assert most_of_them == (weights, "train.py:9 (<module>)")
    made = {one["operator"] for one in device["peak"] if one["owner"] == "activations"}
    assert made >= {"aten::addmm", "aten::gelu"} or device["peak_phase"] == "in the optimizer's step"
    assert any("after the profile, of which no other figure is" in note for note in memory["notes"])
    assert "peak memory" in result.stdout
    # The profile's own steps are those without that history.
    assert document["light"]["agrees"], document["light"]


def test_running_out_of_memory_is_explained_with_the_scripts_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MEMORY_SCRIPT)
    result = command("profile", "--memory", "--output-dir", str(tmp_path / "r"), str(script), "0.05", "3")
    assert result.returncode == 7, result.stderr
    assert "GPU 0 was out of memory. A request for" in result.stderr
    assert "train.py:14 (<module>)" in result.stderr
    again = command("memory", str(tmp_path / "r"))
    assert again.returncode == 0, again.stderr
    assert "Out of memory: A request for" in again.stdout


def test_a_workloads_memory_is_recorded(tmp_path: Path) -> None:
    result = command("profile", "gpt2", "--memory", "--mode", "training", "--layers", "2", "--batch-sizes", "2",
                     "--seq-lens", "64", "--output-dir", str(tmp_path / "r"))  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "r" / "profiling_stats_bs2_seq64.json").read_text())
    (device,) = document["device_memory"]["devices"]
    assert device["peak_bytes"] == document["measurement"]["memory"]["allocated_bytes"]
    assert any(one["operator"] for one in device["peak"])


def test_a_triton_kernel_far_from_the_bytes_of_its_arguments_is_named(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = command("profile", "--output-dir", str(tmp_path / "r"), str(WORKLOAD_SCRIPTS / "own_kernel.py"), "60")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "r").glob("*trace*.json*")
    finding = next(one for one in opscope.analyze(opscope.read(path)).findings if one.rule == Rule.EXCESS_TRAFFIC)
    assert finding.title.startswith("triton::add_columns takes ")
    assert "for 768.0 MiB of arguments" in finding.title
    assert finding.saving_ns.low == 0 < finding.saving_ns.high
