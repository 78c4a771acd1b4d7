"""Times whole cycles of a script that runs on undisturbed: by the host's clock, or by marks on the device.

The host of a GPU runs ahead of it, a few steps or hundreds, so single times of the host are not those of steps. A mark
(CUDA event) on the stream is passed when the device gets there; of two marks a cycle apart the time between is how
long a cycle takes, whoever has to wait for whom. Nothing waits for the device before the end.
"""

import time
from typing import Any, Final

from opscope.collect.script.questions import synchronize
from opscope.units import NS_PER_MS, NS_PER_S

_LEAST: Final = 10
_ENOUGH: Final = 20
_ENOUGH_NS: Final = NS_PER_S  # short steps: a clock of 20 steps of a millisecond says little
_LONGEST_NS: Final = 2 * NS_PER_S
_MOST: Final = 20_000


class CycleClock:
    """Collects the durations of cycles.

    Args:
        on_device: whether a CUDA device works, so that marks are passed there.
        most: so many cycles are enough in any case; None where there is no such limit.
    """

    def __init__(self, *, on_device: bool, most: int | None = None) -> None:
        self.on_device = on_device
        self._most = _MOST if most is None else most
        self._spent, self._began = 0, 0
        self._host: list[int] = []
        self._marks: list[tuple[Any, Any]] = []
        self._mark: Any = None

    def start(self) -> None:
        """A cycle begins; what was before it is not one."""
        self._mark = self._marked()
        self._began = time.perf_counter_ns()

    def skip(self) -> None:
        """The cycle that is running does not count."""
        self._began = 0

    def cycle(self) -> None:
        """A whole cycle has ended, and the next one begins."""
        now, before = time.perf_counter_ns(), self._mark
        if not self._began:
            self.start()
            return
        self._mark = self._marked()
        self._host.append(now - self._began)
        self._spent += now - self._began
        if before is not None:
            self._marks.append((before, self._mark))
        self._began = now

    @property
    def count(self) -> int:
        """How many cycles were timed."""
        return len(self._host)

    @property
    def enough(self) -> bool:
        """Whether the cycles say how long one takes: twenty and a second, or ten and two seconds."""
        if self.count < _LEAST:
            return False
        return (self.count >= _ENOUGH and self._spent >= _ENOUGH_NS) or (
            self._spent >= _LONGEST_NS or self.count >= self._most
        )

    def durations_ns(self) -> list[int]:
        """Return how long each cycle took; waits for the device."""
        if not self.on_device:
            return self._host
        synchronize()
        return [max(1, round(before.elapsed_time(after) * NS_PER_MS)) for before, after in self._marks]

    def _marked(self) -> Any:
        if not self.on_device:
            return None
        import torch

        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark
