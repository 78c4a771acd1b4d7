"""Starts threads, opscope's own modules, and any program for a limited time with everything that it starts."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

# ---------------------------------------------------------------- threads


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


# ---------------------------------------------------------------- processes


SAFE_PATH: Final = "PYTHONSAFEPATH"  # set for a Python process, it keeps the current folder off the module path
_PR_SET_PDEATHSIG: Final = 1  # prctl: the signal that a process gets when its parent ends


def end_with_parent(with_signal: signal.Signals) -> None:
    """Have this process get a signal when the process that started it ends; does nothing where that is not Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, with_signal)


def own_process(module: str) -> list[str]:
    """Return the command that runs a module of opscope in a process of its own.

    ``-P`` keeps the current folder off the module path: a ``msgspec.py`` beside the user's code must not shadow ours.

    Args:
        module: its full name.
    """
    return [sys.executable, "-P", "-m", module]


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Keep the current folder off the module path of Python processes that multiprocessing starts inside.

    It starts them with ``python -c``, which would take a ``socket.py`` that lies among the user's traces for Python's.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = before


def own_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process that runs opscope: it imports opscope from where this process did.

    Args:
        variables: set on top of this process's environment.
    """
    environment = {**os.environ, **variables}
    source = str(Path(__file__).resolve().parents[2])
    if source in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return environment
    inherited = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys([source, *inherited]))}


def run_within(
    command: Sequence[str | Path],
    seconds: float,
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    errors: int | None = subprocess.PIPE,
    folder: Path | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program and return its output; after the time limit, kill it with every process that it started.

    Args:
        command: the program and its arguments.
        seconds: the time limit.
        stdin: its standard input.
        environment: its environment variables; None passes on those of this process.
        errors: where its standard error goes, as `subprocess.Popen` takes it; None shares this process's.
        folder: the folder that it runs in; None for this process's.

    Raises:
        OSError: the program cannot be started.
        subprocess.TimeoutExpired: it ran longer than ``seconds``.
    """
    # A session of its own is a process group of its own, which can be killed as a whole.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, stderr = process.communicate(stdin, timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, stderr or b"")
