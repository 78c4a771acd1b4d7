"""How long a script's main thread waits for its DataLoaders, and Python collects garbage, added up as it happens."""

import functools
import gc
import threading
import time
from collections.abc import Callable
from typing import Any


class HostWaits:
    """Adds up waits of the thread that makes it; costs two readings of the clock for each batch and each collection."""

    def __init__(self) -> None:
        self._data_ns = self._collecting_ns = 0
        self._thread = threading.get_ident()
        self._waiting = False  # a loader's iterator may be made of another one
        self._collection = 0  # when the running one began

    def so_far(self) -> tuple[int, int]:
        """Return the nanoseconds of waiting for data, and of collecting garbage, since `listen`."""
        return self._data_ns, self._collecting_ns

    def listen(self) -> None:
        """Begin. Call this right after PyTorch was imported, before any loader is iterated."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        # To begin an epoch starts workers, which the step that follows waits for.
        DataLoader.__iter__ = self._timed(DataLoader.__iter__)
        _BaseDataLoaderIter.__next__ = self._timed(_BaseDataLoaderIter.__next__)
        gc.callbacks.append(self._collects)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._waiting or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._waiting, began = True, time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self._data_ns += time.perf_counter_ns() - began
                self._waiting = False

        return timed

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collection = time.perf_counter_ns()
        elif self._collection:
            self._collecting_ns += time.perf_counter_ns() - self._collection
            self._collection = 0
