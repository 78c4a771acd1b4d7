"""What is told while changes are tried: each phase when it begins, and every ten seconds what is the best so far."""

import threading
import time
from collections.abc import Callable
from typing import Final

_EVERY_S: Final = 10.0


class Telling:
    """Tells what is being done; while it is entered, a thread says it again every ten seconds.

    Args:
        say: gets the lines.
        so_far: says what is the best so far.

    Attributes:
        doing: what is being done.
    """

    def __init__(self, say: Callable[[str], None], so_far: Callable[[], str]) -> None:
        self.doing = "starting"
        self._say, self._so_far = say, so_far
        self._told = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell_again, daemon=True, name="opscope-advise")

    def say(self, line: str) -> None:
        """Tell what is done from now on."""
        self.doing, self._told = line, time.monotonic()
        self._say(line)

    def __enter__(self) -> "Telling":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _tell_again(self) -> None:
        while not self._ended.wait(max(0.1, self._told + _EVERY_S - time.monotonic())):
            if time.monotonic() - self._told >= _EVERY_S:
                self._told = time.monotonic()
                self._say(f"still {self.doing}; {self._so_far()}")
