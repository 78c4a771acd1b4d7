"""The memory of the tensors that interpreted kernels take: what may be accessed, and what is not written yet."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

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
