"""Workloads for tests of the command line: tiny, and some of them ill."""

import contextlib
import os
import signal
import stat
import threading
import time
from pathlib import Path

import torch


def step(batch_size=4, device="cpu"):
    left = torch.randn(batch_size, 32, device=device)
    right = torch.randn(32, 32, device=device)
    return lambda: torch.relu(left @ right)


def module(batch_size=2):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    return model, torch.randn(batch_size, 8)


def keyword_module():
    return torch.nn.Bilinear(3, 4, 5), {"input1": torch.randn(2, 3), "input2": torch.randn(2, 4)}


def ill(batch_size=1):
    """Batch 2 is killed, batch 3 raises, batch 4 runs out of memory, batch 5 leaves without a word: unless cured."""
    if os.environ.get("TOY_CURED"):
        return step(batch_size)
    if batch_size == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if batch_size == 3:
        raise RuntimeError("the third batch is\nalways bad")
    if batch_size == 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
    if batch_size == 5:
        os._exit(7)
    return step(batch_size)


def counts_its_builds(batch_size=1):
    """Leave a mark for every time a configuration is built."""
    with Path(os.environ["TOY_MARKS"]).open("a") as marks:
        marks.write(f"{batch_size}\n")
    return step(batch_size)


def talkative():
    print("hello from the workload")
    return step()


def returns_nothing():
    return None


def returns_module():
    return torch.nn.Linear(2, 2)


def needs_more(width):
    return step(width)


def needs_batch(batch_size):
    return step(batch_size)


not_a_function = 3


def leaves_a_child():
    """Fork a process that outlives this one and holds all its pipes."""
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)
    return step()


def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(300,)).start()
    return step()


def writes_on_every_pipe():
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if descriptor > 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"junk\n\xff{]\n")
    return step()


def leaves_politely():
    def leave():
        os._exit(0)

    return leave


def asks_for_too_much():
    return lambda: torch.empty(10**13)


def profiles_itself():
    left = torch.randn(8, 8)

    def profiled():
        with torch.profiler.profile():
            return left @ left

    return profiled


def same_mistake(batch_size=1):
    return torch.nn.Linear(2, 2)


def hostile_message():
    raise RuntimeError("\x1b[2J\x1b]0;owned\x07 cleared your screen")
