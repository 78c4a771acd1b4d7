"""Where kernels come from and what counters say of them, on a machine with a GPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opscope.knowledge.counted_work import WORK_METRICS
from tests.command import opscope as command

pytestmark = pytest.mark.gpu


def test_the_installed_library_and_the_shipped_index_agree() -> None:
    """On every kernel of the installed PyTorch, where its exact build is shipped."""
    from opscope.base.demangle import demangler
    from opscope.knowledge.binaries.registrations import read_cuda_library
    from opscope.knowledge.kernels.index import shipped_index, shipped_names
    from opscope.knowledge.kernels.installed import installed_torch, torch_index
    from opscope.knowledge.kernels.kernel_source import SourceResolver
    from opscope.knowledge.native_functions import TorchVersion

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
    result = command("explain", "--in", str(run), "--top", "3", "--counters", "--format", "json")
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


KNOWN = """
import torch
half, full = (torch.randn(1024, 1024, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
double = full.double()
torch.backends.cuda.matmul.allow_tf32 = True
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
half @ half
full @ full
full * full
double * double
half.half()
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


@pytest.mark.parametrize(
    "asked", [("--metrics", ",".join(("gpu__time_duration.sum", *WORK_METRICS))), ("--set", "roofline")]
)
def test_operations_are_counted_as_they_are_known(tmp_path: Path, asked: tuple[str, str]) -> None:
    """Products of matrices do 2 x M x N x K operations on the unit of their precision, others one an element."""
    if shutil.which("ncu") is None:
        pytest.skip("ncu is not installed")
    program, table = tmp_path / "known.py", tmp_path / "known.csv"
    program.write_text(KNOWN)
    ncu = ("ncu", "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off", *asked)
    subprocess.run([*ncu, "--log-file", str(table), sys.executable, str(program)], check=True, timeout=300)
    found = command("analyze", str(table), "--format", "json")
    assert found.returncode == 0, found.stderr
    kernels = json.loads(found.stdout)["kernels"]
    assert {tuple(row["not_counted"]) for row in kernels} == {()}
    works = [row["work"] for row in kernels]
    for unit, operations in (("bf16", 2 * 1024**3), ("tf32", 2 * 1024**3), ("fp32", 1024**2), ("fp64", 1024**2)):
        # A rate per cycle is printed with two digits after the point.
        assert any(work["operations_by_unit"].get(unit) == pytest.approx(operations, rel=0.02) for work in works), (
            unit,
            [work["operations_by_unit"] for work in works],
        )
    # Both factors are one matrix, which is read once; how much of the product leaves the cache is open.
    (doubles,) = (work for work in works if "fp64" in work["operations_by_unit"])
    assert 0.98 * 8 * 1024**2 < doubles["dram_bytes"] < 1.05 * 16 * 1024**2
    assert all(work["ideal_ns"] is not None for work in works)


def profile_small(folder: Path) -> Path:
    run = folder / "run"
    sizes = ["--hidden-size", "256", "--layers", "2", "--batch-sizes", "8", "--seq-lens", "128"]
    result = command("profile", "bert", *sizes, "--skip-benchmark", "--output-dir", str(run))
    assert result.returncode == 0, result.stderr
    return run
