"""Runs a program and everything that it starts, for a limited time."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_within(
    command: Sequence[str | Path],
    seconds: float,
    *,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
    errors: int | None = subprocess.PIPE,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program and return what it printed; what takes too long is killed with all that it started.

    Args:
        command: the program and its arguments.
        seconds: how long it may take.
        given: its standard input.
        environment: its variables; None gives it those of this process.
        errors: where its standard error goes, as `subprocess.Popen` takes it: None leaves it where this one's goes.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took too long.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
    )
    try:
        out, said = process.communicate(given, timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, said or b"")
