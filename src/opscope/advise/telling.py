"""The course of a search: lines for each phase and every ten seconds, and the time that is left."""

import threading
import time
from collections.abc import Callable
from typing import Final

from opscope.advise.session import AdviseError

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


class Budget:
    """The time that a search may take, and what is not done for lack of it.

    Args:
        seconds: what takes longer is not begun.

    Attributes:
        seconds: likewise.
        unfinished: what was not done, and why.
        lacked_time: whether some of that was for lack of time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.unfinished: list[str] = []
        self.lacked_time = False
        self._began = time.monotonic()

    @property
    def spent_s(self) -> float:
        """The seconds since it began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self.seconds - self.spent_s

    def has_time(self, otherwise: str, takes_s: float = 0.0) -> bool:
        """Tell whether something can be done in time, and if not, note what is not done for that.

        Args:
            otherwise: what is not done.
            takes_s: how long it takes, as far as is known.
        """
        if takes_s < self.left_s:
            return True
        self.unfinished.append(f"too little of the {self.seconds:.0f} s was left: {otherwise}")
        self.lacked_time = True
        return False

    def phase(self, what: str, phase: Callable[[], object]) -> None:
        """Run a phase. If it fails, what was found before is not lost."""
        try:
            phase()
        except AdviseError as error:
            self.unfinished.append(f"{what}: {error}")
