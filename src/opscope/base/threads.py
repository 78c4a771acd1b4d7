"""Runs independent pieces of work on threads: numpy and polars release Python's lock while they compute."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_WORTH_IT: Final = 300_000  # events of a trace; with fewer, threads cost more than they save
_MANY: Final = 1 << 10
_MOST_AHEAD: Final = 8  # threads, and so results that wait for their turn

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def waited_for_cpu_ns() -> int | None:
    """Return how long this process's threads have waited for a CPU core, added up; None if the system does not tell.

    Linux counts it per thread (``schedstat``: time on a core, time waiting for one, number of slices).
    """
    try:
        texts = [path.read_text() for path in Path("/proc/self/task").glob("*/schedstat")]
    except OSError:  # no such file on this system, or a thread that ended meanwhile
        return None
    return sum(int(text.split()[1]) for text in texts) if texts else None


def together(works: Iterable[Callable[[], Any]], *, events: int, most: int = _MANY) -> list[Any]:
    """Run several functions at once and return their results in order.

    If some fail, the exception of the first of them (in order) is raised.

    Args:
        works: functions that change nothing that another one uses.
        events: the number of events of the trace that they work on; for small traces they run one after the other.
        most: the most of them that run at once: each holds memory of its own.
    """
    pieces = list(works)
    threads = min(cores(), len(pieces), most) if events > _WORTH_IT else 1
    if threads < 2:
        return [work() for work in pieces]
    from concurrent.futures import ThreadPoolExecutor  # small traces need no threads

    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(work) for work in pieces]]


def ahead(function: Callable[[T], R], arguments: Iterable[T], *, events: int) -> Iterator[R]:
    """Yield the function's result for each argument, in order, while threads compute the next ones.

    Args:
        function: changes nothing that another call of it uses.
        arguments: its arguments; only a few results are computed ahead.
        events: as for `together`.
    """
    threads = min(cores(), _MOST_AHEAD) if events > _WORTH_IT else 1
    if threads < 2:
        yield from map(function, arguments)
        return
    from concurrent.futures import ThreadPoolExecutor

    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for argument in arguments:
            waiting.append(pool.submit(function, argument))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
