"""The process that measures one configuration: ``python -m opscope.sweep.worker``.

It reads a `Request` from standard input and writes `Message` lines to the file descriptor that the request names; what
the workload itself prints goes to the process's own output, which the parent keeps as a log.
"""

import contextlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import NOT_SET, EnvironmentLacksError, OpscopeError, UsageError, unset_variable
from opscope.base.processes import end_with_parent
from opscope.base.text import lazy_pattern
from opscope.record.capture import ScriptRun
from opscope.record.configuration import CaptureOptions, Configuration, Value
from opscope.record.sweep import EntryFiles, Failure, FailureKind
from opscope.runs.store import RunDirectory
from opscope.workloads.catalog import is_script

if TYPE_CHECKING:
    from opscope.sweep.measure_script import RunAgain

_LONGEST = 300  # characters of a message, which is to be one line
_LONGEST_OF_OURS = 1_000  # its end says what to do
_OUT_OF_MEMORY = lazy_pattern("out of memory|can't allocate memory", re.IGNORECASE)


class Request(Struct, frozen=True):
    """What to measure, where to put it, and where to report.

    Attributes:
        configuration: what is measured, as it is written down.
        options: how.
        directory: of the run.
        files: their names, relative to ``directory``.
        messages: the descriptor that messages go to.
        actual: the true values of settings that are redacted where they are written; they are stored nowhere.
        script: which run of a script it is; of other targets there is one.
        among_ranks: whether the process is one of several ranks that are all measured.
        earlier: how many runs of the script came before, under the same launcher.
    """

    configuration: Configuration
    options: CaptureOptions
    directory: str
    files: EntryFiles
    messages: int
    actual: Mapping[str, Value] = field(default_factory=dict)
    script: ScriptRun = field(default_factory=ScriptRun)
    among_ranks: bool = False
    earlier: int = 0

    @property
    def run(self) -> Configuration:
        """The configuration as it runs: with the true values."""
        settings = {name: self.actual.get(name, value) for name, value in self.configuration.settings.items()}
        return replace(self.configuration, settings=settings)


class Message(Struct, frozen=True):
    """One line to the parent: progress, that the measurement is complete, or why it failed.

    Attributes:
        phase: what goes on.
        fraction: how much of the phase is done, from 0 to 1.
        waits: since when no step of a script has come, and where it is; empty while they come.
        failure: why there is no result; None where nothing failed.
        complete: whether everything is measured and written.
        again: another run of the script that makes up for this one; None where none is needed.
        error: what the script raised, where it has to run again; None if it ended by itself.
        interrupted: whether its user, or a signal, ended the process once everything was measured; added by the parent.
    """

    phase: str = ""
    fraction: float = 0.0
    waits: str = ""
    failure: Failure | None = None
    complete: bool = False
    again: ScriptRun | None = None
    error: str | None = None
    interrupted: bool = False

    @property
    def doing(self) -> str:
        """What goes on, and where a script is of which no step comes."""
        return f"{self.phase}, {self.waits}" if self.waits else self.phase


Sender = Callable[[Message], None]


def main() -> None:
    """Measure what the request asks for and end the process: with exit code 0 if it worked."""
    # Ctrl-C reaches the whole group; the parent decides when this process ends, and it ends with the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM)
    with contextlib.suppress(OSError):  # it leads a session already
        os.setpgid(0, 0)  # what the user's code starts ends with it: see `process._end`
    content = sys.stdin.buffer.read()
    request = msgspec.json.decode(content, type=Request)
    pipe = os.fdopen(request.messages, "wb", buffering=0)

    def send(message: Message) -> None:
        pipe.write(msgspec.json.encode(message) + b"\n")

    ended = run(request, send, restart=partial(_restart, content))
    send(ended)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the workload left running shall not keep the process alive: everything is written.
    os._exit(0 if ended.failure is None else 1)


def _restart(content: bytes, environment: Mapping[str, str]) -> None:
    """Begin this process anew with the same request, and another environment."""
    reading, writing = os.pipe()
    # More than a pipe holds would never be read: requests are smaller by far.
    os.set_blocking(writing, False)
    if os.write(writing, content) < len(content):
        return
    os.close(writing)
    os.dup2(reading, 0)
    os.execve(sys.executable, sys.orig_argv, {**environment})


def run(
    request: Request,
    send: Sender,
    *,
    isolated: bool = True,
    restart: Callable[[Mapping[str, str]], None] | None = None,
) -> Message:
    """Measure; return how it ended.

    Args:
        request: what to measure.
        send: gets the progress.
        isolated: whether this process exists for the request alone: then tracebacks are printed, since its output is
            a log, and an interrupt is the workload's own. Otherwise an interrupt is the user's.
        restart: begins this process anew, with some environment; None where it cannot be.
    """
    try:
        if is_script(request.configuration.target):
            again = _measure_script(request, send, restart)
            if again is not None:
                return Message(again=again.run, error=again.error)
        else:
            _measure(request, send)
    except BaseException as error:  # the boundary of code that is the user's: whatever it raises is a result
        if isolated:
            traceback.print_exc()
        elif isinstance(error, KeyboardInterrupt):
            raise
        return Message(failure=failure_of(error))
    return Message(complete=True)


def _measure(request: Request, send: Sender) -> None:
    from opscope.sweep.measure import Task, measure

    directory = RunDirectory(Path(request.directory))
    task = Task(request.configuration, request.options, directory, request.files, request.run)
    measure(task, lambda progress: send(Message(progress.phase, progress.fraction)))


def _measure_script(
    request: Request, send: Sender, restart: Callable[[Mapping[str, str]], None] | None
) -> "RunAgain | None":
    from opscope.sweep.measure_script import ScriptTask, check_clock, measure_script

    task = ScriptTask(
        request.configuration,
        str(request.run.get("arguments") or ""),
        request.options,
        RunDirectory(Path(request.directory)),
        request.files,
        request.script,
        request.among_ranks,
        restart,
    )
    if task.run.clock:
        check_clock(task)
        return None
    now = ""

    def phase(name: str) -> None:
        nonlocal now
        now = name
        send(Message(name))

    def waits(where: str) -> None:
        send(Message(now, waits=where))

    # A script may be ended by other means than its last line, so what is complete is reported at once.
    return measure_script(
        task, phase, lambda: send(Message(complete=True)), waits, lambda run: send(Message(again=run))
    )


def failure_of(error: BaseException) -> Failure:
    """Say in one line what an exception means for a configuration."""
    return Failure(_kind(error), describe(error), exit_code=getattr(error, "script_code", None))


def describe(error: BaseException) -> str:
    """Return an exception as one line of at most about `_LONGEST` characters."""
    text = " ".join(str(error).split())
    longest = _LONGEST_OF_OURS if isinstance(error, OpscopeError) else _LONGEST
    if len(text) > longest:
        text = f"{text[:longest].rsplit('. ', 1)[0]} ... (the log has all of it)"
    if isinstance(error, OpscopeError):
        return text
    if isinstance(error, SystemExit):
        return f"the workload ended the process (SystemExit: {text or 0})"
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{message} ({NOT_SET.format(unset)})" if (unset := unset_variable(error)) else message


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, UsageError):
        return "usage"
    if isinstance(error, EnvironmentLacksError):
        return "environment"
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or _OUT_OF_MEMORY.search(str(error))
    ):
        return "out of memory"
    return "error"


if __name__ == "__main__":
    main()
