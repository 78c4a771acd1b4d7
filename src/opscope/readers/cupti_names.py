"""Names for CUPTI's numbers, in its own records and in Nsight Systems' exports, which use most of them too.

The numbers are those of CUPTI's headers (cupti_activity.h, the same from CUDA 12.0 on).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.trace.model import Migration

UNKNOWN: Final = "Unknown"
DIRECTIONS: Final = (UNKNOWN, "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORY: Final = (UNKNOWN, "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
SYNCHRONIZATIONS: Final = ("Synchronize", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
# Why unified memory moved; which access of a GPU caused a page fault; why memory was mapped remotely.
MIGRATION_CAUSES: Final = (None, "user", "coherence", "prefetch", "eviction", "access counters")
ACCESSES: Final = (None, "read", "write", "atomic", "prefetch")
MAPPING_CAUSES: Final = (None, "coherence", "thrashing", "policy", "out of memory", "eviction")
# Events of unified memory; kinds of records that CUPTI may refuse; overheads of profiler and driver.
MIGRATIONS: Final[Mapping[int, Migration]] = {
    1: Migration.TO_DEVICE,
    2: Migration.TO_HOST,
    3: Migration.CPU_FAULT,
    4: Migration.GPU_FAULT,
    5: Migration.THRASHING,
    6: Migration.THROTTLING,
    7: Migration.REMOTE_MAPPING,
    8: Migration.BETWEEN_DEVICES,
}
RECORDS: Final[Mapping[int, str]] = {
    1: "copies",
    2: "fills",
    4: "calls of the driver",
    5: "calls of the runtime",
    8: "devices",
    9: "contexts",
    10: "kernels",
    17: "what the profiler and the driver do themselves",
    22: "copies between devices",
    38: "synchronisations",
}
OVERHEADS: Final[Mapping[int, str]] = {
    1: "Driver Compiler",
    1 << 16: "Buffer Flush",
    2 << 16: "Instrumentation",
    3 << 16: "Resource",
    4 << 16: "Runtime Triggered Module Loading",
    5 << 16: "Lazy Function Loading",
    6 << 16: "Command Buffer Full",
    7 << 16: "Activity Buffer Request",
    8 << 16: "CUPTI Unified Memory Initialisation",
}
NOT_MEANT: Final = 0xFFFFFFFF  # stands for "no stream" and "no event"
_VERSION: Final = lazy_pattern(r"_v\d{4,5}$")


def call_name(name: str) -> str:
    """Return a runtime call's name without its interface version: ``cudaLaunchKernel_v7000``.

    The ``_v2`` of driver calls is a part of their names, and stays.
    """
    return _VERSION.sub("", name)


def copy_name(direction: str, source: str, destination: str) -> str:
    """Return torch.profiler's name for a copy."""
    return f"Memcpy {direction} ({source} -> {destination})"


def fill_name(memory: str) -> str:
    """Return torch.profiler's name for a fill."""
    return f"Memset ({memory})"


def named(names: Sequence[str], number: int | None, other: str = UNKNOWN) -> str:
    """Return a name by its number; ``other`` if there is no such number, or it is None."""
    return names[number] if number is not None and 0 <= number < len(names) else other


def cause(causes: Sequence[str | None], number: int | None) -> str | None:
    """Return a cause by its number; None if it is unknown or was not recorded."""
    return causes[number] if number is not None and 0 <= number < len(causes) else None
