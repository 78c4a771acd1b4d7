"""What durations and results are judged by, watched for candidates that put something else in its place."""

import builtins
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, TracebackType
from typing import Any, Final

import torch
from msgspec import Struct

from opscope.record.capture import Clocks

# ---------------------------------------------------------------- clocks


_PERIOD_MS = 100
_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw")
# The field was renamed in driver 535; newer drivers know both names, older ones the second.
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# NVML's clock event reasons (nvml.h), as bits. Idling (0x1) is left out: it is not a limit, but the absence of work.
_REASONS: Final[Mapping[int, str]] = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


class ClockSampler:
    """Samples a GPU's clocks while the ``with`` block runs.

    Attributes:
        clocks: the summary, after the block; None if there is none.
        reason: why there is no summary; None if there is one.
    """

    def __init__(self, device: torch.device) -> None:
        self.clocks: Clocks | None = None
        self.reason: str | None = None
        self._device = device
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "ClockSampler":
        if self._device.type != "cuda":
            self.reason = "the device is not a GPU"
        elif (program := shutil.which("nvidia-smi")) is None:
            self.reason = "nvidia-smi is not installed"
        else:
            self._process = _start(program, self._device)
            if self._process is None:
                self.reason = "nvidia-smi does not report clocks here"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        output, _ = self._process.communicate()
        self.clocks = summarise_clocks(output.splitlines())
        if self.clocks is None:
            self.reason = "nvidia-smi gave no sample in time"


