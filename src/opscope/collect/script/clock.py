"""Times whole cycles of a script that runs on undisturbed: by the host's clock, or by marks on the device.

The host of a GPU runs ahead of it, a few steps or hundreds, so single times of the host are not those of steps. A mark
(CUDA event) on the stream is passed when the device gets there; of two marks a cycle apart the time between is how
long a cycle takes, whoever has to wait for whom. Nothing waits for the device before the end.
"""

import math
import time
from typing import Any, Final

from opscope.base.units import NS_PER_MS, NS_PER_S
from opscope.collect.script.questions import synchronize

_LEAST: Final = 10
_ENOUGH: Final = 20
_ENOUGH_NS: Final = NS_PER_S  # short steps: a clock of 20 steps of a millisecond says little
_LONGEST_NS: Final = 2 * NS_PER_S
_MOST: Final = 20_000
_APART_NS: Final = 2 * NS_PER_MS  # between two marks: setting one is then 1 % of it at most


class CycleClock:
    """Collects the durations of cycles.

    Args:
        on_device: whether a CUDA device works, so that marks are passed there.
        typical_ns: about how long a cycle takes. Where that is little, a mark stands after several of them: setting
            one takes some 20 us.
        most: so many cycles are enough in any case; None where there is no such limit.
    """

    def __init__(self, *, on_device: bool, typical_ns: float = 0.0, most: int | None = None) -> None:
        self.on_device = on_device
        self._most = _MOST if most is None else most
        self._block = max(1, math.ceil(_APART_NS / typical_ns)) if typical_ns else 1
        self._began = 0
        self._host: list[int] = []
        self._spent = 0
        self._mark: Any = None  # where the block of cycles that is running began
        self._in_block = 0
        self._marks: list[tuple[Any, Any]] = []

    def start(self, now: int) -> None:
        """A cycle begins; what was before it is not one."""
        self._began, self._in_block = now, 0
        self._mark = _marked() if self.on_device else None

    def skip(self) -> None:
        """The cycle that is running does not count."""
        self._began = 0

    def cycle(self, now: int) -> None:
        """A whole cycle has ended, and the next one begins."""
        if not self._began:
            self.start(now)
            return
        self._host.append(now - self._began)
        self._spent += now - self._began
        self._began = now
        self._in_block += 1
        if self.on_device and self._in_block == self._block:
            before, self._mark, self._in_block = self._mark, _marked(), 0
            self._marks.append((before, self._mark))

    def leave_out(self, since: int) -> None:
        """What opscope itself did until now is no part of the cycle that is running."""
        if self._began:
            self._began += time.perf_counter_ns() - since

    @property
    def count(self) -> int:
        """How many cycles were timed."""
        return len(self._host)

    @property
    def enough(self) -> bool:
        """Whether the cycles say how long one takes: twenty and a second, or ten and two seconds."""
        if self.count < _LEAST or (self.on_device and len(self._marks) < _LEAST):
            return False
        return (self.count >= _ENOUGH and self._spent >= _ENOUGH_NS) or (
            self._spent >= _LONGEST_NS or self.count >= self._most
        )

    def durations_ns(self) -> list[int]:
        """Return how long each cycle took, on a device means of blocks of cycles; waits for the device."""
        if not self.on_device:
            return self._host
        synchronize()
        scale = NS_PER_MS / self._block
        return [max(1, round(before.elapsed_time(after) * scale)) for before, after in self._marks]


def _marked() -> Any:
    import torch

    mark = torch.cuda.Event(enable_timing=True)
    mark.record()
    return mark
