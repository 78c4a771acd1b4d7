"""Runs a Triton kernel in Triton's interpreter, and on the GPU if there is one, each in a separate process.

There are three reasons for processes: the interpreter is chosen when Triton is imported, a wrong kernel may crash or
never return, and the command line imports neither PyTorch nor Triton. Runs of the same case make the same inputs, from
the same seed.
"""

import importlib.util
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import msgspec
import numpy as np
import torch
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.documents.triton_check import KernelRun, TritonCheckDocument
from opscope.machine.driver import driver
from opscope.record.codec import encode

# ---------------------------------------------------------------- memory


# Operators whose result holds whatever was in memory before.
_EMPTY: Final = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
# Every byte of such memory is set to this: NaN in every floating-point type, -1 in whole numbers. Memory that holds
# something else was written to, by whatever means.
POISON: Final = 0xFF

Addresses = NDArray[np.uint64]
Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Unwritten:
    """Knows which bytes of a storage are not written yet.

    It holds a reference to the storage, so that no other tensor gets its addresses.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        self.start = int(storage.data_ptr())
        self._written = np.zeros(storage.nbytes(), dtype=np.bool_)

    def write(self, addresses: Addresses, size: int) -> None:
        """Note that the elements of ``size`` bytes at some addresses are written."""
        places = (addresses - np.uint64(self.start)).astype(np.int64)
        for byte in range(size):
            self._written[places + byte] = True

    def write_view(self, tensor: torch.Tensor) -> None:
        """Note that all elements of a view are written."""
        _bytes_of(self._written, tensor)[...] = True

    def read(self, addresses: Addresses, size: int) -> Flags:
        """Tell for each address whether no byte of the element of ``size`` bytes there is written."""
        places = (addresses - np.uint64(self.start)).astype(np.int64)
        content = self._content()
        result = np.ones(places.shape, dtype=np.bool_)
        for byte in range(size):
            result &= ~self._written[places + byte] & (content[places + byte] == POISON)
        return result

    def read_view(self, tensor: torch.Tensor) -> Flags:
        """Tell for each element of a view whether none of its bytes is written."""
        written, content = _bytes_of(self._written, tensor), _bytes_of(self._content(), tensor)
        unwritten: Flags = (~written & (content == POISON)).all(axis=-1)
        return unwritten

    def _content(self) -> NDArray[np.uint8]:
        whole = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        content: NDArray[np.uint8] = whole.numpy()
        return content


def _bytes_of(whole: NDArray[Any], tensor: torch.Tensor) -> NDArray[Any]:
    """Return the bytes of a view's elements, in the view's shape with one more dimension for the bytes."""
    size = tensor.element_size()
    return np.lib.stride_tricks.as_strided(
        whole[tensor.storage_offset() * size :],
        shape=(*tensor.shape, size),
        strides=(*(stride * size for stride in tensor.stride()), 1),
    )


class WatchedMemory(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not read by mypy
    """Sees every operator of PyTorch, and so what memory is made without content and what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: dict[int, Unwritten] = {}
        self._paused = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and note what memory it made or wrote."""
        keywords = kwargs or {}
        result = func(*args, **keywords)
        if self._paused:
            return result
        if func._schema.name in _EMPTY:
            self._poison(result)
        for tensor in _written_by(func._schema, args, keywords):
            if (memory := self.of(tensor)) is not None:
                memory.write_view(tensor)
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore operators while the interpreter copies its arguments and copies them back."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def of(self, tensor: torch.Tensor) -> Unwritten | None:
        """Return what is known of a tensor's storage; None if the storage had content from its beginning."""
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return None
        return self._unwritten.get(tensor.untyped_storage().data_ptr())

    def _poison(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage() if tensor.layout is torch.strided else None
        if storage is None or not storage.nbytes() or tensor.device.type == "meta":
            return
        storage.fill_(POISON)
        if tensor.device.type == "cpu":
            self._unwritten[storage.data_ptr()] = Unwritten(storage)


def _written_by(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of an operator writes to."""
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, torch.Tensor):
                yield one


class Memory(Struct, frozen=True, eq=False):
    """The memory of a tensor that is a kernel's argument.

    Attributes:
        name: of the argument.
        start: the address of the first element.
        item_bytes: the size of an element.
        elements: how many elements there are.
        span_bytes: from the beginning of the first element to the end of the last one.
        allowed: which elements of the span belong to the view; None if all do.
        storage: the first address of the storage, and the one after its last.
        unwritten: what is not written yet; None if the memory had content from its beginning.
    """

    name: str
    start: int
    item_bytes: int
    elements: int
    span_bytes: int
    allowed: Flags | None
    storage: tuple[int, int]
    unwritten: Unwritten | None

    def offsets(self, addresses: Addresses) -> Offsets:
        """Return how many bytes each address is behind the first element; negative for addresses before it."""
        # Unsigned differences wrap around; seen as signed, those before the start are negative.
        return (addresses - np.uint64(self.start)).view(np.int64)

    def holds(self, addresses: Addresses, size: int) -> Flags:
        """Tell for each address whether an element of ``size`` bytes there lies within the view."""
        offsets = self.offsets(addresses)
        inside: Flags = (offsets >= 0) & (offsets <= self.span_bytes - size)
        if self.allowed is not None:
            # An address that is not aligned touches two elements: both must belong to the view.
            first, last = offsets[inside] // self.item_bytes, (offsets[inside] + size - 1) // self.item_bytes
            inside[inside] = self.allowed[first] & self.allowed[last]
        return inside

    def in_storage(self, addresses: Addresses, size: int) -> Flags:
        """Tell for each address whether an element of ``size`` bytes there lies within the storage."""
        first, end = self.storage
        result: Flags = (addresses >= np.uint64(first)) & (addresses <= np.uint64(max(end - size, 0)))
        return result

    def distance(self, address: int) -> int:
        """Return how many bytes an address is away from the tensor's span; 0 inside of it."""
        return max(self.start - address, address - (self.start + self.span_bytes), 0)


def memory_of(tensor: torch.Tensor, name: str, unwritten: Unwritten | None) -> Memory:
    """Describe the memory of a tensor on the CPU.

    Args:
        tensor: a strided tensor.
        name: of the argument that it is.
        unwritten: what is not written yet of its storage; None if it had content from its beginning.
    """
    storage = tensor.untyped_storage()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((count - 1) * stride for count, stride in steps) + 1 if tensor.numel() else 0
    allowed: Flags | None = None
    if not tensor.is_contiguous() and span:
        # One flag per element of the span; the view's own strides set those that belong to it.
        view = np.zeros(span, dtype=np.bool_)
        strides = tuple(stride * view.itemsize for stride in tensor.stride())
        np.lib.stride_tricks.as_strided(view, shape=tuple(tensor.shape), strides=strides)[...] = True
        allowed = None if view.all() else view
    return Memory(
        name=name,
        start=tensor.data_ptr(),
        item_bytes=tensor.element_size(),
        elements=tensor.numel(),
        span_bytes=span * tensor.element_size(),
        allowed=allowed,
        storage=(storage.data_ptr(), storage.data_ptr() + storage.nbytes()),
        unwritten=unwritten,
    )


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
