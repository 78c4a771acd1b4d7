"""Tries everything on this machine at once, each thing in a separate process."""

import importlib.metadata
import importlib.util
import os
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from opscope.base.errors import EnvironmentLacksError, OpscopeError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.base.text import lazy_pattern
from opscope.machine.driver import driver
from opscope.machine.programs import find_program, host_compiler, version_text
from opscope.record.machine import Computed, Driver, Probes, ToolProbe, TorchProbe
from opscope.workbench.toolchain import nvcc

T = TypeVar("T")
_SECONDS: Final = 90  # the most for each probe
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # of PCI: the vendor's number, and how classes of display controllers begin
_DEVICES: Final = Path("/sys/bus/pci/devices")
_INJECTIONS: Final = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")
_VERSION: Final = lazy_pattern(r"(\d+\.\d+(?:\.\d+)*)")
_COUNTER: Final = "smsp__cycles_active.avg"
# A program that exits with 0 if its result is right, and otherwise prints what is wrong.
_SOURCE: Final = """
#include <cstdio>
__global__ void probe(int* out) { out[threadIdx.x] = threadIdx.x * 2 + 1; }
int main() {
    int* device; int host[64];
    if (cudaError_t e = cudaMalloc(&device, sizeof(host))) { printf("%s\\n", cudaGetErrorString(e)); return 1; }
    probe<<<1, 64>>>(device);
    if (cudaError_t e = cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost)) {
        printf("%s\\n", cudaGetErrorString(e)); return 1;
    }
    for (int i = 0; i < 64; ++i) if (host[i] != i * 2 + 1) { printf("a result is wrong\\n"); return 1; }
    return 0;
}
"""


class _ProbeFailedError(Exception):
    """A probe failed, did not answer in time, or its answer cannot be read."""


def ask() -> Probes:
    """Try everything on this machine; what fails is part of the answer."""
    # Threads only wait for processes. Works that need the driver's answer wait for its future; it is submitted first.
    with ThreadPoolExecutor() as pool:
        drivers = pool.submit(driver)
        launched = pool.submit(_launched, drivers)
        pytorch = pool.submit(_probe, "pytorch", TorchProbe) if _has("torch") else None
        triton = pool.submit(_probe, "triton", ToolProbe) if _has("torch") and _has("triton") else None
        built = pool.submit(_nvcc, drivers)
        counters = pool.submit(_ncu, drivers)
        torch_probe, torch_error = _answer(pytorch)
        triton_probe, triton_error = _answer(triton)
        compiler, capabilities = built.result()
        return Probes(
            cards=_cards(),
            nodes=Path("/dev/nvidia0").exists() or Path("/dev/nvidiactl").exists(),
            driver=drivers.result(),
            launched=launched.result(),
            torch=torch_probe,
            torch_error=torch_error,
            nvcc=compiler,
            capabilities=capabilities,
            host=_host(),
            triton=triton_probe or ToolProbe(error=triton_error),
            ncu=counters.result(),
            nsys=_program("nsys"),
            vllm=_installed("vllm"),
            injected={name: os.environ[name] for name in _INJECTIONS if os.environ.get(name)},
        )


def _launched(drivers: "Future[Driver]") -> tuple[Computed, ...]:
    """Launch a kernel of our own on every GPU that the driver lists."""
    devices = drivers.result().devices
    if not devices:
        return ()
    try:
        return _probe("driver_launch", tuple[Computed, ...])
    except _ProbeFailedError as error:
        return tuple(Computed(device=device.index, error=str(error)) for device in devices)


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probe(name: str, kind: type[T]) -> T:
    command = own_process(f"opscope.workbench.doctor.probes.{name}")
    try:
        done = run_within(command, _SECONDS, environment=own_environment())
    except subprocess.TimeoutExpired as error:
        raise _ProbeFailedError(f"it did not answer within {_SECONDS} s") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise _ProbeFailedError(f"{lines[-1][:300]}" if lines else f"it ended with exit code {done.returncode}")
    try:
        return msgspec.json.decode(done.stdout, type=kind)
    except msgspec.MsgspecError as error:
        raise _ProbeFailedError(f"it answers something else: {done.stdout[:100]!r}") from error


