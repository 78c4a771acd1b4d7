"""The processes of variants: started from one that has imported PyTorch, timed in turns."""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Final, TypeVar

from opscope.advise.messages import Broken, Built, Job, Time, Turn
from opscope.base.errors import OpscopeError

T = TypeVar("T")
# PyTorch then asks the driver's library for management whether there is a GPU, which does not set up the driver: a
# process that has set it up cannot be forked.
_ASKS_MANAGEMENT: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
_PRELOADED: Final = ["torch", "torch._dynamo", "opscope.advise.worker"]
_SETTLES_S: Final = 0.005  # after another process has run: its threads wait for work a little before they sleep
_ENDS_S: Final = 5.0


class AdviseError(OpscopeError):
    """The step as written does not run."""


class Worker:
    """A process with one variant.

    Args:
        job: what it builds.
        process: the process.
        connection: to it.
    """

    def __init__(self, job: Job, process: multiprocessing.process.BaseProcess, connection: Connection) -> None:
        self.job, self._process, self._connection = job, process, connection
        self.built: Built | None = None
        self.broken: Broken | None = None
        self.blocks: list[float] = []
        self.waited: list[float] = []

    def wait_until_built(self, timeout: float) -> None:
        """Wait until its variant runs; see `built` and `broken` afterwards."""
        found = self._answer(timeout)
        if isinstance(found, Built):
            self.built = found

    def ask(self, what: object, kind: type[T], timeout: float) -> T | None:
        """Ask for something; None where the process failed, which `broken` explains."""
        if self.built is None or self.broken is not None:
            return None
        try:
            self._connection.send(what)
        except OSError as error:
            self.broken = Broken(f"the process ended: {error}", is_passing=True)
            return None
        found = self._answer(timeout)
        return found if isinstance(found, kind) else None

    def close(self) -> None:
        """End the process, and what the user's code has started in it."""
        self._connection.close()
        self._process.join(_ENDS_S)
        if self._process.pid is not None:
            with contextlib.suppress(OSError):  # nothing is left
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def _answer(self, timeout: float) -> object:
        try:
            if not self._connection.poll(timeout):
                self._process.kill()
                self.broken = Broken(f"it took longer than {timeout:.0f} s", is_passing=True)
                return None
            found = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_ENDS_S)
            self.broken = Broken(f"the process ended with code {self._process.exitcode}", is_passing=True)
            return None
        if isinstance(found, Broken):
            self.broken = found
        return found


class Session:
    """Starts processes and times them against each other.

    Args:
        job: the variant as written; others differ from it in what they change.
        width: how many are built at once.
        timeout_s: for so long a process may build, or answer.
        seed: of the order of rounds.
    """

    def __init__(self, job: Job, *, width: int, timeout_s: float, seed: int = 0) -> None:
        self._job, self._width, self._timeout = job, width, timeout_s
        self._orders = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._open: list[Worker] = []
        self.started = 0

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(self._open)

    def build(self, jobs: Sequence[Job]) -> list[Worker]:
        """Start a process for each job, several at once, and wait until all run or have failed."""
        with ThreadPoolExecutor(self._width) as pool:
            return list(pool.map(self._built, jobs))

    def _built(self, job: Job) -> Worker:
        worker = self._start(job)
        worker.wait_until_built(self._timeout)
        return worker

    def _start(self, job: Job) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=enter, args=(job, theirs), daemon=False)
        asked = os.environ.get(_ASKS_MANAGEMENT)
        os.environ.setdefault(_ASKS_MANAGEMENT, "1")
        try:
            process.start()
        finally:
            if asked is None:
                del os.environ[_ASKS_MANAGEMENT]
        theirs.close()
        worker = Worker(job, process, ours)
        self._open.append(worker)
        self.started += 1
        return worker

    def time(self, workers: Sequence[Worker], rounds: int, seconds: float) -> None:
        """Time variants in turns, each round in a new order; `blocks` and `waited` of each get what a turn says.

        Args:
            workers: the variants.
            rounds: how many turns each gets.
            seconds: how long a turn is.
        """
        for _ in range(rounds):
            order = [worker for worker in workers if worker.broken is None]
            self._orders.shuffle(order)
            for worker in order:
                time.sleep(_SETTLES_S)
                found = worker.ask(Time(seconds), Turn, self._timeout)
                if found is not None:
                    worker.blocks.append(found.step_ns)
                    worker.waited.append(found.waited or 0.0)

    def close(self, workers: Sequence[Worker]) -> None:
        """End processes."""
        for worker in list(workers):
            worker.close()
            self._open.remove(worker)


def enter(job: Job, connection: Connection) -> None:
    """Begin a process of a variant."""
    from opscope.advise.worker import serve

    serve(job, connection)
