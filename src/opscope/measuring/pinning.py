"""Threads that stay on cores of their own while a step is timed, so that the scheduler's choices are not part of it.

On one H200 with 16 cores the same step, launched kernel by kernel, was 0.89 to 1.22 times as fast as itself in another
process; with the main thread and that of backward passes on two cores each, 0.99 to 1.03.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LEAST_CORES: Final = 4  # with fewer, other threads have no core left
_LOOPS: Final = 5_000  # about a quarter of a millisecond on each core
_BACKWARD: Final = "pt_autograd"  # how PyTorch names these threads
_THREADS: Final = Path("/proc/self/task")


def fastest_cores() -> tuple[int, int] | None:
    """Return the two cores that do the same work the fastest just now; None where there are too few, or no Linux.

    They are not two halves of one core, as far as the system tells.
    """
    if not hasattr(os, "sched_setaffinity") or len(allowed := os.sched_getaffinity(0)) < _LEAST_CORES:
        return None
    took = {}
    try:
        for core in allowed:
            os.sched_setaffinity(0, {core})
            took[core] = min(_busy_ns() for _ in range(2))
    except OSError:
        return None
    finally:
        os.sched_setaffinity(0, allowed)
    first, *others = sorted(took, key=lambda core: took[core])
    siblings = _siblings(first)
    return first, next((core for core in others if core not in siblings), others[0])


@contextmanager
def pinned(cores: tuple[int, int] | None) -> Iterator[None]:
    """Keep the main thread on one core, and threads of backward passes on another, for what runs inside.

    Args:
        cores: the two; None pins nothing.
    """
    if cores is None:
        yield
        return
    before = {thread: os.sched_getaffinity(thread) for thread in _threads()}
    for thread, core in _threads(cores).items():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, {core})
    try:
        yield
    finally:
        for thread, allowed in before.items():
            with suppress(OSError):
                os.sched_setaffinity(thread, allowed)


def _threads(cores: tuple[int, int] = (0, 0)) -> dict[int, int]:
    """Return the cores of the threads that matter, by thread."""
    results = {os.getpid(): cores[0]}
    for folder in _THREADS.iterdir():
        with suppress(OSError):
            if (folder / "comm").read_text().startswith(_BACKWARD):
                results[int(folder.name)] = cores[1]
    return results


def _busy_ns() -> int:
    began = time.perf_counter_ns()
    for _ in range(_LOOPS):
        pass
    return time.perf_counter_ns() - began


def _siblings(core: int) -> set[int]:
    """Return the halves of a core, itself among them; just itself where the system does not tell."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return {core}
    results: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        results |= set(range(int(low), int(high or low) + 1))
    return results
