"""The data model of a trace: frozen, typed records without behaviour.

Times are integer nanoseconds. An unknown is ``None``, never 0.
"""

from collections.abc import Mapping
from enum import StrEnum

import polars as pl
from msgspec import Struct, field

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


class DeviceProperties(Struct, frozen=True):
    """What the trace's producer recorded of one device. What it did not record is None.

    Attributes:
        index: the device's number in the trace.
        compute_capability: ``9.0``; None for AMD's devices, whose numbers mean something else.
        vendor: ``amd`` if the record shows it, else None.
        known_by: how the name is known if the trace does not give it (`opscope.analysis.structure.origin`).
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


class TraceSource(Struct, frozen=True):
    """Where a trace came from, and what reading its file found.

    Attributes:
        path: the file.
        format: the name of its format (`opscope.readers.formats`).
        size_bytes: its size, unpacked.
        event_count: events or records that were read, of any kind.
        replaced_bytes: bytes that JSON does not allow, which were read as question marks.
        odd_events: events that were left out because their times are impossible.
        unreadable_bytes: bytes that are not part of an event, and lists within events that cannot be parsed.
        damage: why reading stopped before the end of the file; None if the file is whole.
        metadata: entries of the file's header that are known to be harmless, as text (schema version, driver, what
            opscope's own captures write).
        not_understood: slices by category, for categories that no reader knows. They may be work of other devices.
        failed_checks: by name, the sentences of trust checks that failed before the trace was exported and that cannot
            be repeated from its events.
        not_recorded: what the recording lacks by its own account, in sentences.
        dropped_records: records that the collector lost.
        is_part: whether only a part of the file was read, as asked.
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
    is_part: bool = False


class DeviceSteps(Struct, frozen=True):
    """When a device worked for each step of a whole trace.

    Attributes:
        device: its number; -1 for activities whose device was not recorded.
        by_work: whether the steps' device work decides that; else their ranges on the host do.
        periods: from when to when, per step.
    """

    device: int
    by_work: bool
    periods: tuple[tuple[int, int], ...]


class Around(Struct, frozen=True):
    """What lies around a part of a trace: figures of its steps rest on this too, and so are those of the whole.

    Attributes:
        trace: the records of the part and of the time around it.
        spans: from when to when what began on the host belongs to the part.
        steps: the part's steps, as positions in the periods of the devices.
        devices: all devices that worked in the whole trace; empty where none did.
        host_ns: when the first operator, call or range of the whole trace begins and when the last one ends; None where
            there is none.
        extent_ns: the same of all slices that tell what ran.
        long_pauses: whether dispatching pauses for longer in the whole trace, by how it was recorded.
        near_ns: from when to when ``trace`` holds all operators; None where it holds those of the whole.
        misplaced: whether work of the whole trace is impossible on the host's clock: else no work of a part is.
    """

    trace: "Trace"
    spans: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    devices: tuple[DeviceSteps, ...]
    host_ns: tuple[int, int] | None
    extent_ns: tuple[int, int] | None
    long_pauses: bool
    near_ns: tuple[int, int] | None
    misplaced: bool = True


class Trace(Summarised, Struct, frozen=True):
    """The recording of one process. Its tables have the columns of ``columns.h``.

    Attributes:
        source: the file and its header.
        devices: properties of the devices the file lists; empty where it lists none.
        threads: (process, thread) of each number in a ``thread`` column, as JSON text of the file's values.
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
        communications: one row per call of a collective or message between processes, and one per kernel of these.
        counters: one row per sample of power, clocks, utilisation and the like; empty unless recorded.
        around: what lies around a part that holds steps; None for a whole trace.
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
    communications: pl.DataFrame
    counters: pl.DataFrame
    around: Around | None = None

    def summary(self) -> Summary:
        """Summarise the file, its devices, and the number of rows of each table."""
        sizes = {name: getattr(self, name).height for name in TABLES}
        rows = [
            ("file", f"{self.source.path} ({format_bytes(self.source.size_bytes)}, {self.source.format})"),
            ("devices", ", ".join(f"{device.index}: {device.name}" for device in self.devices) or "none listed"),
            *((name, format_count(size)) for name, size in sizes.items() if size),
        ]
        if self.source.damage is not None:
            rows.append(("damage", self.source.damage))
        return Summary("Trace", tuple(rows))
