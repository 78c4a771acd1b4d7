"""What the makers of devices say they can do at most (``data/devices.toml``, each with its source)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One model.

    Attributes:
        name: what it is sold as.
        matches: the names that drivers give it, whole.
        vendor, architecture: as named.
        compute_capability: of AMD's devices the gfx name.
        multiprocessors: streaming multiprocessors, compute units.
        source: where the figures are from.
        memory_bytes: of its own memory.
        memory_bytes_per_s: to and from that.
        l2_bytes: of the cache that all multiprocessors share.
        boost_clock_mhz: the highest clock that its maker promises.
        peaks: dense operations per second by the type of the operands, a multiplication and an addition counted as
            two: ``fp32`` on the ordinary cores, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8``, ``fp64_tensor`` on
            Tensor Cores with 32-bit accumulation; ``_acc16`` with 16-bit accumulation.
    """

    name: str
    matches: tuple[str, ...]
    vendor: str
    architecture: str
    compute_capability: str
    multiprocessors: int
    source: str
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    boost_clock_mhz: int | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)


@cache
def known_devices() -> tuple[Device, ...]:
    """Return all devices of the table."""
    text = resources.files("opscope.knowledge").joinpath("data", "devices.toml").read_text("utf-8")
    return tuple(_device(entry) for entry in tomllib.loads(text)["device"])


def _device(entry: Mapping[str, Any]) -> Device:
    return Device(**{**entry, "matches": tuple(entry["matches"])})


def device_called(name: str, multiprocessors: int | None = None) -> Device | None:
    """Return the device that a driver calls so; None if it is not known, or a part of one.

    Args:
        name: as the driver gives it, compared whole: "NVIDIA H20" is no H200.
        multiprocessors: how many it has, where that was recorded; a device with another number is another one.
    """
    found = [device for device in known_devices() if name in device.matches]
    if multiprocessors is not None:
        found = [device for device in found if device.multiprocessors == multiprocessors]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that one device can do.

    Attributes:
        device: its name.
        origin: how that is known: ``datasheet``, or ``measured`` with the date.
        rates: operations per second by precision, as in `Device`.
        memory_bytes_per_s: to and from its memory, together.
        l2_bytes: of its cache; what fits into that may be faster than memory.
        measured: which of the rates were measured; others are the datasheet's.
    """

    device: str
    origin: str
    rates: Mapping[str, float]
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    measured: frozenset[str] = frozenset()


def datasheet_peaks(device: Device) -> Peaks:
    """Return what a device's maker says."""
    return Peaks(device.name, "datasheet", device.peaks, device.memory_bytes_per_s, device.l2_bytes)
