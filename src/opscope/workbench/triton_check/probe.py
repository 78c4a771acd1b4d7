"""Runs a case of Triton kernels, in the interpreter or on the GPU, and compares its results with the right ones."""

import importlib
import importlib.util
import inspect
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import numpy as np
import torch
import triton
from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.base.text import lazy_pattern
from opscope.documents.triton_check import Agreement, KernelRun, MemoryProblem, ProblemKind
from opscope.measuring.judge import TF32_ERROR, TOLERANCE, Compared, changed, compared, is_inexact, name_of, right_of
from opscope.record.codec import encode
from opscope.torch_support.tensors import copy_of, tensors_of
from opscope.workbench.triton_check.bfloat16 import Bfloat16
from opscope.workbench.triton_check.hooks import Watch
from opscope.workbench.triton_check.interpreter import INTERPRETER, CheckAnswer, CheckRequest
from opscope.workbench.triton_check.memory import WatchedMemory, memory_of

# ---------------------------------------------------------------- agreement
_ANY_TOLERANCE: Final = 1e-1  # 8-bit types have two or three bits of mantissa


class _Judged(Struct, frozen=True):
    """How one result compares, in words, and whether it is right."""

    sentence: str
    right: bool
    compared: Compared


class RightResults(Struct, frozen=True):
    """The right results, and where they come from, as words for a sentence."""

    results: tuple[torch.Tensor, ...]
    origin: str


def right_results_of(reference: Callable[..., object], inputs: tuple[Any, ...]) -> RightResults:
    """Call the reference with float64 inputs, or unchanged inputs if it does not take float64.

    Results that are whole numbers or truth values always come from unchanged inputs.
    """
    right = right_of(reference, inputs)
    in_float64 = right.exact and any(map(is_inexact, right.results))
    return RightResults(right.results, "its reference in float64" if in_float64 else "its reference")


def agreement_of(results: Sequence[torch.Tensor], right: RightResults, *, tf32: bool = False) -> Agreement:
    """Compare the results of a case with the right ones; the answer is that of the worst result.

    Args:
        results: of the case.
        right: what they should be.
        tf32: whether float32 results may be as far off as products in TF32, the default of ``tl.dot`` on GPUs.
    """
    if len(results) != len(right.results):
        sentence = f"it returns {len(results)} tensors, not {len(right.results)}"
        return Agreement(right=False, compared_with=right.origin, sentence=sentence)
    pairs = zip(results, right.results, strict=True)
    result = [_judged(compared(one.cpu(), wanted.cpu()), one.dtype, tf32=tf32) for one, wanted in pairs]
    worst = max(range(len(result)), key=lambda place: _badness(result[place], results[place].dtype))
    one, dtype = result[worst], results[worst].dtype
    return Agreement(
        right=one.right,
        compared_with=right.origin,
        sentence=one.sentence + (f" (result {worst + 1})" if len(result) > 1 else ""),
        dtype=name_of(dtype),
        relative_error=one.compared.relative_error,
        element_error=one.compared.element_error,
        tolerance=_tolerance(dtype),
    )


# Wrong results are worse than right ones; among these, the error counts in units of what its type allows.
def _badness(result: _Judged, dtype: torch.dtype) -> tuple[bool, float]:
    return not result.right, (result.compared.relative_error or 0.0) / (_tolerance(dtype) or 1.0)


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, _ANY_TOLERANCE) if dtype.is_floating_point or dtype.is_complex else 0.0


def _judged(one: Compared, dtype: torch.dtype, *, tf32: bool) -> _Judged:
    if one.problem is not None and one.relative_error is None:
        return _Judged(f"it {one.problem}", False, one)
    if one.element_error is None:
        return _Judged("there are no numbers to compare" if one.is_empty else "all elements are equal", True, one)
    far, allowed = one.relative_error or 0.0, _tolerance(dtype)
    sentence = f"relative error {far:.1e}, {allowed:.0e} allowed for {name_of(dtype)}"
    right = far <= allowed
    if not right and tf32 and dtype in (torch.float32, torch.complex64) and far <= TF32_ERROR:
        right, sentence = True, f"{sentence}, but no more than TF32 products have, the default of tl.dot"
    if right and one.problem is not None:
        right, sentence = False, f"{sentence}, but it {one.problem}"
    return _Judged(sentence, right, one)


