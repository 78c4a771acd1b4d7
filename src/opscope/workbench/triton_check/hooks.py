"""Hooks into Triton's interpreter: every memory access is checked before it is made.

The interpreter calls methods of ``InterpreterBuilder`` for what a program does. A pointer remembers the tensor that it
was made from, in its handle's attributes, and whatever computes pointers from pointers passes that on. An access
outside of the tensor is reported and left out: a load gives NaN (all bits set in whole numbers), a store does nothing.
"""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct, field

from opscope.documents.triton_check import MemoryProblem, ProblemKind
from opscope.workbench.triton_check.memory import POISON, Addresses, Flags, Memory, WatchedMemory, memory_of

_KEY: Final = "opscope.memories"  # of a handle's attributes
# Methods that compute pointers from pointers; not every version of Triton has all of them.
_CARRIES: Final = (
    *("create_addptr", "create_splat", "create_unsplat", "create_broadcast", "create_expand_dims", "create_reshape"),
    *("create_trans", "create_select", "create_bitcast", "create_cat", "create_join"),
)
_HANDLES: Final = ("BlockPointerHandle", "TensorDescHandle")
_MOST_PROBLEMS: Final = 200  # kinds of problems that are kept
# Files below these folders are not the user's code, so no problem's location is there.
_NOT_OURS: Final = tuple(f"{Path(place).parent}{os.sep}" for place in (__file__, np.__file__, torch.__file__))

_Call = Callable[..., Any]


class _Found(Struct):
    """Wrong accesses of one kind, by one line of a kernel to one tensor, added up.

    Attributes:
        memory: of the tensor.
        first_program: the program (x, y, z) of the first such access.
        programs: all programs with such an access.
        elements: how many elements were accessed.
        first_offset, last_offset: the least and the greatest index, in elements from the tensor's first one.
        in_storage: whether all accesses lie within the tensor's storage.
    """

    memory: Memory
    first_program: tuple[int, int, int]
    programs: set[tuple[int, int, int]] = field(default_factory=set)
    elements: int = 0
    first_offset: int = sys.maxsize
    last_offset: int = -sys.maxsize
    in_storage: bool = True


class _Launch(Struct):
    """A launch that is under way.

    Attributes:
        kernel: the kernel's name.
        names: the names of its tensors, in the order in which the interpreter converts them.
        memories: the memory of the tensors that it has converted.
        live: the memory of all tensors in the process; None until it is needed.
    """

    kernel: str
    names: Iterator[str]
    memories: list[Memory] = field(default_factory=list)
    live: list[Memory] | None = None


