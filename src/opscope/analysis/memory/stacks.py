"""Reads the stacks of a snapshot: the line of the user's code, modules, the operator, and the part of a step.

Files that a snapshot names are never opened.
"""

import re
from collections.abc import Sequence
from enum import IntFlag, auto
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.trace.snapshot import Frame, Snapshot

# Installed packages and the standard library; what Python itself and compiled code say has no line of a user.
_LIBRARY: Final = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d|[/\\]torchinductor_|[/\\]c[a-z0-9]{50,}\.py$"
    r"|^<(?!ipython|stdin|string)"
)
_COMPILED: Final = re.compile(r"::|^\?\?$")
_OPTIMIZER: Final = re.compile(r"[/\\](?:optim|optimizers?|bitsandbytes[/\\]optim)[/\\](?!lr_scheduler|swa_utils)")
_LOSS: Final = frozenset({"cross_entropy", "nll_loss", "log_softmax"})
_OPERATOR: Final = re.compile(r"at::_ops::(\w+?)::(?:call|redispatch)")
_NODE: Final = re.compile(r"torch::autograd::generated::(\w+?)::apply|torch::autograd::(AccumulateGrad)::")
# Operators that only allocate: the one that called them says more.
_ALLOCATORS: Final = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_memory_format", "new_empty", "new_empty_strided", "resize_"),
        *("_resize_output_", "empty_quantized", "empty_permuted", "clone", "contiguous"),
    }
)
_WORKSPACES: Final = ("getCUDABlasLtWorkspace", "getCurrentCUDABlasHandle", "getNewWorkspace", "cudnn_rnn_workspace")
_MODULE_FILE: Final = "nn/modules/module.py"


class Part(IntFlag):
    """What a stack is of."""

    NONE = 0
    OPTIMIZER = auto()
    ZERO_GRADIENTS = auto()
    BACKWARD = auto()
    RECOMPUTED = auto()  # forward work done again, by torch.utils.checkpoint
    FORWARD = auto()  # within the call of a module
    MADE = auto()  # a module is made, moved or loaded
    LOADED = auto()  # torch.load and the like
    WORKSPACE = auto()
    FOREACH = auto()  # an optimizer's step over all parameters at once
    LOSS = auto()  # cross entropy
    CAT = auto()


class Stack(Struct, frozen=True):
    """One stack.

    Attributes:
        parts: what it is of.
        line: the innermost line of the user's code, ``train.py:20 (step)``; of the library's where there is none; None
            without any line.
        place: the same with the file's whole path.
        modules: the user's functions ``forward`` from the outermost inwards; None outside of modules.
        operator: as ``aten::NAME`` or an autograd node; None where compiled frames were not recorded.
        lines: the lines of Python code, outermost first: file, function, line.
        own_lines: those of them that are of no library.
    """

    parts: Part
    line: str | None
    place: str | None
    modules: str | None
    operator: str | None
    lines: tuple[tuple[str, str, int], ...]
    own_lines: tuple[tuple[str, str, int], ...]


class StackTable(Struct, frozen=True):
    """All stacks of a snapshot.

    Attributes:
        stacks: one for each position in the snapshot's stacks.
        parts: their parts, as an array.
        has_python: whether any has a line of Python.
    """

    stacks: tuple[Stack, ...]
    parts: np.ndarray
    has_python: bool

    def has(self, part: Part) -> np.ndarray:
        """Return a mask of the stacks that have a part."""
        mask: np.ndarray = (self.parts & int(part)) > 0
        return mask


def stacks_of(snapshot: Snapshot) -> StackTable:
    """Look at every stack once."""
    compiled = [_is_compiled(frame) for frame in snapshot.frames]
    stacks = tuple(
        _stack([snapshot.frames[at] for at in frames], [compiled[at] for at in frames])
        for frames in map(snapshot.stacks.__getitem__, range(len(snapshot.stacks)))
    )
    has_python = any(stack.lines for stack in stacks)
    if has_python:  # autograd's threads have no line of Python: what has none ran there
        stacks = tuple(_on_autograd_thread(stack) for stack in stacks)
    parts = np.array([int(stack.parts) for stack in stacks], dtype=np.int64)
    return StackTable(stacks, parts, has_python)


