"""Builds a `GpusDocument` from the tables of devices and the driver's answer, and renders it as a table."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.base.units import format_bytes
from opscope.documents.machine import GpuFacts, GpusDocument
from opscope.knowledge.devices import (
    Device,
    capability_of,
    compute_capabilities,
    device_called,
    gencode,
    is_listed,
    known_devices,
    sm_of,
)
from opscope.record.machine import Driver, DriverDevice
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, table_of

_TERA: Final = 1e12
_GIBI: Final = 1 << 30
_SHOWN: Final = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16/BF16", "fp8": "FP8", "int8": "INT8", "fp64": "FP64"}
_RARELY_ASKED: Final = frozenset({"fp8", "int8", "fp64"})
_DRIVER: Final = "the driver"
_WORDS: Final = lazy_pattern(r"[a-z]+[0-9][a-z0-9.]*|[a-z]+|[0-9][a-z0-9.]*")
_SERIES: Final = lazy_pattern(r"(?:geforce )?(?:(?P<line>gtx|rtx) )?(?P<number>16|20|30|40|50)(?: ?series| ?系列)?")
_SHORTEST_PART: Final = 3  # of a name: shorter ones are in too many
_BY_CLOCK: Final = "computed from the driver's clocks"


def known_gpus() -> tuple[GpuFacts, ...]:
    """Return all models of the table, NVIDIA's first, by compute capability."""
    return tuple(sorted((_of_model(device) for device in known_devices()), key=_age))


def _age(gpu: GpuFacts) -> tuple[bool, tuple[int, ...], str]:
    # AMD's compute capabilities are gfx names, which are not numbers: these models come last, by name.
    numbers = gpu.compute_capability.split(".")
    return (gpu.vendor != "nvidia", tuple(int(n) for n in numbers) if numbers[0].isdecimal() else (), gpu.name)


def gpus_here(driver: Driver) -> GpusDocument:
    """Build the document of the devices that the driver lists, each with the known facts of its model."""
    return GpusDocument(
        gpus=tuple(_here(device) for device in driver.devices),
        driver=driver.release,
        driver_cuda=driver.cuda,
        problem=driver.error or (None if driver.devices else _none_visible(driver)),
    )


def _none_visible(driver: Driver) -> str:
    if driver.visible is not None:
        return f"the driver lists no device: CUDA_VISIBLE_DEVICES is {driver.visible!r}"
    return "the driver lists no device"


def _of_model(device: Device) -> GpuFacts:
    return _facts(
        device.compute_capability,
        device.vendor,
        device.architecture,
        device.name,
        _sheet(device),
        note=device.note,
        kind=device.kind,
    )


def _sheet(device: Device) -> dict[str, object]:
    return {
        "sms": device.multiprocessors,
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "l2_bytes": device.l2_bytes,
        "boost_clock_mhz": device.boost_clock_mhz,
        "peak_flops": device.peaks,
        "sources": {"figures": device.source, **_toolkit_source(device.compute_capability)},
    }


