"""The data loaders of a process: where they were made, which of them steps read, and how many workers they have."""

import functools
import inspect
import weakref
from typing import Any

from msgspec import Struct
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from opscope.advise.places import Stack, here


class Made(Struct):
    """A loader that was made.

    Attributes:
        loader: the loader, while it is alive.
        stack: where.
        workers: how many it was made with, before any change.
        iterable: whether its dataset yields, instead of being asked for an index.
        reads: how many batches were taken from it.
    """

    loader: "weakref.ref[DataLoader[Any]]"
    stack: Stack
    workers: int
    iterable: bool
    reads: int = 0

    @property
    def prefetched(self) -> int:
        """How many batches its workers hold ready, at most; 0 without workers."""
        loader = self.loader()
        return 0 if loader is None else loader.num_workers * (loader.prefetch_factor or 0)


class Loaders:
    """Hears of every loader that is made, and of every batch that is taken.

    Attributes:
        made: the loaders.
        workers: how many workers a loader gets that has none; 0 leaves it as it is.
    """

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.workers = 0

    def listen(self) -> None:
        """Begin; for the rest of the process."""
        self._listen_to_making()
        self._listen_to_reading()

    def read_since(self, before: dict[int, int]) -> list[Made]:
        """Return the loaders from which batches were taken since `reads` said ``before``."""
        return [one for place, one in enumerate(self.made) if one.reads > before.get(place, 0)]

    def reads(self) -> dict[int, int]:
        """Return how many batches were taken so far, by the loader's place in `made`."""
        return {place: one.reads for place, one in enumerate(self.made)}

    def _listen_to_making(self) -> None:
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            given = bound.arguments
            workers, iterable = given.get("num_workers", 0), isinstance(given["dataset"], IterableDataset)
            if self.workers and not workers and not iterable:
                given["num_workers"], given["persistent_workers"] = self.workers, True
            original(*bound.args, **bound.kwargs)
            self.made.append(Made(weakref.ref(loader), here(), workers, iterable))

        DataLoader.__init__ = init

    def _listen_to_reading(self) -> None:
        get, following = DataLoader._get_iterator, _BaseDataLoaderIter.__next__
        of: weakref.WeakKeyDictionary[Any, Made] = weakref.WeakKeyDictionary()

        @functools.wraps(get)
        def get_iterator(loader: Any) -> Any:
            iterator = get(loader)
            made = next((one for one in reversed(self.made) if one.loader() is loader), None)
            if made is not None:
                of[iterator] = made
            return iterator

        @functools.wraps(following)
        def taken(iterator: Any) -> Any:
            batch = following(iterator)
            if (made := of.get(iterator)) is not None:
                made.reads += 1
            return batch

        DataLoader._get_iterator = get_iterator
        _BaseDataLoaderIter.__next__ = taken
