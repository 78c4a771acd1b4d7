"""Ends a command whose computation takes too long or too much memory, with a sentence."""

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
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def limited(what: str, seconds: float, more_bytes: int) -> Iterator[None]:
    """End the process with the exit code of wrong usage where what runs within passes a limit.

    It cannot be interrupted otherwise: it computes outside of Python.

    Args:
        what: what runs, for the sentence.
        seconds: how long it may take.
        more_bytes: how much more memory than now it may take.
    """
    sys.stderr.flush()
    over, errors = threading.Event(), os.dup(2)  # what runs within may have put something else in its place
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
