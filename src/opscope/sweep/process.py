"""One configuration in a process of its own: started, followed, ended, and its death explained. No PyTorch here."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError
from opscope.base.processes import own_environment, own_process
from opscope.record.capture import ScriptRun, StepKind, WantedSteps
from opscope.record.configuration import CaptureOptions, Value
from opscope.record.sweep import Entry, Failure, rank_among_several
from opscope.runs.store import RunDirectory
from opscope.sweep.warm import WarmProcess
from opscope.sweep.worker import Message, Request, Sender
from opscope.workloads.catalog import is_script

RUNS_AGAIN: Final = "--- opscope: the script runs again"  # a line of its log
_STORE_OF_TORCHRUN = "TORCHELASTIC_USE_AGENT_STORE"
_POLL_SECONDS = 0.5  # without a message, until the time limit is looked at
_AFTER_END_SECONDS = 0.02  # between looks at a process that has closed its pipe
# A choice: what a script does at its end, such as writing a checkpoint, takes less; one that hangs there never ends.
_ENDS_WITHIN_SECONDS = 300
_GRACE_SECONDS = 5  # between asking a process to end and killing it
_HINTS = {
    "SIGKILL": "; the system does this when memory runs out",
    "SIGSEGV": "; native code crashed",
    "SIGABRT": "; native code gave up",
    "SIGBUS": "; native code crashed, or a disk is full",
}


class FollowedWorker(Protocol):
    """A process that measures, as far as it is followed here.

    Attributes:
        pid: its number.
    """

    pid: int

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


def start_worker(request: Request, log: Path) -> "FollowedWorker":
    """Start ``python -m opscope.sweep.worker`` and send it its request.

    Args:
        request: what it measures; it inherits the descriptor ``messages``.
        log: the file that gets what it prints, at its end.

    Raises:
        EnvironmentLacksError: the log cannot be written.
    """
    try:
        output = log.open("ab")  # a script may be run several times
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {log}: {error.strerror or error}") from error
    with output:
        if request.script.reason is not None or request.script.clock:
            output.write(f"{RUNS_AGAIN}\n".encode())
            output.flush()
        process = subprocess.Popen(
            own_process("opscope.sweep.worker"),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(request.messages,),
            env=own_environment(**_apart_from_earlier(request.earlier)),
        )
    # If it died at once, its exit code will explain.
    with contextlib.suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(request))
            process.stdin.close()
    return process


def _recording(request: Request, ended: Message) -> ScriptRun | None:
    """Return a run that records, where ranks could not choose their steps in time in a second run; None elsewhere."""
    too_soon = ended.failure is not None and ended.failure.kind == "usage" and request.script.reason is not None
    return recording(request.script) if request.among_ranks and too_soon and not request.script.records else None


def recording(run: ScriptRun) -> ScriptRun:
    """Return a run of a script that records from its beginning, in the place of one in which ranks had to choose."""
    reason = "The script was run again: the ranks could not be profiled together in time, so this run was recorded"
    return replace(run, records=True, reason=reason)


def _apart_from_earlier(runs: int) -> dict[str, str]:
    """Return the variables with which the ranks of torchrun meet again, after their script has run before.

    Its store still holds what they told each other then, such as addresses of processes that have ended. So the first
    rank has a store of its own, at another port.
    """
    port = os.environ.get("MASTER_PORT", "")
    if not runs or os.environ.get(_STORE_OF_TORCHRUN) != "True" or not port.isdecimal():
        return {}
    return {_STORE_OF_TORCHRUN: "False", "MASTER_PORT": str(1024 + (int(port) + runs - 1024) % (65_536 - 1024))}


class InProcess(Struct, frozen=True):
    """Measures each configuration in a process of its own.

    Attributes:
        timeout_s: ends a configuration that takes longer, all its runs together; None for no limit.
        actual: the true values of settings that are redacted where they are written.
        start: starts the worker of a request, with its output in a log.
        warm: the process that workers are forked from; None where each is started.
    """

    timeout_s: float | None = None
    actual: Mapping[str, Value] = field(default_factory=dict)
    start: Callable[[Request, Path], FollowedWorker] = start_worker
    warm: WarmProcess | None = None

    def measure(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, progress: Sender
    ) -> Failure | None:
        """Measure a configuration; return why it failed, if it did.

        Raises:
            EnvironmentLacksError: the log cannot be written.
        """
        path = str(directory.path.resolve())
        ranks = rank_among_several(os.environ) is not None
        request = Request(entry.configuration, options, path, entry.files, -1, self.actual, first_run(options), ranks)
        if self.timeout_s is not None:
            # Half of the time is for the steps that are wanted most; then others are taken, and can still be measured.
            request = replace(request, script=replace(request.script, patience_s=self.timeout_s / 2))
        until = _Until(self.timeout_s)
        while True:
            ended = self._run(request, directory, progress, until)
            following = ended.again or _recording(request, ended)
            if following is None:
                break
            request = replace(request, script=following, earlier=request.earlier + 1)
            progress(Message(phase="running the script again"))
        if ended.failure is not None:
            return replace(ended.failure, log=entry.files.log)
        if options.check_clock and is_script(entry.configuration.target) and not ended.interrupted:
            # Whatever becomes of this run, the measurement stands.
            progress(Message(phase="checking the clock"))
            last = replace(
                request, script=ScriptRun(first_run(options).wanted, clock=True), earlier=request.earlier + 1
            )
            with contextlib.suppress(KeyboardInterrupt):
                self._run(last, directory, progress, until)
        return None

    def run_once(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, run: ScriptRun, progress: Sender
    ) -> Message:
        """Run a script once, as one of several ranks; return how that ended, which may be that it has to run again.

        Args:
            entry: names the script and its files.
            options: how it is measured.
            directory: where the files go.
            run: which run of the script it is.
            progress: gets the progress.

        Raises:
            EnvironmentLacksError: the log cannot be written.
        """
        path = str(directory.path.resolve())
        if self.timeout_s is not None:
            run = replace(run, patience_s=self.timeout_s / 2)
        request = Request(entry.configuration, options, path, entry.files, -1, self.actual, run, among_ranks=True)
        return self._run(request, directory, progress, _Until(self.timeout_s))

    def _run(self, request: Request, directory: RunDirectory, progress: Sender, until: "_Until") -> Message:
        """Start a worker, follow it to its end, and return how it ended."""
        reading, writing = os.pipe()
        request = replace(request, messages=writing)
        with os.fdopen(reading, "rb", buffering=0) as messages:
            try:
                log = directory.inside(request.files.log)
                process = (self.warm and self.warm.fork(request, log)) or self.start(request, log)
            finally:
                os.close(writing)  # the worker has the other copy, so the pipe closes when it ends
            try:
                ends = not (request.among_ranks or request.configuration.get("run_on"))
                of_script = is_script(request.configuration.target) and not request.among_ranks
                last = _follow(process, messages, progress, until, ends=ends, keeps=of_script)
                code = process.wait()
            except _OutOfTimeError as error:
                _end(process)
                return Message(failure=Failure("timeout", str(error)))
            except BaseException:
                _end(process)
                raise
        if last.complete or last.again is not None or last.failure is not None:
            return last
        return Message(failure=_death(code, last.phase))


def first_run(options: CaptureOptions) -> ScriptRun:
    """Return how a script is run at first, as the options ask for it."""
    wanted = WantedSteps.named(options.steps)
    return ScriptRun(wanted, records=wanted.kind is StepKind.OPERATORS, may_repeat=not options.once)


class _Until:
    """When a configuration has taken too long, all its runs together."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s, self._began = timeout_s, time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.timeout_s is not None and time.monotonic() - self._began > self.timeout_s


