"""Runs a task for many items on a Dask cluster. Needs ``opscope[ranks]``."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

from opscope.base.errors import EnvironmentLacksError
from opscope.distributed.engines import Lost, reason_of

T = TypeVar("T")
R = TypeVar("R")

_TIMEOUT_S: Final = "20s"


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
                yield futures[future], _outcome(future)
                future.release()

    def _client(self) -> Any:
        from distributed import Client

        try:
            return Client(self._address, timeout=_TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"no Dask scheduler answers at {self._address}: {error}") from error


def _outcome(future: Any) -> Any:
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
