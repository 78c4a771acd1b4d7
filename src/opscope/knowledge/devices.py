"""What devices can do at most: as their makers say (``data/devices.toml``, each with its source), or as measured here.

What well-chosen kernels reach of that is measured; tools/build_reach.py writes the tables.
"""

import re
import tomllib
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from opscope.base.files import cache_folder
from opscope.record.machine import MeasuredPeaks

# ---------------------------------------------------------------- compute capabilities
# ``data/cuda_toolkits.toml`` has the drivers and host compilers that CUDA toolkits need, with sources.


# CUDA release notes 13.2, tables 2 and 3: the first driver of each major version runs what any toolkit of it built.
_FIRST_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


class Toolkit(Struct, frozen=True, kw_only=True):
    """One release of CUDA.

    Attributes:
        version: ``12.8``.
        gcc: the newest GCC that its nvcc accepts, by major version.
    """

    version: str
    gcc: int


@cache
def toolkits() -> Mapping[str, Toolkit]:
    """Return the toolkits by version, the oldest first."""
    text = resources.files("opscope.knowledge").joinpath("data", "cuda_toolkits.toml").read_text("utf-8")
    return {version: Toolkit(version=version, **values) for version, values in tomllib.loads(text).items()}


def toolkit_of(version: str) -> Toolkit | None:
    """Return the toolkit of a version with or without its last part (``12.8``, ``12.8.93``); None if not known."""
    return toolkits().get(".".join(map(str, version_of(version)[:2])))


def runs_on(cuda: str, driver_cuda: str) -> bool:
    """Tell whether programs built with one version of CUDA run on a driver that supports another.

    The major version decides.
    """
    return version_of(cuda)[:1] <= version_of(driver_cuda)[:1]


def first_driver(cuda: str) -> str | None:
    """Return the first Linux driver that runs programs built with a version of CUDA; None where it is not known."""
    major = version_of(cuda)[:1]
    return _FIRST_DRIVER.get(major[0]) if major else None


class MultiprocessorLimits(Struct, frozen=True, kw_only=True):
    """The limits of one multiprocessor.

    Attributes:
        blocks, threads, registers, shared_memory_bytes: how much it holds at a time.
        reserved_shared_memory_bytes: what the system takes of it per thread block.
        shared_memory_unit_bytes: what a thread block's shared memory is rounded up to.
    """

    blocks: int
    threads: int
    registers: int
    shared_memory_bytes: int
    reserved_shared_memory_bytes: int
    shared_memory_unit_bytes: int


class ComputeCapability(Struct, frozen=True, kw_only=True):
    """A generation of NVIDIA's devices.

    Attributes:
        number: ``9.0``.
        architecture: ``Hopper``.
        cuda_min: the first CUDA toolkit that builds for it.
        cuda_max: the last one; None where the newest does.
        fp32_cores: ordinary cores of a multiprocessor.
        block_shared_memory_bytes: the most that a thread block can ask for (opt-in).
        multiprocessor: the limits of one.
    """

    number: str
    architecture: str
    cuda_min: str
    fp32_cores: int
    block_shared_memory_bytes: int
    multiprocessor: MultiprocessorLimits
    cuda_max: str | None = None

    @property
    def toolkits(self) -> str:
        """The CUDA toolkits that build for it, as text: ``CUDA 9.0 to 12.9``."""
        return f"CUDA {self.cuda_min} {f'to {self.cuda_max}' if self.cuda_max else 'on'}"


@cache
def compute_capabilities() -> Mapping[str, ComputeCapability]:
    """Return what is known by number (``9.0``), the oldest first."""
    text = resources.files("opscope.knowledge").joinpath("data", "compute_capabilities.toml").read_text("utf-8")
    return {number: _capability(number, values) for number, values in tomllib.loads(text).items()}


def _capability(number: str, values: Mapping[str, Any]) -> ComputeCapability:
    limits = MultiprocessorLimits(**values["multiprocessor"])
    return ComputeCapability(number=number, **{**values, "multiprocessor": limits})