class Watch:
    """Watches the interpreter's launches and memory accesses.

    Attributes:
        launches: how many kernels were launched.
        accesses: how many accesses of single elements were checked.
        not_checked: sentences on what was not checked, and why.
    """

    def __init__(self, interpreter: ModuleType, memory: WatchedMemory) -> None:
        self.launches = 0
        self.accesses = 0
        self.not_checked: list[str] = []
        self._interpreter = interpreter
        self._memory = memory
        self._launch: _Launch | None = None
        self._found: dict[tuple[ProblemKind, str, str | None, str], _Found] = {}
        self._scratch = np.zeros(1, dtype=np.uint64)  # where a compare-and-swap goes that must not be made
        self._not_ours = (*_NOT_OURS, f"{Path(str(interpreter.__file__)).parents[1]}{os.sep}")

    def install(self) -> None:
        """Put the hooks into the interpreter of this process."""
        builder = getattr(self._interpreter, "InterpreterBuilder", None)
        executor = getattr(self._interpreter, "GridExecutor", None)
        launched = self._hook(executor, "__call__", self._launched, "no access was checked")
        taken = self._hook(self._interpreter, "_implicit_cvt", self._taken, "no access was checked")
        if not (launched and taken):
            return
        self._hook(builder, "create_masked_load", self._loaded, "loads were not checked")
        self._hook(builder, "create_masked_store", self._stored, "stores were not checked")
        self._hook(builder, "create_atomic_rmw", self._atomic, "atomic operations were not checked")
        self._hook(builder, "create_atomic_cas", self._swapped, "atomic compare-and-swap was not checked")
        for name in _CARRIES:
            self._hook(builder, name, self._carried, None)
        for name in _HANDLES:
            self._hook(getattr(self._interpreter, name, None), "materialize_pointers", self._of_block, None)

    def use_first_configuration(self, tuner: type) -> None:
        """Make kernels with several configurations run with the first one, as no device can time them."""
        self._hook(tuner, "run", self._tuned, "kernels with several configurations cannot be run")

    def note(self, sentence: str) -> None:
        """Note a sentence on what was not checked, once."""
        if sentence not in self.not_checked:
            self.not_checked.append(sentence)

    def problems(self) -> tuple[MemoryProblem, ...]:
        """Return the problems that were found, those with the most elements first."""
        results = [
            MemoryProblem(
                kind=kind,
                kernel=kernel,
                location=location,
                tensor=tensor,
                tensor_elements=one.memory.elements,
                elements=one.elements,
                programs=len(one.programs),
                first_program=one.first_program,
                first_offset=one.first_offset,
                last_offset=one.last_offset,
                in_storage=None if kind is ProblemKind.UNWRITTEN_READ else one.in_storage,
            )
            for (kind, kernel, location, tensor), one in self._found.items()
        ]
        return tuple(sorted(results, key=lambda problem: -problem.elements))

    def _hook(self, owner: object, name: str, make: Callable[[_Call], _Call], without: str | None) -> bool:
        original = getattr(owner, name, None)
        if original is None:
            if without is not None:
                self.note(f"this Triton's interpreter has no {name}: {without}")
            return False
        setattr(owner, name, make(original))
        return True

    # ---------------------------------------------------------------- launches and pointers

    def _launched(self, original: _Call) -> _Call:
        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.launches += 1
            before = self._launch
            self._launch = _Launch(executor.fn.__name__, iter(_tensor_names(executor, args, kwargs)))
            try:
                with self._memory.paused():
                    return original(executor, *args, **kwargs)
            finally:
                self._launch = before

        return launch

    def _taken(self, original: _Call) -> _Call:
        def convert(value: Any) -> Any:
            converted = original(value)
            if self._launch is not None and hasattr(value, "data_ptr"):
                tensor = getattr(value, "base", value)  # of triton.reinterpret's wrapper
                # The interpreter converts tensors in the order of the parameters.
                name = next(self._launch.names, "an argument")
                memory = memory_of(tensor, name, self._memory.of(tensor))
                self._launch.memories.append(memory)
                converted.handle.attr[_KEY] = (memory,)
            return converted

        return convert

    def _carried(self, original: _Call) -> _Call:
        def compute(builder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(builder, *args, **kwargs)
            memories = [memory for value in args for memory in _memories(value)]
            if memories and hasattr(result, "attr"):
                result.attr[_KEY] = tuple(dict.fromkeys(memories))
            return result

        return compute

    def _of_block(self, original: _Call) -> _Call:
        def materialize(block: Any, *args: Any, **kwargs: Any) -> Any:
            pointers, mask = original(block, *args, **kwargs)
            pointers.attr[_KEY] = _memories(block.base)
            return pointers, mask

        return materialize

    def _tuned(self, original: _Call) -> _Call:
        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            configs = tuner.configs
            if len(configs) > 1:
                tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
                tuner.configs = tuner.prune_configs(kwargs)[:1]
                name = getattr(tuner.base_fn, "__name__", "a kernel")
                self.note(f"of the {len(configs)} configurations of {name} one was run: {tuner.configs[0]}")
            try:
                return original(tuner, *args, **kwargs)
            finally:
                tuner.configs = configs

        return run

    # ---------------------------------------------------------------- accesses

    def _loaded(self, original: _Call) -> _Call:
        def load(builder: Any, pointers: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            refused = self._refused(ProblemKind.LOAD_OUTSIDE, pointers, mask.data)
            if refused is None:
                return original(builder, pointers, mask, *args, **kwargs)
            return self._poisoned(original(builder, pointers, self._less(mask, refused), *args, **kwargs), refused)

        return load

    def _stored(self, original: _Call) -> _Call:
        def store(builder: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
            refused = self._refused(ProblemKind.STORE_OUTSIDE, pointers, mask.data)
            allowed = mask if refused is None else self._less(mask, refused)
            self._write(pointers, allowed.data)
            return original(builder, pointers, value, allowed, *args, **kwargs)

        return store

    def _atomic(self, original: _Call) -> _Call:
        def change(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *args: Any) -> Any:
            # An exchange does not depend on what was in memory, so that may be unwritten.
            exchanges = getattr(operation, "name", "") == "XCHG"
            refused = self._refused(ProblemKind.ATOMIC_OUTSIDE, pointers, mask.data, reads=not exchanges)
            allowed = mask if refused is None else self._less(mask, refused)
            self._write(pointers, allowed.data)
            result = original(builder, operation, pointers, value, allowed, *args)
            return result if refused is None else self._poisoned(result, refused)

        return change

    def _swapped(self, original: _Call) -> _Call:
        def swap(builder: Any, pointers: Any, *args: Any) -> Any:
            everywhere = np.ones(pointers.data.shape, dtype=np.bool_)
            refused = self._refused(ProblemKind.ATOMIC_OUTSIDE, pointers, everywhere)
            if refused is None:
                self._write(pointers, everywhere)
                return original(builder, pointers, *args)
            self._write(pointers, ~refused)
            # It takes no mask: pointers that are refused are led to memory of our own.
            elsewhere = np.where(refused, np.uint64(self._scratch.ctypes.data), pointers.data)
            replaced = self._interpreter.TensorHandle(elsewhere, pointers.dtype)
            return self._poisoned(original(builder, replaced, *args), refused)

        return swap

    def _less(self, mask: Any, refused: Flags) -> Any:
        # Some versions pass a plain array, whose ``data`` is its buffer, so the type is not taken from the mask.
        return self._interpreter.TensorHandle(np.asarray(mask.data) & ~refused, self._interpreter.tl.int1)

    def _poisoned(self, result: Any, refused: Flags) -> Any:
        data = np.array(result.data)
        # Eight bytes of POISON, seen as the result's type: NaN, or all bits set.
        data[refused] = True if data.dtype == np.bool_ else np.full(1, POISON, np.uint8).repeat(8).view(data.dtype)[0]
        return self._interpreter.TensorHandle(data, result.dtype)

    def _refused(self, kind: ProblemKind, pointers: Any, mask: Any, *, reads: bool = True) -> Flags | None:
        """Check an access and note its problems.

        Args:
            kind: the problem to note if the access lies outside.
            pointers: the handle of the pointers.
            mask: which of the elements are accessed.
            reads: whether the access depends on what memory holds; a store never does.

        Returns:
            A flag per pointer, set where the access must not be made; None if all may be made.
        """
        launch = self._launch
        wanted = np.broadcast_to(np.asarray(mask), pointers.data.shape)
        addresses = pointers.data[wanted]
        if launch is None or not addresses.size:
            return None
        self.accesses += int(addresses.size)
        size = _size(pointers)
        memories = _memories(pointers)
        fine = np.zeros(addresses.shape, dtype=np.bool_)
        # A pointer of unknown origin may point into any of the launch's tensors.
        for memory in memories or launch.memories:
            here = memory.holds(addresses, size)
            if reads and kind is not ProblemKind.STORE_OUTSIDE:
                self._check_written(memory, addresses[here & ~fine], size)
            fine |= here
            if fine.all():
                return None
        if not memories:
            fine |= self._in_live(launch, addresses, size)
            if fine.all():
                return None
        bad = addresses[~fine]
        nearest = min(memories or launch.memories, key=lambda memory: memory.distance(int(bad[0])), default=None)
        if nearest is not None:
            self._add(kind, nearest, bad, size)
        refused = np.zeros(wanted.shape, dtype=np.bool_)
        refused[wanted] = ~fine
        return refused

    def _in_live(self, launch: _Launch, addresses: Addresses, size: int) -> Flags:
        """Check addresses that were made from numbers against the storages of all tensors in the process."""
        if launch.live is None:
            launch.live = [memory_of(tensor, "", None) for tensor in _live_tensors()]
            self.note(f"{launch.kernel} makes pointers from numbers: they were held against whole storages only")
        result = np.zeros(addresses.shape, dtype=np.bool_)
        for memory in launch.live:
            result |= memory.in_storage(addresses, size)
        return result

    def _check_written(self, memory: Memory, addresses: Addresses, size: int) -> None:
        if memory.unwritten is None or not addresses.size:
            return
        unwritten = memory.unwritten.read(addresses, size)
        if unwritten.any():
            self._add(ProblemKind.UNWRITTEN_READ, memory, addresses[unwritten], size)

    def _write(self, pointers: Any, mask: Any) -> None:
        launch = self._launch
        addresses = pointers.data[np.broadcast_to(np.asarray(mask), pointers.data.shape)]
        if launch is None or not addresses.size:
            return
        size = _size(pointers)
        for memory in _memories(pointers) or launch.memories:
            if memory.unwritten is not None:
                memory.unwritten.write(addresses[memory.in_storage(addresses, size)], size)

    def _add(self, kind: ProblemKind, memory: Memory, addresses: Addresses, size: int) -> None:
        kernel = self._launch.kernel if self._launch is not None else ""
        key = (kind, kernel, self._location(), memory.name)
        x, y, z = map(int, self._interpreter.interpreter_builder.grid_idx)  # the program that is being interpreted
        if key not in self._found and len(self._found) >= _MOST_PROBLEMS:
            self.note(f"more than {_MOST_PROBLEMS} kinds of problems: the rest is not shown")
            return
        result = self._found.setdefault(key, _Found(memory, (x, y, z)))
        offsets = memory.offsets(addresses) // memory.item_bytes
        result.elements += int(addresses.size)
        result.programs.add((x, y, z))
        result.first_offset = min(result.first_offset, int(offsets.min()))
        result.last_offset = max(result.last_offset, int(offsets.max()))
        result.in_storage &= bool(memory.in_storage(addresses, size).all())

    def _location(self) -> str | None:
        """Return the innermost line of the user's code that is running, ``file.py:12``; None if there is none."""
        frame = inspect.currentframe()
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith(self._not_ours) and not path.startswith("<"):
                return f"{Path(path).name}:{frame.f_lineno}"
            frame = frame.f_back
        return None


def _memories(value: Any) -> tuple[Memory, ...]:
    """Return the memories that a pointer was made from; none if that is unknown, or the value is not a pointer."""
    attributes = getattr(value, "attr", None)
    return attributes.get(_KEY, ()) if isinstance(attributes, dict) else ()


def _size(pointers: Any) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


def _tensor_names(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    """Yield the names of a launch's tensors, in the order of the parameters."""
    known = inspect.signature(executor.fn).parameters
    try:
        values = inspect.getcallargs(executor.fn, *args, **{name: kwargs[name] for name in kwargs if name in known})
    except TypeError:
        return  # the launch itself fails, and says what is wrong
    for name, value in values.items():
        if name not in executor.constexprs:
            yield from _named(name, value)


def _named(name: str, value: Any) -> Iterator[str]:
    if hasattr(value, "data_ptr"):
        yield name
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _named(f"{name}[{place}]", part)
    elif hasattr(value, "block_shape") and hasattr(value, "base"):  # a tensor descriptor
        yield name


def _live_tensors() -> Iterator[torch.Tensor]:
    for one in gc.get_objects():
        # type(), not isinstance(): objects may answer for their __class__ by running code.
        if issubclass(type(one), torch.Tensor) and one.device.type == "cpu" and one.layout is torch.strided:
            yield one
