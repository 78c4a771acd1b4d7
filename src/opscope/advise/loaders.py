"""The data loaders of a process: where they were made, which of them steps read, and how many workers they have."""

import functools
import inspect
import random
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns, thread_time_ns  # as they are, whatever clock a script sees
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from opscope.advise.messages import ReplayBatches
from opscope.advise.routine import seed
from opscope.advise.source import Stack, here

_KEPT: Final = 8  # batches that are replayed
_LONG: Final = 64  # parts of a batch: opening more anew may cost as much as what is not to be measured, loading


class Made(Struct):
    """A loader that was made.

    Attributes:
        loader: the loader, while it is alive.
        stack: where.
        workers: how many it was made with, before any change.
        iterable: whether its dataset yields, instead of being asked for an index.
        workers_now: how many it has.
        prefetched: how many batches these hold ready, at most; 0 without workers.
        key: what tells the loaders of one place in the source from others: scripts make them anew each epoch.
        restarts: whether each epoch starts its workers anew.
        reads: how many batches were taken from it.
    """

    loader: "weakref.ref[DataLoader[Any]]"
    stack: Stack
    workers: int
    iterable: bool
    workers_now: int
    prefetched: int
    key: tuple[object, ...]
    restarts: bool
    reads: int = 0


class Wait(Struct, frozen=True):
    """A batch that was taken.

    Attributes:
        wall_ns: how long that took.
        cpu_ns: for how much of it the thread that takes it worked.
        start_ns: how long workers took to start before it; 0 where none did.
    """

    wall_ns: int
    cpu_ns: int
    start_ns: int = 0


class Loaders:
    """Hears of every loader that is made, and of every batch that is taken.

    Args:
        seeded: whether what a dataset draws depends on the samples' indices alone, and not on which process draws it:
            then batches are the same with workers and without.
        replay: where batches come from once a few were taken: then loading costs nothing.

    Attributes:
        made: the loaders.
        workers: how many workers a loader gets that has fewer; 0 leaves them as they are.
        pins: whether each loader puts its batches into pinned memory.
        persist: whether workers stay from epoch to epoch.
        waits: what taking each batch took.
        entering, leaving: called before and after a batch is taken, or an epoch begun.
    """

    def __init__(self, *, seeded: bool = False, replay: ReplayBatches = ReplayBatches.NOTHING) -> None:
        self._seeded, self._replay = seeded, replay
        self.made: list[Made] = []
        self.workers, self.pins, self.persist = 0, False, False
        self.waits: list[Wait] = []
        self.entering: list[Callable[[], None]] = []
        self.leaving: list[Callable[[], None]] = []
        self._kept: dict[object, list[_Kept]] = {}
        self._of: weakref.WeakKeyDictionary[Any, Made] = weakref.WeakKeyDictionary()  # iterator -> its loader
        self._started: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # how long that took

    def listen(self) -> None:
        """Begin; for the rest of the process."""
        self._listen_to_making()
        self._listen_to_reading()
        if self._seeded:
            _seed_by_index()
        if self._replay is ReplayBatches.FETCHED:
            _replay_fetched()

    @contextmanager
    def _loading(self) -> Iterator[None]:
        for entering in self.entering:
            entering()
        try:
            yield
        finally:
            for leaving in self.leaving:
                leaving()

    def read_since(self, before: dict[int, int]) -> list[Made]:
        """Return the loaders from which batches were taken since `reads` said ``before``."""
        return [one for place, one in enumerate(self.made) if one.reads > before.get(place, 0)]

    def epoch(self, before: dict[int, int]) -> int | None:
        """Return how many batches the loader has that was read most since `reads` said ``before``; None if unknown."""
        reads = {id(one): one.reads - before.get(place, 0) for place, one in enumerate(self.made)}
        most = max(self.read_since(before), key=lambda one: reads[id(one)], default=None)
        loader = None if most is None else most.loader()
        try:
            return None if loader is None else len(loader)
        except TypeError:  # its dataset yields, and does not say how often
            return None

    def reads(self) -> dict[int, int]:
        """Return how many batches were taken so far, by the loader's place in `made`."""
        return {place: one.reads for place, one in enumerate(self.made)}

    def _listen_to_making(self) -> None:
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            values = bound.arguments
            workers, iterable = values.get("num_workers", 0), isinstance(values["dataset"], IterableDataset)
            if workers < self.workers and not iterable:
                values["num_workers"], values["persistent_workers"] = self.workers, True
            restarts = bool(values.get("num_workers", 0)) and not values.get("persistent_workers", False)
            if self.persist and restarts:
                values["persistent_workers"] = True
            if self.pins:
                values["pin_memory"] = True
            original(*bound.args, **bound.kwargs)
            stack, ready = here(), loader.num_workers * (loader.prefetch_factor or 0)
            key = (*(place.at for place in stack), loader.batch_size, _length(loader), type(loader.dataset))
            one = Made(weakref.ref(loader), stack, workers, iterable, loader.num_workers, ready, key, restarts)
            self.made.append(one)

        DataLoader.__init__ = init

    def _listen_to_reading(self) -> None:
        get, following = DataLoader._get_iterator, _BaseDataLoaderIter.__next__

        @functools.wraps(get)
        def get_iterator(loader: Any) -> Any:
            made = next((one for one in reversed(self.made) if one.loader() is loader), None)
            kept = [] if made is None else self._kept.get(made.key, [])
            if made is not None and len(kept) == _KEPT:
                return _Replayed(kept, made, _length(loader))
            began = perf_counter_ns()
            with self._loading():
                iterator = get(loader)
            if made is not None:
                self._of[iterator] = made
                if loader.num_workers:
                    self._started[iterator] = perf_counter_ns() - began
            return iterator

        @functools.wraps(following)
        def taken(iterator: Any) -> Any:
            made = self._of.get(iterator)
            if made is None:
                return following(iterator)
            replays = self._replay not in (ReplayBatches.NOTHING, ReplayBatches.FETCHED)
            kept = self._kept.setdefault(made.key, []) if replays else []
            if len(kept) == _KEPT:
                batch = _next_of(kept, iterator, made)
            else:
                began, worked = perf_counter_ns(), thread_time_ns()
                with self._loading():
                    batch = following(iterator)
                wall, cpu = perf_counter_ns() - began, thread_time_ns() - worked
                self.waits.append(Wait(wall, cpu, self._started.pop(iterator, 0)))
                if replays:
                    kept.append(_Kept(batch, self._replay))
            made.reads += 1
            return batch

        DataLoader._get_iterator = get_iterator
        _BaseDataLoaderIter.__next__ = taken


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a dataset that yields, without end as far as is known
        return None


