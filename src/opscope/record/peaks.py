"""What ``opscope gpus --measure`` measured on a device: the schema ``opscope.peaks/1``."""

from typing import Literal

from msgspec import Struct


class PeakSample(Struct, frozen=True, kw_only=True):
    """One measured pattern.

    Attributes:
        name: what it does: ``bf16``, ``read``.
        detail: its sizes.
        rates: operations or bytes per second of each burst.
        best: the largest of the rates. The best of all patterns is the peak.
    """

    name: str
    detail: str
    rates: tuple[float, ...]
    best: float


class MeasuredPeaks(Struct, frozen=True, kw_only=True):
    """The measured peaks of one device.

    Attributes:
        device: the driver's name for it.
        multiprocessors: their number; devices of one name with different numbers are different devices.
        l2_bytes: size of the L2 cache, from the driver.
        torch: the PyTorch that measured.
        created: UTC, ISO 8601.
        flop_per_s: by precision, named as in `opscope.knowledge.devices.Device`.
        memory_bytes_per_s: bytes read and written together, for the best pattern.
        seconds: how long measuring took.
        samples: all measured patterns.
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


class PeaksList(Struct, frozen=True, kw_only=True):
    """What one command measured: the schema ``opscope.peaks-list/1``."""

    schema: Literal["opscope.peaks-list/1"] = "opscope.peaks-list/1"
    peaks: tuple[MeasuredPeaks, ...]
