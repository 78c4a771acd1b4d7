"""One configuration in a process of its own: started, followed, ended, and its death explained. No PyTorch here."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

import msgspec

from opscope.errors import EnvironmentLacksError
from opscope.processes import own_environment, own_process
from opscope.record.configuration import CaptureOptions
from opscope.record.settings import Value
from opscope.record.sweep import Entry, Failure
from opscope.store import RunDirectory
from opscope.sweep.worker import Message, Request, Sender

_POLL_SECONDS = 0.5
_AFTER_END_SECONDS = 0.02
_GRACE_SECONDS = 5
_HINTS = {
    "SIGKILL": "; the system does this when memory runs out",
    "SIGSEGV": "; native code crashed",
    "SIGABRT": "; native code gave up",
    "SIGBUS": "; native code crashed, or a disk is full",
}


class Worker(Protocol):
    """A process that measures, as far as it is followed here."""

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


def start_worker(request: Request, log: Path) -> "Worker":
    """Start ``python -m opscope.sweep.worker`` and send it its request.

    Raises:
        EnvironmentLacksError: the log cannot be written.
    """
    try:
        output = log.open("wb")
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {log}: {error.strerror or error}") from error
    with output:
        process = subprocess.Popen(
            own_process("opscope.sweep.worker"),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(request.messages,),
            env=own_environment(),
        )
    # If it died at once, its exit code will explain.
    with contextlib.suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(request))
            process.stdin.close()
    return process


@dataclass(frozen=True, slots=True)
class InProcess:
    """Measures each configuration in a process of its own.

    Attributes:
        timeout_s: ends one that takes longer.
        actual: the true values of settings whose written ones are redacted.
        start: starts the worker of a request, with its output in a log.
    """

    timeout_s: float | None = None
    actual: Mapping[str, Value] = field(default_factory=dict)
    start: Callable[[Request, Path], Worker] = start_worker

    def measure(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, progress: Sender
    ) -> Failure | None:
        """Measure a configuration; return why it failed, if it did.

        Raises:
            EnvironmentLacksError: the log cannot be written.
        """
        reading, writing = os.pipe()
        path = str(directory.path.resolve())
        request = Request(entry.configuration, options, path, entry.files, writing, self.actual)
        with os.fdopen(reading, "rb", buffering=0) as messages:
            try:
                process = self.start(request, directory.inside(entry.files.log))
            finally:
                os.close(writing)
            try:
                last = _follow(process, messages, progress, self.timeout_s)
                code = process.wait()
            except _OutOfTimeError as error:
                _end(process)
                return Failure("timeout", str(error), entry.files.log)
            except BaseException:
                _end(process)
                raise
        if last.complete:
            return None
        return replace(last.failure or _death(code, last.phase), log=entry.files.log)


class _OutOfTimeError(Exception):
    """A configuration took longer than it may."""


def _follow(process: Worker, messages: IO[bytes], progress: Sender, timeout_s: float | None) -> Message:
    """Pass progress on until the process ends, and again while nothing is heard; return its last message."""
    last, began = Message(phase="starting"), time.monotonic()
    for message in _received(process, messages):
        last = last if last.complete else message or last  # what follows a complete measurement is not about it
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            if last.complete:
                _end(process)
                return last
            raise _OutOfTimeError(f"it took longer than the {timeout_s:g} s of --timeout ({last.phase})")
        if last.failure is None and not last.complete:
            progress(last)
    return last


def _received(process: Worker, messages: IO[bytes]) -> Iterator[Message | None]:
    """Yield messages until the pipe is closed or the process is gone, and None where a while has passed without one.

    A process that the workload forked may hold the pipe open for long after, so its end alone is not waited for.
    """
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(messages, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if not selector.select(0 if ended else _POLL_SECONDS):
                if ended:
                    return
                yield None
                continue
            chunk = os.read(messages.fileno(), 1 << 16)
            if not chunk:  # closed: by its end, or by a program that closes all that it inherited
                break
            *lines, pending = (pending + chunk).split(b"\n")
            yield from _decoded(lines)
    while process.poll() is None:
        time.sleep(_AFTER_END_SECONDS)
        yield None


def _decoded(lines: list[bytes]) -> Iterator[Message]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=Message)
        except (msgspec.DecodeError, UnicodeDecodeError):  # something else wrote to the descriptor
            continue


def _end(process: Worker) -> None:
    process.terminate()
    try:
        process.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _death(code: int, phase: str) -> Failure:
    """Say what a process that ended without a word died of, and in which phase."""
    if code >= 0:
        return Failure(
            "error", f"the process ended with exit code {code} before it had a result ({phase}); see its log"
        )
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = _HINTS.get(name, "")
    if phase == "profiling" and name == "SIGSEGV":
        hint += ". Steps that use a profiler themselves do that"
    return Failure("killed", f"the process was killed by {name} ({phase}){hint}")
