"""The tables of devices and the driver's answer -> `GpusDocument`, and that as a table."""

from collections.abc import Iterable, Mapping
from typing import Final

from opscope.documents.gpus import GpuFacts, GpusDocument
from opscope.knowledge.compute_capabilities import capability_of, compute_capabilities, gencode, sm_of
from opscope.knowledge.devices import Device, device_called, known_devices
from opscope.record.driver import Driver, DriverDevice
from opscope.report.blocks import Name, Table
from opscope.units import format_bytes

_TERA: Final = 1e12
_GIBI: Final = 1 << 30
_SHOWN: Final = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16/BF16", "fp8": "FP8", "int8": "INT8", "fp64": "FP64"}
_DRIVER: Final = "the driver"
_BY_CLOCK: Final = "computed from the driver's clocks"


def known_gpus() -> tuple[GpuFacts, ...]:
    """Return all models of the table, the oldest first."""
    return tuple(sorted((_of_model(device) for device in known_devices()), key=_age))


def _age(gpu: GpuFacts) -> tuple[bool, tuple[int, ...], str]:
    numbers = gpu.compute_capability.split(".")
    return (gpu.vendor != "nvidia", tuple(int(n) for n in numbers) if numbers[0].isdecimal() else (), gpu.name)


def gpus_here(driver: Driver) -> GpusDocument:
    """Return the devices that the driver lists, each with what is known of its model."""
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
    return _facts(device.compute_capability, device.vendor, device.architecture, device.name, _sheet(device))


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
    model = None if device.is_slice else device_called(device.name, device.multiprocessors)
    architecture = model.architecture if model else known.architecture if known else None
    if model is None:
        figures, note = _by_driver(device), _why_unknown(device)
    else:
        figures, note = _sheet(model), None
        figures["sources"] = {**model_sources(model), "memory size, L2, multiprocessors": _DRIVER}
        figures |= {"memory_bytes": device.memory_bytes, "l2_bytes": device.l2_bytes or model.l2_bytes}
    name = device.name if model is None else model.name
    return _facts(device.compute_capability, "nvidia", architecture, name, figures, here=device, note=note)


def model_sources(model: Device) -> dict[str, str]:
    """Return where the figures of a model are from."""
    return {"peaks, bandwidth": model.source, **_toolkit_source(model.compute_capability)}


def _why_unknown(device: DriverDevice) -> str:
    if device.is_slice:
        return "a slice of a card (MIG): the card's peaks do not hold for it"
    if device_called(device.name):
        return "a model of this name has another number of multiprocessors: described by the driver alone"
    return "not in the table: described by the driver alone"


def _by_driver(device: DriverDevice) -> dict[str, object]:
    """Describe a device by the driver's facts: bandwidth and FP32 from its clocks, nothing on Tensor Cores."""
    known = compute_capabilities().get(device.compute_capability)
    peaks, sources = {}, {"size, L2, multiprocessors, clock": _DRIVER, **_toolkit_source(device.compute_capability)}
    if known is not None and device.clock_khz and not device.is_slice:
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


def chosen(gpus: Iterable[GpuFacts], names: Iterable[str], architecture: str | None) -> tuple[GpuFacts, ...]:
    """Return those whose name, architecture, compute capability or ``sm`` holds one of some words.

    Args:
        gpus: from which to choose.
        names: words, in any case; none chooses all.
        architecture: ``hopper``, ``9.0`` or ``sm_90``, whole; None chooses all.
    """
    words = [word.lower() for word in names]
    return tuple(
        gpu
        for gpu in gpus
        if (architecture is None or _is_of(gpu, architecture))
        and (not words or any(_is_called(gpu, word) or _is_of(gpu, word) for word in words))
    )


def _is_of(gpu: GpuFacts, kind: str) -> bool:
    """Tell whether a word is the architecture, its first word too, or the compute capability, however written."""
    own, word = (gpu.architecture or "").lower(), kind.lower()
    return word in (own, own.split(" ")[0], gpu.arch.lower()) or capability_of(word) == gpu.compute_capability


def _is_called(gpu: GpuFacts, word: str) -> bool:
    names = [gpu.name, *(name for device in known_devices() if device.name == gpu.name for name in device.matches)]
    return any(word in name.lower() for name in names)


def gpus_table(document: GpusDocument, *, units: bool = True) -> Table:
    """One row a GPU; rates in 10^12 operations per second.

    Args:
        document: the GPUs.
        units: whether headings have them.
    """
    columns = (
        *("GPU", "Architecture", "Capability", "Build with", "CUDA", "SMs", "Memory", "TB/s", "L2"),
        *(f"{shown} TFLOP/s" if units else shown for shown in _SHOWN.values()),
    )
    rows = tuple(_row(gpu) for gpu in document.gpus)
    return Table(columns, rows, frozenset(range(5, len(columns))), frozenset({1, 2, 8, 12, 13, 14}))


def _row(gpu: GpuFacts) -> tuple[str, ...]:
    return (
        Name(gpu.name),
        gpu.architecture or "unknown",
        gpu.compute_capability,
        gpu.flag,
        _range(gpu),
        str(gpu.sms),
        "-" if gpu.memory_bytes is None else f"{gpu.memory_bytes / _GIBI:,.0f} GiB",
        "-" if gpu.memory_bytes_per_s is None else f"{gpu.memory_bytes_per_s / _TERA:.3f}",
        "-" if gpu.l2_bytes is None else format_bytes(gpu.l2_bytes),
        *(_rate(gpu, name) for name in _SHOWN),
    )


def _rate(gpu: GpuFacts, name: str) -> str:
    rate = gpu.peak_flops.get(name)
    return "-" if rate is None else f"{rate / _TERA:,.1f}"


def _range(gpu: GpuFacts) -> str:
    if gpu.cuda_min is None:
        return "-"
    return f"{gpu.cuda_min} to {gpu.cuda_max}" if gpu.cuda_max else f"{gpu.cuda_min} on"
