"""What the recorded allocations say: the peak, and who allocated."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from opscope.analysis.links import Links, column
from opscope.model import Trace


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of one device (or of the host) during the recording, as PyTorch's allocator counts it.

    Attributes:
        device: the device number; None for the host.
        peak_allocated_bytes: the largest total that was allocated at any time.
        allocated_bytes: the sum of all allocations, releases not counted.
        allocations: how many.
        by_operator: ``name``, ``allocations``, ``allocated_bytes`` of the innermost operators; most first.
    """

    device: int | None
    peak_allocated_bytes: int
    allocated_bytes: int
    allocations: int
    by_operator: pl.DataFrame


def memory_use(trace: Trace, links: Links) -> tuple[MemoryUse, ...]:
    """Return the memory use of the host and of each device; empty where memory was not recorded."""
    if not trace.allocations.height:
        return ()
    owner = links.operators.innermost_at(column(trace.allocations, "thread"), column(trace.allocations, "time_ns"))
    names = trace.operators["name"].cast(pl.String).gather(pl.Series(owner).replace(-1, None))
    events = trace.allocations.with_columns(name=names, is_host=pl.col("device_type") == 0)
    uses = []
    for (is_host, device), group in sorted(
        events.group_by("is_host", "device"), key=lambda item: (not item[0][0], item[0][1] or 0)
    ):
        grown = group.filter(pl.col("bytes") > 0)
        uses.append(
            MemoryUse(
                device=None if is_host else int(np.int64(device)),
                peak_allocated_bytes=int(group["total_allocated_bytes"].fill_null(0).to_numpy().max()),
                allocated_bytes=int(grown["bytes"].sum()),
                allocations=grown.height,
                by_operator=grown.group_by("name")
                .agg(allocations=pl.len(), allocated_bytes=pl.col("bytes").sum())
                .sort("allocated_bytes", "name", descending=[True, False]),
            )
        )
    return tuple(uses)