def _next_of(kept: "list[_Kept]", iterator: Any, made: Made) -> Any:
    """Return a kept batch instead of an iterator's next one, as long as the iterator would have one."""
    loader = made.loader()
    length = None if loader is None else _length(loader)
    if length is not None and iterator._num_yielded >= length:
        raise StopIteration
    iterator._num_yielded += 1
    return kept[iterator._num_yielded % len(kept)].again()


class _Kept:
    """A batch that is given again and again, each time as it was, whatever the step does to it in place."""

    def __init__(self, batch: Any, where: ReplayBatches) -> None:
        self._batch = tree_map(partial(_placed, where), batch)  # containers of its own
        self._tensors = [one for one in tree_leaves(self._batch) if isinstance(one, torch.Tensor)]
        if where is not ReplayBatches.MEMORY and not self._tensors:
            raise NotImplementedError("batches are not plain containers of tensors")
        self._versions = [_version_of(one) for one in self._tensors]
        self._pristine = [one.clone() for one in self._tensors]

    def again(self) -> Any:
        """Return the batch. Only tensors that were changed are copied: copies would cost what is not to be measured."""
        fresh = {
            id(one): pristine.clone()
            for one, version, pristine in zip(self._tensors, self._versions, self._pristine, strict=True)
            if version is None or one._version != version
        }
        return tree_map(lambda one: fresh.get(id(one), one), self._batch) if fresh else _reopened(self._batch)


def _version_of(one: torch.Tensor) -> int | None:
    """Return what changes with each change in place; None for tensors of inference mode, which count none."""
    return None if one.is_inference() else one._version


def _reopened(value: Any) -> Any:
    """Return a batch in containers of its own, from which a step may take something; long lists as they are."""
    if type(value) is dict and len(value) <= _LONG:
        return {key: _reopened(one) for key, one in value.items()}
    if type(value) in (list, tuple) and len(value) <= _LONG:
        return type(value)(map(_reopened, value))
    return value


def _placed(where: ReplayBatches, one: Any) -> Any:
    if not isinstance(one, torch.Tensor) or where is ReplayBatches.MEMORY:
        return one
    return one.pin_memory() if where is ReplayBatches.PINNED else one.cuda()


class _Replayed:
    """Yields kept batches, as many as the loader would."""

    def __init__(self, kept: "list[_Kept]", made: Made, length: int | None) -> None:
        self._kept, self._made, self._length, self._count = kept, made, length, 0

    def __iter__(self) -> "_Replayed":
        return self

    def __next__(self) -> Any:
        if self._length is not None and self._count >= self._length:
            raise StopIteration
        self._count += 1
        self._made.reads += 1
        return self._kept[self._count % len(self._kept)].again()

    def __len__(self) -> int:
        return self._length or 0

    def _reset(self, *_: object) -> None:  # as loaders whose workers persist ask their iterator to begin anew
        self._count = 0


def _replay_fetched() -> None:
    """Have samples, once a few batches of them were made, cost nothing where they are made, in whichever process."""
    fetch = _MapDatasetFetcher.fetch
    kept: dict[tuple[int, int], Any] = {}

    @functools.wraps(fetch)
    def fetched(self: Any, indices: Any) -> Any:
        size = len(indices) if hasattr(indices, "__len__") else 1
        place = size, sum(of_size == size for of_size, _ in kept)
        if place[1] < _KEPT:
            kept[place] = fetch(self, indices)
            return kept[place]
        batch = kept[size, hash(str(indices)) % _KEPT]
        # Copies, as each batch is put into memory of its own to be sent.
        return tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, batch)

    _MapDatasetFetcher.fetch = fetched


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
