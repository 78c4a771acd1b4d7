"""Where a measurement runs: versions, devices, settings that change results. What every collector returns."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from opscope.base.processes import cores
from opscope.knowledge.kernels.installed import build_ids, installed_torch
from opscope.machine.driver import driver_release
from opscope.record.capture import PeakMemory
from opscope.record.machine import Framework, Gpu, Machine, Rank


def describe_machine(device: torch.device) -> Machine:
    """Describe the machine that measures; GPUs and driver are left out unless the workload's device is a GPU."""
    on_gpu = device.type == "cuda"
    return Machine(
        platform=platform.platform(),
        cpu=cpu_name(),
        cpu_count=cores(),
        gpus=_gpus() if on_gpu else (),
        driver=driver_release() if on_gpu else None,
    )


def describe_framework(device: torch.device) -> Framework:
    """Describe the PyTorch that measures, for a workload on ``device``."""
    return Framework(
        python=platform.python_version(),
        torch=str(torch.__version__),
        torch_git=torch.version.git_version,
        torch_threads=torch.get_num_threads(),
        device=str(device),
        cuda=torch.version.cuda,
        cudnn=_cudnn_version(),
        triton=_installed_version("triton"),
        transformers=_installed_version("transformers"),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        cudnn_allow_tf32=torch.backends.cudnn.allow_tf32 if device.type == "cuda" else None,
        torch_libraries=_torch_libraries(),
    )


def describe_rank() -> Rank | None:
    """Return this process's place in a distributed job, from torchrun's variables; None outside of a job."""
    values = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if not values["RANK"].isdecimal() or not values["WORLD_SIZE"].isdecimal():
        return None
    local = int(values["LOCAL_RANK"]) if values["LOCAL_RANK"].isdecimal() else None
    return Rank(int(values["RANK"]), int(values["WORLD_SIZE"]), local)


def _torch_libraries() -> dict[str, str]:
    installed = installed_torch()
    return build_ids(installed.libraries) if installed else {}


def git_revision(directory: Path) -> str | None:
    """Return the commit of the working copy around a directory, with ``-dirty`` if it has changes.

    Returns:
        The commit's 40 digits; None without git, or outside of a working copy.
    """
    if shutil.which("git") is None:
        return None
    described = subprocess.run(
        ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory of tensors on the device; that of the process cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> PeakMemory:
    """Return the peak memory so far, in bytes: of the process, and of its tensors on a GPU (None on a CPU)."""
    import resource

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    if device.type != "cuda":
        return PeakMemory(None, None, resident)
    return PeakMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), resident)


def _gpus() -> tuple[Gpu, ...]:
    results = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        results.append(
            Gpu(
                index=index,
                name=properties.name,
                compute_capability=f"{properties.major}.{properties.minor}",
                multiprocessors=properties.multi_processor_count,
                memory_bytes=properties.total_memory,
            )
        )
    return tuple(results)


def cpu_name() -> str:
    """Return what the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cudnn_version() -> str | None:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return None if version is None else str(version)


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
