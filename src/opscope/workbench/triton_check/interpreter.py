"""A Triton kernel in Triton's interpreter, and on the GPU where there is one: each in a process of its own.

The interpreter is chosen when Triton is imported, a kernel that is wrong may crash or never return, and the command
line imports neither PyTorch nor Triton. Runs of the same case make the same inputs, from the same seed.
"""

import importlib.util
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.documents.triton_check import KernelRun, TritonCheckDocument
from opscope.machine.driver import driver
from opscope.record.codec import encode

INTERPRET: Final = "TRITON_INTERPRET"
INTERPRETER: Final = "Triton's interpreter"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What a process is asked for.

    Attributes:
        target: ``file.py:function`` or ``package.module:function``.
        parameters: words for the parameters of the inputs.
        interpreted: whether in the interpreter; else on the GPU.
        results: the file where the interpreter's results are kept for the GPU's to be compared with.
    """

    target: str
    parameters: dict[str, str] = field(default_factory=dict)
    interpreted: bool
    results: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAnswer:
    """What a process answers.

    Attributes:
        run: what came of it; None where the request is wrong.
        usage: what is wrong with it.
        triton: the version.
        torch: PyTorch's.
    """

    run: KernelRun | None = None
    usage: str | None = None
    triton: str | None = None
    torch: str | None = None


def check_kernel(target: str, parameters: Mapping[str, str], timeout_s: float) -> TritonCheckDocument:
    """Run a case in the interpreter, then on the GPU, and say what came of it.

    Args:
        target: the function that launches the kernels.
        parameters: words for the parameters of the inputs.
        timeout_s: the most for each run.

    Raises:
        EnvironmentLacksError: Triton or PyTorch is missing.
        UsageError: the function is not there, or cannot be called so.
    """
    for package in ("triton", "torch"):
        if importlib.util.find_spec(package) is None:
            raise EnvironmentLacksError(f"{package} is not installed: pip install {package}")
    with scratch() as folder:
        results = str(folder / "results.pt")
        request = CheckRequest(target=target, parameters=dict(parameters), interpreted=True, results=results)
        interpreted = _asked(request, INTERPRETER, timeout_s)
        cpu = _run(interpreted, INTERPRETER)
        on_gpu = _asked_on_gpu(replace(request, interpreted=False), timeout_s)
        gpu = _run(on_gpu, "GPU")
    return TritonCheckDocument(
        target=target,
        parameters=dict(parameters),
        triton=interpreted.triton or on_gpu.triton,
        torch=interpreted.torch or on_gpu.torch,
        passed=_fine(cpu) and _fine(gpu) and (cpu.ran or gpu.ran),
        cpu=cpu,
        gpu=gpu,
    )


def _fine(run: KernelRun) -> bool:
    return run.error is None and not run.problems and (run.agreement is None or run.agreement.right)


def _run(answer: CheckAnswer, device: str) -> KernelRun:
    if answer.usage is not None:
        raise UsageError(answer.usage)
    return answer.run or KernelRun(device=device, ran=False, error="it gave no answer")


def _asked_on_gpu(request: CheckRequest, timeout_s: float) -> CheckAnswer:
    found = driver()
    if not found.devices:
        reason = found.error or "there is no GPU here"
        return CheckAnswer(run=KernelRun(device="GPU", ran=False, reason=reason))
    return _asked(request, found.devices[0].name, timeout_s)


def _asked(request: CheckRequest, device: str, timeout_s: float) -> CheckAnswer:
    """Ask a process; what the user's code prints goes to standard error."""
    environment = {name: value for name, value in own_environment().items() if name != INTERPRET}
    if request.interpreted:
        environment[INTERPRET] = "1"
    command = own_process("opscope.workbench.triton_check.probe")
    try:
        done = run_within(command, timeout_s, stdin=encode(request), environment=environment, errors=None)
    except subprocess.TimeoutExpired:
        return _failed(device, f"it did not end within {timeout_s:g} s")
    if done.returncode:
        return _failed(device, f"its process was ended{_how(done.returncode)}")
    try:
        return msgspec.json.decode(done.stdout, type=CheckAnswer)
    except msgspec.MsgspecError:
        return _failed(device, "its process ended without an answer")


def _failed(device: str, error: str) -> CheckAnswer:
    return CheckAnswer(run=KernelRun(device=device, ran=False, error=error))


def _how(code: int) -> str:
    try:
        return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
    except ValueError:
        return f" by signal {-code}"