def _facts(
    number: str, vendor: str, architecture: str | None, name: str, figures: Mapping[str, object], **more: object
) -> GpuFacts:
    known = compute_capabilities().get(number)
    nvidia = vendor == "nvidia"
    return GpuFacts(
        name=name,
        vendor=vendor,
        architecture=architecture,
        compute_capability=number,
        arch=sm_of(number),
        flag=f"-arch={sm_of(number)}" if nvidia else f"--offload-arch={number}",
        gencode=" ".join(gencode(number)) if nvidia else None,
        cuda_min=known.cuda_min if known else None,
        cuda_max=known.cuda_max if known else None,
        **figures,  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def _toolkit_source(number: str) -> dict[str, str]:
    if number not in compute_capabilities():
        return {}
    return {"toolkits": "LLVM, NVPTXTargetParser.def; from CUDA 11.7 on, the targets of its ptxas"}


def _here(device: DriverDevice) -> GpuFacts:
    known = compute_capabilities().get(device.compute_capability)
    # The peaks of a card do not hold for a slice of it.
    model = None if device.is_slice else device_called(device.name, device.multiprocessors, device.memory_bytes)
    named = model or known
    architecture = None if named is None else named.architecture
    figures = _by_driver(device) if model is None else _of_both(device, model)
    note = _why_unknown(device) if model is None else model.note
    name = device.name if model is None else model.name
    kind = None if model is None else model.kind
    return _facts(device.compute_capability, "nvidia", architecture, name, figures, here=device, note=note, kind=kind)


def _of_both(device: DriverDevice, model: Device) -> dict[str, object]:
    """Return the figures of a device: those of its model, and the driver's where the table has none."""
    driver = _by_driver(device)
    # The table wins over figures computed from clocks, and the driver wins over the table for what it counts itself.
    known = {name: value for name, value in _sheet(model).items() if value not in (None, {})}
    own = {"sms": device.multiprocessors, "memory_bytes": device.memory_bytes}
    sources = {"memory size, L2, multiprocessors": _DRIVER}
    if model.peaks or model.memory_bytes_per_s:
        sources = {**model_sources(model), **sources}
    by_driver: Mapping[str, str] = driver["sources"]  # type: ignore[assignment]
    if not model.peaks and "peak of FP32" in by_driver:
        sources["peak of FP32"] = _BY_CLOCK
    if model.memory_bytes_per_s is None and "bandwidth" in by_driver:
        sources["bandwidth"] = _BY_CLOCK
    l2 = {"l2_bytes": device.l2_bytes or model.l2_bytes}
    return {**driver, **known, **own, **l2, "sources": sources}


def model_sources(model: Device) -> dict[str, str]:
    """Return the sources of a model's figures: figures -> source."""
    return {"peaks, bandwidth": model.source, **_toolkit_source(model.compute_capability)}


def _why_unknown(device: DriverDevice) -> str:
    if device.is_slice:
        return "a slice of a card (MIG): the card's peaks do not hold for it"
    if is_listed(device.name):
        return "a model of this name has another number of multiprocessors: described by the driver alone"
    return "not in the table: described by the driver alone"


def _by_driver(device: DriverDevice) -> dict[str, object]:
    """Return the figures that the driver gives: bandwidth and FP32 from its clocks, none for Tensor Cores."""
    known = compute_capabilities().get(device.compute_capability)
    peaks, sources = {}, {"size, L2, multiprocessors, clock": _DRIVER, **_toolkit_source(device.compute_capability)}
    if known is not None and device.clock_khz and not device.is_slice:
        # A multiply-add counts as two operations.
        peaks["fp32"] = 2.0 * device.multiprocessors * known.fp32_cores * device.clock_khz * 1e3
        sources["peak of FP32"] = _BY_CLOCK
    # Two transfers a clock, as the driver counts clocks of every kind of memory; a slice has no bus of its own.
    bandwidth = 2.0 * device.memory_clock_khz * 1e3 * device.memory_bus_bits / 8
    if bandwidth and not device.is_slice:
        sources["bandwidth"] = _BY_CLOCK
    return {
        "sms": device.multiprocessors,
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": bandwidth if bandwidth and not device.is_slice else None,
        "l2_bytes": device.l2_bytes or None,
        "boost_clock_mhz": device.clock_khz // 1000 or None,
        "peak_flops": peaks,
        "sources": sources,
    }


def chosen_gpus(gpus: Iterable[GpuFacts], names: Iterable[str], architecture: str | None) -> tuple[GpuFacts, ...]:
    """Choose GPUs by name, architecture, compute capability, ``sm`` or kind.

    Consecutive words that match together count as one phrase: ``3060 ti``. Words of names are compared whole, so that
    ``a10`` does not match an A100; parts of words count only if nothing matches whole.

    Args:
        gpus: the GPUs to choose from.
        names: words, in any case; an empty iterable chooses all.
        architecture: ``hopper``, ``9.0`` or ``sm_90``; None chooses all.
    """
    candidates = [gpu for gpu in gpus if architecture is None or _is_of(gpu, architecture)]
    words = " ".join(names).lower().split()
    if not words:
        return tuple(candidates)
    results: set[int] = set()
    while words:
        # The longest phrase that matches any GPU, or a single word if none does.
        count = next((n for n in range(len(words), 0, -1) if _meant(candidates, " ".join(words[:n]))), 1)
        results.update(id(gpu) for gpu in _meant(candidates, " ".join(words[:count])))
        words = words[count:]
    return tuple(gpu for gpu in candidates if id(gpu) in results)


def _meant(gpus: Sequence[GpuFacts], phrase: str) -> Sequence[GpuFacts]:
    # From the most specific reading to the loosest: a series, a kind, an architecture, whole words, parts of words.
    if series := _SERIES.fullmatch(phrase):
        models = re.compile(rf"geforce {series['line'] or '[gr]tx'} {series['number']}\d\d\b")
        return [gpu for gpu in gpus if models.search(gpu.name.lower())]
    if kinds := [gpu for gpu in gpus if phrase in (gpu.kind, (gpu.kind or "").replace("centre", "center"))]:
        return kinds
    if of := [gpu for gpu in gpus if _is_of(gpu, phrase)]:
        return of
    wanted = _WORDS.findall(phrase)
    whole = [gpu for gpu in gpus if any(_within(wanted, _WORDS.findall(name)) for name in _names_of(gpu))]
    if whole:
        return whole
    plain = phrase.replace(" ", "")
    if len(plain) < _SHORTEST_PART:
        return []
    return [gpu for gpu in gpus if any(plain in name.replace(" ", "") for name in _names_of(gpu))]


def _within(words: Sequence[str], name: Sequence[str]) -> bool:
    """Tell whether words occur in a name, consecutively and in order."""
    return any(list(name[at : at + len(words)]) == list(words) for at in range(len(name) - len(words) + 1))


def _is_of(gpu: GpuFacts, kind: str) -> bool:
    """Tell whether a word is the architecture (or its first word) or the compute capability in any spelling."""
    own, word = (gpu.architecture or "").lower(), kind.lower()
    return word in (own, own.split(" ")[0], gpu.arch.lower()) or capability_of(word) == gpu.compute_capability


def _names_of(gpu: GpuFacts) -> tuple[str, ...]:
    matches = (name for device in known_devices() if device.name == gpu.name for name in device.matches)
    return tuple(name.lower() for name in (gpu.name, *matches))


def gpus_table(document: GpusDocument, *, units: bool = True) -> Table:
    """Build a table with a row per GPU; rates are in 10^12 operations per second.

    Args:
        document: the GPUs.
        units: whether the headings of rates name the unit.
    """
    columns = (*_FACTS, *(_rate_column(name, units=units) for name in _SHOWN))
    return table_of(columns, document.gpus)


def _rate(gpu: GpuFacts, name: str) -> str:
    rate = gpu.peak_flops.get(name)
    return "-" if rate is None else f"{rate / _TERA:,.1f}"


def _range(gpu: GpuFacts) -> str:
    if gpu.cuda_min is None:
        return "-"
    return f"{gpu.cuda_min} to {gpu.cuda_max}" if gpu.cuda_max else f"{gpu.cuda_min} on"


def _rate_column(name: str, *, units: bool) -> Column[GpuFacts]:
    heading = f"{_SHOWN[name]} TFLOP/s" if units else _SHOWN[name]
    return Column(heading, lambda gpu: _rate(gpu, name), numeric=True, optional=name in _RARELY_ASKED)


def _memory(gpu: GpuFacts) -> str:
    return "-" if gpu.memory_bytes is None else f"{gpu.memory_bytes / _GIBI:,.0f} GiB"


_FACTS: Final[tuple[Column[GpuFacts], ...]] = (
    Column("GPU", lambda gpu: Name(gpu.name)),
    Column("For", lambda gpu: gpu.kind or "-", optional=True),
    Column("Architecture", lambda gpu: gpu.architecture or "unknown", optional=True),
    Column("Capability", lambda gpu: gpu.compute_capability, optional=True),
    Column("Build with", lambda gpu: gpu.flag),
    Column("CUDA", _range),
    Column("SMs", lambda gpu: "-" if gpu.sms is None else str(gpu.sms), numeric=True),
    Column("Memory", _memory, numeric=True),
    Column(
        "TB/s",
        lambda gpu: "-" if gpu.memory_bytes_per_s is None else f"{gpu.memory_bytes_per_s / _TERA:.3f}",
        numeric=True,
    ),
    Column("L2", lambda gpu: "-" if gpu.l2_bytes is None else format_bytes(gpu.l2_bytes), numeric=True, optional=True),
)
