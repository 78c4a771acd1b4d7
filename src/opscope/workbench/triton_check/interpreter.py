"""Runs a Triton kernel in Triton's interpreter, and on the GPU if there is one, each in a separate process.

There are three reasons for processes: the interpreter is chosen when Triton is imported, a wrong kernel may crash or
never return, and the command line imports neither PyTorch nor Triton. Runs of the same case make the same inputs, from
the same seed.
"""

import importlib.util
import signal
import subprocess
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.documents.triton_check import KernelRun, TritonCheckDocument
from opscope.machine.driver import driver
from opscope.record.codec import encode

INTERPRET: Final = "TRITON_INTERPRET"
INTERPRETER: Final = "Triton's interpreter"


class CheckRequest(Struct, frozen=True, kw_only=True):
    """What a process is asked to run.

    Attributes:
        target: ``file.py:function`` or ``package.module:function``.
        parameters: the parameters of the inputs, by name, as words of the command line.
        interpreted: whether to run in the interpreter; otherwise on the GPU.
        results: the file where the interpreter's results are kept, which those of the GPU are compared with.
    """

    target: str
    parameters: dict[str, str] = field(default_factory=dict)
    interpreted: bool
    results: str


class CheckAnswer(Struct, frozen=True, kw_only=True):
    """What a process answers.

    Attributes:
        run: what came of the run; None if the request is wrong.
        usage: what is wrong with the request; None if nothing is.
        triton: the version of Triton; None if the process gave no answer.
        torch: the version of PyTorch; None if the process gave no answer.
    """

    run: KernelRun | None = None
    usage: str | None = None
    triton: str | None = None
    torch: str | None = None


def check_kernel(target: str, parameters: Mapping[str, str], timeout_s: float) -> TritonCheckDocument:
    """Run a case in the interpreter, then on the GPU, and report what was found.

    Args:
        target: the function that launches the kernels: ``file.py:function`` or ``package.module:function``.
        parameters: the parameters of the inputs, by name, as words of the command line.
        timeout_s: the most for each run, in seconds.

    Raises:
        EnvironmentLacksError: Triton or PyTorch is missing.
        UsageError: the function does not exist, or cannot be called with the inputs.
    """
    for package in ("triton", "torch"):
        if importlib.util.find_spec(package) is None:
            raise EnvironmentLacksError(f"{package} is not installed: pip install {package}")
    with scratch() as folder:
        results = str(folder / "results.pt")
        request = CheckRequest(target=target, parameters=dict(parameters), interpreted=True, results=results)
        # The interpreter first: without a reference, the GPU's results are compared with its own.
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
    result = driver()
    if not result.devices:
        reason = result.error or "there is no GPU here"
        return CheckAnswer(run=KernelRun(device="GPU", ran=False, reason=reason))
    return _asked(request, result.devices[0].name, timeout_s)


def _asked(request: CheckRequest, device: str, timeout_s: float) -> CheckAnswer:
    """Start a process and return its answer; a process that fails is an answer, too."""
    # Without the variable, even if it is set here: the GPU's process must not interpret.
    environment = {name: value for name, value in own_environment().items() if name != INTERPRET}
    if request.interpreted:
        environment[INTERPRET] = "1"
    command = own_process("opscope.workbench.triton_check.probe")
    try:
        # errors=None: what the user's code prints is shown on the standard error of this process.
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
