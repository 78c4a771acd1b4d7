"""Starts processes: opscope's own modules, and any program for a limited time with everything that it starts."""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path


def own_process(module: str) -> list[str]:
    """Return the command that runs a module of opscope in a process of its own.

    Args:
        module: its full name.

    What lies in the current folder never shadows a library (``-P``): a ``msgspec.py`` beside a user's code is not ours.
    """
    return [sys.executable, "-P", "-m", module]


def own_environment(**variables: str) -> dict[str, str]:
    """Return the variables of a child that runs opscope: it finds opscope where this process did, installed or not."""
    environment = {**os.environ, **variables}
    source = str(Path(__file__).resolve().parents[2])
    if source in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return environment
    inherited = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys([source, *inherited]))}


def run_within(
    command: Sequence[str | Path],
    seconds: float,
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    errors: int | None = subprocess.PIPE,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program and return what it printed; what takes too long is killed with all that it started.

    Args:
        command: the program and its arguments.
        seconds: how long it may take.
        stdin: its standard input.
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
        out, stderr = process.communicate(stdin, timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, stderr or b"")
