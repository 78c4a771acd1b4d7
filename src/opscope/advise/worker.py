"""The process of one variant: builds it, then times or records it as often as it is asked."""

import atexit
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

import torch

from opscope.advise.applying import APPLYING
from opscope.advise.changes import in_order
from opscope.advise.messages import FIRST_STEPS, Broken, Built, Job, Losses, Record, Time
from opscope.advise.recording import losses, record
from opscope.advise.reference import compute_in_float64
from opscope.advise.variant import Variant
from opscope.collect.environment import cpu_name
from opscope.torch_support.device import current, resolve_device
from opscope.workbench.benchmarking.unprofiled_steps import time_once

_LONGEST: Final = 200  # characters of a reason


def serve(job: Job, connection: Connection) -> None:
    """Build a variant and answer what is asked, until nobody asks any more. Ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        _serve(job, connection)
    except (EOFError, BrokenPipeError):
        pass
    except BaseException as error:  # the boundary of code that is the user's: whatever it raises is a result
        traceback.print_exc()
        connection.send(Broken(described(error)))
    # What was compiled leaves processes and semaphores. But threads that the user's code left running shall not keep
    # the process alive.
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def described(error: BaseException) -> str:
    """Return an exception as one short line."""
    text = " ".join(str(error).split())
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__


def _serve(job: Job, connection: Connection) -> None:
    device = resolve_device(job.device)
    with current(device):
        variant = Variant(job.configuration, device, proving=job.proving)
        facts = variant.facts
        if job.reference:
            compute_in_float64(variant, job.rounding)
        changes = [APPLYING[name] for name in in_order(job.changes)]
        for change in changes:
            change.apply(variant)
        began = time.perf_counter()
        for _ in range(FIRST_STEPS):
            time_once(variant.run, variant.device)
        took = time.perf_counter() - began
        idle = next((reason for change in changes if (reason := change.took_effect(variant)) is not None), None)
        if idle is not None:
            connection.send(Broken(idle, took_no_effect=True))
            return
        memory = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
        connection.send(Built(facts, name, took, memory))
        while True:
            connection.send(_answer(variant, connection.recv()))


def _answer(variant: Variant, asked: object) -> object:
    match asked:
        case Time(seconds):
            return _timed(variant.run, variant.device, seconds)
        case Record(steps):
            return record(variant, steps)
        case Losses(steps, number):
            return losses(variant, steps, number)
    raise TypeError(f"nobody answers {type(asked).__name__}")


def _timed(step: Callable[[], object], device: torch.device, seconds: float) -> list[int]:
    time_once(step, device)
    found: list[int] = []
    began = time.perf_counter()
    while not found or time.perf_counter() - began < seconds:
        found.append(time_once(step, device))
    return found