def _on_autograd_thread(stack: Stack) -> Stack:
    from msgspec.structs import replace

    return stack if stack.lines or stack.parts else replace(stack, parts=Part.BACKWARD)


def is_of_library(frame: Frame) -> bool:
    """Tell whether a frame is of an installed package or of Python itself."""
    return _LIBRARY.search(frame.file) is not None


def _is_compiled(frame: Frame) -> bool:
    return frame.line == 0 or not frame.file or bool(_COMPILED.search(frame.function)) or frame.file == "??"


def _stack(frames: Sequence[Frame], compiled: Sequence[bool]) -> Stack:
    python = [frame for frame, is_compiled in zip(frames, compiled, strict=True) if not is_compiled]
    native = [frame.function for frame, is_compiled in zip(frames, compiled, strict=True) if is_compiled]
    users = [frame for frame in python if not is_of_library(frame)]
    innermost = next(iter(users or python), None)
    forwards = [frame for frame in reversed(users) if frame.function == "forward"]
    return Stack(
        parts=_parts(python, native),
        line=None if innermost is None else line_of(innermost),
        place=None if innermost is None else f"{innermost.file}:{innermost.line}",
        modules=" > ".join(line_of(frame) for frame in forwards) or None,
        operator=_operator(native),
        lines=tuple((frame.file, frame.function, frame.line) for frame in reversed(python)),
        own_lines=tuple((frame.file, frame.function, frame.line) for frame in reversed(users)),
    )


def line_of(frame: Frame) -> str:
    """Return a frame as people read it."""
    name = re.split(r"[/\\]", frame.file)[-1]
    return f"{name}:{frame.line} ({frame.function})"


def _parts(python: Sequence[Frame], native: Sequence[str]) -> Part:
    parts = Part.NONE
    # What a reentrant checkpoint's own backward pass allocates is no forward work done again.
    in_engine = bool(python) and python[0].function == "_engine_run_backward"
    for frame in python:
        file, function = frame.file.replace("\\", "/"), frame.function
        if _OPTIMIZER.search(file):
            parts |= Part.OPTIMIZER
            if function.startswith(("_multi_tensor", "_foreach")):
                parts |= Part.FOREACH
        if function == "zero_grad":
            parts |= Part.ZERO_GRADIENTS
        if function == "backward" and "torch/" in file:
            parts |= Part.BACKWARD
        if file.endswith("utils/checkpoint.py") and function in ("unpack_hook", "recompute_fn", "backward"):
            parts |= Part.BACKWARD if in_engine else Part.RECOMPUTED | Part.BACKWARD
        if file.endswith(_MODULE_FILE) and function in ("_call_impl", "_wrapped_call_impl", "_slow_forward"):
            parts |= Part.FORWARD
        if function in ("_apply", "convert", "reset_parameters", "from_pretrained") or (
            "nn/" in file and function in ("__init__", "__new__")
        ):
            parts |= Part.MADE
        if file.endswith(("torch/serialization.py", "safetensors/torch.py")):
            parts |= Part.LOADED
        if function in _LOSS:
            parts |= Part.LOSS
    return parts | _native_parts(native)


def _native_parts(native: Sequence[str]) -> Part:
    parts = Part.NONE
    for name in native:
        if "torch::autograd::Engine::" in name:
            parts |= Part.BACKWARD
        if "_foreach_" in name:
            parts |= Part.FOREACH
        if any(workspace in name for workspace in _WORKSPACES):
            parts |= Part.WORKSPACE
        if "at::_ops::cat::" in name:
            parts |= Part.CAT
    return parts


def _operator(native: Sequence[str]) -> str | None:
    for name in native:
        if (match := _OPERATOR.search(name)) and match[1] not in _ALLOCATORS:
            return f"aten::{match[1]}"
        if match := _NODE.search(name):
            return match[1] or match[2]
    return None
