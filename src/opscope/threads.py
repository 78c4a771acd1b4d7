"""Several independent pieces of work at once. numpy and polars do not hold Python's lock while they compute."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

_WORTH_IT: Final = 300_000  # events


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
