"""The processes of variants: started from one that has imported PyTorch, timed in turns."""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from opscope.advise.messages import FAILED, Broken, Built, Compiling, Time, Turn, VariantJob
from opscope.base.errors import InconclusiveError, OpscopeError
from opscope.base.files import scratch
from opscope.base.processes import SAFE_PATH, cores
from opscope.measuring.pinning import fastest_cores

S = TypeVar("S")
T = TypeVar("T")
# PyTorch then asks the driver's library for management whether there is a GPU, which does not set up the driver: a
# process that has set it up cannot be forked.
_ASKS_MANAGEMENT: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
# Each process that compiles would start as many others as there are cores.
_COMPILING_PROCESSES: Final = "TORCHINDUCTOR_COMPILE_THREADS"
_PRELOADED: Final = ["torch", "torch._dynamo", "opscope.advise.worker"]
# Bytes of a folder with room for `/pymp-XXXXXXXX/listener-XXXXXXXX` in the path of a socket, which has 103 on macOS.
_LONGEST_FOLDER: Final = 70
_HIDING: Final = threading.Lock()
_SETTLES_S: Final = 0.005  # after another process has run: its threads wait for work a little before they sleep
_ENDS_S: Final = 5.0
# For so long the others wait at most. On an H200, compiling took 15 to 20 s (nanoGPT, minGPT, makemore). Before that,
# nanoGPT's own start took 17 s where ten processes began at once, and 6 s where three did.
_GO_FIRST_S: Final = 10.0
_ENDS_AT_ONCE_S: Final = 0.1
# What a process takes of the device beside what PyTorch reserves. Of nanoGPT on an H200, 16.48 GiB were in use, 15.74
# of them reserved (PyTorch 2.11, CUDA 13.0).
_CONTEXT_BYTES: Final = 3 * 2**28
_FILLED: Final = 0.9  # of the device's free memory: what one change takes more than another is not known before


class AdviseError(OpscopeError):
    """The step as written does not run."""


class OutOfTimeError(InconclusiveError):
    """The time for the whole command is over."""


class Worker:
    """A process with one variant.

    Args:
        job: what it builds.
        process: the process.
        connection: to it.
    """

    def __init__(self, job: VariantJob, process: multiprocessing.process.BaseProcess, connection: Connection) -> None:
        self.job, self._process, self._connection = job, process, connection
        self.built: Built | None = None
        self.broken: Broken | None = None
        self.blocks: list[float] = []
        self.waited: list[float] = []

    def wait_until_built(self, timeout: float, observed: Callable[[], object] = lambda: None) -> None:
        """Wait until its variant runs; see `built` and `broken` afterwards.

        Args:
            timeout: for so many seconds.
            observed: called once its step was observed, if it compiles.
        """
        until = time.monotonic() + timeout
        result = self._answer(timeout)
        if isinstance(result, Compiling):
            observed()
            result = self._answer(timeout, max(0.0, until - time.monotonic()))
        if isinstance(result, Built):
            self.built = result

    def ask(self, what: object, kind: type[T], timeout: float) -> T | None:
        """Ask for something; None where the process failed, which `broken` explains."""
        if self.built is None or self.broken is not None:
            return None
        try:
            self._connection.send(what)
        except OSError as error:
            self.broken = Broken(f"the process ended: {error}", is_passing=True)
            return None
        result = self._answer(timeout)
        return result if isinstance(result, kind) else None

    def hang_up(self) -> None:
        """Have the process end by itself, as no one asks any more."""
        self._connection.close()

    def kill(self) -> None:
        """End the process at once; whoever waits for its answer learns of it."""
        self._process.kill()

    def close(self, patience_s: float = _ENDS_S) -> None:
        """End the process, and what the user's code has started in it, for which it has so many seconds."""
        self.hang_up()
        self._process.join(patience_s)
        if self._process.pid is not None:
            with contextlib.suppress(OSError):  # nothing is left
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def _answer(self, timeout: float, left: float | None = None) -> object:
        try:
            if not self._connection.poll(timeout if left is None else left):
                self._process.kill()
                self.broken = Broken(f"it took longer than {timeout:.0f} s", is_passing=True)
                return None
            result = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_ENDS_S)
            code = self._process.exitcode
            # What was killed may run another time; what crashes, crashes again.
            self.broken = Broken(f"the process ended with code {code}", is_passing=code in (None, -signal.SIGKILL))
            return None
        if isinstance(result, Broken):
            self.broken = result
        return result


def _shorten_sockets() -> None:
    """Have multiprocessing make its sockets in /tmp where their paths would be too long in TMPDIR, as on clusters."""
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER:
        return
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        multiprocessing.util.get_temp_dir()  # made once, and removed at the end of the process
    finally:
        tempfile.tempdir = before


