"""Several independent pieces of work at once. numpy and polars do not hold Python's lock while they compute."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

_WORTH_IT: Final = 300_000  # events
_MOST_AHEAD: Final = 8

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def waited_for_cpu_ns() -> int | None:
    """Return how long this process's threads have been ready to run without a CPU core; None if the system is silent.

    Linux keeps it per thread (``schedstat``: time on a core, time waiting for one, number of slices).
    """
    try:
        texts = [path.read_text() for path in Path("/proc/self/task").glob("*/schedstat")]
    except OSError:  # no such file on this system, or a thread that ended meanwhile
        return None
    return sum(int(text.split()[1]) for text in texts) if texts else None


def together(works: Iterable[Callable[[], Any]], *, events: int) -> list[Any]:
    """Return what each piece of work returns, in order, and raise what the first one that fails does.

    Args:
        works: pieces that change nothing that another one uses.
        events: of the trace that they work on; of small ones one work follows the other, as threads would not pay.
    """
    pieces = list(works)
    threads = min(cores(), len(pieces)) if events > _WORTH_IT else 1
    if threads < 2:
        return [work() for work in pieces]
    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(work) for work in pieces]]


def ahead(function: Callable[[T], R], arguments: Iterable[T], *, events: int) -> Iterator[R]:
    """Yield what a function makes of each argument, in order, while the next ones are at work on threads.

    Args:
        function: changes nothing that another call of it uses.
        arguments: what it is called with; only a few results are kept ahead.
        events: as for `together`.
    """
    threads = min(cores(), _MOST_AHEAD) if events > _WORTH_IT else 1
    if threads < 2:
        yield from map(function, arguments)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for argument in arguments:
            waiting.append(pool.submit(function, argument))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