def _start(program: str, device: torch.device) -> subprocess.Popen[str] | None:
    which = _identifier(device)
    for reasons in _REASON_FIELDS:
        query = [
            program,
            f"--id={which}",
            f"--query-gpu={','.join((*_FIELDS, reasons))}",
            "--format=csv,noheader,nounits",
        ]
        # One sample first: an nvidia-smi that does not know a field says so, and the older name is tried.
        try:
            probe = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if probe.returncode == 0 and _parse(probe.stdout.strip()) is not None:
            return subprocess.Popen(
                [*query, f"--loop-ms={_PERIOD_MS}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
    return None


def _identifier(device: torch.device) -> str:
    """Return an identifier of the GPU for nvidia-smi, whose numbering CUDA_VISIBLE_DEVICES does not change."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else str(device.index or 0)


def _parse(line: str) -> tuple[int, int, int, int, float, int] | None:
    parts = [part.strip() for part in line.split(",")]
    try:
        sm, memory, limit, temperature, power, reasons = parts
        return int(sm), int(memory), int(limit), int(temperature), float(power), int(reasons, 16)
    except ValueError:
        return None


def summarise_clocks(lines: Sequence[str]) -> Clocks | None:
    """Summarise nvidia-smi's lines, one per sample; return None if no line could be read."""
    samples = [sample for line in lines if (sample := _parse(line)) is not None]
    if not samples:
        return None
    sm, memory, limit, temperature, power, reasons = zip(*samples, strict=True)
    seen = 0
    for mask in reasons:
        seen |= mask
    return Clocks(
        samples=len(samples),
        sm_mhz_min=min(sm),
        sm_mhz_median=round(statistics.median(sm)),
        sm_mhz_max=max(sm),
        sm_mhz_limit=max(limit),
        memory_mhz=round(statistics.median(memory)),
        temperature_c=max(temperature),
        power_w=statistics.median(power),
        limited_by=tuple(name for bit, name in _REASONS.items() if seen & bit),
    )


# ---------------------------------------------------------------- instruments


_CLOCKS: Final = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time_ns", "sleep")
_COMPARES: Final = (
    *("equal", "allclose", "where", "empty", "empty_strided", "full", "full_like", "zeros", "randn_like", "rand_like"),
    *("copysign", "nan_to_num", "view_as_real", "isnan", "isfinite", "isclose", "finfo", "device"),
)
_OF_TENSORS: Final = (
    *("abs", "all", "clone", "copy_", "cpu", "detach", "double", "eq", "fill_", "float", "is_complex"),
    *("is_floating_point", "isfinite", "isinf", "isnan", "item", "max", "mean", "mul_", "norm", "numel", "sqrt"),
    *("square", "sub", "sum", "to", "to_dense", "tolist", "__add__", "__bool__", "__eq__", "__float__", "__getitem__"),
    *("__gt__", "__le__", "__lt__", "__sub__", "__truediv__", "__torch_function__"),
)
_OF_CUDA: Final = ("CUDAGraph", "Event", "Stream", "_sleep", "current_stream", "graph", "stream", "synchronize")
_OF_EVENTS: Final = ("elapsed_time", "query", "record", "synchronize", "wait")
# Programs and libraries replace these for reasons of their own, and nothing is measured by them.
_FREE: Final = frozenset({"__build_class__", "__import__", "breakpoint", "help", "input", "open", "print"})
_OWN: Final = (
    "opscope.workbench.benchmarking.",
    "opscope.measuring.",
    "opscope.torch_support.",
    "opscope.base.processes",
)
_ABSENT: Final = object()


class _Kept(Struct, frozen=True):
    """An attribute as it was.

    Attributes:
        shown: its name, as text.
        owner: the module or class that it is looked up in.
        name: of the attribute.
        value: what was found by that name, perhaps in a parent class.
        own: what the owner itself had by that name.
        code: of a function of Python: what it runs, and its default arguments.
        items: of a dictionary: a copy.
    """

    shown: str
    owner: Any
    name: str
    value: Any
    own: Any
    code: tuple[Any, Any] | None
    items: dict[Any, Any] | None

    @property
    def changed(self) -> bool:
        if getattr(self.owner, self.name, _ABSENT) is not self.value and not self._is_bound_alike():
            return True
        if self.code is not None and (self.value.__code__ is not self.code[0] or _defaults(self.value) != self.code[1]):
            return True
        return self.items is not None and self.value != self.items

    def _is_bound_alike(self) -> bool:
        """Tell whether looking it up makes a new object every time, as methods of classes do, out of the same one."""
        return vars(self.owner).get(self.name, _ABSENT) is self.own and isinstance(self.owner, type)

    def restore(self) -> None:
        if self.code is not None:
            self.value.__code__ = self.code[0]
            self.value.__defaults__, self.value.__kwdefaults__ = self.code[1]
        if self.items is not None:
            self.value.clear()
            self.value.update(self.items)
        if self.own is not _ABSENT:
            setattr(self.owner, self.name, self.own)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)


class Instruments:
    """Clocks, synchronisation and comparisons as they were when this was made: before any code of the candidates ran.

    What runs in the same process can reach everything, so this finds what is replaced and left so; it is not a wall.

    Args:
        note: called with the name of each candidate before it runs, and with "" before what is not a candidate's.
    """

    def __init__(self, note: Callable[[str], None] = lambda _: None) -> None:
        self.note = note
        self._kept = tuple(_watched())
        self._traced = _tracers()
        self._modes = _modes()
        self._threads, self._precision = torch.get_num_threads(), torch.get_float32_matmul_precision()

    def mended(self) -> str | None:
        """Put back what was replaced; return the names of it, None if there was nothing."""
        changed = [kept for kept in self._kept if kept.changed]
        names = [kept.shown for kept in changed]
        for kept in changed:
            kept.restore()
        names += self._mended_hooks()
        return ", ".join(names[:3]) or None

    def _mended_hooks(self) -> Iterator[str]:
        if _tracers() != self._traced:
            sys.settrace(self._traced[0])
            sys.setprofile(self._traced[1])
            yield "the interpreter's trace function"
        functions, dispatched = _modes()
        if (functions, dispatched) == self._modes:
            return
        for _ in range(functions - self._modes[0]):
            torch._C._pop_torch_function_stack()
        for _ in range(dispatched - self._modes[1]):
            torch._C._pop_torch_dispatch_stack(None)
        yield "how PyTorch calls its functions (a mode that was left on)"

    def settle(self) -> None:
        """Undo settings of PyTorch that a candidate left: the next one is not to gain or lose by them."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if torch.get_float32_matmul_precision() != self._precision:
            torch.set_float32_matmul_precision(self._precision)


def _tracers() -> tuple[Any, Any]:
    return sys.gettrace(), sys.getprofile()


def _modes() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def _defaults(function: Callable[..., object]) -> tuple[Any, Any]:
    return getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)


def _watched() -> Iterator[_Kept]:
    yield from _attributes("time", time, _CLOCKS)
    yield from _attributes("torch", torch, _COMPARES)
    yield from _attributes("torch.Tensor", torch.Tensor, _OF_TENSORS)
    yield from _attributes("torch.cuda", torch.cuda, _OF_CUDA)
    yield from _attributes("torch.cuda.Event", torch.cuda.Event, _OF_EVENTS)
    yield from _attributes("torch.profiler", torch.profiler, ("profile", "record_function"))
    yield from _attributes("random.Random", random.Random, ("random", "seed", "shuffle"))
    yield from _attributes("statistics", statistics, ("mean", "median"))
    named = (name for name, value in vars(builtins).items() if callable(value) and name not in _FREE)
    yield from _attributes("builtins", builtins, tuple(named))
    for name, module in list(sys.modules.items()):
        if name.startswith(_OWN):
            yield from _attributes(name, module, tuple(one for one in vars(module) if not one.startswith("__")))
            for class_name, result in list(vars(module).items()):
                if isinstance(result, type) and result.__module__ == name:
                    methods = tuple(one for one, value in vars(result).items() if isinstance(value, FunctionType))
                    yield from _attributes(f"{name}.{class_name}", result, methods)


def _attributes(shown: str, owner: Any, names: tuple[str, ...]) -> Iterator[_Kept]:
    for name in names:
        value = getattr(owner, name, _ABSENT)
        if value is _ABSENT:
            continue
        code = (value.__code__, _defaults(value)) if isinstance(value, FunctionType) else None
        items = dict(value) if type(value) is dict else None
        own = vars(owner).get(name, _ABSENT)
        yield _Kept(f"{shown}.{name}", owner, name, value, own, code, items)
