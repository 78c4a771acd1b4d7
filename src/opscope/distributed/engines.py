"""Runs a task for many items, in processes or on a Dask cluster: each item comes back once, whatever happens."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.processes import safe_path

T = TypeVar("T")
R = TypeVar("R")

_LONGEST_REASON: Final = 300  # of characters
_TIMEOUT_S: Final = "20s"


class Lost(Struct, frozen=True):
    """An item without a result, and why."""

    reason: str


class Engine(Protocol):
    """Yields every item exactly once, in any order, with its result or what it was lost to.

    A task may run twice for an item, and must be picklable, as items and results are; the latter should be small.
    """

    def run(self, task: Callable[[T], R], items: Iterable[T]) -> "Iterator[tuple[T, R | Lost]]":
        """Run a task for each item."""
        ...


class InThisProcess:
    """Runs everything in this process."""

    def run(self, task: Callable[[T], R], items: Iterable[T]) -> "Iterator[tuple[T, R | Lost]]":
        """Run a task for each item, one after the other."""
        for item in items:
            yield item, _outcome(lambda item=item: task(item))  # type: ignore[misc]


class Processes:
    """Runs tasks in processes of this machine. What a process that dies was at is tried again, each item alone.

    Args:
        jobs: how many processes.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, task: Callable[[T], R], items: Iterable[T]) -> "Iterator[tuple[T, R | Lost]]":
        """Run a task for each item."""
        left = list(items)
        while left:
            pool: _Pool[T, R] = _Pool(self._jobs)
            yield from pool.run(task, left)
            for item in pool.suspects:
                yield item, self._alone(task, item)
            left = pool.untried

    @staticmethod
    def _alone(task: Callable[[T], R], item: T) -> "R | Lost":
        with _executor(1) as executor:
            future = executor.submit(task, item)
            return _outcome(future.result)


class _Pool(Generic[T, R]):
    """One pool of processes, until it is done or one of them dies.

    Attributes:
        suspects: what ran when a process died.
        untried: what had not begun by then.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self.suspects: list[T] = []
        self.untried: list[T] = []

    def run(self, task: Callable[[T], R], items: list[T]) -> "Iterator[tuple[T, R | Lost]]":
        self.untried = list(items)
        running: dict[Future[R], T] = {}
        with _executor(self._jobs) as executor:
            while self.untried or running:
                try:
                    # One more than there are processes waits its turn; more would all be suspects of a death.
                    while self.untried and len(running) <= self._jobs:
                        running[executor.submit(task, self.untried[0])] = self.untried[0]
                        del self.untried[0]
                except BrokenProcessPool:
                    self.suspects += running.values()
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item = running.pop(future)
                    if isinstance(future.exception(), BrokenProcessPool):
                        self.suspects += [item, *running.values()]
                        return
                    yield item, _outcome(future.result)


class _Process(SpawnProcess):
    """A process that imports nothing from the current folder."""

    def start(self) -> None:
        with safe_path():
            super().start()


class _Context(SpawnContext):
    """Starts such processes. They are not forked: this process may have threads by then."""

    Process = _Process


def _executor(jobs: int) -> ProcessPoolExecutor:
    with safe_path():  # its locks start multiprocessing's resource tracker
        return ProcessPoolExecutor(jobs, mp_context=_Context())


def _outcome(result: Callable[[], R]) -> "R | Lost":
    try:
        return result()
    except BrokenProcessPool:
        return Lost("the process that read it died, twice")
    except Exception as error:  # whatever a task raises, the others go on
        return Lost(reason_of(error))


def reason_of(error: BaseException) -> str:
    """Return why a task failed: opscope's own errors say it, others are named too."""
    text = str(error) if isinstance(error, OpscopeError) else f"{type(error).__name__}: {error}"
    return text[:_LONGEST_REASON]


def engine_for(files: int, jobs: int, dask: str | None) -> Engine:
    """Return what reads some files.

    Args:
        files: how many there are.
        jobs: how many processes of this machine may read them.
        dask: the address of a Dask scheduler whose workers read them instead; None for processes.

    Raises:
        UsageError: there are no processes.
        EnvironmentLacksError: Dask is not installed.
    """
    if jobs < 1:
        raise UsageError(f"{jobs} processes read nothing: give 1 or more")
    if dask is not None:
        if importlib.util.find_spec("distributed") is None:
            raise EnvironmentLacksError("Dask is not installed: pip install 'opscope[ranks]'")

        return DaskCluster(dask)
    wanted = min(jobs, files)
    return Processes(wanted) if wanted > 1 else InThisProcess()


class DaskCluster:
    """Runs tasks on the workers of a cluster. What a worker that dies was at is run again elsewhere.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, task: Callable[[T], R], items: Iterable[T]) -> "Iterator[tuple[T, R | Lost]]":
        """Run a task for each item.

        Raises:
            EnvironmentLacksError: the scheduler does not answer, or is gone.
        """
        with self._client() as client:
            from distributed import as_completed

            futures = {client.submit(task, item, pure=False): item for item in items}
            for future in as_completed(list(futures)):
                yield futures[future], _of_future(future)
                future.release()

    def _client(self) -> Any:
        from distributed import Client

        try:
            return Client(self._address, timeout=_TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"no Dask scheduler answers at {self._address}: {error}") from error


def _of_future(future: Any) -> Any:
    from distributed import wait

    try:
        # A result that was lost with its worker is made again; until then the future is neither done nor failed.
        while future.status in ("lost", "pending"):
            wait(future)
        if future.status == "finished":
            return future.result()
        if future.status == "error":
            return Lost(reason_of(future.exception()))
    except CancelledError as error:
        raise EnvironmentLacksError(f"the Dask scheduler is gone: {error}") from error
    raise EnvironmentLacksError(f"the Dask scheduler is gone: a task is {future.status}")
