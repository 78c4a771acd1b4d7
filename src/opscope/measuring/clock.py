"""The one clock of a step: by the host, with or without a wait for the device, and by marks on the device."""

from collections.abc import Callable
from time import perf_counter_ns  # the real one, whatever clock a script sees
from typing import Any

import torch

from opscope.base.units import NS_PER_MS


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all its work; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_once(call: Callable[[], object], device: torch.device, *, waits: bool = True) -> int:
    """Return how long a call takes on the host's clock, in nanoseconds; an idle device is waited for before it begins.

    What the call returns is forgotten after the time was taken.

    Args:
        call: does the work once.
        device: where the work runs.
        waits: whether the time includes a wait for the device; on a GPU it is that of issuing the work otherwise.
    """
    synchronize(device)
    began = perf_counter_ns()
    result = call()
    if waits:
        synchronize(device)
    took = perf_counter_ns() - began
    del result
    return took


def passed_ns(before: Any, after: Any) -> float:
    """Return the nanoseconds between two events of CUDA that have both come; the driver resolves about 500."""
    return float(before.elapsed_time(after)) * NS_PER_MS


class EventTimer:
    """A pair of events, recorded on the current stream before and after a call.

    Args:
        device: the GPU whose events they are.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._before = torch.cuda.Event(enable_timing=True)
            self._after = torch.cuda.Event(enable_timing=True)

    def around(self, call: Callable[[], object]) -> Callable[[], None]:
        """Return the call with an event before it and one after what it returns was forgotten."""

        def timed() -> None:
            self._before.record()
            call()
            self._after.record()

        return timed

    def elapsed_ns(self) -> int:
        """Return the time between the events of a call whose work has ended."""
        return round(passed_ns(self._before, self._after))


class Mark:
    """A moment: when the host comes by, and when the device's current stream does, which may be later.

    Args:
        device: the device.

    Attributes:
        host_ns: when the host came by, by `time.perf_counter_ns`.
    """

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(device))
        self.host_ns = perf_counter_ns()

    def wait(self) -> None:
        """Wait until the device has come by; the host has already."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: "Mark") -> int:
        """Return how long after an earlier moment this was, in nanoseconds: on the device, if there is one."""
        if self._event is None or earlier._event is None:
            return self.host_ns - earlier.host_ns
        self._event.synchronize()
        return round(passed_ns(earlier._event, self._event))
