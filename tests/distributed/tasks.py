"""Tasks for engines, which run them in other processes."""

import os
import signal
import time
from pathlib import Path


def doubled(number: int) -> int:
    return 2 * number


def fails(number: int) -> int:
    if number % 3 == 0:
        raise ValueError(f"{number} is a multiple of three")
    return number


def dies_once(item: tuple[int, str]) -> int:
    """Kill this process the first time that it sees the number; the mark of a file tells whether it has."""
    number, folder = item
    mark = Path(folder) / str(number)
    if number % 4 == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return number


def always_dies(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
