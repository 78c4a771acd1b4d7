"""What this machine has: its GPUs, ``opscope.gpus/1``, and whether what opscope uses works, ``opscope.doctor/1``."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from opscope.record.machine import DriverDevice

# ---------------------------------------------------------------- the doctor


class Status(StrEnum):
    """The result of a check.

    Attributes:
        FINE: it works.
        WARNING: it works, with a reservation.
        PROBLEM: it is there and does not work.
        ABSENT: it is not there, and nothing needs it.
    """

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"
    ABSENT = "absent"


class MachineCheck(Struct, frozen=True, kw_only=True):
    """One check of the machine.

    Attributes:
        name: what was checked.
        status: the result.
        found: details of the result.
        fix: what to do; null if nothing is to be done.
    """

    name: str
    status: Status
    found: str
    fix: str | None = None


class DoctorDocument(Struct, frozen=True, kw_only=True):
    """All checks.

    Attributes:
        works: whether no check found a problem.
        seconds: how long the checks took.
        checks: all checks.
    """

    schema: Literal["opscope.doctor/1"] = "opscope.doctor/1"
    works: bool
    seconds: float
    checks: tuple[MachineCheck, ...]


# ---------------------------------------------------------------- GPUs


class GpuFacts(Struct, frozen=True, kw_only=True):
    """One GPU model, or one device of this machine. Unknown figures are null.

    Attributes:
        name: its product name, or the driver's name for it.
        vendor, architecture: as named; the architecture is null if it is unknown.
        compute_capability: ``9.0``; for AMD's devices, the gfx name.
        arch: the compilers' name for it: ``sm_90``.
        flag: the compiler option to build for it; with nvcc, that makes machine code, and PTX for newer devices.
        gencode: the same in nvcc's long form, which can be repeated; null for AMD's devices.
        cuda_min: the first CUDA toolkit that builds for it; null for AMD's devices, or if unknown.
        cuda_max: the last one; null if the newest still does.
        kind: ``data centre``, ``workstation``, ``consumer`` or ``embedded``; null for a model that is not in the table.
        sms: number of streaming multiprocessors or compute units.
        memory_bytes, memory_bytes_per_s: size and bandwidth of its memory.
        l2_bytes: size of the cache that all multiprocessors share.
        boost_clock_mhz: the highest clock.
        peak_flops: dense operations per second by the type of the operands: ``fp16`` and ``bf16`` with 32-bit
            accumulation, ``fp16_acc16`` with 16-bit accumulation, ``fp32`` on ordinary cores.
        sources: the sources of the figures: figures -> source.
        here: the driver's facts about a device of this machine; null for a model.
        note: what to know before using these figures; null if there is nothing.
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


class GpusDocument(Struct, frozen=True, kw_only=True):
    """A table of GPUs.

    Attributes:
        gpus: the models, or the devices of this machine.
        driver: the driver's release; null if the driver was not asked or found.
        driver_cuda: the newest CUDA that it supports.
        problem: why this machine has no devices; null if it has.
    """

    schema: Literal["opscope.gpus/1"] = "opscope.gpus/1"
    gpus: tuple[GpuFacts, ...] = field(default_factory=tuple)
    driver: str | None = None
    driver_cuda: str | None = None
    problem: str | None = None
