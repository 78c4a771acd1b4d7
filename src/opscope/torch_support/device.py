"""The device that a workload runs on, as PyTorch knows it. Needs PyTorch."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns  # as it is, whatever clock a script sees

import torch

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.units import NS_PER_MS
from opscope.record.configuration import DEVICE_NAME


def resolve_device(name: str) -> torch.device:
    """Return the device that a name (``auto``, ``cpu``, ``cuda:1``) means here.

    Raises:
        UsageError: it is not such a name.
        EnvironmentLacksError: a GPU is asked for that PyTorch does not see.
    """
    if not re.fullmatch(DEVICE_NAME, name):
        raise UsageError(f"a device is auto, cpu, cuda or cuda:N, not {name!r}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        build = "this PyTorch is built without CUDA" if torch.version.cuda is None else f"PyTorch sees {count} GPUs"
        raise EnvironmentLacksError(f"device {name} is not there: {build}. Use --device cpu, or --device auto.")
    return torch.device("cuda", index)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all its work; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Mark:
    """A moment: when the host comes by, and when the device's current stream does, which may be later.

    Args:
        device: the device.

    Attributes:
        host_ns: when the host came by, by `time.perf_counter_ns`.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
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
        passed_ms: float = earlier._event.elapsed_time(self._event)
        return round(passed_ms * NS_PER_MS)


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one, so that code which says just "cuda" means it; for a CPU, do nothing."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.init()  # memory statistics need a device that is set up
    with torch.cuda.device(device):
        yield
