"""Notes which processes a script starts, and tells where its work is if it is in them and not in the script itself."""

import contextlib
import functools
import multiprocessing.process
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from opscope.base.errors import UsageError
from opscope.base.files import kept_scratch
from opscope.base.text import or_unknown, printable

_LOOKED_AT_S: Final = 10.0  # a process that is waited for
_SPAWNED_S: Final = 20.0  # what spawned processes prepare in less time is not a step's work
_POLL_S: Final = 0.5
_STEPS: Final = 10  # of optimizers, after which a process is known to train. A choice.
_ENDS_S: Final = 2.0  # so long a process that is to end may take
_SHOWN: Final = 3
# Processes of PyTorch's own, and of Python's, that do no step's work.
_OTHERS_TARGETS: Final = ("torch.utils.data", "torch._inductor", "concurrent.futures", "multiprocessing")
_POOLS: Final = ("concurrent.futures", "multiprocessing.pool")
_OTHERS_WORDS: Final = ("torch/_inductor", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
_LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun")
# How a launcher's processes find each other.
_OF_LAUNCHERS: Final = ("TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT")


class WorkElsewhereError(UsageError):
    """What the script does with PyTorch runs in processes that it starts."""


class _Elsewhere(BaseException):
    """Ends a script whose work is elsewhere, whatever errors it handles."""


class _Noting:
    """Runs the target of a process, and notes whether it trains, that is, whether optimizers step in it.

    Calls of modules do not count: processes that prepare data make some, too, and hooks on modules get compiled.

    Args:
        target: the function to run.
        note: the file to make once the process trains.
    """

    def __init__(self, target: Callable[..., Any], note: Path) -> None:
        self._target, self._note, self._left = target, note, _STEPS
        self.__name__ = self.__qualname__ = _name_of(target) or type(target).__name__  # scripts print it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the target in its process."""
        if "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self._stepped)
        return self._target(*args, **kwargs)

    def _stepped(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            with contextlib.suppress(OSError):  # whoever asked for it is gone
                self._note.touch()


class Children:
    """Notes the processes that a script starts.

    Args:
        script: its path.
        seen: tells whether anything of PyTorch was seen in the script itself that may be a step, or may still step.
        worked: the same without what may still step: optimizers that were made.
        rank: which one of a launcher's ranks this process is, and how many there are; None without a launcher.
        restart: begins this process anew, with some environment; None where it cannot be.
        is_patient: whether the script is known to have steps of its own, however long others train before.
    """

    def __init__(
        self,
        script: Path,
        seen: Callable[[], bool],
        worked: Callable[[], bool],
        rank: tuple[int, int] | None,
        restart: Callable[[Mapping[str, str]], None] | None = None,
        *,
        is_patient: bool = False,
    ) -> None:
        self._is_patient = is_patient
        self._script, self._seen, self._worked, self._rank, self._restart = script, seen, worked, rank, restart
        self._is_restarting = False
        self._launchers = {name: os.environ[name] for name in _OF_LAUNCHERS if name in os.environ}
        self._pid, self._main = os.getpid(), threading.get_ident()
        self._functions: dict[str, int] = {}  # that ran in other processes, and in how many
        self._workers = 0  # of pools
        self._is_said = False
        self._commands: list[str] = []
        self._folder: Path | None = None  # for notes
        self._notes: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()  # exists once a process trains

    @property
    def sentence(self) -> str | None:
        """What runs in other processes, as a sentence without its full stop; None where none were started."""
        if self._functions:
            count = sum(self._functions.values())
            names = ", ".join(or_unknown(name) for name in list(self._functions)[:_SHOWN])
            processes, they = ("a process", "it does") if count == 1 else (f"{count} processes", "they do")
            return (
                f"it started {processes} (for {names}), and what {they} is not followed. Profile what one of them "
                f"does: opscope profile {shlex.quote(str(self._script))}:FUNCTION, or a script that does it itself"
            )
        if self._commands:
            names = ", ".join(or_unknown(name) for name in self._commands[:_SHOWN])
            return (
                f"it started {names}, and what that does is not followed. Profile it: {_profiling(self._commands[0])}"
            )
        if self._workers:
            return (
                f"it started {self._workers} processes of a pool, and what they do is not followed. Profile what they "
                f"run: opscope profile {shlex.quote(str(self._script))}:FUNCTION"
            )
        return None

    def listen(self) -> None:
        """Begin, before the script runs."""
        process, popen = multiprocessing.process.BaseProcess, subprocess.Popen
        process.start = self._starting(process.start)  # type: ignore[method-assign]
        process.join = self._waiting(process.join)  # type: ignore[method-assign]
        popen.__init__ = self._calling(popen.__init__)  # type: ignore[method-assign]
        popen.wait = self._waiting(popen.wait)  # type: ignore[method-assign]
        sys.addaudithook(self._audit)

    def torch_imported(self) -> None:
        """Note that PyTorch was imported: it can start processes, too."""
        import torch.multiprocessing

        module = sys.modules["torch.multiprocessing.spawn"]
        started = self._spawning(module.start_processes)
        module.start_processes = torch.multiprocessing.start_processes = started  # type: ignore[attr-defined]

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._pid and threading.get_ident() == self._main

    # ---------------------------------------------------------------- what is started

    def _spawning(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``torch.multiprocessing.start_processes``, which may do all of the work, or prepare some."""

        @functools.wraps(function)
        def start(
            fn: Callable[..., Any],
            args: Sequence[Any] = (),
            nprocs: int = 1,
            join: bool = True,
            *more: Any,
            **named: Any,
        ) -> Any:
            if not join or not self._is_ours or self._worked():  # without join the script goes on beside them
                return function(fn, args, nprocs, join, *more, **named)
            if self._rank is not None and nprocs == self._rank[1]:  # the launcher has started them: this is one
                for name, value in self._launchers.items():  # processes that the script starts itself find none of it
                    if os.environ.get(name) == value:
                        del os.environ[name]
                fn(self._rank[0], *args)
                return None
            if self._is_patient:
                return function(fn, args, nprocs, join, *more, **named)
            context = function(fn, args, nprocs, False, *more, **named)
            until = time.monotonic() + _SPAWNED_S
            # Where the script has an optimizer of its own, it is to train after them, unless they do.
            while time.monotonic() < until or (self._seen() and not any(map(self._trains, context.processes))):
                if context.join(_POLL_S):
                    return None
            for process in context.processes:
                process.terminate()
            name, script = getattr(fn, "__name__", "a function"), shlex.quote(str(self._script))
            raise _Elsewhere(
                f"{self._script} has started {nprocs} processes with torch.multiprocessing.spawn, and waits for what "
                f"{or_unknown(name)} does in them: opscope profile --nproc {nprocs} {script} measures each as a rank. "
                f"If {self._script.name} itself trains afterwards, --step-kind training waits for it"
            )

        return start

    def _starting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def start(process: Any) -> Any:
            target = getattr(process, "_target", None)
            module = getattr(target, "__module__", None) or type(process).__module__
            if self._is_ours and module.startswith(_POOLS):
                self._workers += 1
            if self._is_ours and not module.startswith(_OTHERS_TARGETS):
                name = _name_of(target) or type(process).__name__
                self._functions[name] = self._functions.get(name, 0) + 1
                # Of a process whose class has a `run` of its own, nothing is known.
                if target is not None and not self._worked():
                    self._folder = self._folder or kept_scratch()
                    self._notes[process] = self._folder / str(sum(self._functions.values()))
                    process._target = _Noting(target, self._notes[process])
            return function(process)

        return start

    def _calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def init(process: Any, args: Any, *more: Any, **named: Any) -> None:
            if not isinstance(args, str | bytes | os.PathLike):
                args = list(args)  # it may be an iterator
            if self._is_ours and (command := _python_command(args)) is not None:
                self._commands.append(command)
            function(process, args, *more, **named)

        return init

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse that a script replaces its process by another program, which nothing could be measured of.

        Where that is the script itself, with another environment, this process begins anew with that.
        """
        if event != "os.exec" or not self._is_ours or self._seen() or self._is_restarting:
            return
        _, values, environment = arguments
        words = [os.fsdecode(word) for word in values]
        if self._restart is not None and self._is_itself(words):
            self._is_restarting = True
            self._restart(dict(os.environ if environment is None else environment))
        raise _Elsewhere(
            f"{self._script} becomes {or_unknown(shlex.join(words))} (os.exec): profile that command instead"
        )

    def _is_itself(self, words: Sequence[str]) -> bool:
        """Tell whether a command runs the script with the arguments that it has."""
        place = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
        if place is None or not Path(words[0]).name.startswith("python"):
            return False
        return Path(words[place]).resolve() == self._script.resolve() and words[place + 1 :] == sys.argv[1:]

    # ---------------------------------------------------------------- what is waited for

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what waits for a process without end, to look after a while whether the work is there."""

        @functools.wraps(function)
        def wait(process: Any, timeout: float | None = None) -> Any:
            has_started = bool(self._functions or self._commands)
            if timeout is not None or not self._is_ours or self._is_patient or not has_started:
                return function(process, timeout)
            began = time.monotonic()
            while time.monotonic() - began < _LOOKED_AT_S or not self._worked():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    result = function(process, _POLL_S)
                    if result is not None or getattr(process, "exitcode", None) is not None:
                        return result
                if time.monotonic() - began >= _LOOKED_AT_S and not self._worked():
                    self._refuse(process)
            return function(process, None)

        return wait

    def ended(self, error: BaseException | None, *, is_early: bool) -> BaseException | None:
        """Clean up after the script; return what ended it, as an error that says so.

        Args:
            error: what ended it; None where it came to its own end.
            is_early: whether it would have gone on. Then what it has started is ended: Python would wait for that.
        """
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if is_early:
            self._end_processes()
        return WorkElsewhereError(str(error)) if isinstance(error, _Elsewhere) else error

    @staticmethod
    def _end_processes() -> None:
        """End all processes that the script has started: its end would wait for them."""
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        until = time.monotonic() + _ENDS_S
        while time.monotonic() < until and any(child.is_alive() for child in children):
            time.sleep(_ENDS_S / 20)
        for child in children:
            child.kill()

    def _refuse(self, process: Any) -> None:
        """Say where the work is, if what is waited for runs PyTorch, and the script itself does not."""
        if self._trains(process):
            self._end(f"{self._script} waits while other processes do the training: {self.sentence}")
        if not isinstance(process, subprocess.Popen) or "torch" in sys.modules or not _runs_pytorch(process.pid):
            return  # the script itself may go on with PyTorch after it
        self._end(f"{self._script} waits for what runs elsewhere: {self.sentence}")

    def _trains(self, process: Any) -> bool:
        """Tell whether optimizers are known to step in a process."""
        note = self._notes.get(process)
        return note is not None and note.exists()

    def _end(self, why: str) -> None:
        """End the script, once: what it does at its end may wait, too."""
        if not self._is_said:
            self._is_said = True
            self._end_processes()
            raise _Elsewhere(
                f"{why}. If {self._script.name} itself trains afterwards, --step-kind training waits for it"
            )


def _name_of(target: Any) -> str | None:
    """Return the name of what a process runs; None where it has none."""
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", None)
    return name if isinstance(name, str) else None


def _python_command(args: Any) -> str | None:
    """Return a command that runs Python, as one text; None for other programs, and for PyTorch's own helpers."""
    words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
    command = " ".join(os.fsdecode(word) if isinstance(word, bytes | os.PathLike) else str(word) for word in words)
    first = command.split()[:1]
    name = Path(first[0]).name if first else ""
    if any(word in command for word in _OTHERS_WORDS):
        return None
    is_python = name.startswith("python") or name in _LAUNCHERS or name.endswith(".py")
    return command if is_python else None


def _profiling(command: str) -> str:
    """Return the command that profiles another one, as far as a reader can run it."""
    words = command.split()
    place = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    if place is None or any(Path(word).name in _LAUNCHERS for word in words[:place]):
        return f"opscope profile -- {printable(command)}"
    return f"opscope profile {printable(shlex.join(words[place:]))}"


def _runs_pytorch(pid: int) -> bool:
    """Tell whether a process has loaded PyTorch's libraries."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
