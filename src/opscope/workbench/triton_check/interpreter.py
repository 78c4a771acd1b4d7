"""Runs a Triton kernel in Triton's interpreter, and on the GPU if there is one, each in a separate process.

There are three reasons for processes: the interpreter is chosen when Triton is imported, a wrong kernel may crash or
never return, and the command line imports neither PyTorch nor Triton. Runs of the same case make the same inputs, from
the same seed.
"""

import importlib.util
import signal
import subprocess
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.documents.triton_check import KernelRun, TritonCheckDocument
from opscope.machine.driver import driver
from opscope.record.codec import encode

# ---------------------------------------------------------------- bfloat16


# Methods of InterpreterBuilder that compute elementwise.
_ARITHMETIC: Final = ("binary_op", "unary_op", "create_clampf", "create_fma")

_Call = Callable[..., Any]


class Bfloat16:
    """Makes the interpreter compute in float32 and round the result to bfloat16, as GPUs do."""

    def __init__(self, interpreter: ModuleType) -> None:
        self._interpreter = interpreter

    def install(self) -> None:
        """Replace the interpreter's methods that compute, as far as this version of Triton has them."""
        builder = getattr(self._interpreter, "InterpreterBuilder", None)
        for name in _ARITHMETIC:
            _replace(builder, name, self._in_float32)
        _replace(builder, "create_dot", self._product_in_float32)
        _replace(builder, "cast_impl", self._cast_by_float32)
        for name in ("ReduceOps", "ScanOps"):
            _replace(getattr(self._interpreter, name, None), "apply_impl", self._reduced_in_float32)

    def _in_float32(self, original: _Call) -> _Call:
        def compute(builder: Any, *args: Any) -> Any:
            if not any(map(self._is_bfloat16, args)):
                return original(builder, *args)
            result = original(builder, *map(self._wide, args))
            # Comparisons give truth values, which stay as they are.
            return self._narrow(result) if result.data.dtype == np.float32 else result

        return compute

    def _product_in_float32(self, original: _Call) -> _Call:
        def multiply(builder: Any, one: Any, other: Any, *args: Any) -> Any:
            return original(builder, self._wide(one), self._wide(other), *args)

        return multiply

    def _cast_by_float32(self, original: _Call) -> _Call:
        def cast(builder: Any, source: Any, kind: Any) -> Any:
            if kind.scalar == self._interpreter.tl.bfloat16:  # other types go through float32
                wide = source if self._is_bfloat16(source) else original(builder, source, self._interpreter.tl.float32)
                return self._narrow(self._wide(wide))
            return original(builder, self._wide(source), kind)

        return cast

    def _reduced_in_float32(self, original: _Call) -> _Call:
        language = self._interpreter.tl

        def narrowed(value: Any) -> Any:
            shape = list(value.shape)
            kind = language.block_type(language.bfloat16, shape) if shape else language.bfloat16
            return language.tensor(self._narrow(value.handle), kind)

        def reduce(operation: Any, values: Any) -> Any:
            if not isinstance(values, tuple) or not any(self._is_bfloat16(value.handle) for value in values):
                return original(operation, values)
            narrow = [self._is_bfloat16(value.handle) for value in values]
            wide = (
                operation.to_tensor(self._wide(value.handle).data, language.float32) if is_narrow else value
                for value, is_narrow in zip(values, narrow, strict=True)
            )
            results = original(operation, tuple(wide))
            several = results if isinstance(results, (tuple, list)) else (results,)
            return tuple(narrowed(one) if back else one for one, back in zip(several, narrow, strict=False))

        return reduce

    def _is_bfloat16(self, value: Any) -> bool:
        return isinstance(value, self._interpreter.TensorHandle) and value.dtype == self._interpreter.tl.bfloat16

    def _wide(self, value: Any) -> Any:
        if not self._is_bfloat16(value):
            return value
        # A bfloat16 is the upper half of a float32.
        bits = value.data.astype(np.uint32) << np.uint32(16)
        return self._interpreter.TensorHandle(bits.view(np.float32), self._interpreter.tl.float32)

    def _narrow(self, value: Any) -> Any:
        """Round float32 to the nearest bfloat16, and to the even one of two that are equally near, as GPUs do."""
        # A NaN is not rounded: it could become infinite. Its highest mantissa bit, 22, keeps it a NaN when the lower
        # half is cut off.
        bits = np.ascontiguousarray(value.data).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = np.where(np.isnan(value.data), bits | np.uint32(1 << 22), bits + np.uint32(0x7FFF) + odd)
        return self._interpreter.TensorHandle(
            (rounded >> np.uint32(16)).astype(np.uint16), self._interpreter.tl.bfloat16
        )


def _replace(owner: object, name: str, make: Callable[[_Call], _Call]) -> None:
    if (original := getattr(owner, name, None)) is not None:
        setattr(owner, name, make(original))


# ---------------------------------------------------------------- Triton's interpreter


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
