"""Memory use by the recorded allocations: the peak, and which operators allocated."""

import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, costliest_first
from opscope.analysis.structure.links import Links
from opscope.trace.model import Trace


class MemoryUse(Struct, frozen=True):
    """Memory of one device (or of the host) during the recording, as PyTorch's allocator counts it.

    Attributes:
        device: the device number; None for the host.
        peak_allocated_bytes: the largest total that was allocated at any time; None where totals were not recorded.
        allocated_bytes: the sum of all allocations, releases not counted.
        allocations: how many there were.
        by_operator: ``name``, ``allocations``, ``allocated_bytes`` of the innermost operators; the most bytes first.
    """

    device: int | None
    peak_allocated_bytes: int | None
    allocated_bytes: int
    allocations: int
    by_operator: pl.DataFrame


def memory_use(trace: Trace, links: Links) -> tuple[MemoryUse, ...]:
    """Return the memory use of the host and of each device; empty where memory was not recorded."""
    if not trace.allocations.height:
        return ()
    owner = links.operators.innermost_at(column(trace.allocations, "thread"), column(trace.allocations, "time_ns"))
    names = trace.operators["name"].gather(pl.Series(owner).replace(-1, None))
    # Device type 0 is the host, whatever device number the record carries; a record without a type is the host's too.
    on_host = trace.allocations["device_type"].fill_null(0) == 0
    events = trace.allocations.with_columns(
        name=names, device=pl.when(on_host).then(None).otherwise(pl.col("device").fill_null(0))
    )
    return tuple(_use(device, group) for (device,), group in sorted(events.group_by("device"), key=_host_first))


def _host_first(item: tuple[tuple[object, ...], pl.DataFrame]) -> tuple[bool, int]:
    (device,), _ = item
    return device is not None, 0 if device is None else int(str(device))


def _use(device: object, events: pl.DataFrame) -> MemoryUse:
    grown = events.filter(pl.col("bytes") > 0)
    totals = events["total_allocated_bytes"].drop_nulls()
    operators = grown.group_by("name").agg(allocations=pl.len(), allocated_bytes=pl.col("bytes").sum())
    return MemoryUse(
        device=None if device is None else int(str(device)),
        peak_allocated_bytes=int(totals.to_numpy().max()) if len(totals) else None,
        allocated_bytes=int(grown["bytes"].sum()),
        allocations=grown.height,
        by_operator=costliest_first(
            operators.with_columns(pl.col("name").cast(pl.String)), ["allocated_bytes"], ["name"]
        ),
    )
