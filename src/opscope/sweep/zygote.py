"""The warm process that workers are forked from: ``python -m opscope.sweep.zygote SOCKET MODULE...``.

It gets three descriptors for each worker: where its request comes from, its log, and where its messages go. It answers
with the worker's number, and when that has ended with its exit code.
"""

import contextlib
import gc
import importlib
import os
import random
import signal
import socket
import sys
import traceback
from pathlib import Path

from opscope.base.processes import end_with_parent
from opscope.sweep import worker
from opscope.sweep.warm import ASKS_MANAGEMENT, NUMBER, OURS, REFUSED

_DESCRIPTORS = 3


def main() -> None:
    """Import, then fork a worker for every request until no one asks any more."""
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    for module in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is collected in a worker would be copied
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        while True:
            content, descriptors, _, _ = socket.recv_fds(parent, NUMBER.size, _DESCRIPTORS)
            if len(descriptors) != _DESCRIPTORS:
                return
            _serve(parent, NUMBER.unpack(content)[0], descriptors)


def _serve(parent: socket.socket, messages: int, descriptors: list[int]) -> None:
    if _has_touched_a_device():
        parent.sendall(NUMBER.pack(REFUSED))
    elif pid := os.fork():  # one worker at a time: the next request waits until this one has ended
        parent.sendall(NUMBER.pack(pid))
        parent.sendall(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    else:
        _work(parent, messages, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _has_touched_a_device() -> bool:
    """Tell whether a driver's device is open: children of such a process cannot use it."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
                return True
    return False


def _work(parent: socket.socket, messages: int, descriptors: list[int]) -> None:
    """Become a worker, as if it had been started."""
    try:
        parent.close()
        request, log, ended = descriptors
        # The request becomes standard input, the log both outputs; messages keep the number that the request names.
        # Messages come last: their number, which whoever asks chose, may be that of the request or the log here.
        for target, source in ((0, request), (1, log), (2, log), (messages, ended)):
            if source != target:
                os.dup2(source, target)
        os.set_inheritable(messages, False)
        for descriptor in descriptors:
            if descriptor not in (0, 1, 2, messages):
                os.close(descriptor)
        # The old ones must not close what they refer to when they are forgotten.
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww"))
        if os.environ.pop(OURS, None):
            os.environ.pop(ASKS_MANAGEMENT, None)
        sys.argv = [str(worker.__file__)]
        random.seed()  # else all workers would draw the same numbers
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        worker.main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