# ---------------------------------------------------------------- the probe


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = lazy_pattern(r"(\d+)([kKmMgG]?)")
_DTYPES: Final = {
    **{"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16},
    **{"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16},
    **{"int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8},
}
_LONGEST: Final = 500  # characters of an error's text


def main() -> None:
    """Run the request that standard input holds; what the user's code prints goes to standard error."""
    # Standard output is for the answer alone.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckRequest)
    triton_version, torch_version = str(triton.__version__), str(torch.__version__)
    try:
        answer = CheckAnswer(run=_run(request), triton=triton_version, torch=torch_version)
    except UsageError as error:
        answer = CheckAnswer(usage=str(error), triton=triton_version, torch=torch_version)
    answers.write(encode(answer))
    answers.close()


def _run(request: CheckRequest) -> KernelRun:
    if request.interpreted:
        return _interpreted(_Case(request))
    if not torch.cuda.is_available():
        return KernelRun(device="GPU", ran=False, reason="PyTorch sees no GPU")
    return _on_gpu(_Case(request))


class _Case:
    """The user's function with its inputs on the CPU, which are the same random numbers in every run.

    Attributes:
        request: what names the function.
        memory: sees what the inputs and the function do with memory.
        inputs: the function's arguments.
        kept: a copy of the arguments, for the reference: kernels may change them.
    """

    def __init__(self, request: CheckRequest) -> None:
        place, _, name = request.target.rpartition(":")
        self.request = request
        self.memory = WatchedMemory()
        self._module = _loaded(place)
        self._function = _function(self._module, name, place)
        _seed()
        with self.memory:
            self.inputs = _inputs(self._module, request.parameters)
        self.kept = changed(self.inputs, copy_of)
        _refuse_unfit(self._function, self.inputs, name)

    def call(self, inputs: tuple[Any, ...]) -> tuple[list[torch.Tensor], BaseException | None]:
        """Call the function; return its results, and the first error if it raised one (None if not).

        Raises:
            UsageError: the function returns no tensors.
        """
        try:
            with self.memory:
                results = tensors_of(self._function(*inputs))
            if not self.request.interpreted:
                torch.cuda.synchronize()
        except Exception as error:
            first: BaseException = error
            while first.__cause__ is not None:
                first = first.__cause__  # the interpreter wraps what a kernel raises
            return [], first
        if not results:
            raise UsageError(f"{self.request.target} returns no tensors: let it return what its kernels wrote")
        return results, None

    def compared(self, results: list[torch.Tensor]) -> tuple[Agreement | None, str | None]:
        """Compare results with the reference, or without one the GPU's results with the interpreter's.

        Returns:
            The agreement (None if there is nothing to compare with), and why comparing failed (None if it did not).
        """
        interpreted, kept = self.request.interpreted, self.request.results
        reference = getattr(self._module, "reference", None)
        if reference is not None:
            try:
                right = right_results_of(reference, self.kept)
            except Exception as error:
                return None, f"its reference raises {type(error).__name__}: {error}"[:_LONGEST] + _where(error)
            return agreement_of(results, right, tf32=not interpreted), None
        if interpreted:
            torch.save([result.clone() for result in results], kept)
            return None, None
        if not Path(kept).exists():
            return None, None
        right = RightResults(tuple(torch.load(kept, weights_only=True)), "the interpreter's results")
        return agreement_of(results, right, tf32=True), None


def _interpreted(case: _Case) -> KernelRun:
    watch = _watched(case.memory)
    began = time.perf_counter()
    results, raised = case.call(case.inputs)
    seconds = time.perf_counter() - began
    unwritten = _unwritten(results, case.memory)
    agreement, error = case.compared(results) if raised is None else (None, _said(raised))
    if raised is None and error is None and not watch.launches:
        error = "it launched no Triton kernel"
    cannot = isinstance(raised, NotImplementedError)  # such as inline assembly
    return KernelRun(
        device=INTERPRETER,
        ran=raised is None,
        reason=error if cannot else None,
        error=None if cannot else error,
        agreement=agreement,
        launches=watch.launches,
        accesses=watch.accesses,
        problems=(*watch.problems(), *unwritten),
        not_checked=tuple(watch.not_checked),
        seconds=seconds,
    )


def _on_gpu(case: _Case) -> KernelRun:
    inputs = changed(case.inputs, lambda value: value.to("cuda"))
    began = time.perf_counter()
    results, raised = case.call(inputs)
    seconds = time.perf_counter() - began
    agreement, error = case.compared(results) if raised is None else (None, _said(raised))
    device = torch.cuda.get_device_name()
    return KernelRun(device=device, ran=raised is None, error=error, agreement=agreement, seconds=seconds)


def _watched(memory: WatchedMemory) -> Watch:
    from triton.runtime import autotuner, interpreter

    Bfloat16(interpreter).install()
    watch = Watch(interpreter, memory)
    watch.install()
    watch.use_first_configuration(autotuner.Autotuner)
    return watch


def _seed() -> None:
    """Seed the random numbers that inputs may use, the same way in every run."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # the user's file may use numpy's global generator


def _said(error: BaseException) -> str:
    sentence = f"it raises {type(error).__name__}: {' '.join(str(error).split())}"
    return sentence[:_LONGEST] + _where(error)


def _where(error: BaseException) -> str:
    """Return the innermost line of an error's traceback that is the user's, as `` (file.py:12)``; or empty text."""
    own = tuple(str(Path(place).parent) for place in (Path(__file__).parents[1], str(triton.__file__)))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith((*own, "<"))
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _unwritten(results: list[torch.Tensor], memory: WatchedMemory) -> list[MemoryProblem]:
    """Find elements of the results that are not written."""
    entries = []
    for number, result in enumerate(results, 1):
        known = memory.of(result)
        if known is None:
            continue
        flags = known.read_view(result)
        if not flags.any():
            continue
        places = np.flatnonzero(flags)
        entries.append(
            MemoryProblem(
                kind=ProblemKind.UNWRITTEN_RESULT,
                kernel=None,
                location=None,
                tensor=f"result {number}",
                tensor_elements=memory_of(result, "", None).elements,
                elements=len(places),
                programs=0,
                first_program=None,
                first_offset=int(places[0]),
                last_offset=int(places[-1]),
            )
        )
    return entries


# ---------------------------------------------------------------- the user's file


def _loaded(place: str) -> ModuleType:
    """Import the user's file or module.

    Raises:
        UsageError: it does not exist, or cannot be imported.
    """
    if not place:
        raise UsageError("which function? file.py:function, or package.module:function")
    try:
        if not place.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(place)
        path = Path(place)
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} cannot be imported as a Python file")
        # As if Python ran the file: it can import what lies beside it.
        sys.path.insert(0, str(path.parent.resolve()))
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _function(module: ModuleType, name: str, place: str) -> Callable[..., object]:
    function: Callable[..., object] | None = getattr(module, name, None)
    if not inspect.isroutine(function):
        public = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise UsageError(f"{place} has no function {name!r}; it has: {', '.join(public) or 'none'}")
    return function


def _inputs(module: ModuleType, words: Mapping[str, str]) -> tuple[Any, ...]:
    """Make the arguments of the case, on the CPU.

    Raises:
        UsageError: there is no function for them, it takes no such parameter, or it fails.
    """
    make: Callable[..., object] | None = getattr(module, "inputs", None)
    if make is None:
        if words:
            raise UsageError(f"there is no function inputs that could take {', '.join(words)}")
        return ()
    parameters = inspect.signature(make).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in words:
        if name not in parameters and not takes_all:
            raise UsageError(f"inputs takes no parameter {name!r}")
    arguments = {name: _value(word) for name, word in words.items()}
    if "device" in parameters or takes_all:
        arguments["device"] = torch.device("cpu")
    try:
        made = make(**arguments)
    except Exception as error:
        raise UsageError(f"the inputs cannot be made: {type(error).__name__}: {error}{_where(error)}") from error
    return made if isinstance(made, tuple) else (made,)


def _value(word: str) -> object:
    if word in _DTYPES:
        return _DTYPES[word]
    if (match := _SIZE.fullmatch(word)) is not None:
        return int(match[1]) * _UNITS[match[2].lower()]
    try:
        return float(word)
    except ValueError:
        return {"true": True, "false": False}.get(word.lower(), word)


def _refuse_unfit(function: Callable[..., object], inputs: tuple[Any, ...], name: str) -> None:
    try:
        inspect.signature(function).bind(*inputs)
    except TypeError as error:
        raise UsageError(f"{name} cannot be called: {error}; inputs makes {len(inputs)} (one per argument)") from error


if __name__ == "__main__":
    main()
