"""Parts of a report that failed: each is left out with its reason, and costs the user nothing else."""

import os
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct

from opscope.base.errors import DEBUG, OpscopeError

T = TypeVar("T")
_RAISE: Final = "OPSCOPE_RAISE"  # the same for parts of reports alone; for tests


def raises() -> bool:
    """Tell whether a part that fails is to raise its error."""
    return bool(os.environ.get(DEBUG) or os.environ.get(_RAISE))


class Loss(Struct, frozen=True):
    """A part that failed.

    Attributes:
        part: what it is, for the middle of a sentence.
        reason: the error's type and message.
        traceback: where it was raised.
    """

    part: str
    reason: str
    traceback: str


class Losses:
    """Collects the parts of one report that failed; threads may share it."""

    def __init__(self) -> None:
        self._found: dict[str, Loss] = {}

    @property
    def found(self) -> tuple[Loss, ...]:
        """The parts that failed so far, each once."""
        return tuple(self._found.values())

    def part(self, name: str, make: Callable[[], T], instead: Callable[[], T]) -> T:
        """Return what a function makes; where that fails, note it and return what stands in its place.

        Args:
            name: what is made, for the middle of a sentence.
            make: makes it.
            instead: makes what stands in its place.

        Raises:
            OpscopeError: the user's request or input is wrong, or the machine lacks something: that is said as it is.
            MemoryError, OSError: likewise.
            Exception: anything, if `raises`.
        """
        try:
            return make()
        except (OpscopeError, MemoryError, OSError):
            raise
        except Exception as error:  # of whatever kind: it is a fault of opscope's own
            if raises():
                raise
            self.add(name, error)
            return instead()

    def add(self, name: str, error: Exception) -> Loss:
        """Note that a part failed; return the note."""
        message = str(error).partition("\n")[0]
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
        loss = Loss(name, reason, "".join(traceback.format_exception(error)))
        return self._found.setdefault(name, loss)