def sm_of(number: str) -> str:
    """Return what compilers call a compute capability: ``sm_90`` for ``9.0``, ``sm_90a`` for ``9.0a``.

    The gfx name of an AMD device stays as it is.
    """
    return number if not number[:1].isdecimal() else f"sm_{number.replace('.', '')}"


def gencode(number: str, *, ptx: bool = True, sass: bool = True) -> tuple[str, ...]:
    """Return nvcc's flags to build for a compute capability.

    Args:
        number: ``9.0``.
        ptx: whether to include PTX, which newer devices translate.
        sass: whether to include machine code.
    """
    virtual = sm_of(number).replace("sm_", "compute_")
    codes = ((sm_of(number),) if sass else ()) + ((virtual,) if ptx else ())
    return tuple(f"-gencode=arch={virtual},code={code}" for code in codes)


def capability_of(sm: str) -> str | None:
    """Return the compute capability of ``sm_90``, ``compute_90``, ``sm_90a`` or ``9.0``; None for any other text."""
    # The last digit is the minor version: sm_90 is 9.0, sm_120 is 12.0.
    digits = sm.removeprefix("sm_").removeprefix("compute_").rstrip("af").replace(".", "")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdecimal() and len(digits) >= 2 else None


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers to compare: (12, 8) for ``12.8``; the first part that is not a number ends it."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


# ---------------------------------------------------------------- devices


DeviceClass = Literal["data centre", "workstation", "consumer", "embedded"]
# The driver reports a little less than what a card is sold with: reserved memory, ECC.
_LEAST_MEMORY: Final = 0.85
_AGREE: Final = 1.05  # rates per cycle that differ by less are one rate, rounded
# All down to FUSED_HOST: benchmarks/results/h100-reach.json and h200-reach.json; low, likely, high.
# Between two nodes of a CUDA graph: 0.35 to 0.57 us of simple kernels there, 0.9 to 2 us of others recorded elsewhere.
GRAPH_GAP_NS: Final = (2_000, 1_000, 400)
GRAPH_LAUNCH_NS: Final = (30_000, 15_000, 8_000)
# What copies of pinned memory reach from 8 MB on; PCIe 4 instead of 5 for low.
PINNED_BYTES_PER_NS: Final = (20.0, 50.0, 55.0)
# The host's time of a step of a fused optimizer: for all, and for each tensor.
FUSED_ADAM_NS: Final = (500_000, 3_000)
FUSED_SGD_NS: Final = (350_000, 1_000)
FUSED_HOST: Final = (2.0, 1.0, 0.6)  # it varied by as much
# Operations or bytes per second; a kept rate outside of these cannot have been measured.
_LEAST_RATE: Final = 1e9
_MOST_RATE: Final = 1e18


class Assumed(IntEnum):
    """How favourable the assumptions of a replay are."""

    LOW = 0
    LIKELY = 1
    HIGH = 2


class Reach(Struct, frozen=True):
    """How long a kind of work takes: its limit over a share, and an overhead.

    Attributes:
        share: of the limit, for work that is long.
        overhead_ns: what every call takes beside, in nanoseconds.
    """

    share: float
    overhead_ns: float

    def time_ns(self, ideal_ns: float) -> float:
        """Return how long a call takes whose limit is a time in nanoseconds."""
        return ideal_ns / self.share + self.overhead_ns


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(resources.files("opscope.knowledge").joinpath("data", "reach.toml").read_text("utf-8"))


@cache
def reach_of(kind: str, assumed: Assumed) -> Reach:
    """Return what a kind of work reaches.

    Args:
        kind: a table of reach.toml: ``product_16``, ``product_tf32``, ``convolution_16``, ``convolution_tf32``,
            ``attention``, ``attention_training``, ``one_pass``, ``fused_optimizer``.
        assumed: one in ten measurements was slower than LOW, half of them slower than LIKELY, nine in ten than HIGH.
    """
    return Reach(**_tables()[kind][assumed.name.lower()])


@cache
def reach_origin() -> str:
    """Return on what the tables were measured."""
    return str(_tables()["origin"])


