"""Runs a task for many items on a Dask cluster. Needs ``opscope[ranks]``."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from opscope.base.errors import EnvironmentLacksError
from opscope.ranks.engines import LONGEST_REASON, Lost

T = TypeVar("T")
R = TypeVar("R")

_TIMEOUT_S: Final = "20s"


class DaskCluster:
    """Runs tasks on the workers of a cluster. What a worker that dies was at is run again elsewhere.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.

    Raises:
        EnvironmentLacksError: Dask is not installed, or the scheduler does not answer.
    """

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise EnvironmentLacksError("--dask needs Dask: pip install 'opscope[ranks]'") from error
        try:
            self._client: Any = Client(address, timeout=_TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise EnvironmentLacksError(f"no Dask scheduler answers at {address}: {error}") from error

    def run(self, task: Callable[[T], R], items: Iterable[T]) -> "Iterator[tuple[T, R | Lost]]":
        """Run a task for each item.

        Raises:
            EnvironmentLacksError: the scheduler is gone.
        """
        from distributed import as_completed

        futures = {self._client.submit(task, item, pure=False): item for item in items}
        for future in as_completed(list(futures)):
            item = futures[future]
            if future.status == "finished":
                yield item, future.result()
            elif future.status == "error":
                error = future.exception()
                yield item, Lost(f"{type(error).__name__}: {error}"[:LONGEST_REASON])
            else:
                raise EnvironmentLacksError("the Dask scheduler is gone")
            future.release()
