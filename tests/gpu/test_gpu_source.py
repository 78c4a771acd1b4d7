"""Where kernels come from and what counters say of them, on a machine with a GPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opscope.knowledge.counted_operations import OPERATION_METRICS
from tests.command import opscope as command

pytestmark = pytest.mark.gpu


def test_the_installed_library_and_the_shipped_index_agree() -> None:
    """On every kernel of the installed PyTorch, where its exact build is shipped."""
    from opscope.knowledge.binaries.demangle import demangler
    from opscope.knowledge.binaries.registrations import read_cuda_library
    from opscope.knowledge.kernels.installed import installed_torch, torch_index
    from opscope.knowledge.kernels.kernel_source import SourceResolver
    from opscope.knowledge.kernels.shipped import shipped_index, shipped_names
    from opscope.knowledge.releases import TorchVersion

    installed = installed_torch()
    assert installed is not None
    if installed.version not in shipped_names():
        pytest.skip(f"no index of exactly PyTorch {installed.version} is shipped")
    indexes = torch_index(installed)
    found = {name: build_id for index in indexes for name, build_id in index.build_ids.items()}
    shipped_ids = dict(shipped_index(installed.version).build_ids)
    # An image may add libraries that the release's wheel has not (libtorch_nvshmem.so); what both have is the same.
    assert shipped_ids
    assert {name: found.get(name) for name in shipped_ids} == shipped_ids
    version = TorchVersion.parse(installed.version)
    here, shipped = SourceResolver(version, installed.git, indexes), SourceResolver(version)
    demangle = demangler()
    both = [path for path in installed.libraries if path.name in shipped_ids]
    names = {demangle(kernel.name) for path in both for kernel in read_cuda_library(path).kernels}
    assert len(names) > 15_000
    for name in names:
        one, other = here.resolve(name), shipped.resolve(name)
        assert (one.how, one.file, set(one.candidates)) == (other.how, other.file, set(other.candidates)), name


def test_kernels_of_a_run_are_verified_and_operators_have_findings(tmp_path: Path) -> None:
    run = profile_small(tmp_path)
    statistics = json.loads((run / "profiling_stats_bs8_seq128.json").read_text())
    kernels = [k for k in statistics["kernels"] if k["kind"] == "kernel"]
    aten = [k for k in kernels if k["library"] is None]
    assert aten
    assert {k["source_how"] for k in aten} == {"verified"}
    assert (
        sum(row["detail"] is not None and row["detail"]["findings"] is not None for row in statistics["operators"]) == 3
    )
    top = statistics["operators"][0]
    source = top["detail"]["source"]
    assert source["library"] or source["how"] == "verified"  # of a library's kernels, the file that calls it is likely
    assert json.loads((run / "manifest.json").read_text())["framework"]["torch_libraries"]


def test_counters_of_the_most_expensive_operators(tmp_path: Path) -> None:
    if shutil.which("ncu") is None:
        pytest.skip("ncu is not installed")
    run = profile_small(tmp_path)
    result = command("dossier", str(run), "--top", "3", "--counters", "--format", "json")
    assert result.returncode == 0, result.stderr
    for dossier in json.loads(result.stdout)["operators"]:
        findings = dossier["findings"]
        assert findings["counters_reason"] is None, (dossier["explanation"]["name"], findings["counters_reason"])
        for counters in findings["counters"]:
            assert counters["duration_ns"] > 0
            assert 0 < counters["achieved_occupancy_percent"] <= 100
            assert 0 < counters["threads_per_instruction"] <= 32
            assert counters["stalls"]
            assert counters["operations_not_counted"] == []
        assert any(statement["basis"] == "measured" for statement in findings["memory_access"])


def test_operations_are_counted_as_they_are_known(tmp_path: Path) -> None:
    """Products of matrices do 2 x M x N x K operations on the unit of their precision, others one an element."""
    if shutil.which("ncu") is None:
        pytest.skip("ncu is not installed")
    program = tmp_path / "known.py"
    program.write_text(
        "import torch\n"
        "half, full = (torch.randn(1024, 1024, device='cuda', dtype=t) for t in (torch.bfloat16, torch.float32))\n"
        "double = full.double()\n"
        "half @ half; full * full; double * double\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
        "full @ full\n"
        "torch.cuda.synchronize()\n"
    )
    metrics = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", *OPERATION_METRICS)
    table = tmp_path / "known.csv"
    ncu = ("ncu", "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics))
    subprocess.run([*ncu, "--log-file", str(table), sys.executable, str(program)], check=True, timeout=300)
    found = command("analyze", str(table), "--format", "json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["not_counted"] == []
    counted = [row["operations_by_unit"] for row in document["kernels"]]
    for unit in ("bf16", "tf32"):
        assert [row[unit] for row in counted if unit in row] == [2 * 1024**3]
    # One multiplication an element, of float32 and of float64.
    assert {"fp32": 1024**2} in counted
    assert {"fp64": 1024**2} in counted
    roofline = tmp_path / "roofline.csv"
    ncu = (
        "ncu",
        "--csv",
        "--page",
        "raw",
        "--set",
        "roofline",
        "--metrics",
        "dram__bytes_read.sum,dram__bytes_write.sum",
    )
    subprocess.run([*ncu, "--log-file", str(roofline), sys.executable, str(program)], check=True, timeout=300)
    rates = json.loads(command("analyze", str(roofline), "--format", "json").stdout)
    assert rates["not_counted"] == []
    of_rates = [row["operations_by_unit"].get("bf16") for row in rates["kernels"]]
    assert [one for one in of_rates if one] == [pytest.approx(2 * 1024**3, rel=0.02)]


def profile_small(folder: Path) -> Path:
    run = folder / "run"
    sizes = ["--hidden-size", "256", "--layers", "2", "--batch-sizes", "8", "--seq-lens", "128"]
    result = command("profile", "bert", *sizes, "--skip-benchmark", "--output-dir", str(run))
    assert result.returncode == 0, result.stderr
    return run
