"""Reports what PyTorch does as it happens: optimizer steps, outermost module calls, graph replays, profilers."""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any, Final, Protocol


class Listener(Protocol):
    """What is told of PyTorch's events."""

    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer was set up."""

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An outermost ``step()`` has ended, and its ``record_function`` range too."""

    def module_called(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """An outermost call of a module begins."""

    def graph_replayed(self, graph: Any) -> None:
        """A replay of a CUDA graph begins, outside of any module's call."""

    def range_begins(self, name: str) -> None:
        """A range with a name begins."""

    def profiler_prepares(self, profiler: Any) -> None:
        """A profiler is about to start."""

    def trace_exported(self, profiler: Any, path: Any) -> None:
        """A profiler has written its trace."""


class _Depth(threading.local):
    optimizers = 0  # how many nested step() calls are running
    module: Any = None  # the outermost module whose call is running


_depth = _Depth()


def install(listener: Listener, *, ranges: bool = False) -> None:
    """Have a listener told of events. Call this right after PyTorch was imported, before any of it is used.

    Args:
        listener: what is told.
        ranges: whether it is told of named ranges as well.
    """
    _listen_to_optimizers(listener)
    _listen_to_modules(listener)
    _listen_to_graphs(listener)
    _listen_to_profilers(listener)
    if ranges:
        _listen_to_ranges(listener)


def _listen_to_optimizers(listener: Listener) -> None:
    """Wrap step() outside of PyTorch's own wrapper.

    PyTorch's global step hooks run inside the record_function range of that wrapper, where a profiler that starts or
    stops would cut the range in two.
    """
    from torch.optim import Optimizer

    original = Optimizer.profile_hook_step

    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        inner = original(function)

        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            if _compiling():
                return inner(*args, **kwargs)
            _depth.optimizers += 1
            try:
                result = inner(*args, **kwargs)
            finally:
                _depth.optimizers -= 1
            if not _depth.optimizers:
                listener.optimizer_stepped(args[0])
            return result

        return step

    # Optimizers wrap step() with it when they are set up, so those that exist already would not be heard.
    Optimizer.profile_hook_step = staticmethod(profile_hook_step)
    patch = Optimizer._patch_step_function

    @functools.wraps(patch)
    def _patch_step_function(self: Any) -> None:  # called wherever an optimizer is set up, also from a pickle
        patch(self)
        listener.optimizer_made(self)

    Optimizer._patch_step_function = _patch_step_function


def _compiling() -> bool:
    import torch

    return bool(torch.compiler.is_compiling())


def _listen_to_modules(listener: Listener) -> None:
    """Wrap Module.__call__ for the outermost calls.

    That is better than the global forward hooks: these take every nested call off PyTorch's fast path, are traced away
    under ``module.compile()``, make torch.compile warn, and cause everything to be recompiled when they are removed.
    """
    import torch

    original, compiling, depth = torch.nn.Module.__call__, torch.compiler.is_compiling, _depth

    # Dynamo knows a module's call by this function's name, and the profiler by the name of its first argument.
    def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or depth.module is not None:
            return original(self, *args, **kwargs)
        depth.module = self
        try:
            # A closure of step() calls modules as well; that call is part of the optimizer's step.
            if not depth.optimizers:
                listener.module_called(self, args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            depth.module = None

    torch.nn.Module.__call__ = _wrapped_call_impl
    skip_for_dynamo(_wrapped_call_impl.__code__)


def skip_for_dynamo(code: types.CodeType) -> None:
    """Have Dynamo skip the frames of a function, but still compile the frames that they call."""
    import torch

    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # from 2.7 on
        frames.set_code_exec_strategy(
            code, frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        )
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def _listen_to_graphs(listener: Listener) -> None:
    import torch

    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None or "replay" not in vars(graph):
        return
    original = graph.replay

    @functools.wraps(original)
    def replay(self: Any) -> Any:
        if _depth.module is None:
            listener.graph_replayed(self)
        return original(self)

    graph.replay = replay


def _listen_to_ranges(listener: Listener) -> None:
    """Wrap ``record_function`` and PyTorch's ``torch.cuda.nvtx.range_push``."""
    import torch
    from torch.autograd.profiler import record_function

    enter = record_function.__enter__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        if not _compiling():
            listener.range_begins(self.name)
        return enter(self)

    record_function.__enter__ = entered
    push = torch.cuda.nvtx.range_push

    @functools.wraps(push)
    def range_push(msg: str) -> Any:
        listener.range_begins(msg)
        return push(msg)

    torch.cuda.nvtx.range_push = range_push


def record_triton_launches() -> None:
    """Have profilers record launches of Triton kernels as operators, with their tensors' sizes. Call after its import.

    Compiled graphs record their own launches so; those of kernels that a program writes would have a name alone.
    """
    import torch

    try:
        from triton.runtime.jit import JITFunction
    except ImportError:  # a package of that name that is not Triton, or is not whole
        return
    recorded = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    original = JITFunction.run
    if recorded is None or getattr(original, _RECORDS, False):
        return

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup or not torch.autograd._profiler_enabled():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        values = [one for value in (*args, *kwargs.values()) for one in _plain(value, torch.Tensor)]
        with recorded(f"{TRITON}{self.__name__}", values):
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)

    setattr(run, _RECORDS, True)
    JITFunction.run = run


TRITON: Final = "triton::"  # how names of such operators begin
_RECORDS: Final = "_opscope_records"
_MOST_INT: Final = (1 << 63) - 1  # what a record can hold


def _plain(value: Any, tensor: type) -> list[Any]:
    """Return an argument of a kernel as records hold it: tensors and numbers, of anything else the type's name.

    Never a tensor's text: that would wait for the device. Descriptors of tensors and reinterpreted ones have a base.
    """
    if isinstance(value, tensor | bool | float) or (isinstance(value, int) and abs(value) <= _MOST_INT):
        return [value]
    if isinstance(value, tuple | list):
        return [one for part in value for one in _plain(part, tensor)]
    base = vars(value).get("base") if hasattr(value, "__dict__") else None
    return [base if isinstance(base, tensor) else type(value).__name__]


def _listen_to_profilers(listener: Listener) -> None:
    from torch.autograd.profiler import profile

    original = profile._prepare_trace

    @functools.wraps(original)
    def _prepare_trace(self: Any) -> Any:
        listener.profiler_prepares(self)
        return original(self)

    profile._prepare_trace = _prepare_trace
    export = profile.export_chrome_trace

    @functools.wraps(export)
    def export_chrome_trace(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = export(self, path, *args, **kwargs)
        listener.trace_exported(self, path)
        return result

    profile.export_chrome_trace = export_chrome_trace