class Device(Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        name: what it is sold as.
        matches: the names that drivers give it, whole.
        vendor: ``nvidia`` or ``amd``.
        architecture: its name: ``Hopper``.
        compute_capability: ``9.0``; for AMD's devices the gfx name.
        kind: ``data centre``, ``workstation``, ``consumer`` or ``embedded``.
        multiprocessors: streaming multiprocessors, compute units; None where that is not known.
        source: where the figures are from.
        memory_bytes: the nominal size of its own memory; None if not known, as with the next four.
        memory_bytes_per_s: to and from that memory.
        link_bytes_per_s: to other devices through all of its own links (NVLink), in one direction.
        l2_bytes: the size of the cache that all multiprocessors share.
        boost_clock_mhz: the highest clock that its maker promises.
        peaks: dense operations per second by the type of the operands, a multiplication and an addition counted as
            two: ``fp32`` on the ordinary cores, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8``, ``fp64_tensor`` on
            Tensor Cores with 32-bit accumulation; ``_acc16`` with 16-bit accumulation. Empty where they are not known.
        note: what to know before using the figures; None if there is nothing to know.
    """

    name: str
    matches: tuple[str, ...]
    vendor: str
    architecture: str
    compute_capability: str
    kind: DeviceClass
    source: str
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    boost_clock_mhz: int | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


def known_devices() -> tuple[Device, ...]:
    """Return all devices of the table."""
    return tuple(map(_device, _entries()))


_ENTRY: Final = "[[device]]"  # each entry begins with this


@cache
def _entries() -> tuple[str, ...]:
    """Return the text of each entry: to read all takes longer than most commands have, and they need one."""
    text = resources.files("opscope.knowledge").joinpath("data", "devices.toml").read_text("utf-8")
    return tuple(_ENTRY + rest for rest in text.split(f"\n{_ENTRY}")[1:])


@cache
def _device(text: str) -> Device:
    entry = tomllib.loads(text)["device"][0]
    return Device(**{**entry, "matches": tuple(entry["matches"])})


def _named(name: str) -> list[Device]:
    """Return the devices that drivers give a name."""
    # Names are plain text in the table: what does not hold it cannot match.
    return [device for text in _entries() if name in text if name in (device := _device(text)).matches]


def is_listed(name: str) -> bool:
    """Tell whether drivers give this name to any device of the table."""
    return bool(_named(name))


def device_called(name: str, multiprocessors: int | None = None, memory_bytes: int | None = None) -> Device | None:
    """Return the device that drivers give a name; None if no device or several have it, or it is a part of one.

    Args:
        name: as the driver gives it, compared whole: "NVIDIA H20" is not a H200.
        multiprocessors: how many it has; None if not recorded. A device with another number is another one.
        memory_bytes: how much it has, as the driver says; decides between devices of one name and size.
    """
    result = _named(name)
    if multiprocessors is not None:
        result = [device for device in result if device.multiprocessors in (multiprocessors, None)]
    if memory_bytes is not None and len(result) > 1:
        result = [device for device in result if _LEAST_MEMORY <= memory_bytes / (device.memory_bytes or 1) <= 1]
    return result[0] if len(result) == 1 else None


def device_like(
    vendor: str | None, compute_capability: str | None, multiprocessors: int | None, memory_bytes: int | None
) -> Device | None:
    """Return the device that these facts fit; None where none does, or several that differ in what they can do.

    Args:
        vendor: ``amd``, or None for NVIDIA's.
        compute_capability: ``9.0``; ignored for AMD's devices, whose numbers mean something else.
        multiprocessors: how many it has.
        memory_bytes: how much memory, as the driver says.
    """
    if multiprocessors is None or memory_bytes is None:
        return None
    results = [
        device
        for device in known_devices()
        if device.multiprocessors == multiprocessors
        and _LEAST_MEMORY <= memory_bytes / (device.memory_bytes or 1) <= 1
        and (device.vendor == "amd" if vendor == "amd" else device.compute_capability == compute_capability)
    ]
    # Several models with the same peaks are as good as one: only the peaks are of interest.
    rates = {(tuple(sorted(device.peaks.items())), device.memory_bytes_per_s) for device in results}
    return results[0] if len(rates) == 1 else None


def estimated_peaks(name: str, compute_capability: str | None, multiprocessors: int | None) -> "Peaks | None":
    """Estimate the peaks of a device of unknown name from its multiprocessors; None if no known device is like it.

    Only those rates are estimated in which all devices of this compute capability agree, per multiprocessor and cycle:
    some models are made slower. The bandwidth of its memory stays unknown: multiprocessors do not tell it.

    Args:
        name: of the device; a part of one (MIG) is not estimated, because drivers give it the whole one's size.
        compute_capability: of the device.
        multiprocessors: how many it has.
    """
    like = [
        device
        for device in known_devices()
        if device.vendor == "nvidia" and device.compute_capability == compute_capability
        if device.multiprocessors and device.boost_clock_mhz and device.peaks
    ]
    if not like or not multiprocessors or "MIG" in name:
        return None
    rates = {}
    for precision in like[0].peaks:
        each = [_per_cycle(device, precision) for device in like]
        if min(each) > 0 and max(each) <= _AGREE * min(each):
            rates[precision] = min(each) * multiprocessors * min(device.boost_clock_mhz or 0 for device in like) * 1e6
    if not rates:
        return None
    return Peaks(
        device=name,
        origin=f"estimated by {multiprocessors} multiprocessors of compute capability {compute_capability}",
        rates=rates,
        memory_bytes_per_s=None,
        l2_bytes=None,
    )


def _per_cycle(device: Device, precision: str) -> float:
    """Return the operations of one multiprocessor in one cycle; 0 where they are not known."""
    cycles = (device.multiprocessors or 0) * (device.boost_clock_mhz or 0) * 1e6
    return device.peaks.get(precision, 0.0) / cycles if cycles else 0.0


class Peaks(Struct, frozen=True):
    """The most that one device can do.

    Attributes:
        device: its name.
        origin: how that is known: ``datasheet``, ``measured`` with the date, or ``estimated`` with what from.
        rates: operations per second by precision, as `Device.peaks` names them.
        memory_bytes_per_s: to and from its memory, together; None if not known.
        l2_bytes: the size of its cache, None if not known; what fits into that may be faster than memory.
        measured: which of the rates were measured; others are the datasheet's.
    """

    device: str
    origin: str
    rates: Mapping[str, float]
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    measured: frozenset[str] = frozenset()


def datasheet_peaks(device: Device) -> Peaks:
    """Return the peaks that a device's maker states."""
    return Peaks(device.name, "datasheet", device.peaks, device.memory_bytes_per_s, device.l2_bytes)


def peaks_file(device: str) -> Path:
    """Return where the peaks of a device are kept, by the name that the driver gives it."""
    return cache_folder() / "peaks" / f"{re.sub(r'[^A-Za-z0-9]+', '-', device)[:100]}.json"


def peaks_called(name: str, multiprocessors: int | None) -> Peaks | None:
    """Return the peaks of a device: measured ones, else the datasheet's; None if neither are known.

    Precisions that were not measured are the datasheet's, and so is the size of the cache, if the datasheet has it.

    Args:
        name: as the driver gives it.
        multiprocessors: how many it has; None if not recorded.
    """
    device = device_called(name, multiprocessors)
    sheet = None if device is None else datasheet_peaks(device)
    measured = _kept(name)
    # With another number of multiprocessors it is another device, or a part of one.
    if measured is None or (multiprocessors and measured.multiprocessors not in (None, multiprocessors)):
        return sheet
    return Peaks(
        device=name,
        origin=f"measured {measured.created[:10]}",
        rates={**(sheet.rates if sheet else {}), **measured.flop_per_s},
        memory_bytes_per_s=measured.memory_bytes_per_s,
        l2_bytes=(sheet.l2_bytes if sheet else None) or measured.l2_bytes,
        measured=frozenset(measured.flop_per_s),
    )


def _kept(name: str) -> MeasuredPeaks | None:
    try:
        result = msgspec.json.decode(peaks_file(name).read_bytes(), type=MeasuredPeaks)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    rates = (*result.flop_per_s.values(), result.memory_bytes_per_s)
    plausible = all(_LEAST_RATE < rate < _MOST_RATE for rate in rates)
    # Names of files are shortened, so two devices may share one: the name in the file decides.
    return result if result.device == name and plausible else None
