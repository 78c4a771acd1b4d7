"""Workers that start warm: forked from a process that has imported PyTorch, and never touched a device.

Imports take most of the time of a short measurement, and are the same for every configuration. Each configuration
still has a process of its own. Where the warm process cannot be had, or has touched a device (a child of such a process
cannot use it), workers are started as usual.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from opscope.base.processes import own_environment, own_process
from opscope.sweep.worker import Request
from opscope.workloads.catalog import BUILT_IN, is_built_in

NUMBER: Final = struct.Struct("q")
REFUSED: Final = -1  # instead of a process's number: it must not be forked
# PyTorch then asks the driver's library for management whether there is a GPU, which does not set up the driver.
ASKS_MANAGEMENT: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
OURS: Final = "OPSCOPE_ASKS_MANAGEMENT"  # set beside it, where it is not its user's
_POLL_SECONDS: Final = 0.02


def warm_process(target: str) -> "WarmProcess":
    """Start a process that imports what measuring a target takes. Not for scripts, which choose their own imports."""
    more = BUILT_IN[target].modules if is_built_in(target) else ()
    return WarmProcess(("torch", "torch.profiler", "opscope.sweep.measure", *more))


class WarmProcess:
    """The process that workers are forked from. It imports while whoever started it does something else.

    Args:
        modules: what it imports.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*own_process("opscope.sweep.zygote"), str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=own_environment(**({} if ASKS_MANAGEMENT in os.environ else {ASKS_MANAGEMENT: "1", OURS: "1"})),
            )

    def fork(self, request: Request, log: Path) -> "Forked | None":
        """Fork a worker; None where that cannot be done.

        Args:
            request: what it measures; it gets the descriptor ``messages`` under the same number.
            log: the file that gets what it prints, at its end.

        Raises:
            OSError: the log cannot be written.
        """
        reading, writing = os.pipe()
        with log.open("ab") as output, contextlib.suppress(OSError):
            # The worker reads its request from this pipe, as one that is started reads it from standard input.
            try:
                fds = [reading, output.fileno(), request.messages]
                socket.send_fds(self._socket, [NUMBER.pack(request.messages)], fds)
                os.write(writing, msgspec.json.encode(request))
            finally:
                os.close(reading)
                os.close(writing)
            pid = _number(self._socket.recv(NUMBER.size))
            if pid is not None and pid != REFUSED:
                return Forked(pid, self._socket)
        return None

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A worker that was forked; its parent, the warm process, tells when it has ended.

    Args:
        pid: of the worker, which is an attribute, too.
        ended: where its exit code comes from.
    """

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid, self._told, self._code = pid, ended, None

    _code: int | None

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        if self._code is None:
            with contextlib.suppress(BlockingIOError):
                self._ended(self._told.recv(NUMBER.size, socket.MSG_DONTWAIT))
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        self._kill(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._kill(signal.SIGKILL)

    def _kill(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _ended(self, content: bytes) -> None:
        code = _number(content)
        self._code = -signal.SIGKILL if code is None else code  # without a word: the warm process itself was killed


def _number(content: bytes) -> int | None:
    return int(NUMBER.unpack(content)[0]) if len(content) == NUMBER.size else None
