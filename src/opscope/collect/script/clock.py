"""Times whole cycles of a script that runs undisturbed: by the host's clock, or by marks on the device.

The host runs ahead of a GPU by a few steps or by hundreds, so the host's single times are not those of steps. A mark
(CUDA event) on the stream is passed when the device gets there. The time between two marks that are a cycle apart is
how long a cycle takes, whether the host waits for the device or the other way round. Nothing waits for the device
before the end.
"""

import math
import time
from typing import Any, Final

from opscope.base.units import NS_PER_MS, NS_PER_S
from opscope.collect.script.questions import synchronize

_LEAST: Final = 10  # cycles (or blocks of them on a device) in any case
_ENOUGH: Final = 20
_ENOUGH_NS: Final = NS_PER_S  # for short steps: 20 steps of a millisecond say little
_LONGEST_NS: Final = 2 * NS_PER_S
_MOST: Final = 20_000
_APART_NS: Final = 2 * NS_PER_MS  # between two marks: setting one then takes at most 1 % of the time


class CycleClock:
    """Collects the durations of cycles.

    Args:
        on_device: whether cycles are timed by marks on a CUDA device; otherwise by the host's clock.
        typical_ns: about how long a cycle takes; 0 if unknown. If cycles are short, a mark is set only after several
            of them, because setting one takes some 20 us.
        most: how many cycles are enough in any case; None for 20,000.
    """

    def __init__(self, *, on_device: bool, typical_ns: float = 0.0, most: int | None = None) -> None:
        self.on_device = on_device
        self._most = _MOST if most is None else most
        self._block = max(1, math.ceil(_APART_NS / typical_ns)) if typical_ns else 1
        self._began = 0  # when the running cycle began; 0 while none is timed
        self._host: list[int] = []
        self._spent = 0
        self._mark: Any = None  # where the running block of cycles began
        self._in_block = 0
        self._marks: list[tuple[Any, Any]] = []

    def start(self, now: int) -> None:
        """Note that a cycle begins; the time before it belongs to no cycle."""
        self._began, self._in_block = now, 0
        self._mark = _marked() if self.on_device else None

    def skip(self) -> None:
        """Drop the cycle that is running."""
        self._began = 0

    def cycle(self, now: int) -> None:
        """Note that a whole cycle has ended and the next one begins; after `skip`, only that one begins."""
        if not self._began:
            self.start(now)
            return
        self._host.append(now - self._began)
        self._spent += now - self._began
        self._began = now
        self._in_block += 1
        # The mark that ends a block begins the next one, so blocks follow each other without a gap.
        if self.on_device and self._in_block == self._block:
            before, self._mark, self._in_block = self._mark, _marked(), 0
            self._marks.append((before, self._mark))

    def leave_out(self, since: int) -> None:
        """Take the time that opscope itself spent, from ``since`` until now, out of the running cycle."""
        if self._began:
            self._began += time.perf_counter_ns() - since

    @property
    def count(self) -> int:
        """How many cycles were timed."""
        return len(self._host)

    @property
    def enough(self) -> bool:
        """Whether enough was timed: 20 cycles and a second, 10 and two seconds, or the most cycles that are timed."""
        if self.count < _LEAST or (self.on_device and len(self._marks) < _LEAST):
            return False
        return (self.count >= _ENOUGH and self._spent >= _ENOUGH_NS) or (
            self._spent >= _LONGEST_NS or self.count >= self._most
        )

    def durations_ns(self) -> list[int]:
        """Return how long each cycle took, on a device the mean of each block of cycles; wait for the device."""
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
