"""Times the stages of loading where they happen: in the process itself, or in the workers that it forks."""

import cProfile
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns, thread_time_ns, time_ns  # as they are, whatever clock a script sees
from typing import Any, Final

import msgspec
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from opscope.advise.stages import Fetched, ProfiledFunction, RunningFunction, StageTime, stage_of_each

_PROFILED_EVERY: Final = 4  # batches; a profile slows down what it measures, so the others give the times
_KEPT_FUNCTIONS: Final = 12
# From Python 3.12 on a profile sees all threads, also the one that passes a worker's batches on. Its waits look like
# calls of the dataset; a dataset that waits for a process itself does so through a manager or a queue.
_OF_OTHER_THREADS: Final = ("multiprocessing/resource_sharer.py", "multiprocessing/connection.py")
_OF_DATASETS: Final = ("multiprocessing/managers.py", "multiprocessing/queues.py")


class StageClock:
    """Writes a line for each batch that is fetched, in whichever process.

    Args:
        path: the file that gets the lines; workers add to it as well.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0

    def listen(self) -> None:
        """Begin; for the rest of the process, and for workers that are forked from now on."""
        for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
            fetcher.fetch = self._timed(fetcher.fetch)

    def _timed(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def fetched(self_: Any, indices: Any) -> Any:
            self._count += 1
            profile = _profile() if self._count % _PROFILED_EVERY == 0 else None
            collating = [0]
            collate = self_.collate_fn

            def collated(samples: Any) -> Any:
                if profile is not None:
                    profile.disable()
                began = perf_counter_ns()
                try:
                    return collate(samples)
                finally:
                    collating[0] += perf_counter_ns() - began

            self_.collate_fn = collated
            began, worked = perf_counter_ns(), thread_time_ns()
            try:
                batch = fetch(self_, indices)
            finally:
                if profile is not None:
                    profile.disable()
                self_.collate_fn = collate
            wall, cpu = perf_counter_ns() - began, thread_time_ns() - worked
            self._write(wall, cpu, collating[0], collate, profile)
            return batch

        return fetched

    def _write(
        self, wall: int, cpu: int, collating: int, collate: Callable[..., Any], profile: cProfile.Profile | None
    ) -> None:
        worker = get_worker_info()
        result = Fetched(
            worker=None if worker is None else worker.id,
            ended_ns=time_ns(),
            wall_ns=wall,
            cpu_ns=cpu,
            collate_ns=collating,
            collate=_function_of(collate),
            stages=() if profile is None else _stages(profile),
        )
        with self._path.open("ab", buffering=0) as file:  # one write: lines of several workers do not mix
            file.write(msgspec.json.encode(result) + b"\n")


def _profile() -> cProfile.Profile | None:
    """Return a profile that runs; None where another one does, from Python 3.12 on."""
    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:
        return None
    return profile


def _function_of(collate: Callable[..., Any]) -> RunningFunction:
    code = getattr(collate, "__code__", None)
    name = getattr(collate, "__qualname__", type(collate).__name__)
    return RunningFunction(name) if code is None else RunningFunction(name, code.co_filename, code.co_firstlineno)


def _stages(profile: cProfile.Profile) -> tuple[StageTime, ...]:
    entries = _entries(profile.getstats())
    files = {one.function.file for one in entries}
    passed_on = any(file.endswith(_OF_OTHER_THREADS) for file in files)
    if sys.version_info >= (3, 12) and passed_on and not any(file.endswith(_OF_DATASETS) for file in files):
        return ()
    own = os.path.dirname(__file__)
    result = stage_of_each([entry for entry in entries if not entry.function.file.startswith(own)])
    longest = sorted(result.items(), key=lambda item: -item[1])[:_KEPT_FUNCTIONS]
    return tuple(StageTime(stage, function, seconds) for (stage, function), seconds in longest)


def _entries(stats: Sequence[Any]) -> list[ProfiledFunction]:
    callers: dict[RunningFunction, dict[RunningFunction, float]] = {}
    for one in stats:
        caller = _function(one.code)
        for callee in one.calls or ():
            into = callers.setdefault(_function(callee.code), {})
            into[caller] = into.get(caller, 0.0) + callee.inlinetime
    result = ((_function(one.code), one.inlinetime) for one in stats)
    return [ProfiledFunction(function, own, callers.get(function, {})) for function, own in result]


def _function(code: Any) -> RunningFunction:
    return (
        RunningFunction(code)
        if isinstance(code, str)
        else RunningFunction(code.co_name, code.co_filename, code.co_firstlineno)
    )