class Session:
    """Starts processes and times them against each other.

    Args:
        job: the variant as written; others differ from it in what they change.
        width: how many are built at once.
        timeout_s: for so long a process may build, or answer.
        seed: of the order of rounds.
        ends_at: when all of it ends, by ``time.monotonic``: whoever waits then gets an `OutOfTimeError`.

    Attributes:
        started: how many processes were.
        width: how many are built at once.
        folder: for files that processes share; removed at the end.
    """

    def __init__(
        self, job: VariantJob, *, width: int, timeout_s: float, seed: int = 0, ends_at: float = float("inf")
    ) -> None:
        self._job, self.width, self._timeout, self._ends_at = job, width, timeout_s, ends_at
        self._is_stopped = False
        self._at_a_time = width  # how many of the processes that start now compile at once
        self._orders = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        _shorten_sockets()
        self._is_path_safe = SAFE_PATH in os.environ
        self._open: list[Worker] = []
        self._each_bytes = 0  # of the device's memory, what a process takes
        self._capacity: int | None = None  # bytes of it that our processes may take; None where unknown
        self._leaving: list[Worker] = []
        self.started = 0
        self._scratch = scratch()
        self.folder = Path()

    def __enter__(self) -> "Session":
        self.folder = self._scratch.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close(self._open)
        self._scratch.__exit__(*exception)

    def build(self, jobs: Sequence[VariantJob], within_s: float | None = None) -> list[Worker]:
        """Start a process for each job, several at once, and wait until all run or have failed.

        Those that compile take longest. The others start once these have observed their steps, or ten seconds later:
        until then they would only delay them.

        Args:
            jobs: what each builds.
            within_s: for so long each may take; None for as long as the session allows.

        Raises:
            OutOfTimeError: the session's time is over.
        """
        timeout = self._timeout if within_s is None else min(within_s, self._timeout)
        compiling = sum(job.compiles for job in jobs) or len(jobs)
        self._at_a_time = max(1, min(self.width, compiling))
        first = _Gate(sum(job.compiles for job in jobs))
        places = sorted(range(len(jobs)), key=lambda place: not (jobs[place].compiles or _writes_weights(jobs[place])))
        built = self._at_once(places, lambda place: self._built(jobs[place], timeout, first))
        by_place = dict(zip(places, built, strict=True))
        workers = [by_place[place] for place in range(len(jobs))]
        self._note_memory(workers)
        return workers

    def _note_memory(self, workers: Sequence[Worker]) -> None:
        """Note what a process as written takes of the device's memory, and what all together may take."""
        holding = self._holding
        if not all(worker.job.is_as_written and worker in workers for worker in holding):
            return  # others take another amount, or what is free was read before they had taken theirs
        known = [worker.built for worker in holding if worker.built is not None]
        taken = [one.memory_bytes for one in known if one.memory_bytes is not None]
        free = [one.free_bytes for one in known if one.free_bytes is not None]
        if taken and free:
            self._each_bytes = max(taken) + _CONTEXT_BYTES
            self._capacity = round(_FILLED * min(free)) + len(holding) * self._each_bytes

    def room(self) -> int | None:
        """Return for how many more processes like the step as written the device has memory; None where unknown."""
        if self._capacity is None:
            return None
        return max(0, self._capacity // self._each_bytes - len(self._holding))

    @property
    def _holding(self) -> list[Worker]:
        """The processes that hold memory of the device: neither failed nor about to end."""
        return [worker for worker in self._open if worker.broken is None and worker not in self._leaving]

    def _at_once(self, items: Sequence[S], work: Callable[[S], T]) -> list[T]:
        """Do something with each of some items, several at once."""
        with ThreadPoolExecutor(self.width) as pool:
            try:
                results = list(pool.map(work, items))
            except BaseException:  # Ctrl-C: threads wait for processes that no one needs any more
                self.stop()
                raise
        self._check_time()
        return results

    def stop(self) -> None:
        """End all processes at once, and start no more: whoever waits for one learns of it."""
        self._is_stopped = True
        for worker in list(self._open):
            worker.kill()

    def _check_time(self) -> None:
        if time.monotonic() >= self._ends_at:
            raise OutOfTimeError("the time is up")

    def _patience(self, timeout: float) -> float:
        return max(0.0, min(timeout, self._ends_at - time.monotonic()))

    def _built(self, job: VariantJob, timeout: float, first: "_Gate") -> Worker:
        if job.compiles:
            with first.passing() as passed:
                return self._waited_for(job, timeout, passed)
        began = time.monotonic()
        if not _writes_weights(job):
            first.wait(min(_GO_FIRST_S, self._patience(timeout)))
        return self._waited_for(job, max(0.0, timeout - (time.monotonic() - began)), lambda: None)

    def _waited_for(self, job: VariantJob, timeout: float, observed: Callable[[], None]) -> Worker:
        if self._is_stopped or time.monotonic() >= self._ends_at:
            raise OutOfTimeError("the time is up")
        if _writes_weights(job):
            Path(job.begin + FAILED).unlink(missing_ok=True)
        worker = self._start(job)
        self._kill_if_stopped(worker)
        worker.wait_until_built(self._patience(timeout), observed)
        if worker.broken is not None and _writes_weights(job):
            Path(job.begin + FAILED).touch()  # others wait for them
        return worker

    def _kill_if_stopped(self, worker: Worker) -> None:
        """End a process that was being started while all others were ended."""
        if self._is_stopped:
            worker.kill()

    def _start(self, job: VariantJob) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=enter, args=(job, theirs, self._is_path_safe), daemon=False)
        compiling = str(max(1, cores() // self._at_a_time))
        # The process that others are forked from begins as `python -c`, and must not import from the current folder.
        with _environment({_ASKS_MANAGEMENT: "1", _COMPILING_PROCESSES: compiling, SAFE_PATH: "1"}), _without_main():
            process.start()
        theirs.close()
        worker = Worker(job, process, ours)
        self._open.append(worker)
        self.started += 1
        return worker

    def ask_each(self, asked: Sequence[tuple[Worker, object]], kind: type[T]) -> list[T | None]:
        """Ask processes, several at once; None for those that failed, which `broken` of each explains.

        Args:
            asked: the process and what it is asked, for each.
            kind: of the answers.

        Raises:
            OutOfTimeError: the session's time is over.
        """
        return self._at_once(asked, lambda one: one[0].ask(one[1], kind, self._patience(self._timeout)))

    def time(self, workers: Sequence[Worker], rounds: int, seconds: float) -> None:
        """Time variants in turns, each round in a new order; `blocks` and `waited` of each get what a turn says.

        Args:
            workers: the variants.
            rounds: how many turns each gets.
            seconds: how long a turn is.

        Raises:
            OutOfTimeError: the session's time is over.
        """
        for _ in range(rounds):
            pair = fastest_cores() if any(_is_launched_by_host(worker) for worker in workers) else None
            order = [worker for worker in workers if worker.broken is None]
            self._orders.shuffle(order)
            for worker in order:
                time.sleep(_SETTLES_S)
                result = worker.ask(Time(seconds, pair), Turn, self._patience(self._timeout))
                self._check_time()
                if result is not None:
                    worker.blocks.append(result.step_ns)
                    worker.waited.append(result.waited or 0.0)

    def leave(self, workers: Sequence[Worker]) -> None:
        """Have processes end by themselves while others are asked: letting a GPU go takes a second."""
        for worker in workers:
            worker.hang_up()
        self._leaving += workers

    def close(self, workers: Sequence[Worker]) -> None:
        """End processes, and wait until they and those that were left before have ended."""
        if not workers:
            return  # those that were left end by themselves meanwhile
        for worker in workers:
            worker.hang_up()  # all at once
        leaving, self._leaving = self._leaving, []
        for worker in (one for one in dict.fromkeys([*leaving, *workers]) if one in self._open):
            is_over = self._is_stopped or time.monotonic() >= self._ends_at
            worker.close(_ENDS_AT_ONCE_S if is_over else _ENDS_S)
            self._open.remove(worker)


class _Gate:
    """Opens once all that go first have passed.

    Args:
        first: how many these are.
    """

    def __init__(self, first: int) -> None:
        self._left, self._changed = first, threading.Condition()

    @contextlib.contextmanager
    def passing(self) -> Iterator[Callable[[], None]]:
        """Yield a function that one calls when it has passed; the end of the block calls it in any case."""
        has_passed = False

        def passed() -> None:
            nonlocal has_passed
            with self._changed:
                self._left -= not has_passed
                has_passed = True
                self._changed.notify_all()

        try:
            yield passed
        finally:
            passed()

    def wait(self, timeout: float) -> None:
        """Wait until it is open, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._left <= 0, timeout)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, where the user has not, for a process that is started inside."""
    own = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:  # another thread, which starts a process too, may have done so already
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program that runs from a process that is started: it would run it again, as multiprocessing has it."""
    with _HIDING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _writes_weights(job: VariantJob) -> bool:
    """Tell whether a job's process writes the weights that the others which are compared begin with."""
    return bool(job.begin) and job.is_as_written


def _is_launched_by_host(worker: Worker) -> bool:
    """Tell whether a step's threads just launch work of a GPU: those that load, or compute, need all cores."""
    return worker.built is not None and worker.built.facts.device == "cuda" and not worker.built.facts.loaders


def enter(job: VariantJob, connection: Connection, is_path_safe: bool) -> None:
    """Begin a process of a variant.

    Args:
        job: what it builds.
        connection: to who asks.
        is_path_safe: whether the user has set ``PYTHONSAFEPATH``; otherwise what the user's code starts is not to
            find it set.
    """
    if not is_path_safe:
        os.environ.pop(SAFE_PATH, None)
    from opscope.advise.worker import serve_variant

    serve_variant(job, connection)