class _OutOfTimeError(Exception):
    """A configuration took longer than it may."""


def _follow(
    process: FollowedWorker, messages: IO[bytes], progress: Sender, until: _Until, *, ends: bool, keeps: bool
) -> Message:
    """Pass progress on until the process ends, and again while nothing is heard; return its last message.

    Args:
        process: the worker.
        messages: what it sends.
        progress: gets that.
        until: when it has taken too long.
        ends: whether it is to end by itself once everything is measured; it is ended if it does not.
        keeps: whether an interrupt, once everything is measured, ends the process alone.
    """
    last, measured_at = Message(phase="starting"), 0.0
    try:
        for message in _received(process, messages):
            last = last if last.complete else message or last  # what follows a complete measurement is not about it
            if last.complete:
                measured_at = measured_at or time.monotonic()
                if until.is_over or (ends and time.monotonic() - measured_at > _ENDS_WITHIN_SECONDS):
                    _end(process)
                    return last
                progress(Message(phase="waiting for the script's end") if ends else last)
                continue
            if until.is_over:
                raise _OutOfTimeError(f"it took longer than the {until.timeout_s:g} s of --timeout ({last.doing})")
            if last.failure is None and last.again is None:
                progress(last)
    except KeyboardInterrupt:
        if not (keeps and last.complete):
            raise
        _end(process)
        return replace(last, interrupted=True)
    return last


def _received(process: FollowedWorker, messages: IO[bytes]) -> Iterator[Message | None]:
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


def _end(process: FollowedWorker) -> None:
    """End a process, and what the user's code has started in it."""
    process.terminate()
    try:
        process.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(OSError):  # nothing is left, or it has not come to lead a group
        os.killpg(process.pid, signal.SIGKILL)


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
