"""What the doctor says of machines of many kinds, from the answers that such machines give."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from opscope.documents.machine import MachineCheck, Status
from opscope.record.machine import Computed, Driver, Probes, ToolProbe, TorchProbe
from opscope.workbench.doctor import ask
from opscope.workbench.doctor.diagnose import diagnose, has_code
from tests import machines
from tests.command import opscope

CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
TORCH = TorchProbe(
    version="2.11.0+cu130", cuda="13.0", architectures=CU130, available=True, computed=(Computed(device=0),),
    nccl="2.28.9", cupti="/x/libcupti.so.13", cupti_version=130000, profiled=2,
)  # fmt: skip
NVCC = ToolProbe(path="/usr/local/cuda/bin/nvcc", version="13.0.88", tried="a program for sm_90, built and run")
BUILDS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
HEALTHY = Probes(
    cards=1, nodes=True, driver=machines.ONE, launched=(Computed(device=0),), torch=TORCH, nvcc=NVCC,
    capabilities=BUILDS, host=ToolProbe(path="/usr/bin/g++", version="13.3.0"),
    triton=ToolProbe(path="/x/triton", version="3.6.0", tried="a kernel"),
    ncu=ToolProbe(path="/usr/bin/ncu", version="2025.3.1", tried="a counter of a kernel"),
)  # fmt: skip
CPU = Probes(cards=0, nodes=False, driver=machines.NONE, torch=TorchProbe(version="2.13.0+cpu", cuda=None))


def checks(probes: Probes) -> dict[str, MachineCheck]:
    found: dict[str, MachineCheck] = {}
    for check in diagnose(probes):
        found.setdefault(check.name, check)
    return found


def problems(probes: Probes) -> list[str]:
    return [check.name for check in diagnose(probes) if check.status is Status.PROBLEM]


def on(driver: Driver, **changes: object) -> Probes:
    launched = tuple(Computed(device=device.index) for device in driver.devices)
    return replace(HEALTHY, driver=driver, launched=launched, **changes)  # type: ignore[arg-type]


def test_healthy_machines() -> None:
    assert problems(HEALTHY) == []
    assert checks(HEALTHY)["driver"].found.startswith("580.159.04, for CUDA up to 13.0")
    assert problems(on(machines.EIGHT)) == []
    assert len([name for name in checks(on(machines.EIGHT)) if name.startswith("GPU ")]) == 8
    assert problems(on(machines.MIXED)) == []  # sm_86 code runs on 8.9
    assert "slice (MIG)" in checks(on(machines.MIG))["GPU 0"].found


def test_a_machine_without_a_gpu_is_healthy_too() -> None:
    assert problems(CPU) == []
    assert checks(CPU)["driver"].status is Status.ABSENT
    assert checks(CPU)["PyTorch"].status is Status.FINE
    assert "profiler" not in checks(CPU)


def test_a_gpu_without_a_driver() -> None:
    found = checks(replace(CPU, cards=2))["driver"]
    assert found.status is Status.PROBLEM
    assert "2 NVIDIA GPUs on the bus" in found.found
    container = checks(replace(CPU, nodes=True))["driver"]
    assert "--gpus all" in (container.fix or "")


def test_a_broken_driver() -> None:
    found = checks(replace(CPU, driver=machines.BROKEN))["driver"]
    assert found.status is Status.PROBLEM
    assert "restart" in (found.fix or "")
    hidden = checks(replace(CPU, driver=machines.HIDDEN))["driver"]
    assert "CUDA_VISIBLE_DEVICES is ''" in (hidden.fix or "")


def test_pytorch_for_a_newer_cuda_than_the_driver() -> None:
    blind = replace(TORCH, available=False, computed=(), profiled=None, warning="The NVIDIA driver is too old")
    probes = on(machines.OLD, torch=blind)
    found = checks(probes)["PyTorch"]
    assert found.status is Status.PROBLEM
    assert "supports CUDA up to 12.2 only" in found.found
    assert "580.65.06" in (found.fix or "")
    assert "CUDA 12" in (found.fix or "")
    # Within a major version it runs: 12.8 on a driver of 12.2.
    same = replace(TORCH, cuda="12.8")
    assert "PyTorch" not in problems(on(machines.OLD, torch=same))


def test_pytorch_for_the_cpu_where_there_is_a_gpu() -> None:
    found = checks(replace(HEALTHY, torch=TorchProbe(version="2.13.0+cpu", cuda=None)))["PyTorch"]
    assert found.status is Status.PROBLEM
    assert "a PyTorch for CUDA 13" in (found.fix or "")
    volta = replace(machines.ONE, devices=(replace(machines.device("Tesla V100"), compute_capability="7.0"),))
    old = checks(on(volta, torch=TorchProbe(version="2.13.0+cpu", cuda=None)))["PyTorch"]
    assert "a PyTorch for CUDA 12.9" in (old.fix or "")


def test_pytorch_without_code_for_the_device() -> None:
    old = replace(TORCH, version="2.6.0+cu124", cuda="12.4", architectures=("sm_50", "sm_80", "sm_86", "sm_90"))
    blackwell = replace(
        machines.ONE,
        devices=(replace(machines.device("NVIDIA GeForce RTX 5090"), compute_capability="12.0", multiprocessors=170),),
    )
    found = checks(on(blackwell, torch=old))["PyTorch"]
    assert found.status is Status.PROBLEM
    assert "sm_120" in found.found
    assert found.fix == "install a PyTorch built with CUDA 12.8 or newer"
    volta = replace(machines.ONE, devices=(replace(machines.device("Tesla V100-SXM2-16GB"), compute_capability="7.0"),))
    fix = checks(on(volta))["PyTorch"].fix or ""
    assert "CUDA 12.9 or older" in fix


@pytest.mark.parametrize(
    ("architectures", "number", "runs"),
    [
        (("sm_86",), "8.9", True),
        (("sm_86",), "8.0", False),
        (("sm_90",), "10.0", False),
        (("compute_90",), "12.0", True),
        (("compute_90",), "8.0", False),
        (("sm_90a",), "9.0", True),
        (("sm_100a",), "10.3", False),
        (("sm_100",), "10.3", True),
        ((), "9.0", False),
    ],
)
def test_which_code_runs_where(architectures: tuple[str, ...], number: str, runs: bool) -> None:
    assert has_code(architectures, number) is runs


def test_nvcc_that_does_not_build_for_the_device() -> None:
    volta = replace(machines.ONE, devices=(replace(machines.device("Tesla V100"), compute_capability="7.0"),))
    found = checks(on(volta))["nvcc"]
    assert found.status is Status.PROBLEM
    assert found.fix == "CUDA 9.0 to 12.9 builds for Volta"


def test_nvcc_and_the_host_compiler() -> None:
    failed = replace(NVCC, error="nvcc cannot build probe.cu: #error -- unsupported GNU version!")
    newer = replace(HEALTHY, nvcc=failed, host=ToolProbe(path="/usr/bin/g++", version="16.1.0"))
    assert "gcc up to 15" in (checks(newer)["nvcc"].fix or "")
    none = replace(HEALTHY, nvcc=failed, host=ToolProbe())
    assert "install g++" in (checks(none)["nvcc"].fix or "")
    broken = replace(HEALTHY, nvcc=failed, host=ToolProbe(path="/x/g++", error="it does not run: Exec format error"))
    assert "NVCC_CCBIN" in (checks(broken)["nvcc"].fix or "")
    silent = replace(
        HEALTHY, nvcc=ToolProbe(path="/x/nvcc", error="/x/nvcc does not say what it builds for"), capabilities=()
    )
    assert checks(silent)["nvcc"].status is Status.PROBLEM
    assert checks(replace(HEALTHY, nvcc=ToolProbe()))["nvcc"].status is Status.ABSENT


def test_extensions_need_the_same_major_version() -> None:
    found = checks(replace(HEALTHY, torch=replace(TORCH, cuda="12.8")))["extensions"]
    assert found.status is Status.WARNING
    assert "extensions" not in checks(HEALTHY)


def test_a_profile_without_kernels() -> None:
    held = replace(TORCH, profiled=0, cupti_held="CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
    found = checks(replace(HEALTHY, torch=held))["profiler"]
    assert found.status is Status.PROBLEM
    assert "MULTIPLE_SUBSCRIBERS" in found.found
    injected = replace(HEALTHY, injected={"CUDA_INJECTION64_PATH": "/x.so"})
    assert [c.status for c in diagnose(injected) if c.name == "profiler"] == [Status.FINE, Status.WARNING]


def test_wrong_results_are_problems() -> None:
    assert problems(replace(HEALTHY, launched=(Computed(device=0, error="3 of 10000 numbers are wrong"),))) == ["GPU 0"]
    wrong = replace(TORCH, computed=(Computed(device=0, error="a product is wrong by 3.0e-01"),))
    assert problems(replace(HEALTHY, torch=wrong)) == ["PyTorch"]
    assert problems(replace(HEALTHY, triton=ToolProbe(error="no module"))) == ["Triton"]
    two = replace(TORCH, reduced=Computed(device=0, error="unhandled system error"))
    assert problems(replace(HEALTHY, torch=two)) == ["NCCL"]
    assert problems(replace(HEALTHY, torch=None, torch_error="ImportError: libcudart.so.12")) == ["PyTorch"]


def test_counters_that_are_not_allowed_are_a_warning_with_the_fix() -> None:
    refused = replace(HEALTHY.ncu, error="==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
    found = checks(replace(HEALTHY, ncu=refused))["ncu"]
    assert found.status is Status.WARNING
    assert "NVreg_RestrictProfilingToAdminUsers=0" in (found.fix or "")


@pytest.mark.torch
def test_the_command_tries_this_machine() -> None:
    result = opscope("doctor", "--format", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "opscope.doctor/1"
    assert result.returncode == (0 if document["works"] else 3)
    found = {check["name"]: check for check in document["checks"]}
    assert found["PyTorch"]["status"] in ("fine", "problem")


def test_every_probe_of_a_machine_with_a_gpu_is_a_module_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def run_within(command: list[str | Path], *_: object, **__: object) -> "subprocess.CompletedProcess[bytes]":
        words = [str(word) for word in command]
        started.extend(words[words.index("-m") + 1 :][:1] if "-m" in words else [])
        return subprocess.CompletedProcess(words, 1, b"", b"no GPU in this test")

    monkeypatch.setattr(ask, "run_within", run_within)
    monkeypatch.setattr(ask, "driver", lambda: machines.ONE)
    probes = ask.ask()
    assert probes.launched == (Computed(device=0, error="no GPU in this test"),)
    assert "opscope.workbench.doctor.probes.driver_launch" in started
    assert [module for module in started if importlib.util.find_spec(module) is None] == []
