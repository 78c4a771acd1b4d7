"""What ``opscope peaks`` measured on a device: the schema ``opscope.peaks/1``."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakSample:
    """One thing that was tried.

    Attributes:
        name: what it does: ``bf16``, ``read``.
        detail: with which sizes.
        rates: operations or bytes per second of each burst.
        best: the largest of these; the largest of all that was tried counts.
    """

    name: str
    detail: str
    rates: tuple[float, ...]
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeaks:
    """The most that one device did.

    Attributes:
        device: as the driver names it.
        multiprocessors: how many the device has; another number of them is another device.
        l2_bytes: of the cache that they share, as the driver says.
        torch: the PyTorch that measured.
        created: when.
        flop_per_s: by precision, as `opscope.knowledge.devices.Device` names it.
        memory_bytes_per_s: read and written together, of the best pattern.
        seconds: how long measuring took.
        samples: everything that was tried.
    """

    schema: Literal["opscope.peaks/1"] = "opscope.peaks/1"
    device: str
    torch: str
    created: str
    flop_per_s: dict[str, float]
    memory_bytes_per_s: float
    seconds: float
    samples: tuple[PeakSample, ...]
    multiprocessors: int | None = None
    l2_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksList:
    """What one command measured: the schema ``opscope.peaks-list/1``."""

    schema: Literal["opscope.peaks-list/1"] = "opscope.peaks-list/1"
    peaks: tuple[MeasuredPeaks, ...]
