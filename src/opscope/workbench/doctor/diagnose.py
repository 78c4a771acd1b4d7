"""Draws the conclusions from a machine's answers: one function per check. Nothing is probed here."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from opscope.documents.machine import MachineCheck, Status
from opscope.knowledge.devices import (
    capability_of,
    compute_capabilities,
    first_driver,
    runs_on,
    sm_of,
    toolkit_of,
    version_of,
)
from opscope.record.machine import Computed, DriverDevice, Probes, ToolProbe, TorchProbe

_COUNTERS: Final = (
    "run as root, or let all users read counters: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
    "/etc/modprobe.d, and load the driver anew; in a container: --cap-add=SYS_ADMIN"
)


def _problem(name: str, result: str, fix: str | None = None) -> MachineCheck:
    return MachineCheck(name=name, status=Status.PROBLEM, found=result, fix=fix)


def _fine(name: str, result: str) -> MachineCheck:
    return MachineCheck(name=name, status=Status.FINE, found=result)


def diagnose(probes: Probes) -> tuple[MachineCheck, ...]:
    """Return all checks, in an order in which each thing comes after what it builds on."""
    return tuple(check for rule in _RULES for check in rule(probes))


def _driver(probes: Probes) -> Iterator[MachineCheck]:
    driver = probes.driver
    if driver.devices:
        result = f"{driver.release or 'of unknown version'}, for CUDA up to {driver.cuda} ({driver.library})"
        yield _fine("driver", result)
        return
    # A card on the bus or a device file without a driver's library is a problem; a machine without either is not.
    there = probes.cards or probes.nodes
    if driver.library is None and not there:
        yield MachineCheck(name="driver", status=Status.ABSENT, found="no NVIDIA GPU and no driver")
    elif driver.library is None:
        what = f"{probes.cards} NVIDIA GPUs on the bus" if probes.cards else "the device files of the kernel's module"
        fix = "install NVIDIA's driver; in a container, start it with the GPUs (docker run --gpus all)"
        yield _problem("driver", f"{what}, but no libcuda", fix)
    else:
        yield _problem("driver", driver.error or "it lists no GPU", _driver_fix(probes))


def _driver_fix(probes: Probes) -> str:
    driver, error = probes.driver, probes.driver.error or ""
    # The numbers are those of CUresult: 100 no device, 802 system not ready, 803 system driver mismatch.
    if driver.visible is not None and (not error or "error 100" in error):
        return f"CUDA_VISIBLE_DEVICES is {driver.visible!r}: unset it"
    if "error 803" in error:
        return "the library and the kernel's module are of different drivers: restart after installing a driver"
    if "error 100" in error:
        return "no GPU is visible: nvidia-smi lists those that the module sees; CUDA_VISIBLE_DEVICES may hide them"
    if "error 802" in error:
        return "the NVLink fabric is not ready: start nvidia-fabricmanager"
    return "nvidia-smi and the kernel's log (dmesg) say more"


def _gpus(probes: Probes) -> Iterator[MachineCheck]:
    failed = {one.device: one.error for one in probes.launched if one.error is not None}
    for device in probes.driver.devices:
        name, result = f"GPU {device.index}", _described(device)
        error = failed.get(device.index)
        if error is not None:
            yield _problem(name, f"{result}: {error}", "nvidia-smi and dmesg say more")
        elif device.index not in {one.device for one in probes.launched}:
            yield _problem(name, f"{result}: no kernel could be tried on it", "nvidia-smi and dmesg say more")
        else:
            yield _fine(name, f"{result}; a kernel's result is right")


def _described(device: DriverDevice) -> str:
    part = ", a slice (MIG)" if device.is_slice else ""
    return f"{device.name}, compute capability {device.compute_capability}{part}"


def _pytorch(probes: Probes) -> Iterator[MachineCheck]:
    torch = probes.torch
    if torch is None and probes.torch_error is None:
        fix = "pip install torch, to profile and to benchmark; traces are analysed without it"
        yield MachineCheck(name="PyTorch", status=Status.ABSENT, found="not installed", fix=fix)
        return
    if torch is None:
        yield MachineCheck(
            name="PyTorch",
            status=Status.PROBLEM,
            found=f"it cannot be used: {probes.torch_error}",
            fix="install it anew",
        )
        return
    runtime = f" (runtime {torch.runtime})" if torch.runtime else ""
    built = "for the CPU"
    if torch.cuda or torch.hip:
        built = f"for CUDA {torch.cuda}{runtime}" if torch.cuda else f"for ROCm {torch.hip}"
    result = f"{torch.version}, {built}"
    problem = _why_no_gpu(probes, torch)
    if problem is not None:
        yield _problem("PyTorch", f"{result}: {problem[0]}", problem[1])
        return
    yield from _without_code(probes, torch, result)


def _why_no_gpu(probes: Probes, torch: TorchProbe) -> tuple[str, str] | None:
    """Return why PyTorch sees no GPU although the driver does, and what to do; None if there is no such problem."""
    driver = probes.driver
    if not driver.devices or torch.available:
        return None
    newest = f"a PyTorch for CUDA {_newest_cuda(probes)} (pytorch.org has the command)"
    if torch.cuda is None:
        return "the GPUs here are not used by it", f"install {newest}"
    if driver.cuda is not None and not runs_on(torch.cuda, driver.cuda):
        least = first_driver(torch.cuda)
        newer = f"a driver from {least} on" if least else "a newer driver"
        return f"driver {driver.release} supports CUDA up to {driver.cuda} only", f"install {newer}, or {newest}"
    return f"it sees no GPU ({torch.warning or 'without a word'})", "the driver's checks above may say why"


def _newest_cuda(probes: Probes) -> str:
    """Return the newest major version of CUDA that the driver and all devices support."""
    supported = [(probes.driver.cuda or "?").split(".")[0]]
    known = (compute_capabilities().get(device.compute_capability) for device in probes.driver.devices)
    ended = [one.cuda_max for one in known if one is not None and one.cuda_max is not None]
    # CUDA has ended support for some devices: the one whose support ended first limits the version.
    oldest = min(ended, key=version_of, default=None)
    if oldest is not None and version_of(oldest)[:1] < version_of(supported[0]):
        return oldest
    return supported[0]


def _without_code(probes: Probes, torch: TorchProbe, result: str) -> Iterator[MachineCheck]:
    lacking = [
        d
        for d in probes.driver.devices
        if torch.architectures and not has_code(torch.architectures, d.compute_capability)
    ]
    failed = [one for one in torch.computed if one.error is not None]
    if lacking:
        names = ", ".join(dict.fromkeys(f"{d.name} ({sm_of(d.compute_capability)})" for d in lacking))
        has = ", ".join(torch.architectures)
        yield MachineCheck(
            name="PyTorch", status=Status.PROBLEM, found=f"{result}: it has no code for {names}; it has {has}",
            fix=_other_build(lacking[0].compute_capability),
        )  # fmt: skip
    elif failed:
        yield _of_failed("PyTorch", f"{result}: a product on GPU", failed)
    elif torch.computed:
        right = "products are right on every GPU"
        yield _fine("PyTorch", f"{result}; {right}")
    else:
        yield _fine("PyTorch", result)


def _of_failed(name: str, what: str, failed: Sequence[Computed]) -> MachineCheck:
    failures = "; ".join(f"{one.device}: {one.error}" for one in failed)
    return _problem(name, f"{what} {failures}", "nvidia-smi and dmesg say more")


def _other_build(number: str) -> str:
    known = compute_capabilities().get(number)
    if known is None:
        return "a newer PyTorch may have it"
    if known.cuda_max is not None:
        return f"install a PyTorch built with CUDA {known.cuda_max} or older: newer ones have no {known.architecture}"
    return f"install a PyTorch built with CUDA {known.cuda_min} or newer"


def has_code(architectures: Sequence[str], number: str) -> bool:
    """Tell whether code for any of some architectures runs on a compute capability.

    Machine code runs on its own and later minor versions of the same major version, with the letter ``a`` on its own
    version only. PTX runs on all later versions (CUDA C++ Programming Guide, "Application Compatibility").

    Args:
        architectures: ``sm_90``, ``sm_90a``, ``compute_90``.
        number: the compute capability, ``9.0``.
    """
    wanted = version_of(number)
    for one in architectures:
        result = capability_of(one)
        if result is None:
            continue
        have = version_of(result)
        if one[-1] == "a":
            fits = have == wanted
        elif one.startswith("compute_"):
            fits = have <= wanted
        else:
            fits = have[0] == wanted[0] and have <= wanted
        if fits:
            return True
    return False


def _profiler(probes: Probes) -> Iterator[MachineCheck]:
    torch = probes.torch
    if torch is None or not torch.available:
        return
    place = f"CUPTI {torch.cupti_version} ({torch.cupti})" if torch.cupti else "no CUPTI was loaded"
    if torch.profiled:
        yield MachineCheck(
            name="profiler", status=Status.FINE, found=f"{torch.profiled} activities in a short profile; {place}"
        )
    else:
        why = torch.profile_error or "a short profile has no kernels"
        held = f"; CUPTI refuses: {torch.cupti_held}" if torch.cupti_held else ""
        fix = "another profiler may hold CUPTI: end it (nsys, ncu, dcgm), and unset CUDA_INJECTION64_PATH"
        yield _problem("profiler", f"{why}; {place}{held}", fix)
    for name, value in probes.injected.items():
        if name != "LD_PRELOAD":
            fix = f"unset {name}"
            result = f"{name} loads {value} into every program: it may take CUPTI for itself"
            yield MachineCheck(name="profiler", status=Status.WARNING, found=result, fix=fix)


def _nvcc(probes: Probes) -> Iterator[MachineCheck]:
    tool = probes.nvcc
    if tool.path is None:
        fix = "pip install 'opscope[cuda]', or a CUDA toolkit, to build kernels"
        yield MachineCheck(name="nvcc", status=Status.ABSENT, found="not installed", fix=fix)
        return
    result = f"{tool.version} ({tool.path}), host compiler {_host(probes)}"
    lacking = [d for d in probes.driver.devices if d.compute_capability not in probes.capabilities]
    if not probes.capabilities:
        yield _problem("nvcc", tool.error or f"{tool.path} does not work", "another nvcc, by CUDA_HOME or the path")
    elif lacking:
        device = lacking[0]
        yield MachineCheck(
            name="nvcc", status=Status.PROBLEM, found=f"{result}: it does not build for {_described(device)}",
            fix=_other_toolkit(device.compute_capability),
        )  # fmt: skip
    elif tool.error is not None:
        yield _problem("nvcc", f"{result}: {tool.error}", _nvcc_fix(probes))
    else:
        yield _fine("nvcc", f"{result}; {tool.tried or 'nothing was tried'}")
    yield from _mismatch(probes)


def _other_toolkit(number: str) -> str:
    known = compute_capabilities().get(number)
    if known is None:
        return "a newer CUDA toolkit may"
    return f"{known.toolkits} builds for {known.architecture}"


def _host(probes: Probes) -> str:
    if probes.host.path is None:
        return "missing"
    return f"{probes.host.version or probes.host.error or 'of unknown version'} ({probes.host.path})"


def _nvcc_fix(probes: Probes) -> str:
    tool, driver = probes.nvcc, probes.driver
    if probes.host.path is None or probes.host.error is not None:
        return "install g++, or set NVCC_CCBIN to one that works"
    known = toolkit_of(tool.version or "")
    if known is not None and version_of(probes.host.version or "")[:1] > (known.gcc,):
        return f"CUDA {known.version} takes gcc up to {known.gcc}: install that, and set NVCC_CCBIN to its g++"
    if driver.cuda is not None and tool.version is not None and not runs_on(tool.version, driver.cuda):
        return f"driver {driver.release} supports CUDA up to {driver.cuda}: a newer driver, or an older toolkit"
    if "(CUDA error" in (tool.error or "") or "driver" in (tool.error or ""):
        return "the driver's checks above may say why"
    return "the compiler's own words say what is wrong"


def _mismatch(probes: Probes) -> Iterator[MachineCheck]:
    """Warn that PyTorch refuses to build extensions if its CUDA and nvcc differ in their major version."""
    torch, tool = probes.torch, probes.nvcc
    if torch is None or torch.cuda is None or tool.version is None:
        return
    if version_of(torch.cuda)[:1] != version_of(tool.version)[:1]:
        yield MachineCheck(
            name="extensions", status=Status.WARNING,
            found=f"PyTorch is built with CUDA {torch.cuda}, nvcc is {tool.version}: PyTorch refuses to build with it",
            fix=f"a toolkit of CUDA {torch.cuda.split('.')[0]}, named by CUDA_HOME",
        )  # fmt: skip


def _triton(probes: Probes) -> Iterator[MachineCheck]:
    tool = probes.triton
    if tool.path is None and tool.error is None:
        yield MachineCheck(
            name="Triton", status=Status.ABSENT, found="not installed", fix="torch.compile needs it on a GPU"
        )
    elif tool.error is not None:
        fix = "reinstall Triton in the version that this PyTorch asks for; it needs a C compiler (gcc)"
        yield _problem("Triton", f"{tool.version or ''}: {tool.error}".lstrip(": "), fix)
    else:
        right = f"; {tool.tried} gives the right result" if tool.tried else ", tried on no GPU"
        yield _fine("Triton", f"{tool.version}{right}")


def _nccl(probes: Probes) -> Iterator[MachineCheck]:
    torch = probes.torch
    if torch is None or torch.nccl is None or not torch.available:
        return
    if torch.reduced is None:
        yield _fine("NCCL", f"{torch.nccl}; there are no two GPUs to try it on")
    elif torch.reduced.error is not None:
        fix = "NCCL_DEBUG=INFO says more"
        yield _problem("NCCL", f"{torch.nccl}: {torch.reduced.error}", fix)
    else:
        yield _fine("NCCL", f"{torch.nccl}; a sum over all GPUs is right")


def _counters(probes: Probes) -> Iterator[MachineCheck]:
    tool = probes.ncu
    if tool.path is None:
        fix = "install Nsight Compute for hardware counters (opscope explain --in TRACE --counters)"
        yield MachineCheck(name="ncu", status=Status.ABSENT, found="not installed", fix=fix)
    elif tool.error is None:
        tried = f"; {tool.tried} was read" if tool.tried else ""
        yield _fine("ncu", f"{_tool(tool)}{tried}")
    else:
        # Without the permission to read counters ncu itself works, so that is a warning.
        refused = "ERR_NVGPUCTRPERM" in tool.error
        yield MachineCheck(
            name="ncu", status=Status.WARNING if refused else Status.PROBLEM, found=f"{_tool(tool)}: {tool.error}",
            fix=_COUNTERS if refused else "an ncu as new as the driver",
        )  # fmt: skip


def _others(probes: Probes) -> Iterator[MachineCheck]:
    yield _optional("nsys", probes.nsys, "nothing of opscope needs it")
    result = "not installed" if probes.vllm is None else f"{probes.vllm}, installed (it was not run)"
    yield MachineCheck(name="vLLM", status=Status.ABSENT if probes.vllm is None else Status.FINE, found=result)


def _optional(name: str, tool: ToolProbe, about: str) -> MachineCheck:
    if tool.path is None:
        return MachineCheck(name=name, status=Status.ABSENT, found=f"not installed; {about}")
    if tool.error is not None:
        return MachineCheck(name=name, status=Status.WARNING, found=f"{tool.path}: {tool.error}")
    return _fine(name, _tool(tool))


def _tool(tool: ToolProbe) -> str:
    return f"{tool.version or 'of unknown version'} ({tool.path})"


_RULES: Final[tuple[Callable[[Probes], Iterator[MachineCheck]], ...]] = (
    *(_driver, _gpus, _pytorch, _profiler, _nvcc, _triton, _nccl, _counters, _others),
)
