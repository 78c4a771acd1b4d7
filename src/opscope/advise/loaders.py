"""The data loaders of a process: where they were made, which of them steps read, and how many workers they have."""

import functools
import inspect
import random
import weakref
import zlib
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from opscope.advise.places import Stack, here
from opscope.advise.seeds import seed


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

    Args:
        seeded: whether what a dataset draws depends on the samples' indices alone, and not on which process draws it:
            then batches are the same with workers and without.

    Attributes:
        made: the loaders.
        workers: how many workers a loader gets that has none; 0 leaves it as it is.
    """

    def __init__(self, *, seeded: bool = False) -> None:
        self._seeded = seeded
        self.made: list[Made] = []
        self.workers = 0

    def listen(self) -> None:
        """Begin; for the rest of the process."""
        self._listen_to_making()
        self._listen_to_reading()
        if self._seeded:
            _seed_by_index()

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


def _seed_by_index() -> None:
    """Seed all generators before each batch is fetched, in whichever process, and leave them as they were."""
    fetch = _MapDatasetFetcher.fetch

    @functools.wraps(fetch)
    def fetched(self: Any, indices: Any) -> Any:
        state = random.getstate(), np.random.get_state(), torch.get_rng_state()
        seed(zlib.crc32(repr(indices).encode()))
        try:
            return fetch(self, indices)
        finally:
            random.setstate(state[0])
            np.random.set_state(state[1])
            torch.set_rng_state(state[2])

    _MapDatasetFetcher.fetch = fetched
