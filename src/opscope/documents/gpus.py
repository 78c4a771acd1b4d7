"""What is known of GPUs: the schema ``opscope.gpus/1``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from opscope.record.driver import DriverDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One model, or one device here.

    Attributes:
        name: what it is sold as, or what the driver calls it.
        vendor, architecture: as named; the architecture is null where nobody knows it.
        compute_capability: ``9.0``; of AMD's devices the gfx name.
        arch: what compilers call it: ``sm_90``.
        flag: how compilers are told to build for it: of nvcc, machine code and PTX, which newer devices translate.
        gencode: the same for nvcc in the long form, which can be given several times; null of AMD's devices.
        cuda_min: the first CUDA toolkit that builds for it; null of AMD's devices, and where it is not known.
        cuda_max: the last one; null where the newest does.
        kind: ``data centre``, ``workstation``, ``consumer`` or ``embedded``; null of a model that is not in the table.
        sms: streaming multiprocessors, compute units; null where that is not known.
        memory_bytes, memory_bytes_per_s: of its memory.
        l2_bytes: of the cache that all of them share.
        boost_clock_mhz: the highest clock.
        peak_flops: dense operations per second by the type of the operands: ``fp16`` and ``bf16`` with 32-bit
            accumulation, ``fp16_acc16`` with 16-bit accumulation, ``fp32`` on ordinary cores.
        sources: where each of this is from: what -> whence.
        here: what the driver says, of a device here.
        note: what to know before using these figures; null where nothing.
    """

    name: str
    vendor: str
    architecture: str | None
    compute_capability: str
    arch: str
    flag: str
    gencode: str | None
    cuda_min: str | None
    cuda_max: str | None
    sms: int | None
    memory_bytes: int | None
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    boost_clock_mhz: int | None
    peak_flops: Mapping[str, float]
    sources: Mapping[str, str]
    here: DriverDevice | None = None
    note: str | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusDocument:
    """A table of GPUs.

    Attributes:
        gpus: the models, or the devices here.
        driver: the driver's release, where it was asked.
        driver_cuda: the newest CUDA that it supports.
        problem: why there are no devices here.
    """

    schema: Literal["opscope.gpus/1"] = "opscope.gpus/1"
    gpus: tuple[GpuFacts, ...] = field(default_factory=tuple)
    driver: str | None = None
    driver_cuda: str | None = None
    problem: str | None = None
