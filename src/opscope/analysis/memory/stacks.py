"""Reads the stacks of a snapshot: the line of the user's code, modules, the operator, and the part of a step.

Files that a snapshot names are never opened.
"""

import re
from collections.abc import Sequence
from enum import IntFlag, auto
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.trace.snapshot import Action, Frame, Snapshot

# Installed packages, the standard library, and what torch.compile generated.
_LIBRARY: Final = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d|[/\\]torchinductor_|[/\\]c[a-z0-9]{50,}\.py$"
    r"|^<(?!ipython|stdin|string)"
)
# Our own frames are in snapshots that `opscope profile` has taken: they say nothing of the program.
_OURS: Final = re.compile(r"[/\\]opscope[/\\](?:collect|measuring|sweep|torch_support|workloads)[/\\][\w/\\]+\.py$")
# Optimizers of PyTorch and of other packages; those that users write run inside the wrapper of ``torch/optim``.
_OPTIMIZER: Final = re.compile(
    r"/(?:torch|bitsandbytes|torchao|apex|deepspeed|megatron)/(?:[^/]+/)*(?:optim|optimizers?|low_bit_optim)/"
    r"(?!lr_scheduler|swa_utils)"
)
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
_IN_BACKWARD: Final = re.compile(r"^backward$|^_?(?:pre|post)_backward|backward_hook$|^vjp$")
_STANDARD: Final = re.compile(
    r"[/\\]lib(?:64)?[/\\]python[\d.]+[/\\](?!(?:site|dist)-packages)|^<frozen|[/\\]torchinductor_"
)
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
    OF_TORCH = auto()  # of an optimizer in torch/optim
    COPIED = auto()  # copy.deepcopy
    BUCKET = auto()  # what DistributedDataParallel keeps gradients in
    LOSS = auto()  # cross entropy


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
        has_native: whether frames of C++ were recorded.
        same_as: per stack its own number, or that of the stack that it was before something was added to it: what has
            the same stack in the program is of one place, whether or not all of it has an operator.
    """

    stacks: tuple[Stack, ...]
    parts: np.ndarray
    has_python: bool
    has_native: bool
    same_as: np.ndarray

    @classmethod
    def of(cls, stacks: Sequence[Stack], *, has_native: bool) -> "StackTable":
        """Join stacks."""
        parts = np.array([int(stack.parts) for stack in stacks], dtype=np.int64)
        return cls(
            tuple(stacks),
            parts,
            any(stack.lines for stack in stacks),
            has_native,
            np.arange(len(stacks), dtype=np.int64),
        )

    def has(self, part: Part) -> np.ndarray:
        """Return a mask of the stacks that have a part."""
        mask: np.ndarray = (self.parts & int(part)) > 0
        return mask


def stacks_of(snapshot: Snapshot) -> StackTable:
    """Look at every frame and every stack once."""
    frames = [None if _OURS.search(frame.file) else _Seen.of(frame) for frame in snapshot.frames]
    stacks = tuple(
        _stack([one for at in snapshot.stacks[number] if (one := frames[at]) is not None])
        for number in range(len(snapshot.stacks))
    )
    has_python = any(stack.lines for stack in stacks)
    if has_python and _entries_have_stacks(snapshot, stacks):
        # Autograd's threads have no line of Python: what has none ran there.
        stacks = tuple(stack if stack.lines or stack.parts else replace(stack, parts=Part.BACKWARD) for stack in stacks)
    return StackTable.of(stacks, has_native=any(stack.operator for stack in stacks))


_SOME: Final = 0.1  # of the allocations: a backward pass makes more of them than the rest of a step, but not all


def _entries_have_stacks(snapshot: Snapshot, stacks: Sequence["Stack"]) -> bool:
    """Tell whether stacks were recorded with entries, so that the lack of one means something."""
    with_lines = np.array([bool(stack.lines) for stack in stacks])
    counts = [(0, 0)]
    for device in snapshot.devices:
        of_allocations = device.events.stack[device.events.action == Action.ALLOC]
        counts.append((int(with_lines[of_allocations].sum()), len(of_allocations)))
    some, whole = (sum(column) for column in zip(*counts, strict=True))
    return bool(some > _SOME * whole)


def is_of_library(file: str) -> bool:
    """Tell whether a file is of an installed package, of Python itself, or generated."""
    return _LIBRARY.search(file) is not None


class _Seen(Struct, frozen=True):
    """A frame, and what its file and function say by themselves."""

    frame: Frame
    file: str
    is_python: bool
    is_users: bool
    is_torch: bool
    is_module_call: bool
    is_optimizer: bool

    @classmethod
    def of(cls, frame: Frame) -> "_Seen":
        """Look at a frame."""
        file = frame.file.replace("\\", "/")
        is_python = frame.line > 0 and (file.endswith(".py") or file.startswith("<"))
        calls = ("_call_impl", "_wrapped_call_impl", "_slow_forward")
        return cls(
            frame=frame,
            file=file,
            is_python=is_python,
            is_users=is_python and not is_of_library(file),
            is_torch="/torch/" in file,
            is_module_call=file.endswith(_MODULE_FILE) and frame.function in calls,
            is_optimizer=is_python and _OPTIMIZER.search(file) is not None,
        )


def _stack(seen: Sequence[_Seen]) -> Stack:
    python = [one for one in seen if one.is_python]
    native = [one.frame.function for one in seen if not one.is_python]
    innermost = _own_frame(python)
    forwards = [one.frame for one in reversed(python) if one.frame.function == "forward" and not one.is_torch]
    return Stack(
        parts=_parts(python) | _native_parts(native),
        line=None if innermost is None else line_of(innermost),
        place=None if innermost is None else f"{innermost.file}:{innermost.line}",
        modules=" > ".join(map(line_of, forwards)) or None,
        operator=_operator(native),
        lines=_places(python),
        own_lines=_places([one for one in python if one.is_users]),
    )


def _places(seen: Sequence[_Seen]) -> tuple[tuple[str, str, int], ...]:
    return tuple((one.frame.file, one.frame.function, one.frame.line) for one in reversed(seen))


def _own_frame(python: Sequence[_Seen]) -> Frame | None:
    """Return the innermost frame of the user's code.

    Where that is only the script that starts a trainer of some package, the innermost one that is not PyTorch's.
    """
    users = next((one for one in python if one.is_users), None)
    others = next((one for one in python if not one.is_torch and not _STANDARD.search(one.file)), None)
    if users is not None and (users.frame.function != "<module>" or others is None):
        return users.frame
    chosen = others or users or next(iter(python), None)
    return None if chosen is None else chosen.frame


def line_of(frame: Frame) -> str:
    """Return a frame as people read it."""
    name = re.split(r"[/\\]", frame.file)[-1]
    return f"{name}:{frame.line} ({frame.function})"


def _parts(python: Sequence[_Seen]) -> Part:
    parts = _within_optimizer(python) | _within_backward(python)
    for one in python:
        file, function = one.file, one.frame.function
        if function == "zero_grad":
            parts |= Part.ZERO_GRADIENTS
        if one.is_module_call:
            parts |= Part.FORWARD
        if function in ("_apply", "convert", "reset_parameters", "from_pretrained", "__init__", "__new__"):
            parts |= Part.MADE
        if file.endswith(("torch/serialization.py", "safetensors/torch.py")):
            parts |= Part.LOADED
        if function in ("deepcopy", "__deepcopy__"):
            parts |= Part.COPIED
        if file.endswith("nn/parallel/distributed.py"):
            parts |= Part.BUCKET
        if function in _LOSS:
            parts |= Part.LOSS
    return parts


def _within_optimizer(python: Sequence[_Seen]) -> Part:
    """Tell whether an optimizer's step works; not if it called a closure, in which modules run."""
    at = next((at for at, one in enumerate(python) if one.is_optimizer), None)
    if at is None:
        return Part.NONE
    inner = python[:at]
    if any(one.is_module_call or one.frame.function in ("closure", "backward") for one in inner):
        return Part.NONE
    return Part.OPTIMIZER | (Part.OF_TORCH if "/torch/optim/" in python[at].file else Part.NONE)


def _within_backward(python: Sequence[_Seen]) -> Part:
    # What a reentrant checkpoint's own backward pass allocates is not forward work done again.
    in_engine = bool(python) and python[0].frame.function == "_engine_run_backward"
    for at, one in enumerate(python):
        function = one.frame.function
        if one.file.endswith("utils/checkpoint.py") and function in ("unpack_hook", "recompute_fn", "backward"):
            return Part.BACKWARD if in_engine else Part.RECOMPUTED | Part.BACKWARD
        if _IN_BACKWARD.search(function) and not any(inner.is_module_call for inner in python[:at]):
            return Part.BACKWARD
    return Part.NONE


def _native_parts(native: Sequence[str]) -> Part:
    parts = Part.NONE
    for name in native:
        if "torch::autograd::Engine::" in name:
            parts |= Part.BACKWARD
        if any(workspace in name for workspace in _WORKSPACES):
            parts |= Part.WORKSPACE
    return parts


def _operator(native: Sequence[str]) -> str | None:
    for name in native:
        if (match := _OPERATOR.search(name)) and match[1] not in _ALLOCATORS:
            return f"aten::{match[1]}"
        if match := _NODE.search(name):
            return match[1] or match[2]
    return None
