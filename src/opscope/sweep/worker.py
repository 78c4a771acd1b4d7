"""The process that measures one configuration: ``python -m opscope.sweep.worker``.

It reads a `Request` from standard input and writes `Message` lines to the file descriptor that the request names; what
the workload itself prints goes to the process's own output, which the parent keeps as a log.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opscope.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.record import CaptureOptions, Configuration, Failure, FailureKind
from opscope.store import RunDirectory

_LONGEST = 300  # characters of a message that shall be one line


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure, where to put it, and where to report."""

    configuration: Configuration
    options: CaptureOptions
    directory: str
    messages: int


@dataclass(frozen=True, slots=True)
class Message:
    """One line to the parent: progress, or why the configuration failed."""

    phase: str = ""
    fraction: float = 0.0
    failure: Failure | None = None


Sender = Callable[[Message], None]


def main() -> int:
    """Measure what the request asks for; the exit code is 0 if it worked."""
    # Ctrl-C reaches the whole group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    with os.fdopen(request.messages, "wb", buffering=0) as pipe:

        def send(message: Message) -> None:
            pipe.write(msgspec.json.encode(message) + b"\n")

        failure = run(request, send)
        if failure is None:
            return 0
        send(Message(failure=failure))
        return 1


def run(request: Request, send: Sender) -> Failure | None:
    """Measure; return what went wrong, if anything did."""
    try:
        from opscope.sweep.measure import measure

        measure(
            request.configuration,
            request.options,
            RunDirectory(Path(request.directory)),
            lambda progress: send(Message(progress.phase, progress.fraction)),
        )
    except Exception as error:  # the boundary of a process that runs the user's code: whatever it raises is a result
        traceback.print_exc()
        return failure_of(error)
    return None


def failure_of(error: BaseException) -> Failure:
    """Say in one line what an exception means for a configuration."""
    return Failure(_kind(error), describe(error))


def describe(error: BaseException) -> str:
    """Return an exception as one line."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST].rsplit('. ', 1)[0]} ... (the log has all of it)"
    if isinstance(error, OpscopeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, UsageError):
        return "usage"
    if isinstance(error, EnvironmentLacksError):
        return "environment"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error):
        return "out of memory"
    return "error"


if __name__ == "__main__":
    sys.exit(main())
