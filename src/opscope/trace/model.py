"""The nouns: what a trace is made of. Frozen, typed, and without behaviour.

Times are integer nanoseconds. An unknown is ``None``, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import polars as pl

from opscope.base.summary import Summarised, Summary
from opscope.base.units import format_bytes, format_count
from opscope.trace.columns import TABLES


class Migration(StrEnum):
    """The names of rows of `Trace.migrations`: what the driver did to unified memory."""

    TO_DEVICE = "Unified memory HtoD"
    TO_HOST = "Unified memory DtoH"
    BETWEEN_DEVICES = "Unified memory DtoD"
    CPU_FAULT = "CPU page fault"
    GPU_FAULT = "GPU page fault"
    THRASHING = "Thrashing"
    THROTTLING = "Throttling"
    REMOTE_MAPPING = "Remote mapping"


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What the trace's producer recorded of one device.

    Attributes:
        vendor: ``amd`` where that shows; None else.
        known_by: how its name is known, where the trace does not give it (`opscope.analysis.structure.named_devices`).
    """

    index: int
    name: str
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    threads_per_multiprocessor: int | None = None
    registers_per_multiprocessor: int | None = None
    shared_memory_per_multiprocessor_bytes: int | None = None
    uuid: str | None = None
    vendor: str | None = None
    known_by: str | None = None


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where a trace came from and what its file says of itself.

    ``replaced_bytes`` counts the bytes that are not allowed in JSON and were read as question marks, ``odd_events`` the
    events that were left out because their times cannot be true, ``unreadable_bytes`` the stretches that are no events
    and the lists within events that cannot be read.
    ``damage`` says why the file ended before its end, if it did.
    ``metadata`` holds the entries of the file's header that are known to be harmless, as text (schema version, driver,
    what opscope's own captures write). ``not_understood`` counts the slices of every category that no reader knows:
    work of devices of another kind may be among them. ``failed_checks`` holds what failed before the trace was exported
    and does not show in its events: the checks' names, with their sentences. ``not_recorded`` says in sentences what
    the recording lacks by its own account, ``dropped_records`` how many records were lost meanwhile.
    """

    path: str
    format: str
    size_bytes: int
    event_count: int
    replaced_bytes: int
    odd_events: int
    unreadable_bytes: int
    damage: str | None
    metadata: Mapping[str, str]
    not_understood: Mapping[str, int] = field(default_factory=dict)
    failed_checks: Mapping[str, str] = field(default_factory=dict)
    not_recorded: tuple[str, ...] = ()
    dropped_records: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Trace(Summarised):
    """One profiled process: its tables have the columns that ``columns.h`` names.

    Attributes:
        source: the file and its header.
        devices: properties of the devices the file lists; empty where it lists none.
        threads: process and thread, as the file has them (JSON text), of every number in a ``thread`` column.
        operators: one row per operator slice (``cpu_op``).
        launches: one row per runtime or driver API call.
        activities: one row per kernel, memcpy or memset: the work of the devices.
        annotations: one row per named host range (``record_function``, ``ProfilerStep#N``).
        frames: one row per Python frame slice; empty unless stacks were recorded.
        allocations: one row per allocation or release; empty unless memory was recorded.
        overheads: one row per profiler or driver overhead record, such as lazy module loading.
        ranges: one row per named host range that need not nest (NVTX's start and end).
        synchronizations: one row per wait of the host or of a stream; empty unless these were recorded.
        migrations: one row per transfer, page fault or other event of unified memory; empty unless recorded.
    """

    source: TraceSource
    devices: tuple[DeviceProperties, ...]
    threads: tuple[tuple[str, str], ...]
    operators: pl.DataFrame
    launches: pl.DataFrame
    activities: pl.DataFrame
    annotations: pl.DataFrame
    frames: pl.DataFrame
    allocations: pl.DataFrame
    overheads: pl.DataFrame
    ranges: pl.DataFrame
    synchronizations: pl.DataFrame
    migrations: pl.DataFrame

    def summary(self) -> Summary:
        """Return the file, its devices, and how many rows each table has."""
        sizes = {name: getattr(self, name).height for name in TABLES}
        rows = [
            ("file", f"{self.source.path} ({format_bytes(self.source.size_bytes)}, {self.source.format})"),
            ("devices", ", ".join(f"{device.index}: {device.name}" for device in self.devices) or "none listed"),
            *((name, format_count(size)) for name, size in sizes.items() if size),
        ]
        if self.source.damage is not None:
            rows.append(("damage", self.source.damage))
        return Summary("Trace", tuple(rows))
