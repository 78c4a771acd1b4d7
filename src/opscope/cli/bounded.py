"""Ends a command whose computation takes too long or too much memory, and says so."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from opscope.base.errors import UsageError
from opscope.base.units import format_bytes

_EVERY_S: Final = 0.05
_STATM: Final = Path("/proc/self/statm")


def _resident_bytes() -> int:
    """Return how much memory the process has; 0 where the system does not tell."""
    try:
        # The second number: resident pages.
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def limited(what: str, seconds: float, more_bytes: int) -> Iterator[None]:
    """End the process, with the exit code of wrong usage, if the block passes a limit.

    A thread watches the limits. It can only end the whole process: what computes outside of Python is not interrupted.

    Args:
        what: what runs in the block, as the message calls it.
        seconds: how long it may take.
        more_bytes: how much more memory than now it may take.
    """
    sys.stderr.flush()
    # A copy of standard error: the block may put something else in its place.
    over, errors = threading.Event(), os.dup(2)
    end, most = time.monotonic() + seconds, _resident_bytes() + more_bytes

    def watch() -> None:
        while not over.wait(_EVERY_S):
            late, large = time.monotonic() > end, _resident_bytes() > most
            if late or large:
                limit = f"{seconds:g} s (--timeout)" if late else f"{format_bytes(more_bytes)} (--max-memory)"
                os.write(errors, f"opscope: {what} takes more than {limit}, and was ended\n".encode())
                os._exit(UsageError.exit_code)

    thread = threading.Thread(target=watch, daemon=True, name="opscope-limits")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(errors)
