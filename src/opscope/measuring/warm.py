"""Processes that start warm: forked by the standard library's forkserver, which has imported what they need.

Imports take most of the time of a short measurement, and are the same for every configuration and every variant. The
process that others are forked from never touches a device: a child of one that has cannot use it.
"""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from opscope.base.processes import SAFE_PATH

# PyTorch then asks the driver's library for management whether there is a GPU, which does not set up the driver.
_ASKS_MANAGEMENT: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
# Bytes of a folder with room for `/pymp-XXXXXXXX/listener-XXXXXXXX` in the path of a socket, which has 103 on macOS.
_LONGEST_FOLDER: Final = 70
_CHANGING: Final = threading.Lock()
_OUTPUTS: Final = (1, 2)


class WarmProcesses:
    """Starts processes from one that has imported some modules; there is one such process for each Python program.

    Args:
        modules: what it imports; those that are not there are left to whoever needs them.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(modules))
        self._began = False
        _shorten_sockets()
        # The process that others are forked from begins as `python -c`, and must not import from the current folder.
        self._ours = {name: "1" for name in (_ASKS_MANAGEMENT, SAFE_PATH) if name not in os.environ}

    def begin(self) -> None:
        """Have the modules imported from now on, while whoever asks for that does something else."""
        with _CHANGING, _environment(self._ours):
            self._ensure_running()

    def pipe(self) -> tuple[Connection, Connection]:
        """Return the two ends of a connection, one of which can be passed to `start`."""
        return self._context.Pipe()

    def start(self, target: Callable[..., object], *args: object, environment: Mapping[str, str] | None = None
              ) -> BaseProcess:  # fmt: skip
        """Start a process; what it runs finds its environment as the user has set it.

        Args:
            target: what it calls, a function of a module.
            args: the arguments, which are pickled.
            environment: more variables for all these processes, where the user has not set them; those of the first
                one that starts count.

        Raises:
            OSError: it cannot be started.
            EOFError: the process that others are forked from has ended.
        """
        process = self._context.Process(target=_enter, args=(tuple(self._ours), target, args), daemon=False)
        with _CHANGING, _environment({**self._ours, **(environment or {})}), _without_main():
            self._ensure_running()
            process.start()
        return process

    def _ensure_running(self) -> None:
        with contextlib.nullcontext() if self._began else _silent():
            forkserver.ensure_running()
        self._began = True


def _enter(ours: Sequence[str], target: Callable[..., object], args: Sequence[object]) -> None:
    """Begin a process that was forked: without the variables that were set for the one that it was forked from."""
    for name in ours:
        os.environ.pop(name, None)
    target(*args)


def has_touched_a_device() -> bool:
    """Tell whether a driver's device is open here: children of such a process cannot use it."""
    with contextlib.suppress(OSError):  # no Linux
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
                    return True
    return False


class Descriptor:
    """A file that a process gets as it starts; there it is the number of an open descriptor.

    Args:
        number: of the descriptor in this process.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        """Pass the file on."""
        return _received, (reduction.DupFd(self._number),)


def _received(passed: Any) -> int:
    return int(passed.detach())


def _shorten_sockets() -> None:
    """Have multiprocessing make its sockets in /tmp where their paths would be too long in TMPDIR, as on clusters."""
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER:
        return
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        multiprocessing.util.get_temp_dir()  # made once, and removed at the end of the process
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, where the user has not, for a process that is started inside."""
    own = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program that runs from a process that is started: it would run it again, as multiprocessing has it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Have a process that is started inside print nowhere: what libraries say as they are imported, no one asked for.

    What another thread prints meanwhile, a few milliseconds, is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()
    kept: dict[int, int] = {}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in _OUTPUTS:
            with contextlib.suppress(OSError):  # it is closed
                kept[number] = os.dup(number)
                os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