def _answer(future: "Future[T] | None") -> tuple[T, None] | tuple[None, str | None]:
    if future is None:
        return None, None
    try:
        return future.result(), None
    except _ProbeFailedError as error:
        return None, str(error)


def _cards() -> int:
    """Count NVIDIA's display controllers on the PCI bus."""
    result = 0
    for device in _DEVICES.glob("*") if _DEVICES.is_dir() else ():
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        result += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return result


def _nvcc(drivers: "Future[Driver]") -> tuple[ToolProbe, tuple[str, ...]]:
    """Build a program with nvcc, and run it if there is a GPU that it was built for.

    Returns:
        What came of it, and the compute capabilities that nvcc builds for (none if it is missing or does not run).
    """
    try:
        compiler = nvcc.installed()
    except EnvironmentLacksError as lacking:
        path = find_program("nvcc")
        return ToolProbe() if path is None else ToolProbe(path=str(path), error=str(lacking)), ()
    here = [device.compute_capability for device in drivers.result().devices]
    fitting = [number for number in dict.fromkeys(here) if number in compiler.capabilities]
    targets = fitting or list(compiler.capabilities[-1:])  # without a GPU that fits, the newest: it is only built
    tried = f"a program for sm_{targets[0].replace('.', '')}, built" + (" and run" if fitting else "")
    error = None
    with scratch() as folder:
        source, output = folder / "probe.cu", folder / "probe"
        source.write_text(_SOURCE)
        try:
            nvcc.compile_file(source, output, nvcc.BuildKind.EXECUTABLE, targets)
            error = _run_failed([output]) if fitting else None
        except OpscopeError as failure:
            error = str(failure)
    return ToolProbe(path=str(compiler.path), version=compiler.version, error=error, tried=tried), compiler.capabilities


def _run_failed(command: "list[Path | str]") -> str | None:
    """Run a program; return the last line that it printed if it failed, None if it did not."""
    try:
        done = run_within(command, _SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"it ended with exit code {done.returncode}"


def _ncu(drivers: "Future[Driver]") -> ToolProbe:
    """Read a counter of the kernel that ``probes.driver_launch`` runs."""
    result = _program("ncu")
    if result.path is None or not drivers.result().devices:
        return result
    probe = own_process("opscope.workbench.doctor.probes.driver_launch")
    command = [result.path, "--metrics", _COUNTER, "--csv", *probe]
    try:
        done = run_within(command, _SECONDS, environment=own_environment())
    except (OSError, subprocess.TimeoutExpired) as error:
        return _failed(result, str(error))
    lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
    refused = next((line.strip() for line in lines if "ERR_NV" in line or "==ERROR==" in line), None)
    if refused is None and not any(_COUNTER in line and "opscope_probe" in line for line in lines):
        refused = "it read no counter"
    return ToolProbe(path=result.path, version=result.version, error=refused, tried="a counter of a kernel")


def _failed(result: ToolProbe, error: str) -> ToolProbe:
    return ToolProbe(path=result.path, version=result.version, error=error, tried="a counter of a kernel")


def _program(name: str) -> ToolProbe:
    path = find_program(name)
    if path is None:
        return ToolProbe()
    try:
        version = _VERSION.search(version_text(path))
    except (OSError, subprocess.SubprocessError) as error:
        return ToolProbe(path=str(path), error=f"it does not run: {error}")
    return ToolProbe(path=str(path), version=version[1] if version else None)


def _host() -> ToolProbe:
    path = host_compiler()
    if path is None:
        return ToolProbe()
    try:
        done = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return ToolProbe(path=path, error=f"it does not run: {error}")
    return ToolProbe(path=path, version=done.stdout.strip() or None)
